"""Numbers with units as people write them: ``12.35 µs``, ``693.4 GB/s``, ``67.2 %``."""

from __future__ import annotations

import math

_TIMES = {
    "ns": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "nsecond": 1e-9,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
}
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float | int | str | None, unit: str = "") -> str:
    """A value with its unit, scaled to what is easy to read."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if value != value:
        return "n/a"
    if unit in _TIMES:
        return time(value * _TIMES[unit])
    if unit == "%":
        return f"{value:.1f} %" if 0.05 <= abs(value) or not value else f"{value:.2g} %"
    if unit in ("byte", "byte/s", "byte/block", "B", "byte/cycle"):
        return scaled(value, "B" + unit.removeprefix("byte").removeprefix("B"))
    if unit in ("hz", "FLOP/s", "sector/s"):
        return scaled(value, {"hz": "Hz"}.get(unit, unit))
    return f"{count(value)} {unit}".rstrip()


def time(seconds: float) -> str:
    """A span of time."""
    size = abs(seconds)
    for least, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if size >= least:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


def scaled(value: float, unit: str) -> str:
    """With a prefix of 1000s."""
    for least, prefix in _SI:
        if abs(value) >= least:
            return f"{_digits(value / least)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def count(value: float) -> str:
    """A plain number: with thousands, or with four digits."""
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _digits(value: float) -> str:
    """Four of them, and no dot that says nothing."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    return text if "e" not in text else f"{value:.3f}"


def ratio(value: float) -> str:
    """One time by another: two digits at least, however small."""
    return f"{value:.2g}" if 1e-4 <= value < 0.1 else f"{value:.3f}" if value < 100 else f"{value:,.0f}"
