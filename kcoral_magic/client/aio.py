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
import os
import platform
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Literal, TypeVar

from kcoral_magic import config
from kcoral_magic.client.results import Collector, Output, Reconnected, Reconnecting, Result
from kcoral_magic.client.transport import Transport
from kcoral_magic.errors import GatewayUnreachable, KCoralError, ProtocolError, RemoteError, UsageError, from_code
from kcoral_magic.protocol import PRODUCT, framing
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import messages as m

EVERYTHING = m.View()
# What a notebook shows of a flood; %kcoral output fetches the rest.
NOTEBOOK = m.View(1024 * 1024, 256 * 1024)
_ACK_BYTES = c.CREDIT_BYTES // 8
_KEPT_FINISHED = 16


Reply = TypeVar("Reply")


def is_last(output: Output, *, is_own: bool) -> bool:
    """Whether a reader has come to the end: of an own execution with ``Finished``, of a journal when caught up."""
    body = output.body
    return isinstance(body, m.CaughtUp) or (isinstance(body, m.Finished) and (is_own or output.number == 0))


_process = secrets.token_hex(8)
_serial = itertools.count(1)


def new_id() -> str:
    """An execution's id: unique, not secret. The kernel's random numbers cost a fifth of a trivial cell on some VMs."""
    return f"{_process}-{os.getpid():x}-{next(_serial)}"


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
        self._namespaces: dict[str, str] = {}  # session -> the namespace that its last execution ran in
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

    def session(self, name: str = "", *, gpus: int | Literal["all"] | None = None) -> AsyncSession:
        """A session of this client. ``""`` is the client's own, which ends with it.

        Raises:
            UsageError: The name is malformed.
        """
        if name and not m.is_session_name(name):
            raise UsageError(f"a session's name is 1–64 of letters, digits, '.', '_' and '-', got {name!r}")
        return AsyncSession(self, m.SessionAsk(name, gpus))

    async def sessions(self) -> tuple[m.SessionInfo, ...]:
        """The principal's sessions."""
        return (await self._ask(m.Sessions, m.ListSessions(next(self._numbers)))).sessions

    async def gpus(self) -> m.GpuList:
        """The gateway's GPUs, how many are free and how many asks wait."""
        return await self._ask(m.GpuList, m.ListGpus(next(self._numbers)))

    async def executions(self, session: str = "") -> tuple[m.ExecutionInfo, ...]:
        """A session's newest executions, newest first."""
        return (await self._ask(m.Executions, m.ListExecutions(next(self._numbers), session))).executions

    async def restart(self, session: str = "", gpus: int | Literal["all"] | None = None) -> None:
        """Give a session a new, empty worker."""
        await self._ask(m.Done, m.Restart(next(self._numbers), m.SessionAsk(session, gpus)))
        self._namespaces.pop(session, None)  # its state is gone because we said so

    async def close_session(self, session: str = "") -> None:
        """End a session."""
        await self._ask(m.Done, m.CloseSession(next(self._numbers), session))
        self._namespaces.pop(session, None)

    async def attach(
        self, execution_id: str, *, view: m.View = EVERYTHING, sink: Callable[[Output], None] | None = None
    ) -> AsyncExecution:
        """Read an execution from its start, whoever of this principal began it.

        Raises:
            UsageError: This client is reading it.
        """
        await self.connect()
        reading = self._executions.get(execution_id)
        if reading is not None and not reading.is_finished:
            raise UsageError(f"this client reads {execution_id} already: go on with that reader")
        execution = AsyncExecution(self, execution_id, sink)
        self._executions[execution_id] = execution
        await self._send(self._connection.attach(execution_id, view))
        return execution

    async def _ask(self, kind: type[Reply], body: Any) -> Reply:
        await self.connect()
        assert self._transport is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[body.request] = future
        frames = framing.encode(body)
        self._transport.pending[body.request] = frames
        try:
            await self._transport.send(frames)
            reply = await future
        finally:
            self._requests.pop(body.request, None)
            if self._transport is not None:
                self._transport.pending.pop(body.request, None)
        if not isinstance(reply, kind):
            raise ProtocolError(f"a {kind.__name__} was due, got {type(reply).__name__}")
        return reply

    async def _send(self, frames: list[bytes]) -> None:
        if self._transport is not None:
            await self._transport.send(frames)

    async def _submit(self, execution: AsyncExecution, message: m.Execute, source: str) -> None:
        await self.connect()
        self._drop_old()
        frames = self._connection.execute(message, source.encode("utf-8", "surrogatepass"))
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

    async def _consumed(self, execution_id: str, number: int, size: int) -> None:
        await self._send(self._connection.consumed(execution_id, number, size))

    def _forget(self, execution_id: str) -> None:
        if self._transport is not None:
            self._transport.pending.pop(execution_id, None)

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
                    future.set_result(body)

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


class AsyncSession:
    """A named execution context; its worker starts with its first execution."""

    def __init__(self, client: AsyncClient, ask: m.SessionAsk) -> None:
        self._client = client
        self._ask = ask

    @property
    def name(self) -> str:
        """Its name; empty for the client's own."""
        return self._ask.name

    async def execute(
        self,
        source: str,
        *,
        place: m.Place | None = None,
        view: m.View = EVERYTHING,
        timeout_s: float | None = None,
        queue_timeout_s: float | None = None,
        is_fresh: bool = False,
        execution_id: str | None = None,
        sink: Callable[[Output], None] | None = None,
    ) -> AsyncExecution:
        """Send a body; its events can be read while it runs.

        Args:
            source: What a cell may hold: Python, magics, ``!commands``, top-level ``await``.
            place: Where it stands in a notebook, for its tracebacks.
            timeout_s: Interrupt it then, kill it 5 s later; counted from its start.
            queue_timeout_s: Give up if no GPUs are free by then.
            is_fresh: Run in a new worker that is thrown away after.
            execution_id: A new id of the caller's making; sent twice, it runs once.
        """
        message = m.Execute(
            execution_id or new_id(),
            self._ask,
            place or m.Place(),
            view,
            timeout_s,
            queue_timeout_s,
            is_fresh,
            "" if is_fresh else self._client._namespaces.get(self.name, ""),
        )
        execution = AsyncExecution(self._client, message.execution_id, sink, session=self.name)
        await self._client._submit(execution, message, source)
        return execution

    async def run(self, source: str, **options: Any) -> Result:
        """Run a body to its end.

        Raises:
            Exception: What the body raised, by its own type where that is loaded here.
            KCoralError: The system could not run it.
        """
        return await (await self.execute(source, **options)).result()

    async def restart(self) -> None:
        """A new, empty worker."""
        await self._client.restart(self.name)

    async def close(self) -> None:
        """End it."""
        await self._client.close_session(self.name)


class AsyncExecution:
    """One run of a body: an async iterator over its ``Output``s, which ends after ``Finished``."""

    def __init__(
        self,
        client: AsyncClient,
        execution_id: str,
        sink: Callable[[Output], None] | None,
        *,
        session: str | None = None,
    ) -> None:
        self.execution_id = execution_id
        self.session = session  # of an own execution
        self.is_own = session is not None
        self.is_finished = False
        self._client = client
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._sink = sink or self._queue.put_nowait
        self._collector = Collector(execution_id)
        self._unacked_bytes = 0
        self._is_told = False  # its ``Finished`` has come
        self._is_read = False  # its reader has the last output

    def deliver(self, output: Output) -> None:
        """The client's: the next output has arrived."""
        if isinstance(output.body, m.Finished):
            if output.body.namespace and self.session is not None:
                self._client._namespaces[self.session] = output.body.namespace
            if self._is_told:
                if output.number or self.is_finished:
                    return
                output = Output(0, m.CaughtUp(self.execution_id))  # nothing more can come of this journal
            self._is_told = True
            self._client._forget(self.execution_id)
        self.is_finished = self.is_finished or is_last(output, is_own=self.is_own)
        self._sink(output)

    def redirect(self, sink: Callable[[Output], None]) -> None:
        """Send further outputs elsewhere: those that come late, after ``Finished``."""
        self._sink = sink

    async def __aiter__(self) -> AsyncIterator[Output]:
        while not self._is_read:
            output = await self._queue.get()
            self._is_read = is_last(output, is_own=self.is_own)
            self._collector.take(output)
            self._unacked_bytes += output.size
            if self._unacked_bytes >= _ACK_BYTES:
                size, self._unacked_bytes = self._unacked_bytes, 0
                await self._client._consumed(self.execution_id, output.number, size)
            yield output

    async def result(self) -> Result:
        """Read to the end.

        Raises:
            Exception: What the body raised.
            KCoralError: The system could not run it.
        """
        async for _ in self:
            pass
        error = self._collector.exception()
        if isinstance(error, StopIteration | StopAsyncIteration):  # a coroutine may not raise these
            named = RemoteError(type(error).__name__, str(error))
            vars(named).update(vars(error))
            raise named
        if error is not None:
            raise error
        return self._collector.collected()

    async def interrupt(self, *, kill: bool = False) -> None:
        """One press of stop; with ``kill`` the end of the worker and its session's state."""
        await self._client.interrupt(self.execution_id, kill=kill)


__all__ = ["EVERYTHING", "NOTEBOOK", "AsyncClient", "AsyncExecution", "AsyncSession", "new_id"]
