"""The program inside the sandbox: the only place where user code runs."""
