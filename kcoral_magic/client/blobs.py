"""Large bytes up and down: in pieces of 1 MiB, several on their way at once, each asked for again after a cut.

Uploading asks first how much is there, so what a cut or an earlier run has left is not sent again. Nothing here knows
what the bytes are.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from kcoral_magic.errors import ProtocolError, ValueRefused
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import transfers as t

PIECE_BYTES = framing.MAX_CHUNK_BYTES
_WINDOW = 8  # pieces on their way: the round trip of a far gateway must not pause the stream
_MAPPED_BYTES = 1024 * 1024  # from here on memory comes from the system, untouched until it is written
_TOUCHED_BYTES = 8 * 1024 * 1024
_MADV_POPULATE_WRITE = 23  # Linux 5.14

Progress = Callable[[int], None]  # bytes so far


class Blobs:
    """Transfers of one client. ``request`` sends a request with its buffers and waits for the reply."""

    def __init__(
        self,
        request: Callable[..., Awaitable[c.Incoming]],
        number: Callable[[], int],
        drop: Callable[[str], Awaitable[None]],
    ) -> None:
        self._drop = drop
        self._request = request
        self._number = number

    async def held(self, blobs: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """How many bytes of each the gateway has."""
        found: list[int] = []
        for start in range(0, len(blobs), 400):  # a head is bounded
            part = tuple(blobs[start : start + 400])
            found += self._held(await self._request(t.Have(self._number(), part)), len(part))
        return tuple(found)

    async def upload(
        self,
        digest: str,
        size: int,
        pieces: Callable[[int], Iterable[list[memoryview]]],
        progress: Progress | None = None,
    ) -> None:
        """Send a blob; ``pieces(offset)`` gives its bytes from there on in runs of ``PIECE_BYTES``.

        Raises:
            KCoralError: The gateway refuses it, or it changed while it was sent.
        """
        (offset,) = await self.held([(digest, size)])
        if offset == size and size:
            return
        waiting: deque[asyncio.Task[Any]] = deque()
        try:
            for piece in pieces(offset):
                length = sum(part.nbytes for part in piece)
                chunk = t.Chunk(self._number(), digest, size, offset)
                waiting.append(asyncio.create_task(self._send(chunk, piece)))
                offset += length
                while len(waiting) >= _WINDOW:
                    await waiting.popleft()
                if progress is not None:
                    progress(offset)
            if not size:
                await self._send(t.Chunk(self._number(), digest, 0, 0), [memoryview(b"")])
            while waiting:
                await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
        if offset != size:
            await self._drop(digest)  # or the next try would go on behind wrong bytes
            raise ValueRefused(f"{size} bytes were to be sent, there are {offset}: it changed meanwhile, try again")

    async def _send(self, chunk: t.Chunk, piece: list[memoryview]) -> None:
        reply = await self._request(chunk, piece[0] if len(piece) == 1 else b"".join(piece))
        self._held(reply, 1)

    async def fetch(
        self,
        digest: str,
        size: int,
        take: Callable[[memoryview], None],
        progress: Progress | None = None,
        start: int = 0,
    ) -> None:
        """Pass a blob's bytes to ``take``, in order.

        Raises:
            KCoralError: It is not there, or the connection has gone for good.
        """
        waiting: deque[tuple[int, asyncio.Task[Any]]] = deque()
        asked = done = start
        try:
            while done < size:
                while asked < size and len(waiting) < _WINDOW:
                    length = min(PIECE_BYTES, size - asked)
                    fetch = t.Fetch(self._number(), digest, asked, length)
                    waiting.append((length, asyncio.create_task(self._piece(fetch))))
                    asked += length
                length, task = waiting.popleft()
                data = await task
                if len(data) != length:
                    raise ValueRefused(f"{length} bytes were asked for, {len(data)} came")
                take(data)
                done += length
                if progress is not None:
                    progress(done)
        finally:
            for _, task in waiting:
                task.cancel()

    async def _piece(self, fetch: t.Fetch) -> memoryview:
        reply = await self._request(fetch)
        if not isinstance(reply.body, t.Piece) or len(reply.buffers) != 1:
            raise ProtocolError(f"a Piece was due, got {type(reply.body).__name__}")
        return memoryview(reply.buffers[0])

    def _held(self, reply: c.Incoming, count: int) -> tuple[int, ...]:
        if not isinstance(reply.body, t.Held) or len(reply.body.offsets) != count:
            raise ProtocolError(f"a Held of {count} blobs was due, got {type(reply.body).__name__}")
        return reply.body.offsets


class Room:
    """Writable memory for a blob whose size a stranger announced: what has not come is not touched.

    Attributes:
        view: All of it.
    """

    def __init__(self, size: int) -> None:
        """Reserve it.

        Raises:
            ValueRefused: This machine does not have as much.
        """
        free = _free_bytes()
        if free is not None and size > free:
            has = f"{size / 2**30:.1f} GiB of results, and this machine has {free / 2**30:.1f} GiB of memory left"
            raise ValueRefused(f"{has}: bring back less, or %kcoral get a file of them")
        self._mapped: mmap.mmap | None = None
        self._touched = self._at = 0
        try:
            if size < _MAPPED_BYTES:
                self.view = memoryview(bytearray(size))
            elif hasattr(mmap, "MAP_ANONYMOUS"):
                # Not huge pages, though they take a third of the time: the kernel may stop for 200 ms to find some.
                self._mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self.view = memoryview(self._mapped)
            else:
                self.view = memoryview(mmap.mmap(-1, size))
        except (OSError, ValueError, OverflowError) as error:
            raise ValueRefused(f"the results are said to be {size / 2**30:.1f} GiB; no memory here: {error}") from None

    def write(self, data: memoryview) -> None:
        """The next bytes."""
        end = self._at + data.nbytes
        if self._mapped is not None and end > self._touched:
            # A window at a time, which costs less than a fault for each page.
            length = min(_TOUCHED_BYTES, len(self._mapped) - self._touched)
            with contextlib.suppress(OSError):  # an older kernel: pages are touched one by one
                self._mapped.madvise(_MADV_POPULATE_WRITE, self._touched, length)
            self._touched += length
        self.view[self._at : end] = data
        self._at = end


def _free_bytes() -> int | None:
    """Memory that could be had without pushing anything out; ``None`` where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
