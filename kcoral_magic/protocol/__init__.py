"""The wire protocol: pure, bytes in, events out. PROTOCOL.md is the specification."""

__version__ = "0.1.0"
PRODUCT = f"kcoral-magic {__version__}"
