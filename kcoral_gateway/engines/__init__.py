"""Who starts worker hosts on nodes. Placement and liveness only, never data."""
