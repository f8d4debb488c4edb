"""Which instructions of a kernel its time went to: samples and counts by program counter, named by a disassembly."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kcoral_magic.reports.ncu import Kernel

_STALL = "smsp__pcsamp_warps_issue_stalled_"
_NOT_ISSUED = "_not_issued"
STEP = 16  # bytes of an instruction since Volta (compute capability 7.0)


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction of a disassembly, with its place in the source where the code has line information.

    ``source`` is that line's text, where the file is at hand.
    """

    text: str
    file: str = ""
    line: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class HotSpot:
    """One instruction. ``samples`` counts warps that were found there; ``stalls`` are their reasons, most first."""

    offset: int
    samples: int
    share: float
    stalls: tuple[tuple[str, int], ...]
    executed: int | None
    line: Line | None = None


def hot_spots(kernel: Kernel, listing: Mapping[int, Line] | None = None, most: int = 20) -> tuple[HotSpot, ...]:
    """The instructions with the most samples, or, in a report without samples, the most executions.

    Args:
        listing: The kernel's disassembly, by offset from its beginning.
    """
    samples: dict[int, dict[str, int]] = {}
    for name, metric in kernel.metrics.items():
        if name.startswith(_STALL) and not name.endswith(_NOT_ISSUED):
            reason = name.removeprefix(_STALL)
            for at, count in metric.instances:
                if isinstance(at, int) and isinstance(count, int) and count:
                    samples.setdefault(at, {})[reason] = count
    executed: dict[int, int] = {}
    if (counted := kernel.metrics.get("inst_executed")) is not None:
        executed = {
            at: int(n)
            for at, n in counted.instances
            if isinstance(at, int) and isinstance(n, int | float) and math.isfinite(n)
        }
    if not samples and not executed:
        return ()
    base = _base(kernel, min([*samples, *executed]))
    weights = {at: sum(reasons.values()) for at, reasons in samples.items()} or executed
    total = sum(weights.values()) or 1
    top = sorted(weights, key=lambda at: (-weights[at], at))[:most]
    return tuple(
        HotSpot(
            offset=at - base,
            samples=weights[at] if samples else 0,
            share=weights[at] / total,
            stalls=tuple(sorted(samples.get(at, {}).items(), key=lambda item: -item[1])),
            executed=executed.get(at),
            line=(listing or {}).get(at - base),
        )
        for at in top
        if weights[at]
    )


def _base(kernel: Kernel, lowest: int) -> int:
    """Where the function was loaded; else the lowest counter that is known."""
    if kernel.code is not None:
        for name, address in kernel.code.functions:
            if name == kernel.mangled and 0 <= lowest - address < 1 << 24:
                return address
    return lowest


_FUNCTION = re.compile(r"^\s*\.section\s+\.text\.(\S+?),|^\s*//-+\s*\.text\.(\S+)\s*-|^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,16})\*/\s+")
_PLACE = re.compile(r'//## File "([^"]*)", line (\d{1,9})')


def disassembly(text: str) -> dict[str, dict[int, Line]]:
    """What ``nvdisasm -c -g`` or ``cuobjdump -sass`` printed: functions by mangled name, instructions by offset."""
    found: dict[str, dict[int, Line]] = {}
    current: dict[int, Line] | None = None
    file, number = "", 0
    for raw in text.splitlines():
        if (head := _FUNCTION.match(raw)) is not None:
            name = next(group for group in head.groups() if group)
            current = found.setdefault(name.strip('"'), {})
            file, number = "", 0
        elif (place := _PLACE.search(raw)) is not None:
            if "inlined at" not in raw or not file:
                file, number = place[1], int(place[2])
        elif current is not None and (instruction := _INSTRUCTION.match(raw)) is not None:
            code = _code(raw[instruction.end() :])
            if code:
                current[int(instruction[1], 16)] = Line(code, file, number)
    return found


def _code(rest: str) -> str:
    """An instruction without the comment at its end. No pattern: each that we tried took cubic time over blanks."""
    rest = rest.rstrip()
    if rest.endswith("*/") and "/*" in rest:
        rest = rest[: rest.index("/*")].rstrip()
    return " ".join(rest.removesuffix(";").split())
