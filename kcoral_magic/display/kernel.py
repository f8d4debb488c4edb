"""One kernel's page: its views one below the other, as HTML that needs no script and no style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from kcoral_magic.display import charts, svg
from kcoral_magic.display.markup import FAINT, beside, colored, faint, folded, grid, heading, share_bar
from kcoral_magic.display.quantities import count, quantity
from kcoral_magic.reports import roofline, views
from kcoral_magic.reports.hotspots import HotSpot, Line, hot_spots
from kcoral_magic.reports.ncu import Kernel, Rule

_MARKUP = re.compile(r"@(url|section|source):([^@\n:]{1,200}):([^@\n]{1,500})@")
_SHORT = 80  # characters of a rule that are not worth a click
_LAUNCH = (
    ("launch__registers_per_thread", "", "registers"),
    ("launch__shared_mem_per_block_static", "B", "static shared"),
    ("launch__shared_mem_per_block_dynamic", "B", "dynamic shared"),
    ("gpc__cycles_elapsed.avg.per_second", "hz", "SM clock"),
)
_COLORS = {"error": "#d9534f", "warning": "#cc7722", "optimization": "#4a8fd8", "ok": "#8c8c8c", "none": "#8c8c8c"}
_WORDS = {"error": "error", "warning": "warning", "optimization": "optimize", "ok": "info", "none": "note"}


def page(kernel: Kernel, listing: Mapping[int, Line] | None = None) -> str:
    """All views of one kernel that its report has the numbers for."""
    light = views.speed_of_light(kernel)
    speed = heading("Speed of light") + charts.speed_of_light(light) if light else ""
    made = "".join(heading(title) + charts.breakdown(title, rows) for title, rows in views.breakdowns(kernel))
    speed += folded(faint("what these are made of"), made)
    roofs = [
        heading("Roofline") + charts.roofline(chart)
        for chart in roofline.charts(kernel)
        if any(point.flop_per_s > 0 and point.intensity for point in chart.points)
    ]
    if roofs and roofline.has_tensor_work(kernel) and not any("ensor" in one for one in roofs):
        said = "Tensor cores worked: what they computed is not in this chart. --set full measures theirs."
        roofs[-1] += f"<div>{faint(said)}</div>"
    waits = [row for row in views.stalls(kernel) if row[1] > 0]
    waiting = heading("Why warps waited", "cycles between two instructions") + charts.stalls(waits) if waits else ""
    flows = views.memory(kernel)
    return "".join(
        (
            headline(kernel),
            beside(speed + _occupancy(kernel), *roofs, waiting),
            heading("Memory") + charts.memory(flows) if flows is not None else "",
            heading("Advice") + "".join(advice(rule) for rule in kernel.advice) if kernel.advice else "",
            _hot_spots(hot_spots(kernel, listing, 12), has_code=kernel.code is not None),
            folded(faint("sections"), _sections(kernel)),
        )
    )


def headline(kernel: Kernel) -> str:
    """What it is and how it was launched, on two lines."""
    facts = [f"grid {_shape(kernel.grid)}", f"block {_shape(kernel.block)}"]
    for name, unit, word in _LAUNCH:
        if (value := kernel.get(name)) is not None:
            facts.append(f"{quantity(value, unit)} {word}")
    if kernel.device:
        facts.append(kernel.device[:80] + (f" (cc {kernel.capability})" if kernel.capability else ""))
    time = f" · <b>{quantity(kernel.duration_ns, 'ns')}</b>" if kernel.duration_ns is not None else ""
    signature = escape(kernel.signature if len(kernel.signature) <= 300 else f"{kernel.signature[:299]}…")
    return (
        f'<div style="margin:6px 0;overflow-wrap:anywhere"><b>{escape(kernel.name[:120])}</b>{time}<br>'
        f'<span style="{FAINT}">{escape(" · ".join(facts))}</span>'
        + (f'<br><code style="{FAINT};font-size:85%">{signature}</code>' if kernel.signature != kernel.name else "")
        + "</div>"
    )


def _shape(three: tuple[int, int, int]) -> str:
    return "×".join(f"{size:,}" for size in three if size != 1) or "1"


def _occupancy(kernel: Kernel) -> str:
    found = views.occupancy(kernel)
    if found.achieved is None and found.theoretical is None:
        return ""
    rows = [
        (label, value, f"{value:.1f} %")
        for label, value in (("theoretical", found.theoretical), ("achieved", found.achieved))
        if value is not None
    ]
    says = "Occupancy: " + ", ".join(f"{label} {text}" for label, _, text in rows)
    body = svg.bars(rows, most=100, says=says, colors=(svg.GREY, svg.GREEN))
    if found.limits:
        limits = ", ".join(f"{name} {count(value)}" for name, value in found.limits)
        causes = escape(" and ".join(found.limiters))
        body += f"<div>limited by <b>{causes}</b></div>"
        body += f"<div>{faint(f'blocks that fit on a multiprocessor, by: {limits}')}</div>"
    drawn = "".join(charts.curve(*one) for one in views.curves(kernel))
    return heading("Occupancy") + body + folded(faint("what would change it"), drawn)


def advice(rule: Rule) -> str:
    """What one rule said, with its links."""
    gain = ""
    if rule.speedup is not None and rule.speedup[1] > 0:
        scope = "" if rule.speedup[0] == "global" else " of this part"
        gain = " " + colored(f"up to {rule.speedup[1]:.1f} %{scope}", svg.GREEN)
    mark = colored(_WORDS[rule.kind], _COLORS[rule.kind])
    head = f"{mark} <b>{escape(rule.title or rule.name)}</b>{gain}"
    first, stop, rest = rule.text.partition(". ")
    if len(rest) < _SHORT or first.count("@") % 3:  # a link that goes on beyond the sentence
        return f'<div style="margin:3px 0">{head}: {linked(rule.text)}</div>'
    return folded(f"{head}: {linked(first + stop)}{faint('…')}", f'<div style="margin-left:1em">{linked(rest)}</div>')


def linked(text: str) -> str:
    """A rule's text as HTML: ``@url:…@`` as links (http only), names of sections as names."""
    made, at = [], 0
    for found in _MARKUP.finditer(text):
        made.append(escape(text[at : found.start()]))
        kind, first, second = found.groups()
        if kind == "url" and second.startswith(("https://", "http://")):
            made.append(f'<a href="{escape(second)}" target="_blank" rel="noopener noreferrer">{escape(first)}</a>')
        else:
            made.append(escape(second if kind == "section" else first))
        at = found.end()
    return "".join(made) + escape(text[at:])


def plain(text: str) -> str:
    """A rule's text without markup."""
    return _MARKUP.sub(lambda found: found[3] if found[1] == "section" else found[2], text)


def _hot_spots(spots: tuple[HotSpot, ...], *, has_code: bool) -> str:
    if not spots:
        return ""
    has_source = any(spot.line is not None and spot.line.file for spot in spots)
    has_lines = any(spot.line is not None for spot in spots)
    heads = ["", "samples" if spots[0].samples else "executed", "", "offset", "waits for"]
    heads += [*(["instruction"] if has_lines else []), *(["source"] if has_source else [])]
    rows = []
    for spot in spots:
        line = spot.line
        waits = [f"{reason.replace('_', ' ')} {n / spot.samples:.0%}" for reason, n in spot.stalls[:2]]
        cells = [
            share_bar(spot.share, svg.PURPLE, 160),
            f"{spot.samples or spot.executed or 0:,}",
            faint(f"{spot.share:.1%}"),
            f"{spot.offset:#x}",
            escape(", ".join(waits)),
        ]
        if has_lines:
            cells.append(f"<code>{escape(line.text[:90])}</code>" if line else "")
        if has_source:
            place = escape(f"{line.file.rpartition('/')[2]}:{line.line}") if line and line.file else ""
            cells.append(f"{place} <code>{escape(line.source[:80])}</code>" if line and line.source else place)
        rows.append(cells)
    said = "" if has_lines or not has_code else "instructions are named where nvdisasm is: kcoral-magic[asm]"
    return heading("Hot spots", said) + grid(heads, rows, right=(1, 2, 3))


def _sections(kernel: Kernel) -> str:
    """What ``ncu --page details`` prints, and the report's other charts."""
    drawn: dict[str, list[str]] = {}
    for name, chart, values in views.bars(kernel):
        rows = [(label, value, count(value)) for label, value in sorted(values, key=lambda row: -row[1])[:12]]
        says = f"{chart.title}: " + ", ".join(f"{label} {text}" for label, _, text in rows[:4])
        picture = svg.bars(rows, most=chart.most, says=says, colors=(svg.GREY,), label_width=210)
        drawn.setdefault(name, []).append(f"<div>{faint(chart.title)}</div>{picture}")
    parts = []
    for section in kernel.sections:
        lines = []
        for name, label in section.header:
            metric = kernel.metrics[name]
            shown = escape(quantity(metric.value, metric.unit)[:80])
            lines.append((f'<span title="{escape(name)}">{escape(label)}</span>', shown))
        body = (grid(("", ""), lines, right=(1,)) if lines else "") + "".join(drawn.pop(section.name, []))
        if body:
            parts.append(heading(section.name, section.description[:160]) + body)
    return "".join(parts)
