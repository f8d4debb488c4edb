"""What a cell shows of a benchmark: the number with how it came about, the verdict, and the samples as a picture."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from kcoral_magic.display import svg
from kcoral_magic.display.markup import beside, colored, faint, grid, note
from kcoral_magic.display.quantities import quantity, ratio, scaled, time
from kcoral_magic.display.twin import Twin
from kcoral_magic.reports.bench import Bench, Measured
from kcoral_magic.reports.statistics import Comparison, Summary, quantile

if TYPE_CHECKING:
    import pandas

_AGAINST = {"FASTER": "than", "SLOWER": "than", "SAME": "as", "UNSURE": "against"}
_COLORS = {"FASTER": svg.GREEN, "SLOWER": svg.RED, "SAME": svg.BLUE, "UNSURE": svg.ORANGE, "SUSPECT": svg.RED}


class BenchReport(Twin):
    """One run of ``%%kcoral bench``; ``bench`` is its data."""

    KIND = "bench"

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @property
    def verdict(self) -> str | None:
        """FASTER, SLOWER, SAME or UNSURE against the baseline; of a sweep, where all points agree."""
        found = {one.verdict for place in range(len(self.bench.candidate)) if (one := self.bench.comparison(place))}
        return None if not found else found.pop() if len(found) == 1 else "UNSURE"

    @property
    def median_s(self) -> float:
        """Seconds of a call, at the first point."""
        return self.bench.candidate[0].summary.median

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/bench-1.json``."""
        return {**self.bench.json(), "verdict": self.verdict}

    def df(self) -> pandas.DataFrame:
        """A row for each point of the sweep."""
        import pandas as pd

        rows = []
        for point in self.bench.json()["points"]:
            compared = point.pop("comparison") or {}
            baseline = point.pop("baseline") or {}
            at = point.pop("at")
            low, high = point.pop("interval_s")
            row = {**at, **point, "low_s": low, "high_s": high}
            rows.append(
                {
                    **row,
                    "baseline_s": baseline.get("median_s"),
                    **{key: compared.get(key) for key in ("ratio", "verdict")},
                }
            )
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        bench = self.bench
        lines = [
            f"bench {bench.name}: {_method(bench.candidate[0])}"
            if bench.name
            else f"bench: {_method(bench.candidate[0])}"
        ]
        for place, measured in enumerate(bench.candidate):
            compared = bench.comparison(place)
            at = ", ".join(f"{name}={value}" for name, value in measured.at.items())
            parts = [at, _time(measured), *_rates(measured, bench)]
            if compared is not None:
                verdict = f"{compared.verdict} {_AGAINST[compared.verdict]}"
                parts.append(f"{verdict} {bench.baseline_name}, {_ratio(compared)}")
            lines.append("  " + "  ".join(part for part in parts if part))
        lines += [f"  warning: {one.text}" for one in bench.warnings()]
        return "\n".join([*lines, *(f"  {text}" for text in bench.notes)])

    def html(self) -> str:
        """A table of the points, the samples of the first, or the curve of a sweep."""
        bench = self.bench
        name = f"<b>{escape(bench.name or 'bench')}</b> {faint(_method(bench.candidate[0]))}"
        pictures = [_sweep(bench)] if len(bench.candidate) > 1 else [_samples(bench)]
        warned = "".join(f"<div>{colored('warning', svg.ORANGE)} {escape(one.text)}</div>" for one in bench.warnings())
        said = "".join(note(text) for text in (*bench.notes, _where(bench)) if text)
        return f"<div><div>{name}</div>{self._table()}{beside(*pictures)}{warned}{said}</div>"

    def _table(self) -> str:
        bench = self.bench
        names = list(bench.candidate[0].at)
        has_baseline = bool(bench.baseline)
        rates = [
            label
            for label, has in (("bandwidth", bench.candidate[0].bytes), ("compute", bench.candidate[0].flops))
            if has
        ]
        heads = [
            *names,
            "time",
            "",
            "calls",
            *rates,
            *((bench.baseline_name, "ratio", "verdict") if has_baseline else ()),
        ]
        rows = []
        for place, measured in enumerate(bench.candidate):
            summary = measured.summary
            cells = [escape(str(value)) for value in measured.at.values()]
            cells += [
                f"<b>{time(summary.median)}</b>",
                faint(f"±{summary.width:.1%}"),
                f"{summary.count:,}",
                *map(escape, _rates(measured, bench)),
            ]
            if has_baseline:
                compared = bench.comparison(place)
                before = time(bench.baseline[place].summary.median) if place < len(bench.baseline) else "–"
                cells += [before, _ratio(compared) if compared else "–"]
                cells.append(colored(compared.verdict, _COLORS[compared.verdict]) if compared else "")
            rows.append(cells)
        return grid([escape(head) for head in heads], rows, right=range(len(names), len(heads) - has_baseline))


class JudgeReport(Twin):
    """What a judge says of a solution: its verdict, why, and how long a call takes by the judge's clock."""

    KIND = "judge"

    def __init__(
        self, verdict: str, reasons: tuple[str, ...], samples: tuple[float, ...], reference_s: float | None
    ) -> None:
        self.verdict = verdict
        self.reasons = reasons
        self.samples = samples
        self.reference_s = reference_s

    @property
    def median_s(self) -> float | None:
        """Seconds of a call; none of a solution that was not timed."""
        return Summary.of(self.samples).median if self.samples else None

    def json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": "kcoral.judge/1",
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "median_s": self.median_s,
            "reference_s": self.reference_s,
            "rounds": len(self.samples),
        }

    def _said(self) -> str:
        parts = []
        if self.samples:
            summary = Summary.of(self.samples)
            spread = f"±{summary.width:.1%} a call, on fresh inputs in {summary.count} rounds"
            parts.append(f"{time(summary.median)} {spread}")
        if self.reference_s and self.samples:
            parts.append(f"the reference takes {time(self.reference_s)}")
        return "; ".join(parts)

    def __repr__(self) -> str:
        return "\n".join([f"judge: {self.verdict} {self._said()}".rstrip(), *(f"  {text}" for text in self.reasons)])

    def html(self) -> str:
        """A line, and the reasons."""
        color = svg.GREEN if self.verdict == "RIGHT" else svg.RED
        reasons = "".join(f"<div>{escape(text)}</div>" for text in self.reasons)
        return f"<div>{colored(self.verdict, color)} {escape(self._said())}{reasons}</div>"


def _method(measured: Measured) -> str:
    words = {
        "host": "host clock",
        "event": "CUDA events",
        "graph": "CUDA graph replay",
        "cupti": "CUPTI, first kernel to last",
    }
    if measured.method == "host":
        return words["host"]
    if not measured.is_cold:
        return f"{words[measured.method]}, warm L2"
    return f"{words[measured.method]}, L2 flushed before each call ({scaled(measured.flush_bytes or 0, 'B')})"


def _time(measured: Measured) -> str:
    summary = measured.summary
    spread = f"p20 {time(summary.p20)}, p80 {time(summary.p80)}, {summary.count:,} calls"
    return f"{time(summary.median)} ±{summary.width:.1%} ({spread})"


def _rates(measured: Measured, bench: Bench) -> list[str]:
    made = []
    if (moved := measured.byte_per_s) is not None:
        peak = bench.machine.peak_byte_per_s
        made.append(scaled(moved, "B/s") + (f" ({moved / peak:.0%} of roofline)" if peak else ""))
    if (done := measured.flop_per_s) is not None:
        made.append(scaled(done, "FLOP/s"))
    return made


def _ratio(compared: Comparison) -> str:
    return f"{ratio(compared.ratio)} ({ratio(compared.low)}–{ratio(compared.high)})"


def _where(bench: Bench) -> str:
    machine = bench.machine
    parts = [machine.gpu or machine.cpu, f"driver {machine.driver}" if machine.driver else "", machine.clock_policy]
    readings = [reading for measured in bench.candidate for reading in measured.readings]
    if readings and (last := readings[-1]).sm_hz:
        parts.append(f"SM {quantity(last.sm_hz, 'hz')}")
        parts += [f"{last.temperature_c:.0f} °C"] if last.temperature_c else []
        parts += [f"{last.power_w:.0f} W"] if last.power_w else []
    order = "baseline and candidate in turn" if bench.is_interleaved else ""
    return " · ".join(part for part in (*parts, order) if part)


def _samples(bench: Bench) -> str:
    """Each sample as a dot in the order it was taken, candidate over baseline, up to the 98th percentile."""
    series = [("baseline", bench.baseline[0], svg.GREY)] if bench.baseline else []
    series.append(("candidate", bench.candidate[0], svg.BLUE))
    every = sorted(sample for _, measured, _ in series for sample in measured.samples)
    low, high = every[0], quantile(every, 0.98)
    width, height = 460, 120
    y = svg.Axis(low - (high - low) * 0.1, high + (high - low) * 0.1 or low * 1.1, height - 6, 8)
    parts = []
    for label, measured, color in series:
        step = max(1, len(measured.samples) // 300)
        shown = measured.samples[::step]
        for place, sample in enumerate(shown):
            x = 70 + (width - 80) * place / max(len(shown) - 1, 1)
            parts.append(f'<circle cx="{x:.1f}" cy="{y.at(sample):.1f}" r="1.6" fill="{color}" opacity=".55"/>')
        middle = y.at(measured.summary.median)
        parts.append(
            f'<path d="M70 {middle:.1f}H{width - 10}" stroke="{color}" stroke-width="1.5"><title>{label}</title></path>'
        )
    for tick in y.ticks():
        parts.append(svg.words(64, y.at(tick) + 4, time(tick), anchor="end", faint=True))
    says = "Samples in their order: " + ", ".join(
        f"{label} median {time(one.summary.median)}" for label, one, _ in series
    )
    return svg.picture(width, height, "".join(parts), says)


def _sweep(bench: Bench) -> str:
    """Time by the first parameter of a sweep, both logarithmic where the numbers allow it."""
    name = next(iter(bench.candidate[0].at))
    places = [measured.at[name] for measured in bench.candidate]
    if (
        not all(isinstance(place, int | float) and not isinstance(place, bool) for place in places)
        or len(set(places)) < 2
    ):
        return ""
    series = [("baseline", bench.baseline, svg.GREY)] if bench.baseline else []
    series.append(("candidate", bench.candidate, svg.BLUE))
    values = [measured.summary.median for _, points, _ in series for measured in points]
    is_log = min(places) > 0 and max(places) / min(places) >= 8
    x = svg.Axis(min(places), max(places), 62, 440, is_log=is_log)
    y = svg.Axis(min(values) * 0.9, max(values) * 1.1, 170, 18, is_log=max(values) / min(values) >= 8)
    texts = [f"{tick:g}" for tick in x.ticks()]
    parts = [svg.frame(x, y, name, "time of a call", texts, [time(tick) for tick in y.ticks()])]
    for label, points, color in series:
        line = sorted((x.at(measured.at[name]), y.at(measured.summary.median)) for measured in points)
        parts.append(svg.line(line, color))
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"><title>{label}</title></circle>' for a, b in line
        ]
    says = f"Time by {name}: " + ", ".join(
        f"{measured.at[name]}: {time(measured.summary.median)}" for measured in bench.candidate
    )
    return svg.picture(460, 206, "".join(parts), says)
