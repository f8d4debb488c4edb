"""What ptxas says with ``-v``: the registers, memory and spills of each kernel, and PTX cut into its functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kcoral_magic.reports.hotspots import Line

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_AMOUNTS = (
    ("barriers", re.compile(r"used (\d+) barriers")),
    ("shared_bytes", re.compile(r"(\d+) bytes smem")),
    ("constant_bytes", re.compile(r"(\d+) bytes cmem\[0\]")),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel needs: registers a thread, bytes of static shared memory a block, spills in bytes."""

    name: str
    arch: str
    registers: int = 0
    shared_bytes: int = 0
    constant_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0


def usages(text: str) -> dict[str, Usage]:
    """By mangled name, in the order of compiling."""
    found: dict[str, Usage] = {}
    current = ""
    of = ""  # the function whose properties come next: it may be one that the entry calls
    for line in text.splitlines():
        if (entry := _ENTRY.search(line)) is not None:
            current = of = entry[1]
            found[current] = Usage(entry[1], entry[2])
        elif (properties := _PROPERTIES.search(line)) is not None:
            of = properties[1]
        elif current and of == current and (stack := _STACK.search(line)) is not None:
            sizes = [int(size) for size in stack.groups()]
            found[current] = replace(
                found[current], stack_bytes=sizes[0], spill_store_bytes=sizes[1], spill_load_bytes=sizes[2]
            )
        elif current and (used := _USED.search(line)) is not None:
            amounts = {name: int(one[1]) for name, pattern in _AMOUNTS if (one := pattern.search(line)) is not None}
            found[current] = replace(
                found[current],
                registers=int(used[1]),
                barriers=amounts.get("barriers", 0),
                shared_bytes=amounts.get("shared_bytes", 0),
                constant_bytes=amounts.get("constant_bytes", 0),
            )
    return found


_FUNCTION = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)")
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_SILENT = ("//", "{", "}", "(", ")", "$L__tmp", "$L__func")


def ptx_listing(text: str) -> dict[str, list[Line]]:
    """The instructions of each kernel of a PTX file, with the source lines that ``-lineinfo`` left."""
    files = {found[1]: found[2] for line in text.splitlines() if (found := _FILE.match(line)) is not None}
    made: dict[str, list[Line]] = {}
    current: list[Line] | None = None
    file, number = "", 0
    for raw in text.splitlines():
        if (entry := _FUNCTION.match(raw)) is not None:
            current = made.setdefault(entry[1], [])
            file, number = "", 0
            continue
        if (loc := _LOC.match(raw)) is not None:
            file, number = files.get(loc[1], ""), int(loc[2])
            continue
        line = raw.strip()
        is_directive = line.startswith(".") and not line.startswith(".shared")
        if current is None or not line or is_directive or line.startswith(_SILENT):
            if line == "}":
                current = None
            continue
        current.append(Line(" ".join(line.split()), file, number))
    return made


def plain_names(mangled: Iterable[str]) -> dict[str, str]:
    """C++ functions as they are called in the source, ``_Z5saxpyifPKfPf`` as saxpy, where that tells them apart.

    Names in namespaces, and those of overloads and of several instances of a template, stay as they are.
    """
    found = {name: _plain(name) for name in mangled}
    counts = Counter(found.values())
    return {name: plain if counts[plain] == 1 else name for name, plain in found.items()}


def _plain(mangled: str) -> str:
    head = re.match(r"_Z(\d{1,4})(?=[A-Za-z_])", mangled)
    if head is None or len(mangled) < head.end() + int(head[1]):
        return mangled
    end = head.end() + int(head[1])
    return mangled[head.end() : end] + ("<…>" if mangled[end : end + 1] == "I" else "")
