"""What ``run-iket`` traced inside kernels: ranges of warps with their times, from its JSON (CUTLASS 4.6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports.statistics import quantile

SCHEMA = "kcoral.iket/1"
_MOST_BYTES = 256 * 1024 * 1024
_MOST_SPANS = 2_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """One range of one warp, in nanoseconds from the launch's first event."""

    name: str
    start_ns: float
    end_ns: float
    cta: str
    warp: str
    sm: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """All spans of one name: how many, how long, and their share of the warps' lifetimes."""

    name: str
    count: int
    p50_ns: float
    p95_ns: float
    total_ns: float
    share: float


@dataclass(frozen=True)
class Launch:
    """One launch that was traced. ``markers`` are single events: name and time."""

    kernel: str
    grid_id: str
    spans: tuple[Span, ...]
    markers: tuple[tuple[str, float], ...] = ()
    lifetime_ns: float = 0.0

    @property
    def ranges(self) -> tuple[Range, ...]:
        """By name, the longest in sum first."""
        by_name: dict[str, list[float]] = {}
        for span in self.spans:
            by_name.setdefault(span.name, []).append(span.end_ns - span.start_ns)
        whole = self.lifetime_ns or sum(map(sum, by_name.values())) or 1.0
        made = []
        for name, times in by_name.items():
            times.sort()
            total = sum(times)
            made.append(Range(name, len(times), quantile(times, 0.5), quantile(times, 0.95), total, total / whole))
        return tuple(sorted(made, key=lambda one: -one.total_ns))

    @property
    def lanes(self) -> dict[tuple[str, str], list[Span]]:
        """The spans of each warp, in time."""
        found: dict[tuple[str, str], list[Span]] = {}
        for span in sorted(self.spans, key=lambda one: one.start_ns):
            found.setdefault((span.cta, span.warp), []).append(span)
        return dict(sorted(found.items(), key=lambda item: (_number(item[0][0]), _number(item[0][1]), item[0])))


@dataclass(frozen=True)
class Trace:
    """A whole trace."""

    launches: tuple[Launch, ...]

    def json(self) -> dict[str, Any]:
        """As plain data, without the single spans."""
        return {
            "schema": SCHEMA,
            "launches": [
                {
                    "kernel": launch.kernel,
                    "spans": len(launch.spans),
                    "warps": len(launch.lanes),
                    "ranges": [{name: getattr(one, name) for name in _COLUMNS} for one in launch.ranges],
                    "markers": len(launch.markers),
                }
                for launch in self.launches
            ],
        }


_COLUMNS = ("name", "count", "p50_ns", "p95_ns", "total_ns", "share")


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def read(data: bytes) -> Trace:
    """The JSON that ``profile --postprocess json`` writes.

    Raises:
        ReportInvalid: It is none.
    """
    if len(data) > _MOST_BYTES:
        raise ReportInvalid(f"the trace has {len(data):,} bytes, more than the {_MOST_BYTES:,} that are read")
    try:
        said = json.loads(data)
        launches = said["launches"]
        if not isinstance(launches, list):
            raise TypeError("launches is no list")
        made, spans = [], 0
        for one in launches:
            launch = _launch(one)
            spans += len(launch.spans)
            if spans > _MOST_SPANS:
                raise ReportInvalid(f"the trace has more than the {_MOST_SPANS:,} spans that are read")
            made.append(launch)
    except (ValueError, RecursionError) as error:
        raise ReportInvalid(f"the trace is no JSON, or cut: {error!s:.200}") from None
    except (KeyError, TypeError, AttributeError) as error:
        text = 'the trace is none of run-iket: {"launches": […]} was expected'
        raise ReportInvalid(f"{text} ({error!s:.100})") from None
    return Trace(tuple(made))


def _launch(said: dict[str, Any]) -> Launch:
    raw = list(_spans(said.get("ranges") or []))
    lifetimes = [(float(one["startTs"]), float(one["endTs"])) for one in said.get("warpLifetimes") or []]
    markers = [(str(one.get("markerName", ""))[:60], float(one["timestamp"])) for one in said.get("markers") or []]
    first = min([*(span.start_ns for span in raw), *(start for start, _ in lifetimes)], default=0.0)
    spans = tuple(
        Span(span.name, span.start_ns - first, span.end_ns - first, span.cta, span.warp, span.sm)
        for span in raw
        if span.end_ns >= span.start_ns
    )
    return Launch(
        kernel=str(said.get("kernelName", ""))[:400],
        grid_id=str(said.get("gridId", ""))[:40],
        spans=spans,
        markers=tuple((name, at - first) for name, at in markers),
        lifetime_ns=sum(end - start for start, end in lifetimes if end >= start),
    )


def _spans(ranges: list[dict[str, Any]]) -> Iterator[Span]:
    """A range of several warps is one span for each."""
    for one in ranges:
        name, start, end = str(one.get("rangeName", ""))[:60], float(one["startTs"]), float(one["endTs"])
        for place in one.get("warpLocs") or [{}]:
            yield Span(name, start, end, *(str(place.get(key, ""))[:20] for key in ("ctaId", "warpId", "smId")))
