"""What compute-sanitizer found, from its XML or its text: one finding for a fault, however many threads met it.

NVIDIA publishes no schema of the XML, and the text has changed its frames and words from version to version; so both
are read leniently, by the parts that have stayed. Texts of all tools: memcheck, racecheck, initcheck, synccheck.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kcoral_magic.errors import ReportInvalid

SCHEMA = "kcoral.sanitizer/1"
_MOST_BYTES = 128 * 1024 * 1024
_MOST_FINDINGS = 2000  # different ones; a fault of a million threads is one
_TEXT = 400
_LINE = 2000  # characters of a line that are looked at: patterns take their time on longer ones


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        kind: What it is, without what differs from thread to thread: ``Invalid __global__ write of size 4``.
        severity: error, warning or info.
        kernel: The function; empty for a fault of the host.
        file, line: Its place in the source, where the code has line information.
        pc: Else the offset of the instruction.
        count: How often it was reported.
        example: One of them: thread, block, address, and what is said of it.
        frames: The stack of the first, nearest first.
    """

    kind: str
    severity: str = "error"
    kernel: str = ""
    file: str = ""
    line: int = 0
    pc: str = ""
    count: int = 1
    example: str = ""
    frames: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where, in a few characters."""
        return f"{self.file}:{self.line}" if self.file else self.pc


@dataclass(frozen=True)
class Findings:
    """What a run found. ``summary`` is the tool's own last word; ``notes`` are its troubles."""

    findings: tuple[Finding, ...] = ()
    summary: str = ""
    notes: tuple[str, ...] = ()
    not_printed: int = 0

    @property
    def errors(self) -> int:
        """How many errors were reported, those that were not printed included."""
        return sum(one.count for one in self.findings if one.severity == "error") + self.not_printed

    def json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": SCHEMA,
            "errors": self.errors,
            "findings": [
                {**{name: getattr(one, name) for name in _FIELDS}, "frames": list(one.frames)} for one in self.findings
            ],
            "summary": self.summary,
            "notes": list(self.notes),
        }


_FIELDS = ("kind", "severity", "kernel", "file", "line", "pc", "count", "example")


class _Groups:
    """Counts what is the same."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, str], Finding] = {}
        self.left_out = 0

    def add(self, finding: Finding) -> None:
        key = (finding.kind, finding.severity, finding.kernel, finding.place)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + finding.count)
        elif len(self._found) < _MOST_FINDINGS:
            self._found[key] = finding
        else:
            self.left_out += finding.count

    def all(self) -> tuple[Finding, ...]:
        rank = {"error": 0, "warning": 1}
        return tuple(sorted(self._found.values(), key=lambda one: (rank.get(one.severity, 2), -one.count)))


# ── XML ──


def read_xml(data: bytes) -> Findings:
    """The file of ``--xml yes --save FILE``.

    Raises:
        ReportInvalid: It is none, was cut, or declares entities.
    """
    if len(data) > _MOST_BYTES:
        raise ReportInvalid(f"the XML has {len(data):,} bytes, more than the {_MOST_BYTES:,} that are read")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ReportInvalid("the sanitizer's XML declares entities: it is none of compute-sanitizer's")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError) as error:
        raise ReportInvalid(f"the sanitizer's XML is cut or damaged: {error}") from None
    if root.tag != "ComputeSanitizerOutput":
        raise ReportInvalid(f"<ComputeSanitizerOutput> was expected, got <{root.tag[:40]}>")
    groups, notes = _Groups(), []
    for record in root.iter("record"):
        made = _record(record)
        if made is None:
            notes.append(f"a record without text: {_flat(record)[:100]}")
        else:
            groups.add(made)
    return Findings(groups.all(), notes=tuple(notes[:20]), not_printed=groups.left_out)


def _record(record: ElementTree.Element) -> Finding | None:
    text = _first(record, "what/text", "what/message", "message", "text") or _first(record, "what")
    if not text:
        return None
    space, size = _first(record, "what/space"), _first(record, "what/size")
    head = _Head.parse(text)
    kind = head.kind if head is not None else text
    if space and size and (what := text.partition(" ")[0]) in ("Invalid", "Misaligned", "Uninitialized"):
        direction = _first(record, "what/direction").lower() or "access"
        kind = f"{what} __{space.strip('_').lower()}__ {direction} of size {size}"
    level = _first(record, "level").lower()
    severity = "warning" if level.startswith("warn") else "info" if level.startswith("info") else "error"
    line = _first(record, "where/line", "deviceStack/frame/line", "deviceStack//line")
    who = [_axes(record, f"who/{name}") for name in ("threadIdx", "blockIdx")]
    example = " ".join(f"{word} {axes}" for word, axes in zip(("thread", "block"), who, strict=True) if axes)
    address = _first(record, "what/address", "address")
    said = (example, f"address {address}" if address else "", text if kind != text else "")
    return Finding(
        kind=_shape(kind),
        severity=severity,
        kernel=_first(record, "where/func", "deviceStack/frame/func", "deviceStack//func")[:_TEXT],
        file=_first(record, "where/path", "where/file", "deviceStack/frame/path", "deviceStack//file")[:_TEXT],
        line=int(line) if line.isdigit() and len(line) < 10 else 0,
        pc=_first(record, "where/pc", "deviceStack//pc")[:40],
        example=", ".join(filter(None, said))[:_TEXT],
        frames=tuple(_frames(record))[:30],
    )


def _first(element: ElementTree.Element, *paths: str) -> str:
    for path in paths:
        found = element.find(path)
        if found is not None and (text := _flat(found)):
            return text
    return ""


def _flat(element: ElementTree.Element) -> str:
    return " ".join(" ".join(element.itertext()).split())


def _axes(record: ElementTree.Element, path: str) -> str:
    found = record.find(path)
    if found is None:
        return ""
    parts = [_first(found, axis) for axis in "xyz"]
    return f"({','.join(part or '0' for part in parts)})" if any(parts) else _flat(found)


def _frames(record: ElementTree.Element) -> Iterator[str]:
    for stack in ("deviceStack", "hostStack"):
        for frame in record.iterfind(f"{stack}//frame"):
            func, path, line = (_first(frame, name) for name in ("func", "path", "line"))
            place = path or _first(frame, "file", "module")
            yield f"{func or '?'}{f' in {place}' if place else ''}{f':{line}' if line else ''}"[:_TEXT]


# ── text ──

_PREFIXED = re.compile(r"^(?P<prefix>\S{1,40})(?: (?P<text>.*))?$")
_AT = (  # the frames of all versions; a name may hold colons, so the offset or the line is found from the right
    re.compile(r"at (?P<kernel>.+?)(?::|\+)(?P<pc>0x[0-9a-fA-F]+)(?: in (?P<file>[^\s].*?):(?P<line>\d+))?$"),
    re.compile(r"at (?P<pc>0x[0-9a-fA-F]+) in (?P<file>[^:]+):(?P<line>\d+):(?P<kernel>.+)$"),
    re.compile(r"at (?P<pc>0x[0-9a-fA-F]+) in (?P<kernel>.+)$"),
    re.compile(r"at (?P<kernel>.+?) in (?P<file>[^\s].*?):(?P<line>\d+)$"),
)
_HAZARDS = re.compile(r"\[(\d[\d.,]*) hazards?\]")
_SUMMARY = re.compile(r"(?:ERROR|LEAK|RACECHECK) SUMMARY: .*")
_NOT_PRINTED = re.compile(r"(\d[\d.,]*) (?:errors?|hazards?) (?:was|were) not printed|Target application .*print limit")
_HEADS = (
    re.compile(r"(?P<kind>(?:Invalid|Misaligned|Uninitialized) .*?(?:read|write|access|atomic)) of size (?P<size>\d+)"),
    re.compile(r"(?P<kind>Uninitialized __\w+__ memory (?:read|access))"),
    re.compile(r"(?P<kind>Leaked) (?P<size>[\d.,]+) bytes"),
    re.compile(r"(?P<kind>Race reported between) (?P<rest>.*)"),
    re.compile(r"(?P<kind>Potential (?:WAW|RAW|WAR) hazard detected)(?P<rest>.*)"),
    re.compile(r"(?P<kind>Barrier error detected\..*?)\.?$"),
    re.compile(r"Program hit (?P<kind>\w+ \(error \d+\)).*?(?:on|during) CUDA API call to (?P<api>\w+)"),
    re.compile(
        r"(?P<kind>(?:Malloc|Free|Fatal UVM|Host API memory access|Internal Sanitizer|Unused memory|Unmapped).*)"
    ),
    re.compile(r"(?P<kind>.*?(?:tensor memory|deadlock|out of bounds|misaligned|hazard|divergent).*)", re.IGNORECASE),
)
_LEVELS = re.compile(r"^(?P<level>Error|Warning|WARN|Info):\s*(?:\([^)]*\)\s*)?(?P<rest>.*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line of a record."""

    kind: str
    severity: str

    @classmethod
    def parse(cls, text: str) -> _Head | None:
        severity = "error"
        levelled = _LEVELS.match(text)
        if levelled is not None:
            severity = "warning" if levelled["level"].upper().startswith("WARN") else "error"
            severity = "info" if levelled["level"].upper() == "INFO" else severity
            text = levelled["rest"]
        for pattern in _HEADS:
            if (found := pattern.match(text)) is not None:
                named = found.groupdict()
                kind = named["kind"].strip()
                if kind == "Race reported between":
                    kind = (
                        "Race between " + " and ".join(_accesses(named["rest"])) if _accesses(named["rest"]) else "Race"
                    )
                if named.get("size") and kind != "Leaked":
                    kind = f"{kind} of size {named['size']}"
                if named.get("api"):
                    kind = f"{kind} in {named['api']}"
                return cls(kind, severity)
        return None


def _accesses(text: str) -> list[str]:
    return re.findall(r"(Write|Read|Atomic)\s+access", text)


def read_text(text: str) -> Findings:
    """What the tool printed, with a program's own lines between.

    The prefix of its lines is found by its first ones: ``--prefix`` may have changed it.
    """
    if len(text) > _MOST_BYTES:
        text = text[:_MOST_BYTES]
    prefix = _prefix(text)
    groups, notes, summary, hidden = _Groups(), [], [], 0
    record: list[str] = []

    def close() -> None:
        if record and (made := _told(record)) is not None:
            groups.add(made)
        record.clear()

    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        body = line[len(prefix) :]
        said = body[:_LINE].strip()
        if not said:
            close()
        elif _SUMMARY.search(said):
            close()
            summary.append(said)
        elif (left := _NOT_PRINTED.search(said)) is not None:
            close()
            hidden += _count(left[1] or "0")
        elif body.startswith("   ") and record:
            record.append(said)
        else:
            close()
            if _Head.parse(said) is not None:
                record.append(said)
            elif said.startswith(("Error:", "Warning:", "Internal")):
                notes.append(said[:_TEXT])
    close()
    return Findings(groups.all(), "; ".join(summary)[:1000], tuple(dict.fromkeys(notes))[:20], hidden + groups.left_out)


def _prefix(text: str) -> str:
    for line in text.splitlines():
        if re.search(r"COMPUTE-SANITIZER|CUDA-MEMCHECK", line) and (found := _PREFIXED.match(line)) is not None:
            return found["prefix"]
    return "========="


def _told(record: list[str]) -> Finding | None:
    head = _Head.parse(record[0])
    if head is None:
        return None
    kernel = file = pc = ""
    line = 0
    example: list[str] = []
    frames: list[str] = []
    count = 1
    race: list[str] = []
    for said in record:
        if (hazards := _HAZARDS.search(said)) is not None:
            count = max(count, _count(hazards[1]))
        where = _placed(_HAZARDS.sub("", said).strip())
        if where is not None and ("access at" in said or not kernel):
            if not kernel:
                kernel, file, line, pc = where
            if "access" in said:
                race += _accesses(said)
        elif said.startswith(("by thread", "Address", "and is", "Access", "Nearest", "is ", "at address")):
            example.append(said)
        elif said.startswith(("Host Frame", "Device Frame", "Saved host backtrace", "in ")):
            if said.startswith(("Host Frame", "Device Frame")):
                frames.append(said.partition(":")[2].strip()[:_TEXT])
        elif said is not record[0]:
            example.append(said)
    kind = head.kind
    if kind.startswith("Race") and race:
        kind = f"Race between {' and '.join(race)}"
    if kind == "Leaked" or kind.startswith("Potential"):
        example.insert(0, record[0])
    said = ", ".join(example)[:_TEXT]
    place = (kernel[:_TEXT], file[:_TEXT], line, pc)
    return Finding(_shape(kind), head.severity, *place, count, said, tuple(frames[:30]))


def _placed(said: str) -> tuple[str, str, int, str] | None:
    start = said.find("at ")
    if start < 0 or said.startswith(("by ", "Address")):
        return None
    for pattern in _AT:
        if (found := pattern.match(said[start:])) is not None:
            named = found.groupdict()
            number = named.get("line") or "0"
            return named.get("kernel") or "", named.get("file") or "", int(number[:9]), named.get("pc") or ""
    return None


def _shape(kind: str) -> str:
    """Without addresses, which differ from thread to thread."""
    return re.sub(r"\s*\b(?:at )?0x[0-9a-fA-F]+\b", "", kind).strip()[:_TEXT]


def _count(text: str) -> int:
    """``130.056.192`` and ``1,024`` are counts of some locale."""
    digits = re.sub(r"\D", "", text)
    return int(digits[:15]) if digits else 0
