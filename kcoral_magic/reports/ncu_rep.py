"""Reads ``.ncu-rep``: the files of Nsight Compute, version 7.

The layout is NVIDIA's own documentation (Nsight Compute, Customization Guide, "Report File Format") and was checked
against its reader on real files of 2020 to 2025: a magic, then blocks of length-prefixed Protocol Buffers messages. The
package ``ncu-report`` reads them too; it is proprietary, 17 MB, and takes a file that was cut for an empty report.

A file comes from anywhere, so no length in it is believed, and what it may make of us in memory is bounded.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Sequence

from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports.fields import fields, inside, number, text
from kcoral_magic.reports.ncu import (
    MOST_KERNELS,
    Code,
    Kernel,
    Metric,
    Origin,
    Profile,
    Value,
)
from kcoral_magic.reports.rules import rules as rules_of
from kcoral_magic.reports.sections import section
from kcoral_magic.reports.units import unit_of

MAGIC, ZSTD = b"NVR\0", b"\x28\xb5\x2f\xfd"
VERSION = 7
MOST_BYTES = 512 * 1024 * 1024
_MOST_METRICS = 4_000_000  # of a file: thousands of kernels with all sections
_MOST_PARTS = 4096  # sections and rules of a kernel: NVIDIA has some 30 of each
_MOST_DEPTH = 16  # of messages in one another: they are 10 deep
_U32 = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")


def read(data: bytes, source: str = "") -> Profile:
    """The kernels of a report.

    Args:
        source: What the file is called, for people.

    Raises:
        ReportInvalid: It is no report, or one that was cut or damaged.
    """
    if data[:4] == ZSTD:
        data = _unpacked(data)
    if len(data) > MOST_BYTES:
        raise ReportInvalid(f"the report has {len(data):,} bytes, more than the {MOST_BYTES:,} that are read")
    if data[:4] != MAGIC:
        what = "is empty" if not data else f"begins with {data[:8]!r}"
        raise ReportInvalid(f"an .ncu-rep file begins with b'NVR\\x00', and {source or 'this'} {what}")
    blocks, strings = _blocks(data)
    return _Reader(data, strings).profile(blocks, source)


def _unpacked(data: bytes) -> bytes:
    """Of a ``.ncu-repz`` file."""
    try:
        import zstandard
    except ImportError:
        raise ReportInvalid("an .ncu-repz file is packed: pip install zstandard, or save it as .ncu-rep") from None
    made = bytearray()
    try:
        for piece in zstandard.ZstdDecompressor(max_window_size=2**27).read_to_iter(data):
            made += piece
            if len(made) > MOST_BYTES:
                raise ReportInvalid(f"the report is larger than the {MOST_BYTES:,} bytes that are read")
    except zstandard.ZstdError as error:
        raise ReportInvalid(f"the report cannot be unpacked: {error}") from None
    if not made:  # zstandard says nothing of a stream that was cut
        raise ReportInvalid("the report cannot be unpacked: it is cut")
    return bytes(made)


class _Block:
    """A block's header, and where the entries of its payload lie."""

    __slots__ = ("host", "process", "results", "session", "sources")

    def __init__(self) -> None:
        self.sources: list[tuple[int, int]] = []
        self.results: list[tuple[int, int]] = []
        self.session: tuple[int, int] | None = None
        self.process = self.host = ""


def _blocks(data: bytes) -> tuple[list[_Block], list[str]]:
    """The blocks, and the string table: that of the file is those of all blocks, one after the other."""
    at, end = _sized(data, 4, len(data))
    version = next((a for key, a, b in fields(data, at, end) if key == 1 and b < 0), 0)
    if version != VERSION:
        raise ReportInvalid(
            f"the report is of version {version}; {VERSION} is read, as Nsight Compute 2020.3 and later write it"
        )
    blocks: list[_Block] = []
    strings: list[str] = []
    at, entries = end, 0
    while at < len(data):
        start, end = _sized(data, at, len(data))
        block, sources, results, size = _Block(), 0, 0, 0
        for key, a, b in fields(data, start, end):
            match key:
                case 1:
                    sources = a
                case 2:
                    results = a
                case 3:
                    block.session = (a, b)
                case 4:
                    strings += [text(data, c, d) for key, c, d in inside(data, a, b) if key == 1]
                case 5:
                    size = a
                case 6:
                    names = {key: text(data, c, d) for key, c, d in inside(data, a, b) if key in (2, 3)}
                    block.process, block.host = names.get(3, ""), names.get(2, "")
        at = end
        if size > len(data) - at:
            raise ReportInvalid(f"the report is cut: it ends {size - len(data) + at:,} bytes before a block does")
        stop = at + size
        if sources + results > size // 4:
            raise ReportInvalid(f"the report is damaged: {sources + results:,} entries in a block of {size:,} bytes")
        entries += sources + results
        if entries > MOST_KERNELS or len(blocks) >= MOST_KERNELS:
            raise ReportInvalid(f"the report has more than the {MOST_KERNELS:,} kernels and blocks that are read")
        for place in range(sources + results):
            start, at = _sized(data, at, stop)
            (block.sources if place < sources else block.results).append((start, at))
        at = stop
        blocks.append(block)
    return blocks, strings


def _sized(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The message that begins with its size at ``at``."""
    if at + 4 > stop:
        raise ReportInvalid(f"the report is cut: it ends at byte {len(data):,}, where a message should begin")
    (size,) = _U32.unpack_from(data, at)
    if at + 4 + size > stop:
        raise ReportInvalid(
            f"the report is cut or damaged: a message at byte {at:,} says {size:,} bytes, {stop - at - 4:,} are there"
        )
    return at + 4, at + 4 + size


class _Reader:
    """Makes kernels of entries."""

    def __init__(self, data: bytes, strings: list[str]) -> None:
        self._data = data
        self._strings = strings
        self._units = [unit_of(name) for name in strings]
        self._codes: dict[int, Code] = {}
        self._metrics = 0

    def profile(self, blocks: list[_Block], source: str) -> Profile:
        for block in blocks:
            for start, end in block.sources:
                self._code(start, end)
        kernels: list[Kernel] = []
        for block in blocks:
            for start, end in block.results:
                kernels.append(self._kernel(len(kernels), start, end, block.process))
        return Profile(tuple(kernels), self._origin(blocks), source)

    def _code(self, start: int, end: int) -> None:
        """Kept by its id: results name it."""
        data, identifier, cubin, sm, functions = self._data, 0, b"", 0, []
        for key, a, b in fields(data, start, end):
            match key:
                case 1:
                    identifier = a
                case 4 if b >= 0:  # a number here would be a slice to the file's end
                    cubin = data[a:b]
                case 5:
                    sm = a
                case 9:
                    functions += [self._function(c, d) for inner, c, d in inside(data, a, b) if inner == 1]
        self._codes[identifier] = Code(cubin, tuple(functions), sm)

    def _function(self, start: int, end: int) -> tuple[str, int]:
        """A function's mangled name, and where it was loaded."""
        name, address = "", 0
        for key, a, b in inside(self._data, start, end):
            if key == 1:
                name = text(self._data, a, b)
            elif key == 2:
                address = a
        return name, address

    def _kernel(self, index: int, start: int, end: int, process: str) -> Kernel:
        data = self._data
        names = {5: "", 6: "", 7: ""}
        shapes = {10: (1, 1, 1), 11: (1, 1, 1)}
        metrics: dict[str, Metric] = {}
        sections, rules, nvtx = [], [], []
        code = None
        places = {22: 0, 23: 0}
        for key, a, b in fields(data, start, end):
            if key == 13:
                made = self._metric(a, b)
                metrics[made.name] = made
            elif key == 17:
                sections.append((a, b))
            elif key == 19:
                rules += rules_of(data, a, b)
                if len(rules) > _MOST_PARTS:
                    raise ReportInvalid(f"the report is damaged: a kernel with more than {_MOST_PARTS:,} rules")
            elif key in names:
                names[key] = text(data, a, b)
            elif key in shapes:
                shapes[key] = _three(data, a, b)
            elif key == 15:
                code = next((self._codes.get(c) for inner, c, _ in inside(data, a, b) if inner == 1), None)
            elif key == 21:
                nvtx += _nvtx(data, a, b)
            elif key in places:
                places[key] = a
        self._metrics += len(metrics)
        if self._metrics > _MOST_METRICS:
            raise ReportInvalid(f"the report has more than the {_MOST_METRICS:,} metrics that are read")
        if len(sections) > _MOST_PARTS:
            raise ReportInvalid(f"the report is damaged: a kernel with {len(sections):,} sections")
        signature = names[7] or names[6] or names[5]
        return Kernel(
            index=index,
            name=names[6] or signature or "(no name)",
            signature=signature or names[5],
            mangled=names[5],
            grid=shapes[10],
            block=shapes[11],
            metrics=metrics,
            sections=tuple(sorted((section(data, a, b, metrics) for a, b in sections), key=lambda one: one.order)),
            rules=tuple(rules),
            code=code,
            context=places[22],
            stream=places[23],
            process=process,
            nvtx=tuple(nvtx),
        )

    def _metric(self, start: int, end: int) -> Metric:
        data = self._data
        name = -1
        value: Value | None = None
        keys: list[Value] = []
        parts: list[Value] = []
        for key, a, b in fields(data, start, end):
            if key == 3:
                first, second = _pair(data, a, b)
                keys.append(first)
                parts.append(second)
            elif key == 2:
                value = _value(data, a, b)
            elif key == 1:
                name = a
        if not 0 <= name < len(self._strings):
            raise ReportInvalid(f"the report is damaged: a metric names string {name} of {len(self._strings)}")
        if keys:
            return Metric(self._strings[name], value, self._units[name], _column(keys), _column(parts))
        return Metric(self._strings[name], value, self._units[name])

    def _origin(self, blocks: list[_Block]) -> Origin:
        created = None
        host = ""
        facts: dict[str, str] = {}
        data = self._data
        for block in blocks:
            host = host or block.host
            if block.session is None:
                continue
            for key, a, b in inside(data, *block.session):
                if key == 2:
                    created = a if b < 0 else created
                elif key == 3:
                    for label, c, d in inside(data, a, b):
                        if label in _SYSTEM and d >= 0:
                            facts[f"System {_SYSTEM[label]}"] = text(data, c, d)
                elif key == 8:
                    pair = {inner: text(data, c, d) for inner, c, d in inside(data, a, b) if d >= 0}
                    facts[pair.get(1, "")] = pair.get(2, "")
        processes = dict.fromkeys(block.process for block in blocks if block.process)
        facts.pop("", None)
        return Origin(created, facts.get("System host", host), tuple(processes), tuple(facts.items()))


def redact(data: bytes) -> bytes:
    """The report with the names of the machine, its processes and all paths written over.

    Paths are in the machine code too, if it was built with line information.

    Raises:
        ReportInvalid: As ``read``.
    """
    if data[:4] == ZSTD:
        data = _unpacked(data)
    read(data)
    made = bytearray(data)
    for start, end in _private(data):
        made[start:end] = b"x" * (end - start)
    return bytes(made)


def _private(data: bytes) -> Iterator[tuple[int, int]]:
    """Where those texts lie. Only texts and code are looked at: a length of 47 is a slash, too."""
    at = _sized(data, 4, len(data))[1]
    while at < len(data):
        start, end = _sized(data, at, len(data))
        yield from _paths(data, start, end)
        size, counts = 0, {1: 0, 2: 0}
        for key, a, b in fields(data, start, end):
            if key == 5:
                size = a
            elif key in counts:
                counts[key] = a
            elif key == 6:
                yield from ((c, d) for part, c, d in inside(data, a, b) if part in (2, 3) and d >= 0)
            elif key == 3:
                for part, c, d in inside(data, a, b):
                    if part == 3 and d >= 0:
                        yield from ((e, f) for label, e, f in inside(data, c, d) if label in _SYSTEM and f >= 0)
        at, stop = end, end + size
        for _ in range(sum(counts.values())):
            start, at = _sized(data, at, stop)
            yield from _paths(data, start, at)
        yield from (found.span() for found in _PATH.finditer(data, at, stop))
        at = stop


def _paths(data: bytes, at: int, end: int, depth: int = 0) -> Iterator[tuple[int, int]]:
    """The paths in the fields of a message, however deep; ``data[at:end]`` itself may be a text or code."""
    if _PATH.search(data, at, end) is None:
        return
    parts: list[tuple[int, int, int]] = []
    if depth < _MOST_DEPTH and _TEXT.fullmatch(data, at, end) is None:
        try:
            parts = fields(data, at, end)
        except ReportInvalid:
            pass
    if not parts:
        yield from (found.span() for found in _PATH.finditer(data, at, end))
    for _, a, b in parts:
        if b > a:
            yield from _paths(data, a, b, depth + 1)


_TEXT = re.compile(rb"[^\x00-\x1f]*")  # messages have numbers of fields, which are small
_PATH = re.compile(rb"(?:/[\w.@+ -]{1,100}){2,40}|[A-Z]:\\[\w.@+\\ -]{3,300}")
_SYSTEM = {1: "OS", 2: "build", 3: "CPU", 4: "architecture", 5: "host"}


def _value(data: bytes, at: int, end: int) -> Value:
    if end - at == 9 and data[at] == 0x19:  # the double, which most are
        return float(_DOUBLE.unpack_from(data, at + 1)[0])
    if end - at == 2 and data[at] in (0x20, 0x28) and data[at + 1] < 128:
        return data[at + 1]
    value: Value = ""
    for key, a, b in inside(data, at, end):
        if key == 1:
            value = text(data, a, b)
        elif key in (2, 3):
            value = number(data, a, b)
        elif key in (4, 5) and b < 0:
            value = a
    return value


def _pair(data: bytes, at: int, end: int) -> tuple[Value, Value]:
    """An instance: its key and its value."""
    if end - at > 3 and data[at] == 0x0A:
        middle = at + 2 + data[at + 1]
        if middle + 2 <= end and data[middle] == 0x12 and middle + 2 + data[middle + 1] == end:
            return _value(data, at + 2, middle), _value(data, middle + 2, end)
    key: Value = ""
    value: Value = ""
    for which, a, b in inside(data, at, end):
        if which == 1:
            key = _value(data, a, b)
        elif which == 2:
            value = _value(data, a, b)
    return key, value


def _column(values: list[Value]) -> Sequence[Value]:
    """Numbers of one kind take 8 bytes each."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return array("Q", values)  # type: ignore[type-var]  # they are ints
    if kinds == {float}:
        return array("d", values)  # type: ignore[type-var]  # they are floats
    return tuple(values)


def _three(data: bytes, a: int, b: int) -> tuple[int, int, int]:
    found = {key: value for key, value, kind in inside(data, a, b) if kind < 0}
    return found.get(1, 0), found.get(2, 0), found.get(3, 0)


def _nvtx(data: bytes, a: int, b: int) -> list[str]:
    """Names of domains, as far as they are there."""
    found = []
    for key, c, d in inside(data, a, b):
        if key == 1:
            found += [text(data, e, f) for inner, e, f in inside(data, c, d) if inner == 2]
    return found
