"""Pictures as inline SVG: text, so that they survive saving; in the page's own colours, so that both themes fit.

``currentColor`` is the page's text; the few colours of our own were looked at on white and on black. Each picture has
a text alternative. Nothing in here is trusted: all strings are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#4a8fd8", "#cc7722", "#3fa46e", "#a874d1", "#d9534f", "#8c8c8c"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, RED)
_FONT = "font-family:inherit;font-size:11px;font-variant-numeric:tabular-nums"


def picture(width: float, height: float, body: str, says: str) -> str:
    """A picture with its text alternative; it shrinks with the page and does not grow."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" style="max-width:100%;height:auto;{_FONT}" '
        f'role="img" aria-label="{escape(says)}" fill="currentColor">{body}</svg>'
    )


def words(x: float, y: float, text: str, *, anchor: str = "start", faint: bool = False, color: str = "") -> str:
    """A line of text."""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    look = ' opacity=".65"' if faint else ""
    fill = f' fill="{color}"' if color else ""
    return f'<text x="{x:.4g}" y="{y:.4g}"{place}{look}{fill}>{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, color: str, *, opacity: float = 1.0, says: str = "") -> str:
    """A filled rectangle."""
    look = f' opacity="{opacity:g}"' if opacity != 1 else ""
    title = f"<title>{escape(says)}</title>" if says else ""
    shape = (
        f'<rect x="{x:.4g}" y="{y:.4g}" width="{max(width, 0):.4g}" height="{height:.4g}" fill="{color}"{look} rx="1.5"'
    )
    return f"{shape}>{title}</rect>" if title else f"{shape}/>"


def line(points: Sequence[tuple[float, float]], color: str, *, width: float = 1.5, dashed: bool = False) -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{dash}/>'


def bars(
    rows: Sequence[tuple[str, float, str]],
    *,
    most: float | None = None,
    says: str,
    colors: Sequence[str] = (BLUE,),
    label_width: float = 120,
    width: float = 390,
    marks: Sequence[float | None] = (),
) -> str:
    """Horizontal bars: a label, a length, and what stands at its end.

    Args:
        most: What a full bar is; the largest value by default.
        marks: A second value for each bar, drawn as a tick.
    """
    full = most if most is not None else max((value for _, value, _ in rows), default=0.0)
    room = width - label_width - 92
    parts = []
    for place, (label, value, text) in enumerate(rows):
        y = place * 18
        length = room * min(max(value / full, 0.0), 1.0) if full > 0 else 0.0
        color = colors[place % len(colors)]
        parts.append(words(label_width - 6, y + 12, _cut(label, int(label_width / 5.6)), anchor="end"))
        parts.append(f'<rect x="{label_width:g}" y="{y + 3}" width="{room:g}" height="12" opacity=".08" rx="1.5"/>')
        parts.append(box(label_width, y + 3, length, 12, color))
        if place < len(marks) and (mark := marks[place]) is not None and full > 0:
            x = label_width + room * min(max(mark / full, 0.0), 1.0)
            parts.append(f'<path d="M{x:.4g} {y + 1}v16" stroke="currentColor" stroke-width="1.5"/>')
        parts.append(words(label_width + room + 6, y + 12, text))
    return picture(width, max(len(rows) * 18, 18), "".join(parts), says)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class Axis:
    """Numbers to places on a picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies; what is outside lies at the edge."""
        low, high, value = (
            math.log10(max(one, 1e-300)) if self.is_log else one for one in (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round numbers on it: powers of ten, or about four steps."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, (last - first) // 6)
            return [10.0**power for power in range(first, last + 1, step)]
        span = self.high - self.low
        if span <= 1e-9:  # also steps that no float has
            return [self.low]
        step = 10 ** math.floor(math.log10(span / 4))
        step *= next((factor for factor in (1, 2, 2.5, 5, 10) if span / (step * factor) <= 5), 10)
        first = math.ceil(self.low / step)
        return [first * step + place * step for place in range(int((self.high - first * step) / step + 1e-9) + 1)]


def frame(x: Axis, y: Axis, x_label: str, y_label: str, x_text: Sequence[str], y_text: Sequence[str]) -> str:
    """Two axes with grid lines; ``x_text`` and ``y_text`` go with their ticks."""
    parts = []
    for value, text in zip(x.ticks(), x_text, strict=True):
        place = x.at(value)
        parts.append(f'<path d="M{place:.1f} {y.end:.1f}V{y.start:.1f}" stroke="currentColor" opacity=".13"/>')
        parts.append(words(place, y.start + 14, text, anchor="middle", faint=True))
    for value, text in zip(y.ticks(), y_text, strict=True):
        place = y.at(value)
        parts.append(f'<path d="M{x.start:.1f} {place:.1f}H{x.end:.1f}" stroke="currentColor" opacity=".13"/>')
        parts.append(words(x.start - 5, place + 4, text, anchor="end", faint=True))
    parts.append(words((x.start + x.end) / 2, y.start + 29, x_label, anchor="middle", faint=True))
    parts.append(words(x.start, y.end - 7, y_label, faint=True))
    return "".join(parts)
