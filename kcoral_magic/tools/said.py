"""A worker's words, as far as they are what was asked for: it is a stranger, and may send anything that travels.

Texts are cut and can be printed (a lone surrogate in one breaks a notebook's message); numbers are finite and small
enough to compute with. Nothing in here raises.
"""

from __future__ import annotations

from typing import Any

_MOST = 1e300


def text(value: Any, most: int) -> str:
    """A text of at most ``most`` characters; nothing of what is none."""
    if not isinstance(value, str):
        return f"{value}" if isinstance(value, float) or is_small(value) else ""
    return value[:most].encode("utf-8", "replace").decode("utf-8")


def texts(value: Any, most: int, each: int) -> tuple[str, ...]:
    """The first ``most`` of several texts."""
    return tuple(text(one, each) for one in value[:most]) if isinstance(value, list | tuple) else ()


def number(value: Any) -> float | None:
    """A number that is finite."""
    return float(value) if isinstance(value, int | float) and -_MOST < value < _MOST else None


def is_small(value: Any) -> bool:
    """Whether it is an integer that every display and JSON reader takes."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63
