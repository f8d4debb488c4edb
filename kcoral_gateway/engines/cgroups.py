"""A cgroup v2 folder to put workers into, where the system delegates one (systemd: ``Delegate=yes``).

The host's watchdog looks every 0.1 s and sees what it sees; ``memory.max`` and ``pids.max`` are the kernel's own word.
A cgroup that holds processes may not hand controllers to its children (cgroup-v2, "no internal processes"), so the
gateway first moves itself into a leaf of its own.
"""

from __future__ import annotations

import os
from logging import getLogger
from pathlib import Path

_log = getLogger(__name__)
_WANTED = ("memory", "pids")


def prepare(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> str | None:
    """The folder below which worker hosts may make cgroups with limits; ``None`` where there is none for us."""
    try:
        lines = own.read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        folder = mount / path.lstrip("/")
        available = (folder / "cgroup.controllers").read_text().split()
        if not set(_WANTED) <= set(available):
            return None
        leaf = folder / "kcoral-gateway"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _WANTED))
    except (OSError, StopIteration) as error:
        _log.info("no cgroup for workers", extra={"why": str(error) or "no cgroup v2"})
        return None
    return str(folder)
