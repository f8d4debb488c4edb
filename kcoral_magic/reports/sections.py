"""A section of an ``.ncu-rep`` file: what it shows and how, as the report itself says.

Charts are drawn from this and never from lists of our own: a newer GPU brings other pipes, stalls and roofs.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoral_magic.reports.fields import inside, text
from kcoral_magic.reports.ncu import Bars, Curve, Formula, Metric, Roof, Roofline, Section

_BARS, _CURVE, _GROUPS, _ROOFLINE = 2, 4, 5, 6  # kinds of an item in a section's body


def section(data: bytes, at: int, end: int, metrics: Mapping[str, Metric]) -> Section:
    """The section that lies in ``data[at:end]``, less what it shows of metrics that are not there.

    Raises:
        ReportInvalid: It is cut or damaged.
    """
    identifier = name = description = ""
    order = 0
    header: list[tuple[str, str]] = []
    shown: list[Bars | Curve | Roofline] = []
    breakdowns: list[tuple[str, str]] = []
    for key, a, b in inside(data, at, end):
        match key:
            case 1:
                identifier = text(data, a, b)
            case 2:
                name = text(data, a, b)
            case 3:
                order = a
            case 4:
                header += _labelled(data, a, b, 2, metrics)
            case 5:
                for part, c, d in inside(data, a, b):
                    if part == 1:
                        _item(data, c, d, metrics, shown, breakdowns)
            case 7:
                description = text(data, a, b)
    return Section(identifier, name, order, tuple(header), tuple(shown), tuple(breakdowns), description)


def _item(
    data: bytes,
    at: int,
    end: int,
    metrics: Mapping[str, Metric],
    shown: list[Bars | Curve | Roofline],
    breakdowns: list[tuple[str, str]],
) -> None:
    for kind, a, b in inside(data, at, end):
        if kind == _BARS:
            bars = _bars(data, a, b, metrics)
            if bars.bars:
                shown.append(bars)
        elif kind == _CURVE:
            curve = _curve(data, a, b)
            if curve.metric in metrics:
                shown.append(curve)
        elif kind == _ROOFLINE:
            roofline = _roofline(data, a, b)
            if roofline.roofs:
                shown.append(roofline)
        elif kind == _GROUPS:
            for inner, c, d in inside(data, a, b):
                if inner == 1:
                    for part, e, f in inside(data, c, d):
                        if part == 1:
                            breakdowns += _titled(data, e, f, metrics)


def _titled(data: bytes, a: int, b: int, metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    title = ""
    for key, c, d in inside(data, a, b):
        if key == 1:
            title = text(data, c, d)
    return [(metric, title) for metric, _ in _labelled(data, a, b, 5, metrics)]


def _labelled(data: bytes, a: int, b: int, key: int, metrics: Mapping[str, Metric]) -> list[tuple[str, str]]:
    """The ``(metric, label)`` pairs in field ``key`` of a message, as far as the kernel has the metric.

    An architecture that has not the metric may have another of the same meaning: alternatives are looked at in turn.
    """
    found = []
    for which, c, d in inside(data, a, b):
        if which != key:
            continue
        name = label = ""
        others: list[tuple[str, str]] = []
        for part, e, f in inside(data, c, d):
            if part == 1:
                name = text(data, e, f)
            elif part == 2:
                label = text(data, e, f)
            elif part == 7:
                pair = {inner: text(data, g, h) for inner, g, h in inside(data, e, f) if inner in (1, 2) and h >= 0}
                others.append((pair.get(1, ""), pair.get(2, "")))
        for candidate, its_label in ((name, label), *others):
            if candidate in metrics:
                found.append((candidate, its_label or label or candidate))
                break
    return found


def _bars(data: bytes, a: int, b: int, metrics: Mapping[str, Metric]) -> Bars:
    title = axis = ""
    most: float | None = None
    for key, c, d in inside(data, a, b):
        if key == 1:
            title = text(data, c, d)
        elif key == 4:
            for part, e, f in inside(data, c, d):
                if part == 1:
                    axis = text(data, e, f)
                elif part == 2:
                    most = next((float(g) for inner, g, h in inside(data, e, f) if inner == 2 and h < 0), most)
    return Bars(title, axis, tuple(_labelled(data, a, b, 5, metrics)), most)


def _curve(data: bytes, a: int, b: int) -> Curve:
    title = axis = unit = metric = marker = ""
    for key, c, d in inside(data, a, b):
        if key == 1:
            title = text(data, c, d)
        elif key == 2:
            axis = _first_text(data, c, d)
        elif key == 3:
            unit = _first_text(data, c, d)
        elif key == 4:
            metric = metric or _first_text(data, c, d)
        elif key == 5:
            for part, e, f in inside(data, c, d):
                if part == 1:
                    marker = marker or _first_text(data, e, f)
    return Curve(title, axis, unit, metric, marker)


def _first_text(data: bytes, a: int, b: int) -> str:
    return next((text(data, c, d) for key, c, d in inside(data, a, b) if key == 1 and d >= 0), "")


def _roofline(data: bytes, a: int, b: int) -> Roofline:
    title = ""
    roofs, points = [], []
    for key, c, d in inside(data, a, b):
        if key == 1:
            title = text(data, c, d)
        elif key == 4:
            roofs.append(_roof(data, c, d))
        elif key == 5:
            points.append(_roof(data, c, d))
    return Roofline(title, tuple(roofs), tuple(points))


def _roof(data: bytes, a: int, b: int) -> Roof:
    label = ""
    work = traffic = Formula(())
    for key, c, d in inside(data, a, b):
        if key == 1:
            work = _formula(data, c, d)
        elif key == 2:
            traffic = _formula(data, c, d)
        elif key == 3:
            label = _first_text(data, c, d)
    return Roof(label, work, traffic)


def _formula(data: bytes, a: int, b: int) -> Formula:
    """A metric, or a product: in field 3 the factors, of which the first may be a sum."""
    for key, c, d in inside(data, a, b):
        if key == 2:
            return Formula((tuple(_names(data, c, d)),))
        if key == 3:
            first: list[str] = []
            rest: list[tuple[str, ...]] = []
            for part, e, f in inside(data, c, d):
                if part == 1:
                    first.append(_first_text(data, e, f))
                elif part == 2:
                    rest.append((_first_text(data, e, f),))
            return Formula((tuple(first), *rest))
    return Formula(())


def _names(data: bytes, a: int, b: int) -> list[str]:
    return [text(data, c, d) for key, c, d in inside(data, a, b) if key == 1 and d >= 0]
