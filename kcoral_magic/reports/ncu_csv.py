"""Reads what ``ncu --csv`` printed: the details page, single sections and the raw page.

What makes these files odd, each met in the field: lines of the profiler and of the program before the header, rows that
end early, numbers with thousands separators of a locale, units that scale themselves (``Ghz``, ``Mbyte``, ``us``), a
second header line with units, rules beside metrics, and columns that come and go with versions.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator

from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports.labels import METRICS
from kcoral_magic.reports.ncu import (
    MOST_KERNELS,
    Kernel,
    Metric,
    Origin,
    Profile,
    Rule,
    RuleKind,
    Section,
    Speedup,
    Value,
)
from kcoral_magic.reports.units import unit_of

_MOST_BYTES = 256 * 1024 * 1024
_MOST_CELLS = 8_000_000
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = re.compile(r"([num]?)s(?:econd)?")
_SCALED = re.compile(r"([KkMGT]?)(byte|hz)(.*)", re.IGNORECASE)
_KINDS: dict[str, RuleKind] = {"OPT": "optimization", "WRN": "warning", "INF": "ok", "ERR": "error"}
_IDENTITY = frozenset(
    "ID;Process ID;Process Name;Host Name;Kernel Name;Kernel Time;Context;Stream;Block Size;Grid Size;Device;CC".split(
        ";"
    )
)
_TRIPLE = re.compile(r"\(\s*(\d{1,18}),\s*(\d{1,18}),\s*(\d{1,18})\s*\)")
_SECTION_IDS = {
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Scheduler Statistics": "SchedulerStats",
    "Warp State Statistics": "WarpStateStats",
    "Instruction Statistics": "InstructionStats",
    "Launch Statistics": "LaunchStats",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
    "Source Counters": "SourceCounters",
    "PM Sampling": "PmSampling",
}


def read(text: str, source: str = "") -> Profile:
    """The kernels of a CSV file, in base units.

    Raises:
        ReportInvalid: There is no header of ncu's in it, or a row does not fit.
    """
    if len(text) > _MOST_BYTES:
        raise ReportInvalid(f"the CSV has {len(text):,} characters, more than the {_MOST_BYTES:,} that are read")
    lines = text.splitlines(keepends=True)
    start, delimiter = _header(lines, source)
    rows = _rows(lines[start:], delimiter)
    names = [name.strip() for name in next(rows)]
    if "Metric Name" in names:
        return _details(names, rows, source)
    return _raw(names, rows, source)


def _header(lines: list[str], source: str) -> tuple[int, str]:
    """The line of the header, and what separates its cells."""
    for place, line in enumerate(lines):
        bare = line.lstrip("\ufeff").replace('"', "")
        for delimiter in (",", ";", "\t"):
            if bare.startswith(f"ID{delimiter}") and "Kernel Name" in bare:
                return place, delimiter
    said = next((line.strip() for line in lines if line.startswith("==ERROR==")), "")
    reason = f'; ncu said: "{said[:200]}"' if said else ""
    expected = 'a line that begins with "ID" and names "Kernel Name" was expected'
    raise ReportInvalid(f"{source or 'this'} is no CSV of ncu: {expected}{reason}")


def _rows(lines: list[str], delimiter: str) -> Iterator[list[str]]:
    cells = 0
    lines[0] = lines[0].lstrip("\ufeff")
    reader = csv.reader(io.StringIO("".join(lines)), delimiter=delimiter)
    try:
        for row in reader:
            cells += len(row)
            if cells > _MOST_CELLS:
                raise ReportInvalid(f"the CSV has more than the {_MOST_CELLS:,} cells that are read")
            if row and not row[0].startswith("=="):
                yield row
    except csv.Error as error:
        raise ReportInvalid(f"the CSV is damaged at row {reader.line_num}: {error}") from None


class _Launch:
    """A kernel while its rows are read."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.cells = cells
        self.metrics: dict[str, Metric] = {}
        self.headers: dict[str, dict[tuple[str, str], None]] = {}  # in order
        self.rules: list[Rule] = []

    def add(self, name: str, section: str, label: str, unit: str, text: str) -> None:
        value, base = based(number(text), unit)
        self.metrics.setdefault(name, Metric(name, value, base or unit_of(name)))
        self.headers.setdefault(section, {})[name, label] = None

    def kernel(self, index: int) -> Kernel:
        cells = self.cells
        signature = cells.get("Kernel Name", "") or "(no name)"
        major, _, minor = cells.get("CC", "").partition(".")
        for part, value in (("major", major), ("minor", minor)):
            if value.isdecimal() and len(value) < 10:
                name = f"device__attribute_compute_capability_{part}"
                self.metrics.setdefault(name, Metric(name, int(value)))
        sections = [
            Section(_SECTION_IDS.get(name, name), name, place, tuple(header))
            for place, (name, header) in enumerate(self.headers.items())
        ]
        return Kernel(
            index=index,
            name=_function(signature),
            signature=signature,
            mangled="",
            grid=_three(cells.get("Grid Size", "")),
            block=_three(cells.get("Block Size", "")),
            metrics=self.metrics,
            sections=tuple(sections),
            rules=tuple(self.rules),
            context=_count(cells.get("Context", "")),
            stream=_count(cells.get("Stream", "")),
            process=cells.get("Process Name", ""),
        )


def _details(names: list[str], rows: Iterable[list[str]], source: str) -> Profile:
    launches: dict[tuple[str, str], _Launch] = {}
    host = ""
    for row in rows:
        cells = dict(zip(names, row, strict=False))  # rows end early where nothing follows
        identifier = cells.get("ID", "")
        if not identifier.strip().isdigit():
            continue
        host = host or cells.get("Host Name", "")
        key = (cells.get("Process ID", ""), identifier)
        if (launch := launches.get(key)) is None:
            launch = launches[key] = _Launch(cells)
            _bounded(len(launches))
        if label := cells.get("Metric Name", ""):
            section = cells.get("Section Name", "")
            name = _metric(section, label, cells.get("Body Item Label", ""))
            launch.add(name, section, label, cells.get("Metric Unit", ""), cells.get("Metric Value", ""))
        if rule := cells.get("Rule Name", ""):
            launch.rules.append(
                Rule(
                    id=rule,
                    name=rule,
                    section=cells.get("Section Name", ""),
                    text=cells.get("Rule Description", ""),
                    kind=_KINDS.get(cells.get("Rule Type", ""), "none"),
                    speedup=_speedup(cells),
                )
            )
    return _profile(launches.values(), host, source)


def _raw(names: list[str], rows: Iterable[list[str]], source: str) -> Profile:
    units: list[str] = []
    launches, host = [], ""
    for row in rows:
        if not row[0].strip().isdigit():
            units = units or row  # the line below the header
            continue
        cells = {name: text for name, text in zip(names, row, strict=False) if name in _IDENTITY}
        host = host or cells.get("Host Name", "")
        launch = _Launch(cells)
        for place, (name, text) in enumerate(zip(names, row, strict=False)):
            if name and name not in _IDENTITY and text:
                value, base = based(number(text), units[place].strip() if place < len(units) else "")
                launch.metrics.setdefault(name, Metric(name, value, base or unit_of(name)))
        launches.append(launch)
        _bounded(len(launches))
    return _profile(launches, host, source)


def _bounded(kernels: int) -> None:
    if kernels > MOST_KERNELS:
        raise ReportInvalid(f"the CSV has more than the {MOST_KERNELS:,} kernels that are read")


def _profile(launches: Iterable[_Launch], host: str, source: str) -> Profile:
    kernels = tuple(launch.kernel(index) for index, launch in enumerate(launches))
    processes = tuple(dict.fromkeys(kernel.process for kernel in kernels if kernel.process))
    return Profile(kernels, Origin(host=host, processes=processes), source)


def _speedup(cells: dict[str, str]) -> Speedup | None:
    value = number(cells.get("Estimated Speedup", ""))
    if isinstance(value, str) or value is None or not math.isfinite(value):
        return None
    return ("local" if cells.get("Estimated Speedup Type") == "local" else "global"), float(value)


def _metric(section: str, label: str, item: str) -> str:
    """The metric behind a label; the label itself where that is not known, or where it is the metric."""
    if label == "SM Frequency" and item:  # of a roofline: of the roof the SM's, of the point the scheduler's
        return f"sm{'' if item.endswith('Roofline') else 'sp'}__cycles_elapsed.avg.per_second"
    return METRICS.get(section, {}).get(label, label)


_OPENING, _CLOSING = "<[", ">]"


def _function(signature: str) -> str:
    """The name without what it returns and takes: ``void saxpy<float>(int, …)`` → ``saxpy``."""
    depth = 0
    kept: list[str] = []
    for letter in signature.replace("(anonymous namespace)::", ""):
        if letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif depth <= 0:
            if letter == "(" and kept:
                break
            kept.append(letter)
    words = "".join(kept).split()
    return (words[-1].split("::")[-1] if words else "") or signature


def _three(text: str) -> tuple[int, int, int]:
    found = _TRIPLE.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found is not None else (1, 1, 1)


def _count(text: str) -> int:
    return int(text) if text.strip().isdecimal() and len(text) < 18 else 0


_GROUPED = re.compile(r"[-+]?\d{1,3}(?:([,.'\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:([.,])\d+)?")
_PLAIN = re.compile(r"[-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?")


def number(text: str) -> Value | None:
    """A cell as ncu wrote it.

    ``12,319,469`` and ``1.234.567,8`` are numbers; ``n/a`` and an empty cell are none; ``nan`` stays one; what is no
    number stays text. A single separator before three digits is ncu's own thousands comma, and a single dot a decimal.
    """
    text = text.strip()
    if not text or text.lower() in ("n/a", "(!) n/a", "-"):
        return None
    lowered = text.lower().lstrip("+-")
    if lowered in ("nan", "inf", "infinity") and len(text) - len(lowered) <= 1:
        return float(text)
    if len(text) > 400:
        return text
    grouped = _GROUPED.fullmatch(text)
    if grouped is not None and not (grouped[1] == "." and text.count(".") == 1):
        separator, decimal = grouped[1], grouped[2]
        if decimal != separator:
            whole = text.replace(separator, "")
            return _parsed(whole.replace(decimal, ".") if decimal else whole)
    if _PLAIN.fullmatch(text):
        return _parsed(text.replace(",", "."))
    return text


def _parsed(text: str) -> Value:
    return int(text) if re.fullmatch(r"[-+]?\d{1,30}", text) else float(text)


def based(value: Value | None, unit: str) -> tuple[Value | None, str]:
    """A value and its unit in base units, as ``.ncu-rep`` files have them: ns, byte, hz."""
    if value is None or isinstance(value, str):
        return value, unit
    if (seconds := _SECONDS.fullmatch(unit)) is not None:
        return _times(value, _PREFIXES[seconds[1]] * 1e9), "ns"
    if (scaled := _SCALED.fullmatch(unit)) is not None:
        return _times(value, _PREFIXES[scaled[1]]), scaled[2].lower() + scaled[3]
    return value, unit


def _times(value: int | float, factor: float) -> int | float:
    if round(factor) == 1:
        return value
    return value * int(factor) if isinstance(value, int) and factor >= 1 else value * factor
