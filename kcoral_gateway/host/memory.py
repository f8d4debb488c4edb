"""The watchdog of a worker's memory: its processes, its tmpfs files and the memfds it holds open."""

from __future__ import annotations

from kcoral_gateway.host import processes, sandbox
from kcoral_gateway.host.launch import Worker

_MEMFD_EVERY = 5  # looks; every open file of every process is asked
_FOLDERS = ("/tmp", "/dev/shm", sandbox.WORKSPACE)


class MemoryWatch:
    """Looks when it is told to."""

    def __init__(self, worker: Worker, limit_bytes: int) -> None:
        self._worker = worker
        self._limit_bytes = limit_bytes
        self._looks = 0
        self._memfd_bytes = 0

    def look(self) -> str | None:
        """Why the worker must end now; ``None`` while it keeps its limit."""
        worker, limit = self._worker, self._limit_bytes
        pids = worker.below()
        used = processes.memory_bytes(pids, limit_bytes=limit)
        if worker.is_boxed and pids:
            self._looks += 1
            if self._looks % _MEMFD_EVERY == 0:
                self._memfd_bytes = processes.memfd_bytes(pids)
            used += self._memfd_bytes + processes.files_bytes(worker.init, _FOLDERS)
        if used <= limit:
            return None
        return (
            f"the worker used {used / 2**30:.2f} GiB of memory, its limit is {limit / 2**30:.2f} GiB "
            "(files in /tmp, /dev/shm and the workspace count): it was ended"
        )
