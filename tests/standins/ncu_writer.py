"""Writes ``.ncu-rep`` files that NVIDIA's own reader accepts, by the documented format (standard library only).

The stand-in ``ncu`` makes its reports with it, and tests make the files that no profiler would.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAGIC = b"NVR\0"
Value = int | float | str


def varint(value: int) -> bytes:
    made = bytearray()
    while True:
        byte, value = value & 127, value >> 7
        made.append(byte | (128 if value else 0))
        if not value:
            return bytes(made)


def number(key: int, value: int) -> bytes:
    return varint(key << 3) + varint(value)


def double(key: int, value: float) -> bytes:
    return varint(key << 3 | 1) + struct.pack("<d", value)


def data(key: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(key << 3 | 2) + varint(len(raw)) + raw


def value_of(value: Value) -> bytes:
    if isinstance(value, str):
        return data(1, value)
    return double(3, value) if isinstance(value, float) else number(5, value)


@dataclass
class Launch:
    """One kernel of a report that is written."""

    name: str
    metrics: Mapping[str, Value]
    signature: str = ""
    mangled: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    instances: Mapping[str, Iterable[tuple[Value, Value]]] = field(default_factory=dict)
    sections: Iterable[bytes] = ()
    rules: Iterable[bytes] = ()


def section(
    identifier: str, name: str, order: int, header: Iterable[tuple[str, str]], items: Iterable[bytes] = ()
) -> bytes:
    """A section; ``items`` of ``bars``, ``curve``, ``groups`` and ``roofline``."""
    made = data(1, identifier) + data(2, name) + number(3, order)
    made += data(4, b"".join(data(2, data(1, metric) + data(2, label)) for metric, label in header))
    return made + b"".join(data(5, data(1, item)) for item in items)


def bars(title: str, axis: str, most: int, labelled: Iterable[tuple[str, str]]) -> bytes:
    inner = data(1, title) + data(4, data(1, axis) + data(2, number(2, most)))
    return data(2, inner + b"".join(data(5, data(1, metric) + data(2, label)) for metric, label in labelled))


def curve(title: str, axis: str, unit: str, metric: str, marker: str) -> bytes:
    inner = data(1, title) + data(2, data(1, axis)) + data(3, data(1, unit)) + data(4, data(1, metric) + data(2, unit))
    return data(4, inner + data(5, data(1, data(1, marker) + data(2, axis))))


def groups(titled: Iterable[tuple[str, str]]) -> bytes:
    parts = []
    for title, metric in titled:
        table = data(1, title) + number(3, 1) + data(5, data(1, metric)) + number(6, 1) + number(7, 1)
        parts.append(data(1, data(1, table)))
    return data(5, b"".join(parts))


def roofline(title: str, precisions: Iterable[tuple[str, str]]) -> bytes:
    """``(letter, name)`` of each precision, as ``("f", "Single")``."""
    made = data(1, title) + data(3, data(1, "Performance [FLOP/s]"))
    for letter, name in precisions:
        peak = f"derived__sm__sass_thread_inst_executed_op_{letter}fma_pred_on_x2"
        work = data(3, data(1, data(1, peak)) + data(2, data(1, "sm__cycles_elapsed.avg.per_second")))
        cycles = data(2, data(1, "dram__cycles_elapsed.avg.per_second"))
        dram = data(3, data(1, data(1, "dram__bytes.sum.peak_sustained")) + cycles)
        made += data(4, data(1, work) + data(2, dram) + data(3, data(1, f"{name} Precision Roofline")))
    for letter, name in precisions:
        parts = [
            f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum.per_cycle_elapsed" for op in ("add", "mul")
        ]
        parts.append(f"derived__smsp__sass_thread_inst_executed_op_{letter}fma_pred_on_x2")
        clock = data(2, data(1, "smsp__cycles_elapsed.avg.per_second"))
        work = data(1, data(3, b"".join(data(1, data(1, part)) for part in parts) + clock))
        traffic = data(2, data(2, data(1, "dram__bytes.sum.per_second")))
        made += data(5, work + traffic + data(3, data(1, f"{name} Precision Achieved Value")))
    return data(6, made)


def rule(
    identifier: str,
    name: str,
    in_section: str,
    text: str,
    *,
    title: str = "",
    kind: int = 4,
    speedup: tuple[int, float] | None = None,
) -> bytes:
    """What a rule said; ``kind`` 1 fine, 2 warning, 4 optimization; ``speedup`` 1 global or 2 local, per cent."""
    item = data(1, data(1, text) + number(2, kind) + (data(4, title) if title else b""))
    if speedup is not None:
        item += data(10, number(1, speedup[0]) + double(2, speedup[1]))
    return data(1, identifier) + data(2, name) + data(3, data(1, item)) + data(4, in_section)


@dataclass
class Writer:
    """Blocks of a file, one after the other."""

    host: str = "gpu-host"
    process: str = "/usr/bin/python3"
    pid: int = 4242
    created_s: int = 1_760_000_000
    _strings: dict[str, int] = field(default_factory=dict)

    def report(self, launches: Iterable[Launch], *, cubin: bytes = b"") -> bytes:
        """A whole file."""
        system = data(1, "Linux") + data(2, "#1 SMP") + data(3, "A processor") + data(4, "x86_64") + data(5, self.host)
        versions = data(8, data(1, "CUDA Version") + data(2, "13.0")) + data(
            8, data(1, "Nsight Compute Target") + data(2, "2025.4")
        )
        made = [MAGIC, self._sized(number(1, 7))]
        made.append(self._block(b"", session=number(2, self.created_s) + data(3, system) + versions))
        if cubin:
            source = number(1, 1) + data(4, cubin) + number(5, 9) + number(6, 0x90000) + number(7, 1)
            made.append(self._block(self._sized(source), sources=1))
        for launch in launches:
            fresh: list[str] = []
            entry = self._sized(self._entry(launch, fresh))
            made.append(self._block(entry, results=1, strings=fresh))
        return b"".join(made)

    def _sized(self, message: bytes) -> bytes:
        return struct.pack("<I", len(message)) + message

    def _block(
        self, payload: bytes, *, sources: int = 0, results: int = 0, session: bytes = b"", strings: Iterable[str] = ()
    ) -> bytes:
        head = number(1, sources) + number(2, results)
        head += data(3, session) if session else b""
        head += data(4, b"".join(data(1, text) for text in strings)) + number(5, len(payload))
        head += data(6, number(1, self.pid) + data(2, self.host) + data(3, self.process))
        return self._sized(head) + payload

    def _entry(self, launch: Launch, fresh: list[str]) -> bytes:
        signature = launch.signature or launch.name
        made = b"".join(number(key, 1) for key in (1, 2, 3, 4))
        made += data(5, launch.mangled or launch.name) + data(6, launch.name) + data(7, signature) + number(8, 3)
        for key, three in ((9, (0, 0, 0)), (10, launch.grid), (11, launch.block)):
            made += data(key, b"".join(number(place, size) for place, size in enumerate(three, 1)))
        for name, value in launch.metrics.items():
            index = self._strings.setdefault(name, len(self._strings))
            if index == len(self._strings) - 1 and name not in fresh:
                fresh.append(name)
            inner = number(1, index) + data(2, value_of(value))
            for key, part in launch.instances.get(name, ()):
                inner += data(3, data(1, value_of(key)) + data(2, value_of(part)))
            made += data(13, inner)
        made += number(14, self.created_s) + data(15, number(1, 1)) + number(16, 0)
        made += b"".join(data(17, one) for one in launch.sections) + b"".join(data(19, one) for one in launch.rules)
        return made + number(22, 1) + number(23, 7)
