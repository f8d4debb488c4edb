"""Small pieces of HTML that need no style sheet and fit a light and a dark page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

FAINT = "opacity:.65"
_CELL = "text-align:{};padding:1px 14px 1px 0;vertical-align:top"


def faint(text: str) -> str:
    """Text in the background."""
    return f'<span style="{FAINT}">{escape(text)}</span>'


def beside(*blocks: str) -> str:
    """Blocks side by side, as far as the page is wide."""
    shown = "".join(f'<div style="max-width:395px">{block}</div>' for block in blocks if block)
    return f'<div style="display:flex;flex-wrap:wrap;gap:0 24px">{shown}</div>' if shown else ""


def note(text: str) -> str:
    """A line in the background."""
    return f'<div style="{FAINT}">{escape(text)}</div>'


def heading(title: str, said: str = "") -> str:
    """The title of a part of a page, and a few words on it."""
    beside = f' <span style="{FAINT};font-weight:normal">{escape(said)}</span>' if said else ""
    return f'<div style="font-weight:600;margin:12px 0 4px">{escape(title)}{beside}</div>'


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """What opens on a click, without a script. ``summary`` is HTML; nothing is made of an empty body."""
    if not body:
        return ""
    state = " open" if is_open else ""
    head = f'<summary style="cursor:pointer">{summary}</summary>'
    return f'<details{state} style="margin:4px 0">{head}{body}</details>'


def colored(text: str, color: str) -> str:
    """Text in a colour; plain if there is none."""
    return f'<span style="color:{color};font-weight:600">{escape(text)}</span>' if color else faint(text)


def share_bar(share: float, color: str, width: int = 120) -> str:
    """A bar of at most ``width`` pixels."""
    pixels = max(1, round(min(max(share, 0.0), 1.0) * width))
    return f'<div style="background:{color};height:9px;margin-top:4px;border-radius:2px;width:{pixels}px"></div>'


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = (), wraps: int = -1) -> str:
    """A table of HTML cells.

    Args:
        right: The columns of numbers.
        wraps: The column that may be broken into lines.
    """
    styles = []
    for place in range(len(heads)):
        style = _CELL.format("right" if place in right else "left")
        styles.append(f"{style};{'overflow-wrap:anywhere' if place == wraps else 'white-space:nowrap'}")
    head = "".join(
        f'<th style="{style};{FAINT}">{escape(name)}</th>' for style, name in zip(styles, heads, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f'<td style="{style}">{cell}</td>' for style, cell in zip(styles, row, strict=True)) + "</tr>"
        for row in rows
    )
    top = f"<tr>{head}</tr>" if any(heads) else ""
    return f'<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">{top}{body}</table>'
