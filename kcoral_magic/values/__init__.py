"""Values as bytes: safe formats that run nobody's code, and pickles for those who trust each other.

``tree`` holds JSON-like values and what they contain (``arrays``, ``tensors``, ``tables``), ``pickled`` everything
else, ``codec`` chooses between them, ``parcel`` packs several named values into one run of bytes, ``digest`` says
whether a value is still the same. numpy, torch, pyarrow, pandas and polars are imported only where a value of theirs
is met.
"""
