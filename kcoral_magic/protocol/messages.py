"""Every message of the wire, as frozen structs in closed unions.

Directions: client ⇄ gateway (``ToGateway``, ``ToClient``), gateway ⇄ worker host (``ToHost``, ``FromHost``), host ⇄
worker (``ToWorker``, ``FromWorker``). Text and data of any size travel in buffers, in the order a docstring gives;
heads hold names and numbers only. Adding a message: a struct here, a row in PROTOCOL.md, a vector; ``assert_never``
then makes mypy name each handler that misses it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

VERSION = 1
SUBPROTOCOL = "kcoral.v1"

ExecutionId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{8,64}\Z")]
SessionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}\Z")]  # "" is the client's own session
Short = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=16 * 1024)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
GpuCount = Annotated[int, Meta(ge=0, le=1024)]
Gpus = GpuCount | Literal["all"] | None

_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_session_name(name: str) -> bool:
    """Whether a person may call a session so."""
    return _SESSION_NAME.fullmatch(name) is not None


class _Wire(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """Strict: an array on the wire, tagged with the class name, unknown elements refused."""


# ── The handshake: maps, so that later versions may add fields that older peers ignore ──────────────────────────────


class Hello(msgspec.Struct, frozen=True):
    """A client's first frame. ``client_id`` is stable over reconnects and kernel restarts, ``instance`` is not."""

    versions: tuple[int, ...]
    client_id: ExecutionId
    instance: ExecutionId
    product: Short = ""
    python: Short = ""
    executable: Annotated[str, Meta(max_length=4096)] = ""  # the client's interpreter; used by its own gateway only


class Welcome(msgspec.Struct, frozen=True):
    """The gateway's answer. A new ``instance`` means that what ran before it is lost."""

    version: int
    instance: Short
    product: Short
    principal: Short
    sandbox: Short
    python: Short
    is_simulated: bool = False
    credit_bytes: Number = 0


# ── Parts of messages ───────────────────────────────────────────────────────────────────────────────────────────────


class Gpu(_Wire, frozen=True):
    """One GPU. ``memory_bytes`` is its total; ``index`` is NVML's, for people; ``uuid`` is what counts."""

    uuid: Short
    name: Short
    index: Number
    memory_bytes: Number
    is_simulated: bool
    session: Short = ""


class SessionAsk(_Wire, frozen=True):
    """Which session, and the shape it should have. ``gpus=None`` inherits."""

    name: SessionName
    gpus: Gpus = None


class View(_Wire, frozen=True):
    """How much of a flood a reader wants: the first ``head_bytes`` and the last ``tail_bytes``; ``None`` is all."""

    head_bytes: Number | None = None
    tail_bytes: Number = 0


class Place(_Wire, frozen=True):
    """Where a body stands in its notebook, for tracebacks: ``In[count]``, and the line its first line is on there."""

    count: Number = 1
    first_line: Annotated[int, Meta(ge=1)] = 1


class SessionInfo(_Wire, frozen=True):
    """A session as its principal sees it. ``idle_s`` is ``None`` while something runs."""

    name: Short
    state: Literal["new", "queued", "starting", "idle", "running", "lost"]
    gpus: tuple[Gpu, ...]
    queued: Number
    executions: Number
    created_s: float
    idle_s: float | None


class ExecutionInfo(_Wire, frozen=True):
    """An execution whose journal is still there."""

    execution_id: ExecutionId
    session: Short
    state: Short
    started_s: float
    stream_bytes: Number
    first_line: Short


# ── Events of an execution: what a journal holds ────────────────────────────────────────────────────────────────────


class Queued(_Wire, frozen=True):
    """Waiting for GPUs behind ``ahead`` others (whose principals are named on shared gateways)."""

    ahead: Number
    gpu_count: Number
    principals: tuple[Short, ...] = ()


class Behind(_Wire, frozen=True):
    """Waiting for ``ahead`` earlier executions of the same session."""

    ahead: Number


class Placed(_Wire, frozen=True):
    """The session holds these GPUs now."""

    gpus: tuple[Gpu, ...]


class Starting(_Wire, frozen=True):
    """No spare worker fitted; one is being started."""


class Started(_Wire, frozen=True):
    """The wait that earlier events told of is over, the body runs. ``start_ms`` is what its worker cost just now."""

    start_ms: float = 0.0


class Notice(_Wire, frozen=True):
    """One line for people that is no output of the cell: state that was lost, a worker replaced."""

    code: Short
    text: Text


class Stream(_Wire, frozen=True):
    """Buffers: the text, UTF-8. ``is_late``: written after the cell that caused it had ended."""

    name: Literal["stdout", "stderr"]
    is_late: bool = False


class Display(_Wire, frozen=True):
    """A MIME bundle. Buffers: one for each of ``mimes``, then the metadata as JSON."""

    mimes: tuple[Short, ...]
    display_id: Short | None = None
    is_update: bool = False


class Result(_Wire, frozen=True):
    """The value of the cell's last expression as a MIME bundle, with buffers as in ``Display``."""

    mimes: tuple[Short, ...]
    count: Number


class ClearOutput(_Wire, frozen=True):
    """``clear_output(wait)``."""

    wait: bool


class Stuck(_Wire, frozen=True):
    """An interrupt has not been taken for ``waited_s``; the interpreter stands at ``where``."""

    waited_s: float
    where: Text


class Error(_Wire, frozen=True):
    """User code raised. Buffers: ``str(exception)``, the rendered traceback, its args as JSON (or nothing)."""

    ename: Short
    module: Short
    qualname: Short
    is_interrupt: bool = False


class Finished(_Wire, frozen=True):
    """The last event but for late output. ``code`` and ``message`` say why, for ``failed``.

    ``namespace`` names the worker's namespace that the session goes on with; it is new after every loss or restart.
    """

    status: Literal["ok", "error", "interrupted", "failed"]
    elapsed_ms: float = 0.0
    code: Short = ""
    message: Text = ""
    namespace: Short = ""


EventBody = (
    Queued
    | Behind
    | Placed
    | Starting
    | Started
    | Notice
    | Stream
    | Display
    | Result
    | ClearOutput
    | Stuck
    | Error
    | Finished
)

# ── Client → gateway ────────────────────────────────────────────────────────────────────────────────────────────────


class Execute(_Wire, frozen=True):
    """Run a body. Buffers: the source, UTF-8. Sent twice with one id, it runs once.

    ``namespace`` is the one of the session's last ``Finished``, for a session that the client has run something in: if
    it is another by now, the execution says that state was lost.
    """

    execution_id: ExecutionId
    session: SessionAsk
    place: Place = Place()
    view: View = View()
    timeout_s: Seconds | None = None
    queue_timeout_s: Seconds | None = None
    is_fresh: bool = False
    namespace: Short = ""


class Attach(_Wire, frozen=True):
    """Send the events of an execution that come after number ``after``."""

    execution_id: ExecutionId
    after: Number
    view: View = View()


class Detach(_Wire, frozen=True):
    """Send no more of this execution."""

    execution_id: ExecutionId


class Ack(_Wire, frozen=True):
    """Events up to ``number`` were taken; what they held of the credit is free again."""

    execution_id: ExecutionId
    number: Number


class Interrupt(_Wire, frozen=True):
    """One press of stop (``kill=False``), or the end of the worker (``kill=True``)."""

    execution_id: ExecutionId
    kill: bool = False


class Ping(_Wire, frozen=True):
    """Are you there? Answered with ``Pong`` at once."""


class Pong(_Wire, frozen=True):
    """The answer to ``Ping``."""


class ListSessions(_Wire, frozen=True):
    """Asks for a ``Sessions`` reply."""

    request: Number


class ListGpus(_Wire, frozen=True):
    """Asks for a ``GpuList`` reply."""

    request: Number


class ListExecutions(_Wire, frozen=True):
    """Asks for an ``Executions`` reply; ``""`` is the client's own session."""

    request: Number
    session: SessionName


class Restart(_Wire, frozen=True):
    """Give the session a new, empty worker, with another shape if ``gpus`` says so."""

    request: Number
    session: SessionAsk


class CloseSession(_Wire, frozen=True):
    """End the session and everything in it."""

    request: Number
    session: SessionName


ToGateway = (
    Execute
    | Attach
    | Detach
    | Ack
    | Interrupt
    | Ping
    | Pong
    | ListSessions
    | ListGpus
    | ListExecutions
    | Restart
    | CloseSession
)

# ── Gateway → client ────────────────────────────────────────────────────────────────────────────────────────────────


class Event(_Wire, frozen=True):
    """One event of an execution, numbered from 1 without gaps. Buffers: those of the body."""

    execution_id: ExecutionId
    number: Annotated[int, Meta(ge=1)]
    body: EventBody


class Skip(_Wire, frozen=True):
    """The events up to number ``to`` are left out of this reader's view: ``stream_bytes`` in ``lines`` lines."""

    execution_id: ExecutionId
    to: Number
    stream_bytes: Number
    lines: Number


class CaughtUp(_Wire, frozen=True):
    """After an ``Attach``: the execution has finished, and everything of it so far has been sent."""

    execution_id: ExecutionId


class Problem(_Wire, frozen=True):
    """The gateway refuses something; the connection stays open unless a close frame follows."""

    code: Short
    message: Text
    execution_id: Short = ""
    request: Number | None = None


class Sessions(_Wire, frozen=True):
    """Reply to ``ListSessions``."""

    request: Number
    sessions: tuple[SessionInfo, ...]


class GpuList(_Wire, frozen=True):
    """Reply to ``ListGpus``; ``session`` is filled for the asker's own sessions only."""

    request: Number
    gpus: tuple[Gpu, ...]
    free: Number
    waiting: Number


class Executions(_Wire, frozen=True):
    """Reply to ``ListExecutions``, newest first."""

    request: Number
    executions: tuple[ExecutionInfo, ...]


class Done(_Wire, frozen=True):
    """Reply to ``Restart`` and ``CloseSession``."""

    request: Number


ToClient = Event | Skip | CaughtUp | Problem | Ping | Pong | Sessions | GpuList | Executions | Done

# ── Gateway ⇄ worker host ───────────────────────────────────────────────────────────────────────────────────────────


class Run(_Wire, frozen=True):
    """Run a body in the worker. Buffers: the source, UTF-8."""

    execution_id: ExecutionId
    place: Place


class Stop(_Wire, frozen=True):
    """Interrupt this execution if it is the one running; ``kill`` ends the worker."""

    execution_id: ExecutionId
    kill: bool = False


class Drain(_Wire, frozen=True):
    """The worker waits until its pipes have been read: read them now."""


class Shutdown(_Wire, frozen=True):
    """End the worker and yourself."""


class HostHello(_Wire, frozen=True):
    """A host's first frame: the ticket it was started with."""

    ticket: Short


class HostReady(_Wire, frozen=True):
    """The worker is up and waits for its first body."""

    python: Short
    start_ms: float


class Emit(_Wire, frozen=True):
    """Something the running (or last) execution produced. Buffers: those of the body."""

    execution_id: ExecutionId
    body: EventBody


class Gone(_Wire, frozen=True):
    """The worker has ended; ``message`` says why, for people. The host ends too."""

    code: Short
    message: Text


class Replace(_Wire, frozen=True):
    """After the running execution the worker must not be used again (a sticky CUDA fault); ``message`` says why."""

    message: Text


ToHost = Run | Stop | Shutdown
FromHost = HostHello | HostReady | Emit | Gone | Replace

# ── Host ⇄ worker ───────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(_Wire, frozen=True):
    """The worker's first message."""

    python: Short


class Ended(_Wire, frozen=True):
    """A body has ended and every byte it wrote was read. ``poison``: why this worker must not be used again."""

    status: Literal["ok", "error", "interrupted"]
    elapsed_ms: float
    poison: Text = ""


ToWorker = Run | Shutdown
FromWorker = Ready | Drain | Display | Result | ClearOutput | Error | Ended
