"""The Python API, without IPython: ``AsyncClient`` is the implementation, ``Client`` the same without logic."""
