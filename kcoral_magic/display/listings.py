"""What a gateway has and does, as tables: for ``%kcoral`` lines and for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from kcoral_magic.display.html import Table, bar, duration, size
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t


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


def jobs(found: Sequence[m.Record], now_s: float) -> Table:
    """What runs and waits, one row for each."""
    rows = tuple(
        (
            record.status,
            duration(max(0.0, now_s - record.started_s)),
            record.session or "(none)",
            _gpu_count(record),
            record.first_line,
            record.execution_id,
        )
        for record in found
    )
    title = f"{len(rows)} running or waiting" if rows else "nothing runs or waits"
    return Table(title, ("state", "since", "session", "GPUs", "begins with", "id") if rows else (), rows, data=found)


def records(found: Sequence[m.Record]) -> Table:
    """What has run, one row for each."""
    rows = tuple(
        (
            datetime.fromtimestamp(record.started_s, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            record.code or (f"exit {record.exit_code}" if record.exit_code else record.status),
            _took(record.waited_s),
            _took(record.ran_s),
            _gpu_count(record),
            size(record.sent_bytes),
            size(record.text_bytes + record.result_bytes),
            record.session or "(none)",
            record.first_line,
        )
        for record in found
    )
    columns = ("begun (UTC)", "ended", "waited", "ran", "GPUs", "sent", "came back", "session", "begins with")
    title = f"the newest {len(rows)}" if rows else "nothing has run yet"
    return Table(title, columns if rows else (), rows, data=found)


def cache(found: t.Storage) -> Table:
    """How full the principal's store is."""
    used, limit = found.used_bytes, found.limit_bytes
    line = f"files and values at the gateway: {size(used)} of {size(limit)} {bar(used, limit)}"
    return Table(line, (), (), "what was not used longest goes first when it is full", data=(found,))


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)


def _gpu_count(record: m.Record) -> str:
    return str(len(record.gpus)) if record.gpus else "none"
