"""The pictures of a kernel's profile, each of the numbers that ``reports`` computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kcoral_magic.display import svg
from kcoral_magic.display.quantities import quantity, scaled
from kcoral_magic.reports.ncu import Curve
from kcoral_magic.reports.roofline import Chart
from kcoral_magic.reports.views import Flow, MemoryChart

_LABEL = 18  # pixels between two roofs whose names would touch
_LOWEST, _HIGHEST = 1e-4, 1e9  # FLOP a byte: what is beyond stands at the edge


def speed_of_light(rows: Sequence[tuple[str, float]]) -> str:
    """Per cent of peak for each unit."""
    says = "Speed of light: " + ", ".join(f"{label} {value:.1f} %" for label, value in rows)
    colors = [svg.BLUE if place == 0 else svg.ORANGE for place in range(len(rows))]
    return svg.bars([(label, value, f"{value:.1f} %") for label, value in rows], most=100, says=says, colors=colors)


def breakdown(title: str, rows: Sequence[tuple[str, float]], most: int = 8) -> str:
    """What a throughput is made of."""
    shown = [(label, value, f"{value:.1f} %") for label, value in rows[:most]]
    says = f"{title}: " + ", ".join(f"{label} {text}" for label, _, text in shown[:4])
    return svg.bars(shown, most=100, says=says, colors=(svg.GREY,), label_width=230, width=540)


def stalls(rows: Sequence[tuple[str, float]], most: int = 8) -> str:
    """Cycles between two instructions of a warp, by reason."""
    shown = [(label, value, f"{value:.2f}") for label, value in rows[:most] if value > 0]
    says = "Cycles a warp waits between two instructions: " + ", ".join(f"{label} {text}" for label, _, text in shown)
    return svg.bars(shown, says=says, colors=(svg.PURPLE,))


def roofline(chart: Chart, width: float = 390, height: float = 240) -> str:
    """Work against intensity, both logarithmic, with the roofs and what the kernel reached."""
    points = [(point, point.intensity) for point in chart.points if point.flop_per_s > 0 and point.intensity]
    ridges = [ceiling.ridge for ceiling in chart.ceilings]
    xs = [*ridges, *(min(max(x, _LOWEST), _HIGHEST) for _, x in points if x is not None)]
    peaks = [ceiling.flop_per_s for ceiling in chart.ceilings]
    low_x, high_x = 10 ** math.floor(math.log10(min(xs)) - 0.7), 10 ** math.ceil(math.log10(max(xs)) + 0.5)
    floors = [point.flop_per_s for point, _ in points] + [ceiling.byte_per_s * low_x for ceiling in chart.ceilings]
    low_y, high_y = 10 ** math.floor(math.log10(max(min(floors), 1.0))), 10 ** math.ceil(math.log10(max(peaks)) + 0.05)
    x = svg.Axis(low_x, high_x, 54, width - 22, is_log=True)
    y = svg.Axis(low_y, high_y, height - 36, 18, is_log=True)
    x_text = [f"{tick:g}" for tick in x.ticks()]
    y_text = [scaled(tick, "").strip() for tick in y.ticks()]
    parts = [svg.frame(x, y, "FLOP / byte of device memory", "FLOP/s", x_text, y_text)]
    says = []
    for place, ceiling in enumerate(chart.ceilings):
        color = svg.SERIES[place % len(svg.SERIES)]
        start = max(low_x, low_y / ceiling.byte_per_s)
        corner = [
            (start, start * ceiling.byte_per_s),
            (ceiling.ridge, ceiling.flop_per_s),
            (high_x, ceiling.flop_per_s),
        ]
        parts.append(svg.line([(x.at(a), y.at(b)) for a, b in corner], color))
        text = f"{ceiling.label} {scaled(ceiling.flop_per_s, 'FLOP/s')}"
        roof = y.at(ceiling.flop_per_s)
        is_close = any(0 < roof - y.at(other.flop_per_s) < _LABEL for other in chart.ceilings)
        parts.append(svg.words(x.end - 4, roof + (13 if is_close else -5), text, anchor="end", color=color))
        says.append(f"{ceiling.label} roof {scaled(ceiling.flop_per_s, 'FLOP/s')}")
    labels = [ceiling.label for ceiling in chart.ceilings]
    for point, intensity in points:
        place = labels.index(point.label) if point.label in labels else 0
        color = svg.SERIES[place % len(svg.SERIES)]
        text = f"{point.label} {scaled(point.flop_per_s, 'FLOP/s')}"
        share = "" if point.of_peak_pct is None else f", {quantity(point.of_peak_pct, '%')} of its peak"
        says.append(f"{text}{share}")
        a, b = x.at(max(intensity or 0, _LOWEST)), y.at(point.flop_per_s)
        parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{color}" stroke="currentColor"><title>{text}{share}</title>'
            f"</circle>"
        )
        anchor, shift = ("end", -9) if a > width * 0.6 else ("start", 9)
        parts.append(svg.words(a + shift, b + 4, f"{text}{share}", anchor=anchor))
    return svg.picture(width, height, "".join(parts), "Roofline: " + "; ".join(says))


def curve(chart: Curve, points: Sequence[tuple[float, float]], here: float | None) -> str:
    """Occupancy by registers, block size or shared memory, with the kernel's own place."""
    width, height = 230, 130
    x = svg.Axis(points[0][0], points[-1][0], 30, width - 18)
    y = svg.Axis(0, max(value for _, value in points) or 1, height - 34, 16)
    texts = [f"{tick:g}" if tick < 10_000 else scaled(tick, "").strip() for tick in x.ticks()]
    parts = [svg.frame(x, y, chart.axis, chart.unit, texts, [f"{tick:g}" for tick in y.ticks()])]
    parts.append(svg.line([(x.at(a), y.at(b)) for a, b in points], svg.BLUE))
    says = f"{chart.title}: {chart.unit} by {chart.axis}"
    if here is not None:
        value = next((b for a, b in reversed(points) if a <= here), points[0][1])
        parts.append(f'<circle cx="{x.at(here):.1f}" cy="{y.at(value):.1f}" r="4" fill="{svg.ORANGE}"/>')
        says += f"; here {here:g}: {value:g}"
    return svg.picture(width, height, "".join(parts), says)


_UNITS = ("Kernel", "Global", "Local", "Shared", "L1/TEX", "L2", "DRAM")
_PLACES = {  # left, top, width, height
    "Kernel": (4, 16, 70, 156),
    "Global": (186, 22, 74, 30),
    "Local": (186, 80, 74, 30),
    "Shared": (186, 138, 74, 30),
    "L1/TEX": (278, 22, 74, 88),
    "L2": (462, 22, 74, 88),
    "DRAM": (646, 22, 74, 88),
}


def memory(chart: MemoryChart) -> str:
    """Units as boxes, what went between them as arrows, hit rates in the caches."""
    hits = {"L1/TEX": chart.l1_hit, "L2": chart.l2_hit}
    parts, says = [], []
    for name in _UNITS:
        left, top, width, height = _PLACES[name]
        hit = hits.get(name)
        parts.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="currentColor" '
            f'opacity=".55" rx="3"/>'
        )
        middle = top + height / 2 + 4 - (8 if hit is not None else 0)
        parts.append(svg.words(left + width / 2, middle, name, anchor="middle"))
        if hit is not None:
            parts.append(svg.words(left + width / 2, middle + 16, f"{hit:.1f} % hit", anchor="middle", faint=True))
            says.append(f"{name} hit rate {hit:.1f} %")
    largest = max((value for flow in chart.flows for value in _bytes(flow)), default=0.0)
    for flow in chart.flows:
        parts.append(_arrows(flow, largest))
        says += [f"{flow.source} to {flow.target} {_amount(flow.there)}"] if flow.there else []
        says += [f"{flow.target} to {flow.source} {_amount(flow.back)}"] if flow.back else []
    if chart.bank_conflicts is not None:
        parts.append(svg.words(270, 157, f"{chart.bank_conflicts:,.0f} bank conflicts", faint=True))
        says.append(f"{chart.bank_conflicts:,.0f} bank conflicts in shared memory")
    return svg.picture(726, 184, "".join(parts), "Memory: " + "; ".join(says))


def _bytes(flow: Flow) -> list[float]:
    return [way[0] for way in (flow.there, flow.back) if way is not None and way[1] == "B"]


def _amount(way: tuple[float, str] | None) -> str:
    if way is None:
        return ""
    value, unit = way
    return scaled(value, "B") if unit == "B" else f"{scaled(value, '').strip()} {unit}"


def _arrows(flow: Flow, largest: float) -> str:
    """One arrow to the right and one back, their width the share of the largest flow of bytes."""
    left, top, width, height = _PLACES[flow.source]
    target_left, target_top, _, target_height = _PLACES[flow.target]
    start, end = left + width, target_left
    middle = target_top + target_height / 2
    del top, height
    parts = []
    for way, y, is_there in ((flow.there, middle - 7, True), (flow.back, middle + 7, False)):
        if way is None:
            continue
        share = way[0] / largest if way[1] == "B" and largest else 0.0
        color = svg.ORANGE if way[1] == "B" else svg.BLUE
        a, b = (start + 4, end - 4) if is_there else (end - 4, start + 4)
        tip = -6 if is_there else 6
        parts.append(
            f'<path d="M{a} {y:g}H{b}" stroke="{color}" stroke-width="{1.2 + 4 * share:.2g}"/>'
            f'<path d="M{b + tip} {y - 5:g}L{b} {y:g}L{b + tip} {y + 5:g}" fill="none" stroke="{color}"/>'
        )
        parts.append(svg.words((start + end) / 2, y - 6 if is_there else y + 15, _amount(way), anchor="middle"))
    return "".join(parts)
