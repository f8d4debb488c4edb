"""The worker host: a small process of its own for each worker, outside the sandbox."""
