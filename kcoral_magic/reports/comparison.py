"""Two profiles side by side, and what a profile is expected to hold."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kcoral_magic.errors import UsageError
from kcoral_magic.reports.ncu import DURATION, Kernel, Profile
from kcoral_magic.reports.views import ACHIEVED, COMPUTE, MEMORY

Verdict = Literal["better", "worse", "same", "other"]
_SAME_PCT = 1.0  # ncu's own repetitions differ by about this much
HEADLINES = (
    DURATION,
    COMPUTE,
    MEMORY,
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ACHIEVED,
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_static",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "smsp__issue_active.avg.per_cycle_active",
    "smsp__inst_executed.sum",
)
_LOWER = (
    "time_duration",
    "cycles_elapsed.max",
    "bank_conflicts",
    "issue_stalled",
    "excessive",
    "registers_per_thread",
    "dram__bytes",
    "inst_executed.sum",
    "latency",
    "local_op",
    "lookup_miss",
    "dropped",
    "divergent",
)
_HIGHER = (
    "throughput",
    "hit_rate",
    "warps_active",
    "maximum_warps",
    "issue_active",
    "warps_eligible",
    "per_second",
    "pct_of_peak",
    "occupancy_limit",
    "success_rate",
)


def better_is(metric: str) -> int:
    """-1 if less of it is better, 1 if more is, 0 if that depends."""
    if any(word in metric for word in _LOWER) and not metric.endswith("per_second"):
        return -1
    return 1 if any(word in metric for word in _HIGHER) else 0


@dataclass(frozen=True, slots=True)
class Change:
    """One metric in both. ``ratio`` is after over before; none where before is 0."""

    metric: str
    unit: str
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None

    @property
    def verdict(self) -> Verdict:
        """By the metric's known direction; a change of at most 1 % is none."""
        if abs(self.after - self.before) <= abs(self.before) * _SAME_PCT / 100:
            return "same"
        direction = better_is(self.metric)
        if direction == 0:
            return "other"
        return "better" if (self.after > self.before) == (direction > 0) else "worse"


@dataclass(frozen=True, slots=True)
class Pair:
    """The same kernel in both, by its signature and its how-manieth launch."""

    before: Kernel
    after: Kernel
    changes: tuple[Change, ...]

    def change(self, metric: str) -> Change | None:
        """The change of one metric."""
        return next((change for change in self.changes if change.metric == metric), None)

    @property
    def headlines(self) -> tuple[Change, ...]:
        """What a person looks at first, in that order."""
        by_name = {change.metric: change for change in self.changes}
        return tuple(by_name[name] for name in HEADLINES if name in by_name)


@dataclass(frozen=True)
class Comparison:
    """A profile against its baseline. ``notes`` say what makes the two hard to compare."""

    pairs: tuple[Pair, ...]
    gone: tuple[Kernel, ...]
    new: tuple[Kernel, ...]
    notes: tuple[str, ...] = ()


def compare(before: Profile, after: Profile) -> Comparison:
    """Match the kernels and compare their metrics.

    Kernels match by signature; what is left, one on each side, by its place: a rewritten kernel may have another name.
    """
    olds, news = _numbered(before), _numbered(after)
    both = [key for key in news if key in olds]
    gone = [olds[key] for key in olds if key not in news]
    new = [news[key] for key in news if key not in olds]
    matched = [(olds[key], news[key]) for key in both]
    notes = []
    if not matched and len(gone) == len(new) == 1:
        matched, gone, new = [(gone[0], new[0])], [], []
        notes.append(f"{matched[0][0].name} is compared with {matched[0][1].name}: they are the only kernels")
    for what in ("device", "capability"):
        sides = [dict.fromkeys(getattr(kernel, what) for kernel in side) for side in (before, after)]
        if sides[0] != sides[1] and all(sides):
            notes.append(
                f"another {what}: {', '.join(sides[0]) or 'unknown'} before, {', '.join(sides[1]) or 'unknown'} now"
            )
            break
    clocks = [_clock(side) for side in (before, after)]
    if clocks[0] and clocks[1] and abs(clocks[1] / clocks[0] - 1) > 0.02:
        notes.append(
            f"SM clocks differ: {clocks[0] / 1e9:.2f} GHz before, {clocks[1] / 1e9:.2f} GHz now; times do not compare"
        )
    pairs = tuple(Pair(old, young, _changes(old, young)) for old, young in matched)
    return Comparison(pairs, tuple(gone), tuple(new), tuple(notes))


def _numbered(profile: Profile) -> dict[tuple[str, int], Kernel]:
    seen: Counter[str] = Counter()
    found = {}
    for kernel in profile:
        found[kernel.signature, seen[kernel.signature]] = kernel
        seen[kernel.signature] += 1
    return found


def _clock(profile: Profile) -> float | None:
    clocks = [clock for kernel in profile if (clock := kernel.get("gpc__cycles_elapsed.avg.per_second"))]
    return sum(clocks) / len(clocks) if clocks else None


def _changes(before: Kernel, after: Kernel) -> tuple[Change, ...]:
    found = []
    for name, metric in after.metrics.items():
        old = before.metrics.get(name)
        if old is None or name.startswith(("device__", "profiler__")):
            continue
        first, second = old.number, metric.number
        if first is not None and second is not None and old.unit == metric.unit:
            found.append(Change(name, metric.unit, first, second))
    return tuple(found)


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_EXPECTATION = re.compile(
    r"\s*(?:(?P<kernel>.+?):\s+)?(?P<metric>[\w:.()|*]+)\s*(?P<operator><=|>=|==|!=|<|>)\s*"
    r"(?P<value>[-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>[A-Za-zµ%/]*)\s*"
)
_ALIASES = {
    "duration": DURATION,
    "time": DURATION,
    "compute": COMPUTE,
    "memory": MEMORY,
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": ACHIEVED,
    "registers": "launch__registers_per_thread",
}
_SCALES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS = {
    "s": "s",
    "b": "byte",
    "byte": "byte",
    "bytes": "byte",
    "b/s": "byte/s",
    "byte/s": "byte/s",
    "hz": "hz",
    "%": "%",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """``KERNEL: METRIC < 12us``: of every kernel, or of those of that name."""

    text: str
    kernel: str
    metric: str
    operator: str
    value: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Expectation:
        """Read one.

        Raises:
            UsageError: It is none; the message says how one is written.
        """
        found = _EXPECTATION.fullmatch(text)
        if found is None:
            raise UsageError(
                f'an expectation is [KERNEL: ]METRIC < VALUE[UNIT], as in "gpu__time_duration.sum < 12us"; got {text!r}'
            )
        metric = _ALIASES.get(found["metric"], found["metric"])
        value = float(found["value"].replace(",", "").replace("_", ""))
        return cls(text.strip(), found["kernel"] or "", metric, found["operator"], value, found["unit"])

    def failures(self, profile: Profile) -> list[str]:
        """What does not hold, a sentence each.

        Raises:
            NotFoundError: The report has no such kernel or metric.
            UsageError: The metric is no number, or has another kind of unit.
        """
        kernels: Sequence[Kernel] = profile.kernels
        if self.kernel:
            name = profile[self.kernel].name
            kernels = [kernel for kernel in profile if kernel.name == name]
        if not kernels:
            return [f"{self.text}: no kernel was captured"]
        failed = []
        for kernel in kernels:
            found = kernel[self.metric]
            if (number := found.number) is None:
                raise UsageError(f"{self.metric} of {kernel.name} is {found.value!r}: no number to compare")
            limit = self.value * _scale(self.unit, found.unit)
            if not _OPERATORS[self.operator](number, limit):
                failed.append(
                    f"{kernel.name}: {self.metric} is {number:,.6g} {found.unit}".rstrip()
                    + f", expected {self.operator} {limit:,.6g} {found.unit}".rstrip()
                )
        return failed


def _scale(unit: str, of_metric: str) -> float:
    """From the unit that a person wrote to that of the metric."""
    if not unit:
        return 1.0
    for prefix in sorted(_SCALES, key=len, reverse=True):
        base = _UNITS.get(unit.removeprefix(prefix).lower()) if unit.startswith(prefix) else None
        if base is None:
            continue
        if base == of_metric or (base == "%" and of_metric in ("%", "")):
            return _SCALES[prefix] if base != "%" else 1.0
        for its in sorted(_SCALES, key=len, reverse=True):
            if base == "s" and of_metric.removesuffix("econd") == f"{its}s":
                return _SCALES[prefix] / _SCALES[its]
    raise UsageError(
        f"the metric is in {of_metric or 'no unit'}, the expectation in {unit!r}: leave the unit out, or convert"
    )
