"""Which packages both sides have, for when a pickle of the one cannot be read by the other."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable

# Whose objects people send, and whose pickles change between versions. Only what is loaded is looked at.
_PACKAGES = (
    "cloudpickle",
    "numpy",
    "torch",
    "triton",
    "pandas",
    "polars",
    "pyarrow",
    "scipy",
    "sklearn",
    "transformers",
)

Versions = tuple[tuple[str, str], ...]


def here() -> Versions:
    """Python and the loaded ones of those packages, with their versions."""
    found = [("Python", platform.python_version())]
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found.append((name, version[:40]))
    return tuple(found)


def difference(theirs: Iterable[tuple[str, str]]) -> str:
    """What is of another version on the other side, in words; empty if nothing is."""
    mine = dict(here())
    told = [
        f"{name} {version} there, {mine[name]} here" for name, version in theirs if mine.get(name, version) != version
    ]
    return f"the versions differ: {'; '.join(told)}" if told else ""
