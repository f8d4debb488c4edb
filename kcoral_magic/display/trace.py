"""What a cell shows of a trace inside kernels (IKET), and of torch.profiler: tables, lanes, and where the trace is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.display import svg
from kcoral_magic.display.markup import faint, folded, grid, heading, note, share_bar
from kcoral_magic.display.quantities import scaled, time
from kcoral_magic.display.twin import Twin
from kcoral_magic.reports.iket import Launch, Trace

if TYPE_CHECKING:
    import pandas

_MOST_LANES = 24
_MOST_SPANS = 1500
_ROWS = 30
PERFETTO = "drag it into https://ui.perfetto.dev"


class IketReport(Twin):
    """The ranges of kernels, warp by warp; ``trace`` is its data."""

    KIND = "iket"

    def __init__(self, trace: Trace, saved: Path | None = None) -> None:
        self.trace = trace
        self.saved = saved

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/iket-1.json``."""
        return {**self.trace.json(), "saved": str(self.saved) if self.saved else None}

    def __repr__(self) -> str:
        lines = [f"iket: {len(self.trace.launches)} launches traced"]
        for launch in self.trace.launches[:_ROWS]:
            lines.append(f"  {launch.kernel[:80]}: {len(launch.lanes)} warps")
            for one in launch.ranges[:_ROWS]:
                middle, tail = time(one.p50_ns * 1e-9), time(one.p95_ns * 1e-9)
                lines.append(f"    {one.name:<32} ×{one.count:<8,} p50 {middle:>9}  p95 {tail:>9}  {one.share:6.1%}")
        return "\n".join([*lines, *([f"  trace: {self.saved}"] if self.saved else [])])

    def html(self) -> str:
        """Each launch: its ranges, and lanes of its first warps."""
        parts = [f"<div><b>{len(self.trace.launches)} launches traced</b></div>"]
        if self.saved:
            parts.append(note(f"trace {self.saved}: {PERFETTO}"))
        for place, launch in enumerate(self.trace.launches[:_ROWS]):
            body = _ranges(launch) + _lanes(launch)
            parts.append(folded(f"<b>{escape(launch.kernel[:100])}</b>", body, is_open=place == 0))
        return f"<div>{''.join(parts)}</div>"


def _colors(launch: Launch) -> dict[str, str]:
    return {one.name: svg.SERIES[place % len(svg.SERIES)] for place, one in enumerate(launch.ranges)}


def _ranges(launch: Launch) -> str:
    colors = _colors(launch)
    rows = [
        [
            share_bar(one.share, colors[one.name]),
            escape(one.name),
            f"{one.count:,}",
            time(one.p50_ns * 1e-9),
            time(one.p95_ns * 1e-9),
            f"{one.share:.1%}",
        ]
        for one in launch.ranges[:_ROWS]
    ]
    return grid(("", "range", "count", "p50", "p95", "share"), rows, right=(2, 3, 4, 5))


def _lanes(launch: Launch) -> str:
    lanes = launch.lanes
    if not lanes:
        return ""
    colors = _colors(launch)
    end = max(span.end_ns for span in launch.spans) or 1.0
    width, left = 720, 96
    axis = svg.Axis(0, end, left, width - 8)
    parts, drawn = [], 0
    for row, ((cta, warp), spans) in enumerate(list(lanes.items())[:_MOST_LANES]):
        y = 4 + row * 13
        parts.append(svg.words(left - 6, y + 9, f"cta {cta} warp {warp}", anchor="end", faint=True))
        for span in spans:
            if drawn >= _MOST_SPANS:
                break
            drawn += 1
            says = f"{span.name} {time((span.end_ns - span.start_ns) * 1e-9)}"
            a, b = axis.at(span.start_ns), axis.at(span.end_ns)
            parts.append(svg.box(a, y, max(b - a, 0.6), 10, colors[span.name], opacity=0.85, says=says))
    bottom = 4 + min(len(lanes), _MOST_LANES) * 13
    for tick in axis.ticks():
        parts.append(svg.words(axis.at(tick), bottom + 12, time(tick * 1e-9), anchor="middle", faint=True))
    says = f"{len(lanes)} warps over {time(end * 1e-9)}: " + ", ".join(one.name for one in launch.ranges[:8])
    left_out = len(lanes) - _MOST_LANES
    said = note(f"and {left_out:,} warps more") if left_out > 0 else ""
    return svg.picture(width, bottom + 18, "".join(parts), says) + said


class TorchReport(Twin):
    """torch.profiler's averages of a cell: by operator, and by kernel on the GPU.

    Attributes:
        operators, kernels: Rows as the profiler has them, times in microseconds.
        saved: The Chrome trace.
    """

    KIND = "torch"

    def __init__(
        self,
        operators: Sequence[Mapping[str, Any]],
        kernels: Sequence[Mapping[str, Any]],
        *,
        elapsed_s: float,
        memory: Mapping[str, int],
        saved: Path | None = None,
    ) -> None:
        self.operators = list(operators)
        self.kernels = list(kernels)
        self.elapsed_s = elapsed_s
        self.memory = dict(memory)
        self.saved = saved

    def df(self) -> pandas.DataFrame:
        """A row for each operator."""
        import pandas as pd

        return pd.DataFrame(self.operators)

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/torch-1.json``."""
        return {
            "schema": "kcoral.torch/1",
            "elapsed_s": self.elapsed_s,
            "operators": self.operators[:200],
            "kernels": self.kernels[:200],
            "memory": self.memory,
            "saved": str(self.saved) if self.saved else None,
        }

    @property
    def title(self) -> str:
        """One line."""
        busy = sum(row["self_device_us"] for row in self.kernels) / 1e6
        parts = [f"{time(self.elapsed_s)} in all", f"{len(self.operators)} operators"]
        parts += [f"{len(self.kernels)} kernels, GPU busy {time(busy)}"] if self.kernels else ["no kernel ran"]
        parts += [f"peak {scaled(size, 'B')} on {device}" for device, size in self.memory.items()]
        return ", ".join(parts)

    def __repr__(self) -> str:
        lines = [f"torch.profiler: {self.title}"]
        tables = (("kernels", self.kernels, "self_device_us"), ("operators", self.operators, "self_cpu_us"))
        for title, rows, key in tables:
            if rows:
                lines.append(f"  {title}")
            lines += [f"    {row['name'][:60]:<60} ×{row['count']:<6,} {time(row[key] / 1e6):>10}" for row in rows[:10]]
        return "\n".join([*lines, *([f"  trace: {self.saved}"] if self.saved else [])])

    def html(self) -> str:
        """Two tables, the heaviest first."""
        parts = [f"<div><b>torch.profiler</b> {faint(self.title)}</div>"]
        if self.saved:
            parts.append(note(f"trace {self.saved}: {PERFETTO}"))
        if self.kernels:
            parts.append(heading("Kernels") + _averages(self.kernels, "self_device_us", svg.GREEN))
        if self.operators:
            table = _averages(self.operators, "self_cpu_us", svg.BLUE)
            parts.append(heading("Operators", "own time on the CPU") + table)
        return f"<div>{''.join(parts)}</div>"


def _averages(rows: Sequence[Mapping[str, Any]], key: str, color: str) -> str:
    total = sum(row[key] for row in rows) or 1.0
    cells = [
        [
            share_bar(row[key] / total, color),
            f"<code>{escape(str(row['name'])[:80])}</code>",
            f"{row['count']:,}",
            time(row[key] / 1e6),
            f"{row[key] / total:.1%}",
            time(row[key] / 1e6 / max(row["count"], 1)),
            scaled(row["memory_bytes"], "B") if row.get("memory_bytes") else "",
        ]
        for row in rows[:_ROWS]
    ]
    table = grid(("", "name", "calls", "time", "share", "a call", "memory"), cells, right=(2, 3, 4, 5, 6))
    return table + (note(f"and {len(rows) - _ROWS:,} lighter ones") if len(rows) > _ROWS else "")
