"""Theoretical occupancy: how many warps of a kernel fit on a multiprocessor, and what keeps more away.

The numbers are those of the CUDA C++ Programming Guide ("Technical Specifications per Compute Capability") and the
rounding is that of NVIDIA's occupancy calculator; checked against what ncu says of real kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARP = 32
_REGISTERS = 65_536  # of a multiprocessor, since compute capability 5.0
_REGISTER_UNIT = 256  # registers are given to a warp in such pieces
_WARP_UNIT = 4  # a block's warps go to four schedulers
_SHARED_UNIT = 128
KiB = 1024


@dataclass(frozen=True, slots=True)
class Sm:
    """A multiprocessor: most warps and blocks on it, its shared memory, and what the driver keeps of that a block."""

    warps: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = 1 * KiB


_SMS = {
    "7.0": Sm(64, 32, 96 * KiB, 0),
    "7.2": Sm(64, 32, 96 * KiB, 0),
    "7.5": Sm(32, 16, 64 * KiB, 0),
    "8.0": Sm(64, 32, 164 * KiB),
    "8.6": Sm(48, 16, 100 * KiB),
    "8.7": Sm(48, 16, 164 * KiB),
    "8.9": Sm(48, 24, 100 * KiB),
    "9.0": Sm(64, 32, 228 * KiB),
    "10.0": Sm(64, 32, 228 * KiB),
    "10.3": Sm(64, 32, 228 * KiB),
    "11.0": Sm(48, 24, 228 * KiB),
    "12.0": Sm(48, 24, 100 * KiB),
    "12.1": Sm(48, 24, 100 * KiB),
}


@dataclass(frozen=True, slots=True)
class Fit:
    """How many blocks fit by each cause, and the warps of the fewest in per cent."""

    limits: tuple[tuple[str, int], ...]
    percent: float

    @property
    def limiters(self) -> tuple[str, ...]:
        """The causes with the smallest limit."""
        least = min(limit for _, limit in self.limits)
        return tuple(name for name, limit in self.limits if limit == least)


def fit(capability: str, *, block: int, registers: int, shared_bytes: int) -> Fit | None:
    """Of a block of that many threads; none for a GPU that is not in the table.

    Args:
        capability: As in ``9.0``.
        shared_bytes: Static and dynamic, of a block.
    """
    sm = _SMS.get(capability)
    if sm is None or not 1 <= block <= 1024 or registers < 0 or shared_bytes < 0:
        return None
    warps = -(-block // _WARP)
    of_warp = -(-max(registers, 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = _REGISTERS // of_warp // _WARP_UNIT * _WARP_UNIT // warps
    used = -(-(shared_bytes + sm.reserved_bytes) // _SHARED_UNIT) * _SHARED_UNIT
    limits = (
        ("blocks", sm.blocks),
        ("registers", by_registers),
        ("shared mem", sm.shared_bytes // used if used else sm.blocks),
        ("warps", sm.warps // warps),
    )
    return Fit(limits, 100 * min(limit for _, limit in limits) * warps / sm.warps)


def capability_of(arch: str) -> str:
    """``sm_90a`` → ``9.0``; empty for what is none."""
    digits = arch.removeprefix("sm_").rstrip("af")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() and len(digits) > 1 else ""
