"""What the gateway remembers of a session and of an execution. Rules on single objects; ``service`` orchestrates."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kcoral_gateway.config import Device
from kcoral_gateway.execution.journal import Journal
from kcoral_gateway.execution.workers import Worker
from kcoral_magic.errors import SessionShapeError
from kcoral_magic.protocol import framing, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_MESSAGE_CHARS = 2000  # some are prefixed on their way; all fit the wire


class Clock:
    """An execution's time limit; it stands still while the execution waits for a turn."""

    def __init__(self, limit_s: float | None, on_end: Callable[[], None]) -> None:
        self._left_s = limit_s
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None

    def go(self) -> None:
        """Run on."""
        if self._left_s is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._left_s), self._on_end)

    def stop(self) -> None:
        """Stand still."""
        if self._timer is not None and self._left_s is not None:
            self._left_s = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
            self._timer = None


@dataclass
class Times:
    """When what happened to an execution, in monotonic seconds; 0 is not yet."""

    taken_s: float = 0.0
    sent_s: float = 0.0
    ended_s: float = 0.0
    turn_wait_s: float = 0.0
    turn_held_s: float = 0.0
    _asked_s: float = 0.0
    _since_s: float = 0.0

    def turn_asked(self, now: float) -> None:
        """It waits for its GPUs."""
        self._asked_s = now

    def turn_begins(self, now: float) -> None:
        """It has them."""
        self.turn_wait_s += now - self._asked_s
        self._since_s = now

    def turn_ends(self, now: float) -> None:
        """It has given them back."""
        if self._since_s:
            self.turn_held_s += now - self._since_s
            self._since_s = 0.0


@dataclass
class Execution:
    """One body. ``watchers`` are called when its journal grew."""

    execution_id: str
    principal: str
    session: str
    journal: Journal
    digest: bytes
    message: m.Execute
    source: bytes
    started_s: float  # Unix time
    done: asyncio.Future[None]
    stopped: asyncio.Future[None]
    watchers: set[Callable[[], None]] = field(default_factory=set)
    has_timed_out: bool = False
    is_sent: bool = False
    is_cut: bool = False  # its gateway died before its end was written
    other_bytes: int = 0  # of displays, to bound what one execution may keep on disk
    displays_cut: int = 0
    has_error: bool = False
    manifest: bytes = b""
    parcel: bytes = b""
    wants: tuple[t.Wanted, ...] = ()
    is_wanting: bool = False  # its worker waits for values
    namespace: str = ""  # of the session's worker that it ran in
    format: steps.Format = "values"  # of what a program returns
    step: steps.Step | None = None  # the instruction that a program was at last
    has_failed: bool = False  # it has told which instruction did
    clock: Clock = field(default_factory=lambda: Clock(None, lambda: None))
    times: Times = field(default_factory=Times)
    finished: m.Finished | None = None
    sent_bytes: int = 0
    result_bytes: int = 0  # of values that went back
    gpus: tuple[str, ...] = ()  # it ran on
    inline_bytes: int = 0  # of what a program returned beside its events
    turns_left: int = 0  # that a program may ask for or give back
    is_placed: bool = False  # its reader knows a program's GPUs
    caches: str = ""  # the blob with what compilers made, once it is announced
    client: str = ""
    title: str = ""  # of a program; a cell's is its first line

    @property
    def is_alone(self) -> bool:
        """Whether it has a session of its own."""
        return self.message.is_alone or self.message.kind == "program"

    def emit(self, body: m.EventBody, buffers: Sequence[framing.Buffer] = ()) -> None:
        """Journal an event and wake the readers."""
        if isinstance(body, m.Finished):
            self.finished = body
            self.times.ended_s = time.monotonic()
        self.journal.append(body, buffers)
        for wake in self.watchers:
            wake()

    def record(self, now: float) -> m.Record:
        """What stays of it; ``now`` is monotonic."""
        times, ended = self.times, self.finished
        lines = [self.title] if self.title else self.source[:4096].decode("utf-8", "replace").strip().splitlines()
        end_s = times.ended_s or now
        return m.Record(
            self.execution_id,
            self.message.kind,
            "" if self.session.startswith("~") else self.session,
            ended.status if ended is not None else "running" if times.sent_s else "queued",
            ended.code if ended is not None else "",
            self.started_s,
            round((times.sent_s or end_s) - (times.taken_s or end_s), 6),
            round(end_s - times.sent_s, 6) if times.sent_s else 0.0,
            round(times.turn_wait_s, 6),
            round(times.turn_held_s, 6),
            self.gpus,
            self.sent_bytes,
            self.journal.stream_bytes,
            self.result_bytes,
            self.digest.hex(),
            lines[0][:80] if lines else "",
            self.client[:100],
            ended.exit_code if ended is not None else 0,
        )

    def blame(self, kind: steps.ErrorKind, message: str) -> None:
        """Tell which instruction a program was at when it ended without telling."""
        if self.step is not None and not self.has_failed:
            self.emit(
                steps.Failed(kind, self.step.index, self.step.op, self.step.instruction_id, message[:_MESSAGE_CHARS])
            )

    def finish(
        self, status: Literal["ok", "error", "interrupted", "failed"], code: str = "", message: str = ""
    ) -> None:
        """End it, once."""
        self.forget_source()
        try:
            if not self.journal.is_finished:
                self.emit(m.Finished(status, 0.0, code, message[:_MESSAGE_CHARS]))
        finally:  # whoever waits must not wait for a disk
            if not self.done.done():
                self.done.set_result(None)

    def forget_source(self) -> None:
        """The worker has it, or nobody needs it: what is listed of an execution is its first line."""
        lines = self.source[:4096].strip().splitlines()
        self.source = lines[0][:200] if lines else b""
        self.manifest = self.parcel = b""


State = Literal["new", "queued", "starting", "idle", "running", "lost"]


@dataclass(eq=False)
class Session:
    """A named execution context of one principal."""

    principal: str
    name: str
    instance: str  # of the client that opened it
    gpus: int | None  # how many it was asked with; None until a first cell says or the default applies
    created_s: float
    python: str = sys.executable
    state: State = "new"
    queue: deque[Execution] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    current: Execution | None = None
    devices: tuple[Device, ...] | None = None
    worker: Worker | None = None
    side_worker: Worker | None = None  # of a --fresh execution
    lost: str | None = None  # why its state is gone, until the next cell has said so
    _told: set[str] = field(default_factory=set)  # namespaces whose end was told
    ask_id: str = ""  # of its placement, or of a program's turn
    place_id: str = ""  # of an execution's own session
    is_alone: bool = False  # it is one execution's, and ends with it
    is_for_programs: bool = False
    executions: int = 0
    has_state: bool = False
    idle_since_s: float = 0.0
    waits_since_s: float | None = None  # its body has asked a person, who has not answered yet: that is idle
    task: asyncio.Task[None] | None = None

    def why_lost(self, namespace: str) -> str | None:
        """Why state is gone that a cell may count on, told once. ``namespace``: the last one its client knows of."""
        why, self.lost = self.lost, None
        now = "" if self.worker is None else self.worker.namespace
        if namespace in ("", now) or namespace in self._told:
            return why
        self._told.add(namespace)
        return (
            why or "its worker was replaced since your last cell (the gateway or the session was restarted, or ended)"
        )

    @property
    def is_named(self) -> bool:
        """Whether it outlives its client."""
        return not self.name.startswith("~")

    @property
    def client_id(self) -> str:
        """Of the client whose own it is, or whose execution's."""
        return self.name[1:].partition("/")[0] if not self.is_named else ""

    @property
    def shown_name(self) -> str:
        """What people call it; a client's own session has no name."""
        return self.name if self.is_named else ""

    @property
    def _called(self) -> str:
        return f"session {self.name!r}" if self.is_named else "this notebook's session"

    def info(self, now: float) -> m.SessionInfo:
        """As its principal sees it; ``now`` is monotonic."""
        idle_s: float | None = max(0.0, now - (self.idle_since_s or now))
        if self.current is not None:
            idle_s = None if self.waits_since_s is None else max(0.0, now - self.waits_since_s)
        return m.SessionInfo(
            self.shown_name,
            "asking" if self.waits_since_s is not None else self.state,
            tuple(gpu_message(device) for device in self.devices or ()),
            len(self.queue),
            self.executions,
            self.created_s,
            idle_s,
        )

    def reshape(self, gpus: int | None, python: str = "") -> bool:
        """Take an explicit shape. Whether the placement must change.

        Raises:
            SessionShapeError: It has another shape and holds state.
        """
        if python and python != self.python:
            if self.has_state or self.current is not None or self.queue:
                text = f"{self._called} runs on {self.python}: use --session NAME for another one beside it"
                raise SessionShapeError(text)
            self.python = python
        if gpus is None or gpus == self.gpus:
            return False
        if self.gpus is None:
            self.gpus = gpus
            return False
        if self.has_state or self.current is not None or self.queue:
            has = f"{self.gpus} GPU{'s' if self.gpus != 1 else ''}"
            raise SessionShapeError(
                f"{self._called} holds state on {has}, the cell asks for {gpus}: "
                f"use --session NAME for another one beside it, or %kcoral restart --gpus {gpus} to begin anew"
            )
        self.gpus = gpus
        return True


def gpu_message(device: Device, session: str = "") -> m.Gpu:
    """A GPU as it is shown to clients."""
    return m.Gpu(device.uuid, device.name, device.index, device.memory_bytes, device.is_simulated, session, device.arch)
