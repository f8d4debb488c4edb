"""Where a kernel stands below the roofs of its GPU: arithmetic intensity and FLOP/s, from the report's own formulas.

The peaks are at the clocks of the run (counts a cycle times cycles a second), as in NVIDIA's own chart, so they are
those of the profiler's base clocks unless it was told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcoral_magic.reports.ncu import Formula, Kernel, Roof, Roofline

_CYCLES, _SMSP_CYCLES = ("sm__cycles_elapsed.avg.per_second",), ("smsp__cycles_elapsed.avg.per_second",)
_DRAM = Formula((("dram__bytes.sum.peak_sustained",), ("dram__cycles_elapsed.avg.per_second",)))


def _of_precision(letter: str, name: str) -> tuple[Roof, Roof]:
    """Roof and point of one precision, for reports that hold the metrics without the section."""
    peak = Formula(((f"derived__sm__sass_thread_inst_executed_op_{letter}fma_pred_on_x2",), _CYCLES))
    adds = tuple(
        f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum.per_cycle_elapsed" for op in ("add", "mul")
    )
    achieved = Formula(((*adds, f"derived__smsp__sass_thread_inst_executed_op_{letter}fma_pred_on_x2"), _SMSP_CYCLES))
    traffic = Formula((("dram__bytes.sum.per_second",),))
    return Roof(f"{name} Precision Roofline", peak, _DRAM), Roof(f"{name} Precision Achieved Value", achieved, traffic)


_MOST = 8  # roofs and points of a chart: precisions
_HIGHEST = 1e30  # FLOP/s or byte/s that a damaged report may say

_PLAIN = Roofline(
    "Floating Point Operations Roofline",
    *(
        tuple(column)
        for column in zip(*(_of_precision(*pair) for pair in (("f", "Single"), ("d", "Double"))), strict=True)
    ),
)


@dataclass(frozen=True, slots=True)
class Point:
    """What the kernel reached. ``of_peak_pct`` is its share of the roof of the same precision, flat part."""

    label: str
    flop_per_s: float
    byte_per_s: float
    of_peak_pct: float | None

    @property
    def intensity(self) -> float | None:
        """FLOP a byte of device memory; none where nothing was moved."""
        return self.flop_per_s / self.byte_per_s if self.byte_per_s > 0 else None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A roof: the flat part in FLOP/s, the slope in byte/s."""

    label: str
    flop_per_s: float
    byte_per_s: float

    @property
    def ridge(self) -> float:
        """The intensity at which the two meet."""
        return self.flop_per_s / self.byte_per_s


@dataclass(frozen=True, slots=True)
class Chart:
    """One roofline chart."""

    title: str
    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...]


def charts(kernel: Kernel) -> tuple[Chart, ...]:
    """The rooflines that the report has the numbers for, each with what the kernel did."""
    described = [shown for section in kernel.sections for shown in section.shown if isinstance(shown, Roofline)]
    made = [_chart(kernel, roofline) for roofline in described or [_PLAIN]]
    return tuple(chart for chart in made if chart.ceilings)


def _chart(kernel: Kernel, roofline: Roofline) -> Chart:
    ceilings, peaks = [], {}
    for roof in roofline.roofs[:_MOST]:
        work, traffic = _of(kernel, roof.work, is_whole=True), _of(kernel, roof.traffic, is_whole=True)
        if work is not None and traffic is not None and work >= 1 and traffic >= 1:
            ceilings.append(Ceiling(short(roof.label), work, traffic))
            peaks[short(roof.label)] = work
    points = []
    for point in roofline.points[:_MOST]:
        work, traffic = _of(kernel, point.work, is_whole=False), _of(kernel, point.traffic, is_whole=False)
        if work is not None and traffic is not None:
            peak = peaks.get(short(point.label)) or (next(iter(peaks.values())) if len(peaks) == 1 else None)
            points.append(Point(short(point.label), work, traffic, 100 * work / peak if peak else None))
    return Chart(roofline.title, tuple(ceilings), tuple(points))


def short(label: str) -> str:
    """``Single Precision Roofline`` and ``Single Precision Achieved Value`` are of one precision: ``FP32``."""
    text = label
    for end in (" Roofline", " Achieved Value", " Achieved", " Precision"):
        text = text.removesuffix(end)
    return {"Single": "FP32", "Double": "FP64", "Half": "FP16"}.get(text, text)


def _of(kernel: Kernel, formula: Formula, *, is_whole: bool) -> float | None:
    """The value of a formula; none if a factor has no metric, or, of a whole one, lacks a part, or out of all range."""
    if not formula.factors:
        return None
    product = 1.0
    for names in formula.factors:
        parts = [value for name in names if (value := kernel.get(name)) is not None]
        if not parts or (is_whole and len(parts) < len(names)):
            return None
        product *= sum(parts)
    return product if abs(product) < _HIGHEST else None


def has_tensor_work(kernel: Kernel) -> bool:
    """Whether the report counts instructions or cycles of the tensor cores."""
    return any("pipe_tensor" in name and (kernel.get(name) or 0) > 0 for name in kernel.metrics)
