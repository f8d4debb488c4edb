"""What tools leave beside the notebook, in ``.kcoral``: reports by time, baselines by name."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

from kcoral_magic.errors import UsageError

FOLDER = Path(".kcoral")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def save(data: bytes, given: str | None, tool: str, suffix: str) -> Path:
    """Keep a report: where it was said, else by the time, with a number where there is one of that second."""
    if given:
        place = Path(given).expanduser()
    else:
        stem = time.strftime(f"{tool}-%Y%m%d-%H%M%S")
        names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
        place = next(path for name in names if not (path := FOLDER / "reports" / f"{name}{suffix}").exists())
    write(place, data)
    return place


def baseline(name: str, suffix: str) -> Path:
    """Where a baseline of this name is.

    Raises:
        UsageError: The name is none.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"a baseline's name has 1-64 letters, digits, '.', '_' or '-', got {name!r}")
    return FOLDER / "baselines" / f"{name}{suffix}"


def write(place: Path, data: bytes) -> None:
    """Write a file whole, or not at all.

    Raises:
        UsageError: It cannot be written there.
    """
    name = None
    try:
        if place.exists() and not place.is_file():
            raise UsageError(
                f"{place} cannot be written: it is a folder or a device"
            )  # replaced, /dev/null were a file
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, place)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise UsageError(f"{place} cannot be written: {getattr(error, 'strerror', None) or error}") from None
