"""What a cell shows of two profiles: green where a metric got better, red where worse, by that metric's own sense."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from kcoral_magic.display import svg
from kcoral_magic.display.markup import colored, faint, folded, grid, note
from kcoral_magic.display.quantities import quantity
from kcoral_magic.display.twin import Twin
from kcoral_magic.reports.comparison import Change, Comparison, Pair
from kcoral_magic.reports.export import diff_as_json
from kcoral_magic.reports.ncu import DURATION

_COLORS = {"better": svg.GREEN, "worse": svg.RED, "same": "", "other": ""}
_MOST_PAIRS = 30
_MOST_CHANGES = 40


class ProfileDiff(Twin):
    """A report against its baseline. ``comparison`` is its data."""

    KIND = "ncu-diff"

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/ncu-diff-1.json``."""
        return diff_as_json(self.comparison)

    def __repr__(self) -> str:
        found = self.comparison
        lines = [f"ncu diff: {_counted(len(found.pairs))} in both", *(f"  {note}" for note in found.notes)]
        for pair in found.pairs[:_MOST_PAIRS]:
            lines.append(f"  {pair.after.name[:60]}")
            changed = [change for change in pair.headlines if change.verdict != "same"]
            lines += [
                f"    {change.metric:<64} {quantity(change.before, change.unit):>12} → "
                f"{quantity(change.after, change.unit):>12}  {_ratio(change):>9}  {change.verdict}"
                for change in changed
            ]
            if same := len(pair.headlines) - len(changed):
                lines.append(f"    {same} the same")
        for word, kernels in (("gone", found.gone), ("new", found.new)):
            if kernels:
                lines.append(f"  {word}: {', '.join(kernel.name for kernel in kernels)[:200]}")
        return "\n".join(lines)

    def html(self) -> str:
        """The headlines of each kernel, and below them what else changed."""
        found = self.comparison
        parts = [f"<div><b>{_counted(len(found.pairs))} in both</b></div>"]
        parts += [note(text) for text in found.notes]
        parts += [_pair(pair, place == 0) for place, pair in enumerate(found.pairs[:_MOST_PAIRS])]
        if len(found.pairs) > _MOST_PAIRS:
            parts.append(note(f"{len(found.pairs) - _MOST_PAIRS} more in .json()"))
        for word, kernels in (("gone", found.gone), ("new", found.new)):
            if kernels:
                names = escape(", ".join(kernel.name for kernel in kernels)[:300])
                parts.append(f"<div>{faint(word)} {names}</div>")
        return f"<div>{''.join(parts)}</div>"


def _pair(pair: Pair, is_open: bool) -> str:
    time = pair.change(DURATION)
    said = f" · {quantity(time.before, time.unit)} → {quantity(time.after, time.unit)} {_colored(time)}" if time else ""
    shown = {change.metric for change in pair.headlines}
    others = sorted(
        (change for change in pair.changes if change.verdict in ("better", "worse") and change.metric not in shown),
        key=lambda change: -abs((change.ratio or 0.0) - 1.0),
    )
    title = faint(f"{len(others)} other metrics got better or worse")
    rest = folded(title, _table(others[:_MOST_CHANGES])) if others else ""
    return folded(f"<b>{escape(pair.after.name[:100])}</b>{said}", _table(pair.headlines) + rest, is_open=is_open)


def _table(changes: Sequence[Change]) -> str:
    rows = [
        (
            escape(change.metric),
            quantity(change.before, change.unit),
            quantity(change.after, change.unit),
            _colored(change),
        )
        for change in changes
    ]
    return grid(("metric", "before", "after", ""), rows, right=(1, 2, 3), wraps=0)


def _ratio(change: Change) -> str:
    ratio = change.ratio
    if ratio is None:
        return "" if not change.after else "from 0"
    percent = (ratio - 1) * 100
    return "±0 %" if abs(percent) < 0.05 else f"{percent:+.1f} %" if abs(percent) < 1000 else f"×{ratio:,.0f}"


def _colored(change: Change) -> str:
    color = _COLORS[change.verdict]
    return colored(f"{_ratio(change)} {change.verdict}" if color else _ratio(change), color)


def _counted(kernels: int) -> str:
    return f"{kernels or 'no'} kernel{'s' if kernels != 1 else ''}"
