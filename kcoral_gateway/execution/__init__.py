"""Sessions, placements and executions: who runs what, where, and what is kept of it."""
