"""What a kernel's views show, as numbers: speed of light, occupancy, memory and stalls. Pictures are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from kcoral_magic.reports.ncu import Bars, Curve, Kernel

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
_STALL = "smsp__average_warps_issue_stalled_"
_STALL_END = "_per_issue_active.ratio"
_MOST_CURVES, _MOST_POINTS = 12, 4096  # thousands of curves over one metric are a damaged report
_HIGHEST = 1e15
_LIGHT = (
    ("Compute (SM)", (COMPUTE,)),
    ("Memory", (MEMORY,)),
    ("L1/TEX cache", ("l1tex__throughput.avg.pct_of_peak_sustained_active",)),
    ("L2 cache", ("lts__throughput.avg.pct_of_peak_sustained_elapsed",)),
    (
        "DRAM",
        (
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
    ),
)


def speed_of_light(kernel: Kernel) -> list[tuple[str, float]]:
    """How near the kernel came to what each unit can do, in per cent."""
    found = []
    for label, names in _LIGHT:
        value = next((value for name in names if (value := kernel.get(name)) is not None), None)
        if value is not None:
            found.append((label, value))
    return found


def breakdown(kernel: Kernel, metric: str) -> list[tuple[str, float]]:
    """What a throughput is the largest of, by the report's own list; the largest first."""
    listed = kernel.metrics.get(metric)
    if listed is None or not isinstance(listed.value, str):
        return []
    values = [(name, kernel.get(name)) for name in listed.value.split(",")]
    return sorted(((spoken(name), value) for name, value in values if value is not None), key=lambda item: -item[1])


def breakdowns(kernel: Kernel) -> list[tuple[str, list[tuple[str, float]]]]:
    """Every breakdown of the report, by title."""
    named = {metric: title for section in kernel.sections for metric, title in section.breakdowns}
    for name in kernel.metrics:
        if name.startswith("breakdown:"):
            named.setdefault(name, "Compute" if "sm__" in name else "Memory")
    made = [(title, breakdown(kernel, metric)) for metric, title in named.items()]
    return [(title, parts) for title, parts in made if parts]


def spoken(name: str) -> str:
    """``l1tex__data_bank_reads.avg.pct_of…`` → ``L1TEX: data bank reads``."""
    unit, _, counter = name.partition("__")
    return f"{unit.upper()}: {counter.partition('.')[0].replace('_', ' ')}" if counter else name


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Warps on a multiprocessor, in per cent of what it holds; ``limits`` are blocks a multiprocessor, by cause."""

    theoretical: float | None
    achieved: float | None
    limits: tuple[tuple[str, float], ...]
    limiters: tuple[str, ...]


def occupancy(kernel: Kernel) -> Occupancy:
    """Of the metrics ``launch__occupancy_limit_*``; the causes with the smallest limit are the limiters."""
    prefix = "launch__occupancy_limit_"
    limits = sorted(
        (name.removeprefix(prefix).replace("_", " "), value)
        for name in kernel.metrics
        if name.startswith(prefix) and (value := kernel.get(name)) is not None
    )
    least = min((value for _, value in limits), default=None)
    limiters = tuple(name for name, value in limits if value == least)
    return Occupancy(kernel.get(THEORETICAL), kernel.get(ACHIEVED), tuple(limits), limiters)


def curves(kernel: Kernel) -> list[tuple[Curve, list[tuple[float, float]], float | None]]:
    """The report's curves with their points in order, and where the kernel stands."""
    found = []
    for section in kernel.sections:
        for curve in section.shown:
            if isinstance(curve, Curve) and (metric := kernel.metrics.get(curve.metric)) is not None:
                points = [
                    (float(x), float(y))
                    for x, y in islice(metric.instances, _MOST_POINTS)
                    if isinstance(x, int | float) and isinstance(y, int | float)
                    if 0 <= x < _HIGHEST and 0 <= y < _HIGHEST  # no NaN either
                ]
                if len(points) > 1:
                    found.append((curve, sorted(points), kernel.get(curve.marker)))
                if len(found) == _MOST_CURVES:
                    return found
    return found


def bars(kernel: Kernel) -> list[tuple[str, Bars, list[tuple[str, float]]]]:
    """The report's other bar charts: section's name, chart, labels with values."""
    found = []
    for section in kernel.sections:
        for chart in section.shown:
            if isinstance(chart, Bars) and section.id not in ("SpeedOfLight", "WarpStateStats"):
                values = [(label, value) for name, label in chart.bars if (value := kernel.get(name)) is not None]
                if values:
                    found.append((section.name, chart, values))
    return found


def stalls(kernel: Kernel) -> list[tuple[str, float]]:
    """Why warps waited, in cycles between two instructions of a warp; the longest first.

    By the names' beginning: architectures add reasons.
    """
    found = [
        (name.removeprefix(_STALL).removesuffix(_STALL_END).replace("_", " "), value)
        for name in kernel.metrics
        if name.startswith(_STALL) and name.endswith(_STALL_END) and (value := kernel.get(name)) is not None
    ]
    return sorted(found, key=lambda item: -item[1])


@dataclass(frozen=True, slots=True)
class Flow:
    """What went from one unit to another: ``(value, unit)`` by direction, ``None`` where the report does not say."""

    source: str
    target: str
    there: tuple[float, str] | None
    back: tuple[float, str] | None


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Flows between kernel, caches and device memory, with hit rates in per cent."""

    flows: tuple[Flow, ...]
    l1_hit: float | None
    l2_hit: float | None
    bank_conflicts: float | None
    compression: float | None


def memory(kernel: Kernel) -> MemoryChart | None:
    """None for a report without memory metrics."""

    def total(unit: str, *names: str) -> tuple[float, str] | None:
        values = [value for name in names if (value := kernel.get(name)) is not None]
        return (sum(values), unit) if values else None

    def lsu(space: str, op: str) -> tuple[float, str] | None:
        return total("req", f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum")

    def shared(op: str) -> tuple[float, str] | None:
        return total("wavefronts", f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum")

    flows = (
        Flow("Kernel", "Global", lsu("global", "st"), lsu("global", "ld")),
        Flow("Kernel", "Local", lsu("local", "st"), lsu("local", "ld")),
        Flow("Kernel", "Shared", shared("st"), shared("ld")),
        Flow(
            "L1/TEX",
            "L2",
            total("B", "l1tex__m_l1tex2xbar_write_bytes.sum"),
            total("B", "l1tex__m_xbar2l1tex_read_bytes.sum"),
        ),
        Flow("L2", "DRAM", total("B", "dram__bytes_write.sum"), total("B", "dram__bytes_read.sum")),
    )
    chart = MemoryChart(
        flows=tuple(flow for flow in flows if flow.there or flow.back),
        l1_hit=kernel.get("l1tex__t_sector_hit_rate.pct"),
        l2_hit=kernel.get("lts__t_sector_hit_rate.pct"),
        bank_conflicts=kernel.get("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        compression=kernel.get("lts__average_gcomp_input_sector_success_rate.pct"),
    )
    return chart if chart.flows or chart.l1_hit is not None or chart.l2_hit is not None else None
