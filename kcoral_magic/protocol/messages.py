"""Every message of the wire, as frozen structs in closed unions.

Directions: client ⇄ gateway (``ToGateway``, ``ToClient``), gateway ⇄ worker host (``ToHost``, ``FromHost``), host ⇄
worker (``ToWorker``, ``FromWorker``). Text and data of any size travel in buffers, in the order a docstring gives;
heads hold names and numbers only. Adding a message: a struct here, a row in PROTOCOL.md, a vector; ``assert_never``
then makes mypy name each handler that misses it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kcoral_magic.protocol.steps import Failed, RunProgram, Step, Turn, TurnAsked, TurnGranted
from kcoral_magic.protocol.transfers import (
    Bound,
    Chunk,
    Drop,
    Fetch,
    FilePart,
    Have,
    Held,
    InputReply,
    InputRequest,
    ListStorage,
    Names,
    Piece,
    Returned,
    Spool,
    Storage,
    Supplied,
    Supply,
    Want,
    Written,
)
from kcoral_magic.protocol.wire import (
    ExecutionId,
    ExitCode,
    Gpus,
    Number,
    Seconds,
    SessionName,
    Short,
    Text,
    Wire,
)

VERSION = 1
SUBPROTOCOL = "kcoral.v1"

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


class Gpu(Wire, frozen=True):
    """One GPU. ``memory_bytes`` is its total; ``index`` is NVML's, for people; ``uuid`` is what counts."""

    uuid: Short
    name: Short
    index: Number
    memory_bytes: Number
    is_simulated: bool
    session: Short = ""
    arch: Short = ""  # as compilers call it: sm_90a


class SessionAsk(Wire, frozen=True):
    """Which session, and the shape it should have. ``gpus=None`` inherits, and so does an empty ``python``.

    ``python`` names one of the gateway's interpreter environments; on a user's own gateway it may be a path.
    """

    name: SessionName
    gpus: Gpus = None
    python: Annotated[str, Meta(max_length=4096)] = ""


class View(Wire, frozen=True):
    """How much of a flood a reader wants: the first ``head_bytes`` and the last ``tail_bytes``; ``None`` is all."""

    head_bytes: Number | None = None
    tail_bytes: Number = 0


class Place(Wire, frozen=True):
    """Where a body stands in its notebook, for tracebacks: ``In[count]``, and the line its first line is on there."""

    count: Number = 1
    first_line: Annotated[int, Meta(ge=1)] = 1


class Peer(Wire, frozen=True):
    """What a body's client can do: its Python, whether it takes pickles, and whether it can be asked for input."""

    python: Short = ""
    takes_pickles: bool = False
    allows_input: bool = False


class SessionInfo(Wire, frozen=True):
    """A session as its principal sees it. ``idle_s`` is ``None`` while something runs; ``asking`` is idle."""

    name: Short
    state: Literal["new", "queued", "starting", "idle", "running", "asking", "lost"]
    gpus: tuple[Gpu, ...]
    queued: Number
    executions: Number
    created_s: float
    idle_s: float | None


class ExecutionInfo(Wire, frozen=True):
    """An execution whose journal is still there."""

    execution_id: ExecutionId
    session: Short
    state: Short
    started_s: float
    stream_bytes: Number
    first_line: Short


class Record(Wire, frozen=True):
    """What stays of an execution, longer than its journal. Times in seconds, ``started_s`` in Unix time.

    ``status`` is ``queued`` or ``running`` until it has ended; ``code`` says why it failed. ``waited_s`` is the time
    before it ran (for GPUs, a place, earlier bodies, a worker), ``turn_wait_s`` and ``turn_held_s`` are of a program's
    GPUs. ``sent_bytes`` is of the source and what came along, ``text_bytes`` and ``result_bytes`` of what came back.
    ``digest`` is the source's SHA-256.
    """

    execution_id: ExecutionId
    kind: Literal["cell", "program"]
    session: Short
    status: Short
    code: Short
    started_s: float
    waited_s: float
    ran_s: float
    turn_wait_s: float
    turn_held_s: float
    gpus: tuple[Short, ...]
    sent_bytes: Number
    text_bytes: Number
    result_bytes: Number
    digest: Short
    first_line: Short
    client: Short = ""
    exit_code: ExitCode = 0


# ── Events of an execution: what a journal holds ────────────────────────────────────────────────────────────────────


class Queued(Wire, frozen=True):
    """Waiting for GPUs behind ``ahead`` others (whose principals are named on shared gateways)."""

    ahead: Number
    gpu_count: Number
    principals: tuple[Short, ...] = ()


class Behind(Wire, frozen=True):
    """Waiting for ``ahead`` earlier executions of the same session."""

    ahead: Number


class Placed(Wire, frozen=True):
    """The session holds these GPUs now."""

    gpus: tuple[Gpu, ...]


class Starting(Wire, frozen=True):
    """No spare worker fitted; one is being started."""


class Started(Wire, frozen=True):
    """The wait that earlier events told of is over, the body runs. ``start_ms`` is what its worker cost just now."""

    start_ms: float = 0.0


class Notice(Wire, frozen=True):
    """One line for people that is no output of the cell: state that was lost, a worker replaced."""

    code: Short
    text: Text


class Stream(Wire, frozen=True):
    """Buffers: the text, UTF-8. ``is_late``: written after the cell that caused it had ended."""

    name: Literal["stdout", "stderr"]
    is_late: bool = False


class Display(Wire, frozen=True):
    """A MIME bundle. Buffers: one for each of ``mimes``, then the metadata as JSON."""

    mimes: tuple[Short, ...]
    display_id: Short | None = None
    is_update: bool = False


class Result(Wire, frozen=True):
    """The value of the cell's last expression as a MIME bundle, with buffers as in ``Display``."""

    mimes: tuple[Short, ...]
    count: Number


class ClearOutput(Wire, frozen=True):
    """``clear_output(wait)``."""

    wait: bool


class Stuck(Wire, frozen=True):
    """An interrupt has not been taken for ``waited_s``; the interpreter stands at ``where``."""

    waited_s: float
    where: Text


class Error(Wire, frozen=True):
    """User code raised. Buffers: ``str(exception)``, the rendered traceback, its args as JSON (or nothing)."""

    ename: Short
    module: Short
    qualname: Short
    is_interrupt: bool = False


class Finished(Wire, frozen=True):
    """The last event but for late output. ``code`` and ``message`` say why, for ``failed``.

    ``namespace`` names the worker's namespace that the session goes on with; it is new after every loss or restart.
    """

    status: Literal["ok", "error", "interrupted", "failed"]
    elapsed_ms: float = 0.0
    code: Short = ""
    message: Text = ""
    namespace: Short = ""
    exit_code: ExitCode = 0


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
    | Want
    | Bound
    | Returned
    | Names
    | InputRequest
    | Step
    | Failed
    | Error
    | Finished
)

# ── Client → gateway ────────────────────────────────────────────────────────────────────────────────────────────────


class Execute(Wire, frozen=True):
    """Run a body. Buffers: the source, UTF-8; then, where needed, a ``Manifest``; then a small parcel of values.

    Sent twice with one id, it runs once.

    ``namespace`` is the one of the session's last ``Finished``, for a session that the client has run something in: if
    it is another by now, the execution says that state was lost.

    ``is_alone``: it has a session of its own, which ends with it. A program (its source is JSON) is always alone.
    """

    execution_id: ExecutionId
    session: SessionAsk
    place: Place = Place()
    view: View = View()
    timeout_s: Seconds | None = None
    queue_timeout_s: Seconds | None = None
    is_fresh: bool = False
    namespace: Short = ""
    peer: Peer = Peer()
    kind: Literal["cell", "program"] = "cell"
    is_alone: bool = False


class Attach(Wire, frozen=True):
    """Send the events of an execution that come after number ``after``."""

    execution_id: ExecutionId
    after: Number
    view: View = View()


class Detach(Wire, frozen=True):
    """Send no more of this execution."""

    execution_id: ExecutionId


class Ack(Wire, frozen=True):
    """Events up to ``number`` were taken; what they held of the credit is free again."""

    execution_id: ExecutionId
    number: Number


class Interrupt(Wire, frozen=True):
    """One press of stop (``kill=False``), or the end of the worker (``kill=True``)."""

    execution_id: ExecutionId
    kill: bool = False


class Ping(Wire, frozen=True):
    """Are you there? Answered with ``Pong`` at once."""


class Pong(Wire, frozen=True):
    """The answer to ``Ping``."""


class ListSessions(Wire, frozen=True):
    """Asks for a ``Sessions`` reply."""

    request: Number


class ListGpus(Wire, frozen=True):
    """Asks for a ``GpuList`` reply."""

    request: Number


class ListExecutions(Wire, frozen=True):
    """Asks for an ``Executions`` reply; ``""`` is the client's own session."""

    request: Number
    session: SessionName


class ListRecords(Wire, frozen=True):
    """Asks for a ``Records`` reply: what runs and waits now, or what has ended since ``since_s`` (Unix time)."""

    request: Number
    is_live: bool = False
    session: Short | None = None
    since_s: float = 0.0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Restart(Wire, frozen=True):
    """Give the session a new, empty worker, with another shape if ``gpus`` says so."""

    request: Number
    session: SessionAsk


class CloseSession(Wire, frozen=True):
    """End the session and everything in it."""

    request: Number
    session: SessionName


ToGateway = (
    Execute
    | Attach
    | Detach
    | Ack
    | Interrupt
    | Supply
    | InputReply
    | Have
    | Chunk
    | Fetch
    | Drop
    | ListStorage
    | Ping
    | Pong
    | ListSessions
    | ListGpus
    | ListExecutions
    | ListRecords
    | Restart
    | CloseSession
)

# ── Gateway → client ────────────────────────────────────────────────────────────────────────────────────────────────


class Event(Wire, frozen=True):
    """One event of an execution, numbered from 1 without gaps. Buffers: those of the body."""

    execution_id: ExecutionId
    number: Annotated[int, Meta(ge=1)]
    body: EventBody


class Skip(Wire, frozen=True):
    """The events up to number ``to`` are left out of this reader's view: ``stream_bytes`` in ``lines`` lines."""

    execution_id: ExecutionId
    to: Number
    stream_bytes: Number
    lines: Number


class CaughtUp(Wire, frozen=True):
    """After an ``Attach``: the execution has finished, and everything of it so far has been sent."""

    execution_id: ExecutionId


class Problem(Wire, frozen=True):
    """The gateway refuses something; the connection stays open unless a close frame follows."""

    code: Short
    message: Text
    execution_id: Short = ""
    request: Number | None = None


class Sessions(Wire, frozen=True):
    """Reply to ``ListSessions``."""

    request: Number
    sessions: tuple[SessionInfo, ...]


class GpuList(Wire, frozen=True):
    """Reply to ``ListGpus``; ``session`` is filled for the asker's own sessions only."""

    request: Number
    gpus: tuple[Gpu, ...]
    free: Number
    waiting: Number


class Executions(Wire, frozen=True):
    """Reply to ``ListExecutions``, newest first."""

    request: Number
    executions: tuple[ExecutionInfo, ...]


class Records(Wire, frozen=True):
    """Reply to ``ListRecords``, newest first."""

    request: Number
    records: tuple[Record, ...]


class Done(Wire, frozen=True):
    """Reply to ``Restart`` and ``CloseSession``."""

    request: Number


ToClient = (
    Event
    | Skip
    | CaughtUp
    | Problem
    | Held
    | Piece
    | Storage
    | Ping
    | Pong
    | Sessions
    | GpuList
    | Executions
    | Records
    | Done
)

# ── Gateway ⇄ worker host ───────────────────────────────────────────────────────────────────────────────────────────


class Run(Wire, frozen=True):
    """Run a body in the worker. Buffers: the source; then, if anything goes with it, manifest and parcel."""

    execution_id: ExecutionId
    place: Place
    peer: Peer = Peer()


class Deliver(Wire, frozen=True):
    """What the running execution wants, as a ``Supply`` brought it; a large parcel is the file ``path``."""

    execution_id: ExecutionId
    path: Text = ""
    size: Number = 0
    problem: Text = ""


class Stop(Wire, frozen=True):
    """Interrupt this execution if it is the one running; ``kill`` ends the worker."""

    execution_id: ExecutionId
    kill: bool = False


class Drain(Wire, frozen=True):
    """The worker waits until its pipes have been read: read them now."""


class Unheard(Wire, frozen=True):
    """An interrupt came before the body had begun. It has now: if the interrupt was for this one, send it again."""


class Shutdown(Wire, frozen=True):
    """End the worker and yourself."""


class HostHello(Wire, frozen=True):
    """A host's first frame: the ticket it was started with."""

    ticket: Short


class HostReady(Wire, frozen=True):
    """The worker is up and waits for its first body."""

    python: Short
    start_ms: float


class Emit(Wire, frozen=True):
    """Something the running (or last) execution produced. Buffers: those of the body."""

    execution_id: ExecutionId
    body: EventBody


class Gone(Wire, frozen=True):
    """The worker has ended; ``message`` says why, for people. The host ends too."""

    code: Short
    message: Text


class Replace(Wire, frozen=True):
    """After the running execution the worker must not be used again (a sticky CUDA fault); ``message`` says why."""

    message: Text


ToHost = Run | RunProgram | TurnGranted | Deliver | InputReply | Stop | Shutdown
FromHost = HostHello | HostReady | Emit | TurnAsked | Gone | Replace

# ── Host ⇄ worker ───────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(Wire, frozen=True):
    """The worker's first message."""

    python: Short


class Ended(Wire, frozen=True):
    """A body has ended and every byte it wrote was read. ``poison``: why this worker must not be used again.

    ``exit_code`` is that of the tool that the body ran.
    """

    status: Literal["ok", "error", "interrupted"]
    elapsed_ms: float
    poison: Text = ""
    exit_code: ExitCode = 0


ToWorker = FilePart | Run | RunProgram | TurnGranted | Supplied | Spool | InputReply | Shutdown
FromWorker = (
    Ready
    | Drain
    | Unheard
    | Display
    | Result
    | ClearOutput
    | Want
    | Bound
    | Written
    | Returned
    | Names
    | InputRequest
    | Step
    | Failed
    | Turn
    | Error
    | Ended
)
