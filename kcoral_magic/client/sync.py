"""``Client``: the same methods as ``AsyncClient`` for code without an event loop.

No logic: an event loop runs in a thread of its own, calls go there, outputs come back through a queue that the
caller's thread waits on (interruptible by Ctrl-C).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kcoral_magic.client import exchange
from kcoral_magic.client.aio import AsyncClient
from kcoral_magic.client.execution import ACK_BYTES, AsyncExecution, is_last, new_id
from kcoral_magic.client.files import FileSet
from kcoral_magic.client.results import Collector, Output, Progress, Result
from kcoral_magic.client.session import EVERYTHING, AsyncSession
from kcoral_magic.errors import UsageError
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

if TYPE_CHECKING:
    from kcoral_magic.client.functions import RemoteFunction
    from kcoral_magic.client.program import Program
    from kcoral_magic.client.returned import ProgramResult

T = TypeVar("T")
_WAKE = Output(0, Progress("", 0, 0))  # the body could not be sent: look why
_WAKE_S = 1.0  # a blocking wait on Windows cannot be interrupted; a bounded one can, between two rounds


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="kcoral-client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for it here."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it there.

        Raises:
            UsageError: The client has been closed.
        """
        if self.loop.is_closed():
            coroutine.close()
            raise UsageError("this client has been closed: make another one")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        self.loop.close()


class Client:
    """A connection to one gateway; arguments as for ``AsyncClient``. Close it, or use it as a context manager."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._loop = _Loop()
        self.aio = AsyncClient(url, **options)

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def connect(self) -> m.Welcome:
        """As ``AsyncClient.connect``."""
        return self._loop.call(self.aio.connect())

    def close(self) -> None:
        """End this client's own session and leave."""
        self._loop.call(self.aio.close())
        self._loop.stop()

    def disconnect(self) -> None:
        """Leave; every session stays."""
        self._loop.call(self.aio.disconnect())
        self._loop.stop()

    def session(
        self, name: str = "", *, gpus: int | Literal["all"] | None = None, python: str | None = None
    ) -> Session:
        """As ``AsyncClient.session``."""
        return Session(self, self.aio.session(name, gpus=gpus, python=python))

    def execute(self, program: Program, *, is_live: bool = False, **options: Any) -> ProgramResult:
        """As ``AsyncClient.execute``. ``is_live``: print here what it prints there, as it is printed."""
        execution = self.submit(program, **options)
        execution.follow(lambda output: output.print() if is_live else None)
        return execution.program_result()

    def submit(self, program: Program, **options: Any) -> Execution:
        """As ``AsyncClient.submit``; ``program_result()`` of what it returns waits for the end."""
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        execution_id = new_id()
        sent = self._loop.start(self.aio.submit(program, sink=outputs.put, execution_id=execution_id, **options))
        sent.add_done_callback(lambda done: outputs.put(_WAKE) if done.cancelled() or done.exception() else None)
        wants = [f"return:{index}" for index in program.keys]
        execution = Execution(self, outputs, execution_id, sent, is_own=True, names=wants)
        execution.program = program
        return execution

    def function(
        self,
        *,
        gpus: int | Literal["all"] | None = None,
        session: str | None = None,
        python: str | None = None,
        timeout_s: float | None = None,
        queue_timeout_s: float | None = None,
        cpu_only: bool = False,
        is_live: bool = True,
    ) -> Callable[[Callable[..., Any]], RemoteFunction]:
        """A decorator: the function's ``remote``, ``aremote``, ``spawn`` and ``map`` run it elsewhere.

        Args:
            gpus: How many each call has, all visible to its one process; one by default where there are any.
            session: A named session, whose state stays; without one, each call has a worker that nobody has used.
            python: One of the gateway's interpreter environments.
            timeout_s: Interrupt a call after so long.
            queue_timeout_s: Give up after so long without GPUs.
            cpu_only: It needs no GPU, and holds none while it runs.
            is_live: Print here what it prints there, as it is printed.

        Raises:
            UsageError: ``cpu_only`` with GPUs or a session.
        """
        from kcoral_magic.client.functions import Options, RemoteFunction

        options = Options(gpus, session, python, timeout_s, queue_timeout_s, cpu_only, is_live)
        return lambda function: RemoteFunction(self, function, options)

    def sessions(self) -> tuple[m.SessionInfo, ...]:
        """As ``AsyncClient.sessions``."""
        return self._loop.call(self.aio.sessions())

    def gpus(self) -> m.GpuList:
        """As ``AsyncClient.gpus``."""
        return self._loop.call(self.aio.gpus())

    def executions(self, session: str = "") -> tuple[m.ExecutionInfo, ...]:
        """As ``AsyncClient.executions``."""
        return self._loop.call(self.aio.executions(session))

    def jobs(self) -> tuple[m.Record, ...]:
        """As ``AsyncClient.jobs``."""
        return self._loop.call(self.aio.jobs())

    def records(self, **options: Any) -> tuple[m.Record, ...]:
        """As ``AsyncClient.records``."""
        return self._loop.call(self.aio.records(**options))

    def storage(self) -> t.Storage:
        """As ``AsyncClient.storage``."""
        return self._loop.call(self.aio.storage())

    def restart(self, session: str = "", gpus: int | Literal["all"] | None = None) -> None:
        """As ``AsyncClient.restart``."""
        self._loop.call(self.aio.restart(session, gpus))

    def close_session(self, session: str = "") -> None:
        """As ``AsyncClient.close_session``."""
        self._loop.call(self.aio.close_session(session))

    def interrupt(self, execution_id: str, *, kill: bool = False) -> None:
        """As ``AsyncClient.interrupt``."""
        self._loop.call(self.aio.interrupt(execution_id, kill=kill))

    def answer(self, execution_id: str, text: str | bytes | None) -> None:
        """As ``AsyncClient.answer``."""
        self._loop.call(self.aio.answer(execution_id, text))

    def attach(self, execution_id: str, *, view: m.View = EVERYTHING) -> Execution:
        """As ``AsyncClient.attach``."""
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        sent = self._loop.start(self.aio.attach(execution_id, view=view, sink=outputs.put))
        sent.result()
        return Execution(self, outputs, execution_id, sent, is_own=False)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.call(coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._loop.start(coroutine)


class Session:
    """As ``AsyncSession``."""

    def __init__(self, client: Client, session: AsyncSession) -> None:
        self._client = client
        self._session = session

    @property
    def name(self) -> str:
        """Its name; empty for the client's own."""
        return self._session.name

    def execute(self, source: str, **options: Any) -> Execution:
        """As ``AsyncSession.execute``. Values are looked at in the caller's thread, which may not change them yet."""
        if options.get("out") is None and (options.get("send") or options.get("offer")):
            options["out"] = exchange.outgoing(options.pop("send", None) or {}, options.pop("offer", None) or {})
        outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        execution_id = new_id()
        sent = self._client._start(
            self._session.execute(source, sink=outputs.put, execution_id=execution_id, **options)
        )
        if not self._client.aio.is_connected:
            sent.result()  # what cannot connect says so here
        sent.add_done_callback(lambda done: outputs.put(_WAKE) if done.cancelled() or done.exception() else None)
        return Execution(
            self._client,
            outputs,
            execution_id,
            sent,
            is_own=True,
            files=options.get("files"),
            names=[want.name for want in exchange.wanted(options.get("wants", ()))],
        )

    def run(self, source: str, **options: Any) -> Result:
        """As ``AsyncSession.run``."""
        return self.execute(source, **options).result()

    def restart(self) -> None:
        """As ``AsyncSession.restart``."""
        self._client._call(self._session.restart())

    def close(self) -> None:
        """As ``AsyncSession.close``."""
        self._client._call(self._session.close())


class Execution:
    """As ``AsyncExecution``: an iterator over ``Output``s."""

    def __init__(
        self,
        client: Client,
        outputs: queue.SimpleQueue[Output],
        execution_id: str,
        sent: Future[AsyncExecution],
        *,
        is_own: bool,
        files: FileSet | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """``names``: of the values that come back."""
        self._files = files
        self.execution_id = execution_id
        self._client = client
        self._outputs = outputs
        self._sent = sent
        self.collector = Collector(execution_id, takes_pickles=client.aio.target.is_trusted, wants=names)
        self._unacked_bytes = 0
        self._is_own = is_own
        self.program: Program | None = None
        self._is_read = False

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, read or not."""
        if self._is_read or not self._sent.done():
            return self._is_read
        return self._sent.cancelled() or self._sent.exception() is not None or self._sent.result().is_finished

    @property
    def outputs(self) -> queue.SimpleQueue[Output]:
        """Where outputs arrive, for a reader that must do other things between two of them."""
        return self._outputs

    def __iter__(self) -> Iterator[Output]:
        while not self._is_read:
            try:
                output = self._outputs.get(timeout=_WAKE_S)
            except queue.Empty:
                self.check_sent()
                continue
            except KeyboardInterrupt:  # one press of Ctrl-C stops the remote body too
                self.interrupt()
                raise
            if output is _WAKE:
                self.check_sent()
                continue
            self.take(output)
            yield output

    def follow(self, show: Callable[[Output], None]) -> None:
        """Read to the end, showing every output. A Ctrl-C in the middle of ``show`` stops the remote body as well."""
        for output in self:
            try:
                show(output)
            except KeyboardInterrupt:
                self.interrupt()
                raise

    def on_late(self, show: Callable[[Output], None]) -> None:
        """Have what arrives after ``Finished`` shown (on the client's thread)."""
        while True:
            try:
                show(self._outputs.get_nowait())
            except queue.Empty:
                break
        if self._sent.done() and self._sent.exception() is None:
            self._sent.result().redirect(show)

    def check_sent(self) -> None:
        """Raise what kept the body from being sent, if anything did."""
        if self._sent.cancelled():
            raise KeyboardInterrupt("the cell was interrupted before it was sent")
        if self._sent.done():
            self._sent.result()

    def take(self, output: Output) -> None:
        """An output was read: it counts for the result and for the credit."""
        self.collector.take(output)
        self._is_read = is_last(output, is_own=self._is_own)
        self._unacked_bytes += output.size
        if self._unacked_bytes >= ACK_BYTES:
            size, self._unacked_bytes = self._unacked_bytes, 0
            self._client._start(self.aio_consumed(output.number, size))

    async def aio_consumed(self, number: int, size: int) -> None:
        """Acknowledge up to ``number`` (runs on the client's loop)."""
        await self._client.aio._consumed(self.execution_id, number, size)

    def result(self) -> Result:
        """As ``AsyncExecution.result``."""
        for _ in self:
            pass
        error = self.exception()
        if error is not None:
            raise error
        return self.collector.collected()

    def program_result(self) -> ProgramResult:
        """As ``AsyncExecution.program_result``."""
        from kcoral_magic.client.returned import result_of  # not before a program runs

        for _ in self:
            pass
        return result_of(self.program, self.collector)

    def collected(self) -> Result:
        """What was read so far, whether it ended well or not."""
        return self.collector.collected()

    def exception(self) -> BaseException | None:
        """What ``result`` would raise, once it has been read to its end."""
        return self.collector.exception()

    def answer(self, text: str | bytes | None) -> None:
        """The line that the body asked for; ``None`` if nobody can be asked."""
        self._client.answer(self.execution_id, text)

    def interrupt(self, *, kill: bool = False) -> None:
        """As ``AsyncExecution.interrupt``; files that are still on their way stop there."""
        if self._files is not None and self._files.is_moving:
            self._sent.cancel()
        elif self._sent.done() and self._sent.exception() is None:
            self._client._call(self._sent.result().interrupt(kill=kill))
        else:  # not before it is sent: the gateway would not know it, and run it to its end
            self._client._start(self._interrupt_once_sent(kill))

    async def _interrupt_once_sent(self, kill: bool) -> None:
        with contextlib.suppress(Exception):  # what kept it from being sent is told to its reader
            await (await asyncio.wrap_future(self._sent)).interrupt(kill=kill)
