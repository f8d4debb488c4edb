"""Inside the user's IPython: the magics, the proxy and the relay."""
