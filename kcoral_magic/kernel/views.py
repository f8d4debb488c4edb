"""What the ``%kcoral`` lines return: tables, and a cell's whole output."""

from __future__ import annotations

from pathlib import Path

from kcoral_magic.client.results import Result
from kcoral_magic.display.html import Table, duration, size
from kcoral_magic.protocol import messages as m

_SHOWN_BYTES = 64 * 1024  # of a whole output in its repr; all of it is in ``text``


def status(where: str, welcome: m.Welcome, gpus: m.GpuList, infos: tuple[m.SessionInfo, ...]) -> Table:
    """The gateway in one line, and the sessions."""
    kind = "simulated GPUs" if welcome.is_simulated else "GPUs"
    line = f"kcoral: {where}, isolation {welcome.sandbox}, {gpus.free} of {len(gpus.gpus)} {kind} free"
    if gpus.waiting:
        line += f", {gpus.waiting} waiting"
    rows = tuple(_session_row(info) for info in infos)
    columns = ("session", "state", "GPUs", "cells", "idle") if rows else ()
    note = f"{welcome.product}, Python {welcome.python}, you are {welcome.principal}"
    return Table(line, columns, rows, note, data=infos)


def gpus(found: m.GpuList) -> Table:
    """One row for each GPU."""
    rows = tuple(
        (
            str(gpu.index),
            gpu.name + (" (simulated)" if gpu.is_simulated and "imulated" not in gpu.name else ""),
            f"{gpu.memory_bytes / 2**30:.0f} GiB",
            gpu.session or "",
            gpu.uuid,
        )
        for gpu in found.gpus
    )
    title = f"{found.free} of {len(found.gpus)} GPUs free" + (f", {found.waiting} waiting" if found.waiting else "")
    return Table(title, ("#", "GPU", "memory", "your session", "UUID") if rows else (), rows, data=found.gpus)


def sessions(infos: tuple[m.SessionInfo, ...], now_s: float) -> Table:
    """One row for each session."""
    rows = tuple((*_session_row(info), duration(max(0.0, now_s - info.created_s))) for info in infos)
    title = f"{len(rows)} session{'s' if len(rows) != 1 else ''}"
    return Table(title, ("session", "state", "GPUs", "cells", "idle", "age") if rows else (), rows, data=infos)


def _session_row(info: m.SessionInfo) -> tuple[str, ...]:
    state = info.state + (f", {info.queued} queued" if info.queued else "")
    idle = "" if info.idle_s is None else duration(info.idle_s)
    gpus = ", ".join(str(gpu.index) for gpu in info.gpus) or "none"
    return (info.name or "(this notebook)", state, gpus, str(info.executions), idle)


class CellOutput:
    """The whole output of one cell. ``text`` is stdout and stderr in the order they were kept."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.text = result.stdout + result.stderr

    def save(self, path: str | Path) -> Path:
        """Write the text to a file."""
        target = Path(path)
        target.write_text(self.text, "utf-8")
        return target

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:
        if len(self.text) <= _SHOWN_BYTES:
            return self.text
        half = _SHOWN_BYTES // 2
        cut = size(len(self.text) - 2 * half)
        note = f"[… {cut} not shown: .text has all of it, .save(path) writes it …]"
        return f"{self.text[:half]}\n{note}\n{self.text[-half:]}"
