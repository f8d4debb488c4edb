"""A benchmark's result: what was timed, how, on what, how well it is known, and what makes it doubtful.

Timers measure in the worker; what is in here is pure, so that every trap has a test without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from kcoral_magic.reports import statistics
from kcoral_magic.reports.statistics import Comparison, Summary

SCHEMA = "kcoral.bench/1"
Method = Literal["cupti", "graph", "event", "host"]
WELL_KNOWN = 0.01  # half the interval over the median, at which measuring stops
_FIRST_CALL = 5.0  # times the median: it compiled, loaded or allocated
_SPIKE = 20.0  # times the median, in the middle of the timed runs
_DRIFT = 0.03
_CLOCKS = 0.03
_LAUNCH_S = 2e-6  # no kernel is shorter: a launch costs the GPU about that
_FLUSH = 2.0  # times the L2 cache


@dataclass(frozen=True, slots=True)
class Machine:
    """What a time is worth on: another of these, and two times do not compare."""

    gpu: str = ""
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    cpu: str = ""
    clock_policy: str = ""  # locked, or as the driver likes
    l2_bytes: int | None = None
    peak_byte_per_s: float | None = None

    def differs(self, other: Machine) -> list[str]:
        """What makes times of the two incomparable."""
        what = ("gpu", "driver", "clock_policy") if self.gpu or other.gpu else ("cpu",)
        return [name for name in what if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True)
class Reading:
    """The GPU at one moment. ``throttled`` are the driver's reasons to slow down, power cap and heat among them."""

    sm_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """One thing that was timed.

    Attributes:
        samples: Seconds of a call, in the order they were taken.
        first_s: The first call, which is not among them.
        host_s: What a call keeps the CPU busy, where the method times the GPU.
        is_cold: Caches were flushed before each call, with a buffer of ``flush_bytes``.
        kernels: How many kernels a call launched, where the method knows.
        has_nan: What it returned holds NaN.
        is_stopped: The time for measuring was over before the median was known well.
    """

    method: Method
    samples: tuple[float, ...]
    is_cold: bool = False
    first_s: float | None = None
    host_s: float | None = None
    flush_bytes: int | None = None
    kernels: int | None = None
    has_nan: bool = False
    is_stopped: bool = False
    bytes: float | None = None
    flops: float | None = None
    at: Mapping[str, Any] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()

    @property
    def summary(self) -> Summary:
        """The samples in a few numbers."""
        return Summary.of(self.samples)

    @property
    def byte_per_s(self) -> float | None:
        """By what was said to be moved."""
        return self.bytes / self.summary.median if self.bytes and self.summary.median > 0 else None

    @property
    def flop_per_s(self) -> float | None:
        """By what was said to be computed."""
        return self.flops / self.summary.median if self.flops and self.summary.median > 0 else None


@dataclass(frozen=True, slots=True)
class Warned:
    """What makes a number doubtful. ``code`` is stable."""

    code: str
    text: str


def warnings(measured: Measured, machine: Machine) -> list[Warned]:
    """Every trap that the numbers show."""
    middle = measured.summary.median
    found = [
        *_of_result(measured, middle),
        *(_of_flush(measured, machine) if measured.method != "host" and measured.is_cold else []),
        *_of_samples(measured, middle),
        *_of_clocks(measured.readings),
        *_of_roofline(measured, machine),
    ]
    if measured.is_stopped:
        width = f"{measured.summary.width:.1%}"
        found.append(Warned("noisy", f"the median is known to ±{width} only: --seconds gives more time"))
    return found


def _of_result(measured: Measured, middle: float) -> list[Warned]:
    found = []
    if measured.has_nan:
        found.append(Warned("nan", "the result holds NaN: is what was timed what was meant?"))
    is_short = measured.kernels is None and middle < _LAUNCH_S
    if measured.method != "host" and (measured.kernels == 0 or is_short):
        found.append(Warned("nothing_launched", "the body launched no kernel: what was timed is nothing"))
    host_s = measured.host_s
    if measured.method == "event" and host_s is not None and 0 < middle * 0.95 <= host_s:
        text = (
            f"a call takes the CPU {host_s / middle:.1f} times as long as the GPU: --method graph or cupti times that"
        )
        found.append(Warned("host_bound", text))
    return found


def _of_flush(measured: Measured, machine: Machine) -> list[Warned]:
    if machine.l2_bytes is None:
        text = "the size of the L2 cache is not known: the flush may leave some of it warm"
        return [Warned("flush_unknown", text)]
    if (measured.flush_bytes or 0) < _FLUSH * machine.l2_bytes:
        return [Warned("flush_small", "the flush is smaller than twice the L2 cache: some of it stays warm")]
    return []


def _of_samples(measured: Measured, middle: float) -> list[Warned]:
    found = []
    if measured.first_s is not None and middle > 0 and measured.first_s > _FIRST_CALL * middle:
        times = f"{measured.first_s / middle:,.0f}"
        text = f"the first call took {times} times as long (compiling, loading): it is not counted"
        found.append(Warned("first_call", text))
    spikes = sum(1 for sample in measured.samples if middle > 0 and sample > _SPIKE * middle)
    if spikes:
        calls = f"{spikes} of {len(measured.samples)} calls took over {_SPIKE:.0f} times as long"
        found.append(Warned("spikes", f"{calls}: autotuning or compiling inside the timed runs?"))
    slower = statistics.drift(measured.samples)
    if abs(slower) > _DRIFT:
        half = f"the second half is {abs(slower):.0%} {'slower' if slower > 0 else 'faster'} than the first"
        found.append(Warned("drift", f"{half}: clocks, heat, or others on the machine"))
    return found


def _of_clocks(readings: Sequence[Reading]) -> list[Warned]:
    found = []
    clocks = [reading.sm_hz for reading in readings if reading.sm_hz]
    if clocks and max(clocks) > min(clocks) * (1 + _CLOCKS):
        found.append(
            Warned("clocks", f"the SM clock went from {min(clocks) / 1e9:.2f} to {max(clocks) / 1e9:.2f} GHz meanwhile")
        )
    if reasons := sorted({reason for reading in readings for reason in reading.throttled}):
        found.append(Warned("throttled", f"the GPU was throttled: {', '.join(reasons)}"))
    return found


def _of_roofline(measured: Measured, machine: Machine) -> list[Warned]:
    peak, reached = machine.peak_byte_per_s, measured.byte_per_s
    if peak and reached and reached > peak * 1.02 and measured.is_cold:
        speed = f"{reached / 1e9:,.0f} GB/s are more than the memory's {peak / 1e9:,.0f}"
        return [Warned("above_roofline", f"{speed}: are the bytes right, or were they cached?")]
    return []


@dataclass(frozen=True)
class Bench:
    """A whole run: a candidate, each point of a sweep, and its baseline, measured in turn with it."""

    name: str
    candidate: tuple[Measured, ...]
    machine: Machine
    baseline: tuple[Measured, ...] = ()
    baseline_name: str = ""
    is_interleaved: bool = False
    notes: tuple[str, ...] = ()
    time_s: float = 0.0
    source: str = ""
    made_on: Machine | None = None  # of the baseline, if it was measured another day

    def comparison(self, place: int = 0) -> Comparison | None:
        """Candidate over baseline at one point of the sweep.

        Measured at different times, on another GPU, driver or clock policy, nothing can be said: UNSURE.
        """
        if place >= len(self.baseline):
            return None
        before, after = self.baseline[place], self.candidate[place]
        if self.is_interleaved:
            found = statistics.paired(before.samples, after.samples)
        else:
            found = statistics.apart(before.summary, after.summary)
        if self.unlike or before.method != after.method or before.is_cold != after.is_cold:
            return Comparison(found.ratio, found.low, found.high, "UNSURE")
        return found

    @property
    def unlike(self) -> list[str]:
        """What differs between the machines of candidate and baseline."""
        return self.machine.differs(self.made_on) if self.made_on is not None else []

    def warnings(self) -> list[Warned]:
        """Those of all points, each once."""
        found: dict[str, Warned] = {}
        if unlike := self.unlike:
            text = f"the baseline was measured with another {' and '.join(unlike)}: the verdict is UNSURE"
            found["unlike"] = Warned("unlike", text)
        for measured in (*self.baseline, *self.candidate):
            for one in warnings(measured, self.machine):
                found.setdefault(one.code, one)
        return list(found.values())

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/bench-1.json``."""
        points = []
        for place, measured in enumerate(self.candidate):
            compared = self.comparison(place)
            points.append(
                {
                    "at": dict(measured.at),
                    **_numbers(measured),
                    "baseline": _numbers(self.baseline[place]) if place < len(self.baseline) else None,
                    "comparison": _finite(asdict(compared)) if compared else None,
                }
            )
        return {
            "schema": SCHEMA,
            "name": self.name,
            "points": points,
            "baseline": self.baseline_name or None,
            "interleaved": self.is_interleaved,
            "machine": asdict(self.machine),
            "warnings": [asdict(one) for one in self.warnings()],
            "notes": list(self.notes),
            "time_s": self.time_s,
        }


def _numbers(measured: Measured) -> dict[str, Any]:
    summary = measured.summary
    return {
        "method": measured.method,
        "cold": measured.is_cold,
        "calls": summary.count,
        "median_s": summary.median,
        "interval_s": [summary.low, summary.high],
        "p20_s": summary.p20,
        "p80_s": summary.p80,
        "byte_per_s": measured.byte_per_s,
        "flop_per_s": measured.flop_per_s,
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither NaN nor infinity."""
    return {key: None if isinstance(one, float) and not math.isfinite(one) else one for key, one in values.items()}


# ── kept ──

_MOST_SAMPLES = 2000  # of one point in a log


def record(bench: Bench) -> dict[str, Any]:
    """A line of ``.kcoral/bench/NAME.jsonl``: enough to compare with another day, and to run it again."""
    return {
        "schema": SCHEMA,
        "time_s": bench.time_s,
        "source": bench.source,
        "machine": asdict(bench.machine),
        "points": [_kept(measured) for measured in bench.candidate],
    }


def _kept(measured: Measured) -> dict[str, Any]:
    step = -(-len(measured.samples) // _MOST_SAMPLES)
    return {
        "at": dict(measured.at),
        "method": measured.method,
        "is_cold": measured.is_cold,
        "samples": list(measured.samples[::step]),
        "bytes": measured.bytes,
        "flops": measured.flops,
    }


def recalled(said: Mapping[str, Any]) -> tuple[str, Machine, tuple[Measured, ...]]:
    """Of a line: the source, the machine, and what was measured.

    Raises:
        ValueError: It is no line of ours.
    """
    try:
        points = tuple(map(_recalled, said["points"]))
        given = said["machine"]
        texts = {name: str(given.get(name, ""))[:200] for name in _TEXTS}
        l2 = _amount(given.get("l2_bytes"))
        machine = Machine(
            **texts,
            l2_bytes=int(l2) if l2 is not None else None,
            peak_byte_per_s=_amount(given.get("peak_byte_per_s")),
        )
        if not points:
            raise ValueError("no points")
        return str(said["source"]), machine, points
    except KeyError as error:
        raise ValueError(f"a line of a benchmark's log has no {error}") from None
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"a line of a benchmark's log is damaged: {error!s:.100}") from None


_TEXTS = ("gpu", "driver", "cuda", "torch", "cpu", "clock_policy")


def _recalled(point: Mapping[str, Any]) -> Measured:
    samples = tuple(float(sample) for sample in point["samples"])
    if point["method"] not in get_args(Method) or not samples or not all(0 <= one < math.inf for one in samples):
        raise ValueError("no samples, or of no method")
    return Measured(
        point["method"],
        samples,
        bool(point["is_cold"]),
        bytes=_amount(point.get("bytes")),
        flops=_amount(point.get("flops")),
        at=dict(point.get("at", {})),
    )


def _amount(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < math.inf else None
