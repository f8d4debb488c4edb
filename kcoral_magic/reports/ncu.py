"""The model of a kernel profile: what a report of Nsight Compute says, however it was written down.

``ncu_rep`` and ``ncu_csv`` make it; views, tables and JSON are made of it. Values keep the units of the report, which
are base units (ns, bytes, hz) in ``.ncu-rep`` files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from kcoral_magic.errors import NotFoundError

DURATION = "gpu__time_duration.sum"
MOST_KERNELS = 1 << 16  # of a report: one takes a kilobyte even where the file has four bytes for it
Value = int | float | str
Speedup = tuple[Literal["global", "local"], float]
RuleKind = Literal["none", "ok", "optimization", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter of one kernel.

    Attributes:
        value: What it sums up to, if the report says; of ``breakdown:`` and ``group:`` metrics the names of others,
            by commas.
        keys, parts: What it is made of, by program counter, opcode or step: two columns of one length.
    """

    name: str
    value: Value | None
    unit: str = ""
    keys: Sequence[Value] = ()
    parts: Sequence[Value] = ()

    @property
    def instances(self) -> Iterator[tuple[Value, Value]]:
        """Key and part, row by row."""
        return zip(self.keys, self.parts, strict=True)

    @property
    def number(self) -> float | None:
        """The value where it is a number that counts something; none for texts, NaN and infinities."""
        if (
            self.value is None
            or isinstance(self.value, str)
            or self.value != self.value
            or abs(self.value) == float("inf")
        ):
            return None
        return float(self.value)


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart of a section: ``(metric, label)`` in the report's own order."""

    title: str
    axis: str
    bars: tuple[tuple[str, str], ...]
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a section: the instances of ``metric``, and the metric that says where this kernel stands."""

    title: str
    axis: str
    unit: str
    metric: str
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """Sums of metrics that are multiplied: ``(("a", "b"), ("c",))`` is (a + b) · c."""

    factors: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Roof:
    """A roof, or a point below it: FLOP/s and byte/s as formulas over metrics."""

    label: str
    work: Formula
    traffic: Formula


@dataclass(frozen=True, slots=True)
class Roofline:
    """A roofline chart as the report describes it."""

    title: str
    roofs: tuple[Roof, ...]
    points: tuple[Roof, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A section as ``ncu --page details`` prints it.

    Attributes:
        header: ``(metric, label)``.
        shown: Its charts, in order.
        breakdowns: ``(metric, title)`` of metrics that list others.
    """

    id: str
    name: str
    order: int = 0
    header: tuple[tuple[str, str], ...] = ()
    shown: tuple[Bars | Curve | Roofline, ...] = ()
    breakdowns: tuple[tuple[str, str], ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Focus:
    """A metric that a rule is about."""

    metric: str
    value: float
    info: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule of ncu said: with ``@url:NAME:ADDRESS@`` and ``@section:ID:NAME@`` in its text."""

    id: str
    name: str
    section: str
    text: str
    title: str = ""
    kind: RuleKind = "none"
    speedup: Speedup | None = None
    focus: tuple[Focus, ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    """The machine code that kernels ran: an ELF file, and where each function of it was loaded."""

    cubin: bytes = field(repr=False)
    functions: tuple[tuple[str, int], ...] = ()
    sm: int = 0


@dataclass(frozen=True)
class Kernel:
    """One launch that was profiled."""

    index: int
    name: str
    signature: str
    mangled: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: Mapping[str, Metric] = field(repr=False)
    sections: tuple[Section, ...] = field(default=(), repr=False)
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    code: Code | None = field(default=None, repr=False)
    context: int = 0
    stream: int = 0
    process: str = ""
    nvtx: tuple[str, ...] = ()

    def metric(self, name: str) -> Value | None:
        """The value of a metric.

        Raises:
            NotFoundError: The report has none of that name; the message says which come near.
        """
        return self._metric(name).value

    def _metric(self, name: str) -> Metric:
        if (found := self.metrics.get(name)) is not None:
            return found
        from difflib import get_close_matches

        near = get_close_matches(name, self.metrics, 3, 0.5) or [key for key in self.metrics if name in key][:3]
        also = f"; near it: {', '.join(near)}" if near else ""
        raise NotFoundError(f"{self.name} has no metric {name!r} in this report, of {len(self.metrics):,}{also}")

    def __getitem__(self, name: str) -> Metric:
        return self._metric(name)

    def get(self, name: str) -> float | None:
        """A metric as a number, if it is there and one."""
        found = self.metrics.get(name)
        return None if found is None else found.number

    @property
    def duration_ns(self) -> float | None:
        """How long it ran under the profiler, at the profiler's clocks."""
        found = self.metrics.get(DURATION)
        if found is None or (value := found.number) is None:
            return None
        return value * _NS.get(found.unit, 1.0)

    @cached_property
    def device(self) -> str:
        """The GPU's name, as the driver has it."""
        found = self.metrics.get("device__attribute_display_name")
        return str(found.value) if found is not None else ""

    @cached_property
    def capability(self) -> str:
        """Compute capability, as in ``9.0``; empty where the report does not say."""
        parts = [self.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")]
        return "" if None in parts else ".".join(f"{part:.0f}" for part in parts if part is not None)

    def section(self, identifier: str) -> Section | None:
        """A section by its identifier."""
        return next((section for section in self.sections if section.id == identifier), None)

    @cached_property
    def advice(self) -> tuple[Rule, ...]:
        """What the rules say, the largest estimated speedup first, then warnings, then the rest."""
        return tuple(sorted((rule for rule in self.rules if rule.text), key=_weight))


def _weight(rule: Rule) -> tuple[float, int]:
    rank = {"error": 0, "warning": 1, "optimization": 2, "ok": 3, "none": 4}
    return (-rule.speedup[1] if rule.speedup else 0.0, rank[rule.kind])


_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}


@dataclass(frozen=True)
class Origin:
    """Where a report was made: what one may not want to share. ``facts`` are names and values, by topic."""

    created_s: int | None = None
    host: str = ""
    processes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Profile:
    """A whole report: the kernels in the order they were launched."""

    kernels: tuple[Kernel, ...]
    origin: Origin = Origin()
    source: str = ""
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __getitem__(self, key: int | str) -> Kernel:
        """A kernel by its number, or the first whose name is this, begins with it, or matches it as a pattern.

        Raises:
            NotFoundError: There is none; the message says which there are.
        """
        if isinstance(key, int):
            try:
                return self.kernels[key]
            except IndexError:
                raise NotFoundError(f"kernel {key} of {len(self.kernels)}: they count from 0") from None
        for same in (str.__eq__, str.startswith, _matches):
            for kernel in self.kernels:
                if same(kernel.name, key) or same(kernel.signature, key):
                    return kernel
        names = ", ".join(dict.fromkeys(kernel.name for kernel in self.kernels))
        raise NotFoundError(f"no kernel {key!r} was captured: {names[:300] or 'the report has none'}")

    def heaviest(self) -> tuple[Kernel, ...]:
        """The kernels by the time they took, the longest first."""
        return tuple(sorted(self.kernels, key=lambda kernel: -(kernel.duration_ns or 0.0)))

    def redacted(self) -> Profile:
        """The same without host, process names and paths: they are in every report."""
        kernels = tuple(replace(kernel, process="") for kernel in self.kernels)
        kept = tuple((name, value) for name, value in self.origin.facts if not name.startswith(PRIVATE))
        return replace(self, kernels=kernels, origin=Origin(facts=kept), source="")


PRIVATE = "System "  # what the names of facts begin with that tell of a machine


def _matches(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
