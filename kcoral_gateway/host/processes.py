"""The sandbox's processes as the host sees them in /proc: who is below whom, and what they hold in memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_INODE_BYTES = 1024  # an empty file of a tmpfs costs the kernel about that
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The direct children of ``pid``; none if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def started_by(pid: int) -> set[int]:
    """What the main thread of ``pid`` has started and everything below: one read where, as mostly, there is nothing."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            started = [int(child) for child in file.read().split()]
    except OSError:
        return set()
    return {process for child in started for process in (child, *descendants(child))}


def descendants(pid: int) -> list[int]:
    """Everything below ``pid``, without it."""
    found, todo = [], [pid]
    while todo:
        below = children(todo.pop())
        found += below
        todo += below
    return found


def memory_bytes(pids: Iterable[int], *, limit_bytes: int) -> int:
    """What these processes hold. Resident sizes count shared pages twice, so near the limit the exact share counts.

    Proportional set sizes are exact but cost the kernel a page table walk; they are read only when it matters.
    """
    pids = list(pids)
    resident = sum(_resident(pid) for pid in pids)
    return resident if resident <= limit_bytes else sum(_proportional(pid) for pid in pids)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    return 0


def files_bytes(pid: int, folders: Iterable[str]) -> int:
    """What the sized tmpfs folders of ``pid``'s mount namespace hold: they are memory too."""
    total = 0
    for folder in folders:
        try:
            usage = os.statvfs(f"/proc/{pid}/root{folder}")
        except OSError:
            continue
        total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        total += (usage.f_files - usage.f_ffree) * _INODE_BYTES
    return total


def memfd_bytes(pids: Iterable[int]) -> int:
    """What memfds hold that these processes have open, mapped or not, each counted once."""
    seen: dict[int, int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    seen[status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def now_ticks() -> int:
    """The kernel's clock of process starts (clock ticks since boot)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def started_ticks(pid: int) -> int:
    """When ``pid`` was started, in the clock of ``now_ticks``; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
