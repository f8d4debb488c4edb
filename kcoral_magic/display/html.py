"""Tables for people: the same rows as HTML for a notebook and as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

# Inherits the notebook's fonts and colours, so that light and dark themes both fit.
_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_SHORT = 24  # characters
_CELL = "text-align:left;padding:2px 14px 2px 0"


@dataclass(frozen=True)
class Table:
    """A title line, column names and rows of text. ``data`` holds what the rows were made of."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    data: Sequence[object] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [self.title]
        if self.rows:
            for row in (self.columns, *self.rows):
                lines.append(
                    "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                )
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{_CELL};font-weight:600;opacity:.7">{escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f'<td style="{_CELL}{_wrap(cell)}">{escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self.rows
        )
        table = (
            f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>' if self.rows else ""
        )
        note = f'<div style="opacity:.7">{escape(self.note)}</div>' if self.note else ""
        return f"<div><div><b>{escape(self.title)}</b></div>{table}{note}</div>"


def _wrap(cell: str) -> str:
    """A short cell stays on one line: 58 ms is read as one."""
    return ";white-space:nowrap" if len(cell) <= _SHORT else ""


@dataclass(frozen=True)
class Badge:
    """A short statement of how things are from here on, with what to do about it."""

    text: str
    advice: str = ""
    is_on: bool = True

    def __repr__(self) -> str:
        return f"kcoral: {self.text}" + (f" ({self.advice})" if self.advice else "")

    def _repr_html_(self) -> str:
        dot = "#2e9d5b" if self.is_on else "#8a8a8a"
        advice = f' <span style="opacity:.65">{escape(self.advice)}</span>' if self.advice else ""
        return f'<div><span style="color:{dot}">●</span> kcoral: {escape(self.text)}{advice}</div>'


def note(text: str) -> str:
    """A line of ours beside a cell's output: small, in the front end's own colours."""
    return f'<div style="opacity:.65;font-size:85%">kcoral: {escape(text)}</div>'


def bar(done: float, whole: float, width: int = 16) -> str:
    """How much is done, as text: ``████████░░░░░░░░``."""
    filled = round(width * min(1.0, done / whole)) if whole else width
    return "█" * filled + "░" * (width - filled)


def size(count: float) -> str:
    """Bytes as people write them: ``588.9 kB``, ``1.2 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.2f} TB"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
