"""One worker's cgroup: the kernel's own limits beside the watchdog's."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from kcoral_gateway.config import Limits


class Cgroup:
    """A cgroup v2 leaf below the folder that the gateway prepared."""

    def __init__(self, parent: str, name: str, limits: Limits) -> None:
        self._folder = Path(parent) / name
        self._folder.mkdir()
        self._write("memory.max", limits.memory_bytes)
        with contextlib.suppress(OSError):  # a kernel without swap accounting has no such file
            self._write("memory.swap.max", 0)
        self._write("pids.max", limits.processes)

    def add(self, pid: int) -> None:
        """Put a process in; what it starts from now on is in too."""
        self._write("cgroup.procs", pid)

    @property
    def was_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of it for its memory."""
        try:
            events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
        except (OSError, ValueError):
            return False
        return int(events.get("oom_kill", "0")) > 0

    def close(self) -> None:
        """Kill what is left and remove it."""
        with contextlib.suppress(OSError):
            self._write("cgroup.kill", 1)
        for _ in range(50):  # the killed are still leaving: EBUSY for a moment
            try:
                self._folder.rmdir()
            except OSError:
                time.sleep(0.02)
            else:
                return

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(str(value))
