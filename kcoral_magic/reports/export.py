"""A profile as plain data: JSON for agents and programs, rows for tables.

The JSON's form is ``docs/schemas/ncu-1.json``: what is there keeps its name and meaning, names may be added, and a
change of meaning raises the number in ``schema``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from kcoral_magic.reports import roofline, views
from kcoral_magic.reports.comparison import Comparison
from kcoral_magic.reports.hotspots import Line, hot_spots
from kcoral_magic.reports.ncu import DURATION, Kernel, Profile

SCHEMA = "kcoral.ncu/1"
DIFF_SCHEMA = "kcoral.ncu-diff/1"
Listings = Mapping[str, Mapping[int, Line]]


def as_json(
    profile: Profile,
    *,
    listings: Listings | None = None,
    has_metrics: bool = True,
    most_kernels: int | None = None,
    launched: int | None = None,
) -> dict[str, Any]:
    """The whole profile.

    Args:
        listings: Disassemblies by mangled name.
        has_metrics: With every metric; without, only what the views show.
        most_kernels: The heaviest so many; ``captured`` still counts all.
        launched: How many kernels were launched, if that is known.
    """
    kernels = profile.kernels if most_kernels is None else profile.heaviest()[:most_kernels]
    return {
        "schema": SCHEMA,
        "captured": len(profile),
        "launched": launched,
        "kernels": [_kernel(kernel, listings or {}, has_metrics) for kernel in kernels],
        "provenance": {
            "source": profile.source,
            "created_s": profile.origin.created_s,
            "processes": list(profile.origin.processes),
            **dict(profile.origin.facts),
        },
        "notes": list(profile.notes),
    }


def _kernel(kernel: Kernel, listings: Listings, has_metrics: bool) -> dict[str, Any]:
    occupancy = views.occupancy(kernel)
    made: dict[str, Any] = {
        "index": kernel.index,
        "name": kernel.name,
        "signature": kernel.signature,
        "grid": list(kernel.grid),
        "block": list(kernel.block),
        "device": kernel.device,
        "compute_capability": kernel.capability,
        "duration_ns": kernel.duration_ns,
        "sol": [{"unit": label, "pct": value} for label, value in views.speed_of_light(kernel)],
        "breakdown": {
            title: [{"name": name, "pct": value} for name, value in parts] for title, parts in views.breakdowns(kernel)
        },
        "roofline": [asdict(chart) for chart in roofline.charts(kernel)],
        "occupancy": {
            "theoretical_pct": occupancy.theoretical,
            "achieved_pct": occupancy.achieved,
            "limits": dict(occupancy.limits),
            "limiters": list(occupancy.limiters),
        },
        "stalls": [{"reason": reason, "cycles": value} for reason, value in views.stalls(kernel)],
        "hotspots": [
            {
                "offset": spot.offset,
                "samples": spot.samples,
                "share": spot.share,
                "stalls": dict(spot.stalls),
                "executed": spot.executed,
                "sass": spot.line.text if spot.line else None,
                "source": f"{spot.line.file}:{spot.line.line}" if spot.line and spot.line.file else None,
                "source_text": (spot.line.source or None) if spot.line else None,
            }
            for spot in hot_spots(kernel, listings.get(kernel.mangled))
        ],
        "advice": [
            {
                "rule": rule.id,
                "section": rule.section,
                "kind": rule.kind,
                "title": rule.title or rule.name,
                "text": rule.text,
                "speedup": {"scope": rule.speedup[0], "pct": rule.speedup[1]} if rule.speedup else None,
            }
            for rule in kernel.advice
        ],
    }
    if has_metrics:
        made["metrics"] = {
            name: {"value": _finite(metric.value), "unit": metric.unit}
            for name, metric in sorted(kernel.metrics.items())
        }
    return made


def _finite(value: Any) -> Any:
    """JSON knows no NaN."""
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def diff_as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison: each kernel with the metrics that changed by more than a per cent."""
    return {
        "schema": DIFF_SCHEMA,
        "kernels": [
            {
                "name": pair.after.name,
                "before": pair.before.index,
                "after": pair.after.index,
                "changes": [
                    {
                        "metric": change.metric,
                        "unit": change.unit,
                        "before": change.before,
                        "after": change.after,
                        "ratio": change.ratio,
                        "verdict": change.verdict,
                    }
                    for change in pair.changes
                    if change.verdict != "same" or change.metric == DURATION
                ],
            }
            for pair in comparison.pairs
        ],
        "gone": [kernel.name for kernel in comparison.gone],
        "new": [kernel.name for kernel in comparison.new],
        "notes": list(comparison.notes),
    }


def wide(profile: Profile) -> list[dict[str, Any]]:
    """A row for each kernel: what it was, then every metric by name."""
    return [
        {**_identity(kernel), **{name: metric.value for name, metric in kernel.metrics.items()}} for kernel in profile
    ]


def long(profile: Profile) -> Iterator[dict[str, Any]]:
    """A row for each metric of each kernel."""
    for kernel in profile:
        identity = _identity(kernel)
        for name, metric in kernel.metrics.items():
            yield {**identity, "metric": name, "value": metric.value, "unit": metric.unit}


def _identity(kernel: Kernel) -> dict[str, Any]:
    return {
        "index": kernel.index,
        "kernel": kernel.name,
        "signature": kernel.signature,
        "grid": kernel.grid,
        "block": kernel.block,
    }
