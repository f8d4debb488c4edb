"""One run of a body as its client sees it: the outputs in order, and the values that go in and come out beside them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcoral_magic.client import exchange
from kcoral_magic.client.blobs import PIECE_BYTES, Room
from kcoral_magic.client.files import restore
from kcoral_magic.client.results import Collector, Output, Progress, Result
from kcoral_magic.errors import CapacityExceeded, KCoralError, RemoteError
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

if TYPE_CHECKING:
    from kcoral_magic.client.aio import AsyncClient
    from kcoral_magic.client.program import Program
    from kcoral_magic.client.returned import ProgramResult

ACK_BYTES = c.CREDIT_BYTES // 8
_INLINE_BYTES = 512 * 1024  # a larger parcel becomes a blob, which a cut does not send again
_PROGRESS_S = 0.25


def is_last(output: Output, *, is_own: bool) -> bool:
    """Whether a reader has come to the end: of an own execution with ``Finished``, of a journal when caught up."""
    body = output.body
    return isinstance(body, m.CaughtUp) or (isinstance(body, m.Finished) and (is_own or output.number == 0))


_process = secrets.token_hex(8)
_serial = itertools.count(1)


def new_id() -> str:
    """An execution's id: unique, not secret. The kernel's random numbers cost a fifth of a trivial cell on some VMs."""
    return f"{_process}-{os.getpid():x}-{next(_serial)}"


@dataclass
class Own:
    """What an execution of this client has beside its outputs: its session's belief, and its values."""

    belief: exchange.Belief
    out: exchange.Outgoing | None = None
    wants: frozenset[str] = frozenset()
    has_files: bool = False


class AsyncExecution:
    """One run of a body: an async iterator over its ``Output``s, which ends after ``Finished``."""

    def __init__(
        self,
        client: AsyncClient,
        execution_id: str,
        sink: Callable[[Output], None] | None,
        own: Own | None = None,
    ) -> None:
        self.execution_id = execution_id
        self.is_own = own is not None
        self.is_finished = False
        self.program: Program | None = None
        self._own = own
        self._client = client
        self._queue: asyncio.Queue[Output] = asyncio.Queue()
        self._sink = sink or self._queue.put_nowait
        wants = own.wants if own is not None else frozenset()
        self.collector = Collector(execution_id, takes_pickles=client.target.is_trusted, wants=wants)
        self._unacked_bytes = 0
        self._is_told = False  # its ``Finished`` has come
        self._is_read = False  # its reader has the last output
        self._transfer: asyncio.Task[None] | None = None  # of values, in either direction
        self._held: list[Output] | None = None  # what waits behind values that are on their way
        self._progressed_s = 0.0

    def deliver(self, output: Output) -> None:
        """The client's: the next output has arrived."""
        if self._held is not None and not self._is_lost(output):
            self._held.append(output)
            return
        body = output.body
        match body:
            case t.Want() if self._own is not None:
                self._transfer = asyncio.create_task(self._supply(body, self._own))
            case t.Bound() if self._own is not None and self._own.out is not None:
                self._own.belief.bound(self._own.out, body.names)
            case t.Names() if self._own is not None:
                self._own.belief.names = body.names
            case t.Returned() if body.blob is not None and self.is_own:
                self._held = []
                self._transfer = asyncio.create_task(self._fetch(output, body))
                return
            case m.Finished():
                self._finish(output, body)
                return
        self._pass_on(output)

    def _is_lost(self, output: Output) -> bool:
        """The client has given the execution up: nothing is waited for any more."""
        return isinstance(output.body, m.Finished) and output.number == 0

    def _finish(self, output: Output, body: m.Finished) -> None:
        if self._own is not None:
            self._own.belief.moved_to(body.namespace)
            if self._own.has_files and body.status != "ok":  # whether they were placed is not known: all come anew
                self._own.belief.forget_files()
        if self._transfer is not None:
            self._transfer.cancel()
        self._held = None
        if self._is_told:
            if output.number or self.is_finished:
                return
            output = Output(0, m.CaughtUp(self.execution_id))  # nothing more can come of this journal
        self._is_told = True
        self._client._forget(self.execution_id)
        self._pass_on(output)

    def _pass_on(self, output: Output) -> None:
        self.is_finished = self.is_finished or is_last(output, is_own=self.is_own)
        self._sink(output)

    # ── values ──

    async def _supply(self, want: t.Want, own: Own) -> None:
        """Send what the session wants; or say why not, so that it does not wait."""
        own.belief.python = want.python
        try:
            files = b""
            if want.files:
                own.belief.forget_names()
                files = await restore(self._client.blobs, own.belief)
            await self._send_parcel(want, own, files)
        except Exception as error:  # noqa: BLE001 - whatever it is, the session must not wait for what will not come
            with contextlib.suppress(KCoralError):
                await self._client.supply(t.Supply(self.execution_id, problem=str(error)[:4000]))

    async def _send_parcel(self, want: t.Want, own: Own, files: bytes) -> None:
        packed = await asyncio.to_thread(exchange.packed, own.out, want.names, want.python)
        parcel = packed.parcel
        if parcel.size <= _INLINE_BYTES:
            await self._client.supply(t.Supply(self.execution_id), parcel.joined() if want.names else b"", files)
            return
        digest = await asyncio.to_thread(parcel.digest)
        try:
            await self._client.blobs.upload(
                digest,
                parcel.size,
                lambda start: parcel.chunks(PIECE_BYTES, start),
                lambda done: self._tell("sending values", done, parcel.size),
            )
        except CapacityExceeded as error:
            largest = max(want.names, key=lambda name: own.out.sizes.get(name, 0) if own.out else 0)
            raise CapacityExceeded(f"{largest} cannot be sent: {error}") from None
        except asyncio.CancelledError:
            self._client.drop_later(digest)
            raise
        await self._client.supply(t.Supply(self.execution_id, digest, parcel.size), b"", files)

    async def _fetch(self, output: Output, returned: t.Returned) -> None:
        """Get the results, then let pass what came behind them."""
        blob = returned.blob
        assert blob is not None
        try:
            room = Room(returned.size)
            await self._client.blobs.fetch(
                blob, returned.size, room.write, lambda done: self._tell("fetching results", done, returned.size)
            )
            await self._client.drop(blob)
            output = Output(output.number, returned, (room.view,))
        except asyncio.CancelledError:
            self._client.drop_later(blob)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what came behind must not be held for ever
            output = Output(output.number, t.Returned(returned.digest, 0, (("results", str(error)[:4000]),)))
        finally:
            held, self._held = self._held or [], None
        self._sink(output)
        for later in held:
            self.deliver(later)

    def _tell(self, what: str, done: int, size: int) -> None:
        now = time.monotonic()
        if now - self._progressed_s >= _PROGRESS_S or done == size:
            self._progressed_s = now
            self._sink(Output(0, Progress(what, done, size)))

    # ── reading ──

    def redirect(self, sink: Callable[[Output], None]) -> None:
        """Send further outputs elsewhere: those that come late, after ``Finished``."""
        self._sink = sink

    async def __aiter__(self) -> AsyncIterator[Output]:
        while not self._is_read:
            output = await self._queue.get()
            self._is_read = is_last(output, is_own=self.is_own)
            self.collector.take(output)
            self._unacked_bytes += output.size
            if self._unacked_bytes >= ACK_BYTES:
                size, self._unacked_bytes = self._unacked_bytes, 0
                await self._client._consumed(self.execution_id, output.number, size)
            yield output

    async def result(self) -> Result:
        """Read to the end.

        Raises:
            Exception: What the body raised.
            KCoralError: The system could not run it, or a value that was wanted could not come.
        """
        async for _ in self:
            pass
        error = self.collector.exception()
        if isinstance(error, StopIteration | StopAsyncIteration):  # a coroutine may not raise these
            named = RemoteError(type(error).__name__, str(error))
            vars(named).update(vars(error))
            raise named
        if error is not None:
            raise error
        return self.collector.collected()

    async def program_result(self) -> ProgramResult:
        """Read to the end of a program that was submitted.

        Raises:
            UsageError: It is no program.
            KCoralError: It did not run. One that ran and failed has an ``error`` in its result.
        """
        from kcoral_magic.client.returned import result_of  # not before a program runs

        async for _ in self:
            pass
        return result_of(self.program, self.collector)

    async def interrupt(self, *, kill: bool = False) -> None:
        """One press of stop; with ``kill`` the end of the worker and its session's state."""
        if self._held is not None and self._transfer is not None:  # it has run; what is going on is here
            self._transfer.cancel()
            self._is_told = True
            self._held = None
            self._pass_on(Output(0, m.Finished("interrupted")))
            return
        if self._transfer is not None:
            self._transfer.cancel()
        await self._client.interrupt(self.execution_id, kill=kill)
