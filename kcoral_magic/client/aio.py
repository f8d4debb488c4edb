"""``AsyncClient``: the one implementation of the Python API.

async with AsyncClient() as client:
    session = client.session("train", gpus=2)
    execution = await session.execute("print('hi')")
    async for output in execution: ...
    result = await session.run("1 + 1")
"""

from __future__ import annotations

import asyncio
import itertools
import platform
import secrets
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kcoral_magic import config
from kcoral_magic.client import exchange
from kcoral_magic.client.blobs import Blobs
from kcoral_magic.client.execution import AsyncExecution, Own, new_id
from kcoral_magic.client.results import Output, Reconnected, Reconnecting
from kcoral_magic.client.session import EVERYTHING, AsyncSession
from kcoral_magic.client.transport import Transport
from kcoral_magic.errors import GatewayUnreachable, KCoralError, ProtocolError, UsageError, from_code
from kcoral_magic.protocol import PRODUCT, framing
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.protocol.wire import check, is_session_name

if TYPE_CHECKING:
    from kcoral_magic.client.functions import AsyncRemoteFunction
    from kcoral_magic.client.program import Program
    from kcoral_magic.client.returned import ProgramResult

_KEPT_FINISHED = 16


Reply = TypeVar("Reply")


class AsyncClient:
    """A connection to one gateway; opened on first use.

    Args:
        url: ``wss://host:port``; ``None`` asks environment and files, and without them finds or starts the user's own
            gateway on this machine.
        token, token_file, ca: The credential and the certificate authority, over environment and files.
        client_id: Stable name of this client: its own session is taken up again under it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca: str | None = None,
        client_id: str | None = None,
        target: config.Target | None = None,
        **transport_options: float,
    ) -> None:
        self.target = target or config.resolve(url, token=token, token_file=token_file, ca=ca)
        hello = m.Hello(
            versions=(m.VERSION,),
            client_id=client_id or secrets.token_hex(8),
            instance=secrets.token_hex(8),
            product=PRODUCT,
            python=platform.python_version(),
            executable=sys.executable if self.target.url is None else "",
        )
        self._connection = c.ClientConnection(hello)
        self._transport_options = transport_options
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._executions: dict[str, AsyncExecution] = {}
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self.blobs = Blobs(self._request, lambda: next(self._numbers), self.drop)
        self._dropping: set[asyncio.Task[None]] = set()
        self._beliefs: dict[str, exchange.Belief] = {}  # by session
        self._lost_s: float | None = None
        self._dead: KCoralError | None = None

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def welcome(self) -> m.Welcome | None:
        """What the gateway said of itself."""
        return self._connection.welcome

    @property
    def is_connected(self) -> bool:
        """Whether there is a path right now."""
        return self._transport is not None and self._transport.is_connected

    async def connect(self) -> m.Welcome:
        """Connect if need be.

        Raises:
            GatewayUnreachable, AuthenticationError, ProtocolError, NotConnectedError: It cannot.
        """
        async with self._opening:
            if self._dead is not None:  # the former path has ended for good
                self._transport = None
            if self._transport is None:
                transport = Transport(
                    self.target,
                    self._connection,
                    self._on_message,
                    self._on_state,
                    self._on_dead,
                    **self._transport_options,
                )
                await transport.open()
                self._dead = None
                self._transport = transport
        assert self.welcome is not None
        return self.welcome

    async def close(self) -> None:
        """End this client's own session and leave. Named sessions stay."""
        if self._transport is not None and self._transport.is_connected:
            try:
                await asyncio.wait_for(self.close_session(""), 2.0)
            except (KCoralError, TimeoutError):  # it had none, or the gateway has gone
                pass
        await self.disconnect()

    async def disconnect(self) -> None:
        """Leave; every session stays."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
        self._give_up(GatewayUnreachable("this client has left; the cell may go on there"))

    def session(
        self, name: str = "", *, gpus: int | Literal["all"] | None = None, python: str | None = None
    ) -> AsyncSession:
        """A session of this client. ``""`` is the client's own, which ends with it.

        Args:
            gpus: How many, fixed by its first cell.
            python: One of the gateway's interpreter environments, by name; its own by default.

        Raises:
            UsageError: The name is malformed.
        """
        if name and not is_session_name(name):
            raise UsageError(f"a session's name is 1–64 of letters, digits, '.', '_' and '-', got {name!r}")
        return AsyncSession(self, m.SessionAsk(name, gpus, python or ""))

    async def execute(
        self, program: Program, *, on_output: Callable[[Output], None] | None = None, **options: Any
    ) -> ProgramResult:
        """Run a program to its end; ``options`` are those of ``submit``, ``on_output`` is called as outputs come.

        Raises:
            KCoralError: It did not run. One that ran and failed has an ``error`` in its result.
        """
        execution = await self.submit(program, **options)
        async for output in execution:
            if on_output is not None:
                on_output(output)
        return await execution.program_result()

    async def submit(
        self,
        program: Program,
        *,
        gpu_count: int | None = None,
        python: str | None = None,
        timeout_s: float | None = None,
        queue_timeout_s: float | None = None,
        view: m.View = EVERYTHING,
        execution_id: str | None = None,
        sink: Callable[[Output], None] | None = None,
    ) -> AsyncExecution:
        """Send a program, less what the gateway has of its blobs; ``program_result`` of its execution waits for it.

        Args:
            gpu_count: 1 to 8, all of them visible to the one worker; one by default where there are any and an
                instruction may use it.
            python: As for ``session``.
            timeout_s, queue_timeout_s, view, execution_id: As for ``AsyncSession.execute``.

        Raises:
            ProgramInvalid: It is empty.
            KCoralError: A blob cannot be sent.
        """
        source = program.source()
        wanted = [(f"sha256-{blob.digest}", blob) for blob in program.blobs.values()]
        held = await self.blobs.held([(digest, blob.size) for digest, blob in wanted]) if wanted else ()
        for (digest, blob), offset in zip(wanted, held, strict=True):
            if offset < blob.size or not blob.size:
                await self.blobs.upload(digest, blob.size, blob.pieces)
        message = m.Execute(
            execution_id or new_id(),
            m.SessionAsk("", gpu_count, python or ""),
            view=view,
            timeout_s=timeout_s,
            queue_timeout_s=queue_timeout_s,
            peer=m.Peer(exchange.PYTHON, self.target.is_trusted),
            kind="program",
        )
        wants = frozenset(f"return:{index}" for index in program.keys)
        execution = AsyncExecution(self, message.execution_id, sink, Own(exchange.Belief(), None, wants))
        execution.program = program
        await self._submit(execution, message, source)
        return execution

    def function(self, **options: Any) -> Callable[[Callable[..., Any]], AsyncRemoteFunction]:
        """As ``Client.function``; ``remote``, ``spawn`` and jobs are awaited."""
        from kcoral_magic.client.functions import AsyncRemoteFunction, Options

        made = Options(**options)
        return lambda function: AsyncRemoteFunction(self, function, made)

    async def sessions(self) -> tuple[m.SessionInfo, ...]:
        """The principal's sessions."""
        return (await self._ask(m.Sessions, m.ListSessions(next(self._numbers)))).sessions

    async def gpus(self) -> m.GpuList:
        """The gateway's GPUs, how many are free and how many asks wait."""
        return await self._ask(m.GpuList, m.ListGpus(next(self._numbers)))

    async def executions(self, session: str = "") -> tuple[m.ExecutionInfo, ...]:
        """A session's newest executions, newest first."""
        return (await self._ask(m.Executions, m.ListExecutions(next(self._numbers), session))).executions

    async def jobs(self) -> tuple[m.Record, ...]:
        """What of the principal's runs or waits, newest first."""
        return (await self._ask(m.Records, m.ListRecords(next(self._numbers), is_live=True))).records

    async def records(
        self, *, session: str | None = None, since_s: float = 0.0, limit: int = 100
    ) -> tuple[m.Record, ...]:
        """What the principal's ended executions left behind, newest first, at most 1,000 of them.

        Args:
            session: Of this one only; empty for all without a named session.
            since_s: Begun since then, in Unix time.
        """
        ask = m.ListRecords(next(self._numbers), False, session, since_s, limit)
        return (await self._ask(m.Records, ask)).records

    async def storage(self) -> t.Storage:
        """What the principal's files and values take at the gateway."""
        return await self._ask(t.Storage, t.ListStorage(next(self._numbers)))

    async def restart(self, session: str = "", gpus: int | Literal["all"] | None = None) -> None:
        """Give a session a new, empty worker."""
        await self._ask(m.Done, m.Restart(next(self._numbers), m.SessionAsk(session, gpus)))
        self.belief(session).forget()  # its state is gone because we said so

    async def close_session(self, session: str = "") -> None:
        """End a session."""
        await self._ask(m.Done, m.CloseSession(next(self._numbers), session))
        self.belief(session).forget()

    async def attach(
        self, execution_id: str, *, view: m.View = EVERYTHING, sink: Callable[[Output], None] | None = None
    ) -> AsyncExecution:
        """Read an execution from its start, whoever of this principal began it.

        Raises:
            UsageError: This client is reading it.
        """
        check(m.Attach(execution_id, 0, view))
        await self.connect()
        reading = self._executions.get(execution_id)
        if reading is not None and not reading.is_finished:
            raise UsageError(f"this client reads {execution_id} already: go on with that reader")
        execution = AsyncExecution(self, execution_id, sink)
        self._executions[execution_id] = execution
        await self._send(self._connection.attach(execution_id, view))
        return execution

    def belief(self, session: str) -> exchange.Belief:
        """What a session is believed to have of this client's values and files."""
        return self._beliefs.setdefault(session, exchange.Belief())

    def where_is(self, name: str) -> str | None:
        """The session that is known to have a name; empty for the client's own."""
        return next((session for session, belief in self._beliefs.items() if name in belief.names), None)

    async def _ask(self, kind: type[Reply], body: Any) -> Reply:
        message = await self._request(body)
        if not isinstance(message.body, kind):
            raise ProtocolError(f"a {kind.__name__} was due, got {type(message.body).__name__}")
        return message.body

    async def _request(self, body: Any, *buffers: framing.Buffer) -> c.Incoming:
        check(body)
        await self.connect()
        assert self._transport is not None
        future: asyncio.Future[c.Incoming] = asyncio.get_running_loop().create_future()
        self._requests[body.request] = future
        frames = framing.encode(body, buffers)
        self._transport.pending[body.request] = frames
        try:
            await self._transport.send(frames)
            return await future
        finally:
            self._requests.pop(body.request, None)
            if self._transport is not None:
                self._transport.pending.pop(body.request, None)

    async def _send(self, frames: list[bytes]) -> None:
        if self._transport is not None:
            await self._transport.send(frames)

    async def _submit(self, execution: AsyncExecution, message: m.Execute, *buffers: bytes) -> None:
        check(message)
        await self.connect()
        self._drop_old()
        frames = self._connection.execute(message, *buffers)
        self._executions[execution.execution_id] = execution
        await self._send(frames)

    def _drop_old(self) -> None:
        """Finished executions are kept a while only, for what their threads print late."""
        finished = [execution_id for execution_id, e in self._executions.items() if e.is_finished]
        for execution_id in finished[:-_KEPT_FINISHED]:
            del self._executions[execution_id]
            self._connection.forget(execution_id)  # the gateway has let go by itself

    async def interrupt(self, execution_id: str, *, kill: bool = False) -> None:
        """One press of stop for an execution, whoever began it; ``kill`` ends its worker."""
        if self._transport is not None:
            frames = framing.encode(m.Interrupt(execution_id, kill))
            self._transport.pending[execution_id] = frames
            await self._transport.send(frames)

    async def drop(self, digest: str) -> None:
        """A result has been fetched; if this is lost with the connection, time removes it."""
        await self._send(framing.encode(t.Drop(digest)))

    def drop_later(self, digest: str) -> None:
        """As ``drop``, for whoever is being cancelled and cannot wait."""
        task = asyncio.create_task(self.drop(digest))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def supply(self, message: t.Supply, parcel: framing.Buffer = b"", files: bytes = b"") -> None:
        """What an execution waits for; sent again after a cut, until the execution goes on."""
        await self._keep_sending(message.execution_id, framing.encode(message, (files, parcel)))

    async def answer(self, execution_id: str, text: str | bytes | None) -> None:
        """The line that an execution asked for, or a tool's next input; ``None`` if nobody can be asked, or it ends."""
        data = text if isinstance(text, bytes) else (text or "").encode("utf-8", "surrogatepass")
        await self._keep_sending(execution_id, framing.encode(t.InputReply(execution_id, text is None), (data,)))

    async def _keep_sending(self, execution_id: str, frames: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.pending[execution_id, "reply"] = frames
            await self._transport.send(frames)

    async def _consumed(self, execution_id: str, number: int, size: int) -> None:
        await self._send(self._connection.consumed(execution_id, number, size))

    def _forget(self, execution_id: str) -> None:
        if self._transport is not None:
            self._transport.pending.pop(execution_id, None)
            self._transport.pending.pop((execution_id, "reply"), None)

    # ── what the transport tells ──

    def _on_message(self, message: c.Incoming) -> None:
        body = message.body
        match body:
            case m.Event(execution_id=execution_id, number=number, body=event):
                self._forget(execution_id)  # an interrupt that was sent has arrived, or this path is alive
                execution = self._executions.get(execution_id)
                if execution is not None:
                    execution.deliver(Output(number, event, message.buffers))
            case m.Skip(execution_id=execution_id, to=to):
                execution = self._executions.get(execution_id)
                if execution is not None:
                    execution.deliver(Output(to, body))
            case m.CaughtUp(execution_id=execution_id):
                execution = self._executions.get(execution_id)
                if execution is not None and not execution.is_own:
                    execution.deliver(Output(0, body))
            case m.Problem(code=code, message=text, execution_id=execution_id, request=request):
                self._on_problem(code, text, execution_id, request)
            case m.Ping() | m.Pong():
                pass
            case _:
                future = self._requests.get(body.request)
                if future is not None and not future.done():
                    future.set_result(message)

    def _on_problem(self, code: str, text: str, execution_id: str, request: int | None) -> None:
        if request is not None and (future := self._requests.get(request)) is not None and not future.done():
            future.set_exception(from_code(code, text))
        execution = self._executions.get(execution_id)
        if execution is not None:
            if code == "not_found" and execution.is_own:
                code, text = "lost", f"the gateway was replaced while this cell ran; {text}"
            execution.deliver(Output(0, m.Finished("failed", 0.0, code, text)))

    def _on_state(self, away_s: float | None, why: str) -> None:
        note: Reconnecting | Reconnected
        if away_s is None:
            note = Reconnected(time.monotonic() - (self._lost_s or time.monotonic()))
            self._lost_s = None
        else:
            self._lost_s = self._lost_s or time.monotonic()
            note = Reconnecting(away_s, why)
        for execution in list(self._executions.values()):
            if not execution.is_finished:
                execution.deliver(Output(0, note))

    def _on_dead(self, error: KCoralError) -> None:
        self._dead = error
        self._give_up(error)

    def _give_up(self, error: KCoralError) -> None:
        """Whoever waits is told, and nothing of it is sent again on a later path."""
        for execution in list(self._executions.values()):
            if not execution.is_finished:
                self._connection.forget(execution.execution_id)
                execution.deliver(Output(0, m.Finished("failed", 0.0, error.code, str(error))))
        for future in self._requests.values():
            if not future.done():
                future.set_exception(error)
