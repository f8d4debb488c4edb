"""Files and values between the gateway's store and the worker, without unpacking any of them.

Towards the worker, files go as pieces and a large parcel as a descriptor of its blob: the worker maps it, nobody copies
it. A parcel's blob is used once, so a worker that could reopen and change it harms nobody; files, which stay in the
cache, are therefore read here and never handed out. From the worker, a large parcel comes in pieces and is written to
the store under the digest that was computed on the way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

import xxhash

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_RESULT_BYTES = 64 * 1024 * 1024 * 1024  # of one execution's results; the store has the principal's own limit

Load = tuple[bytes, list[int]]  # bytes for the worker's channel, and the descriptors that go with them


class Exchange:
    """One worker's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._spool: int | None = None
        self._spool_path = ""
        self._spooled = 0
        self._hasher = xxhash.xxh3_128()

    # ── to the worker ──

    def run(self, run: m.Run, buffers: tuple[framing.Buffer, ...]) -> Iterator[Load]:
        """A body, after the files that it needs."""
        yield from self._files(buffers[1])
        yield _load(run, buffers), []

    def deliver(self, message: m.Deliver, buffers: tuple[framing.Buffer, ...]) -> Iterator[Load]:
        """What a running body wants."""
        files, parcel = buffers
        yield from self._files(files)
        supplied = t.Supplied(message.execution_id, message.size, message.problem)
        if not message.path:
            yield _load(supplied, (parcel,)), []
            return
        try:
            descriptor = os.open(message.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            problem = f"the values are not in the gateway's store any more ({error.strerror}): run the cell again"
            yield _load(t.Supplied(message.execution_id, 0, problem), (b"",)), []
            return
        try:
            yield _load(supplied, (b"",)), [descriptor]
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # the worker holds it now
            os.unlink(message.path)

    def _files(self, manifest: framing.Buffer) -> Iterator[Load]:
        for file in t.read_manifest(manifest).files:
            yield from self._file(file)

    def _file(self, file: t.FileIn) -> Iterator[Load]:
        if file.digest is None:
            yield _load(t.FilePart(file.path, None, 0), (b"",)), []
            return
        try:
            descriptor = os.open(os.path.join(self._folder, file.digest), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # it left the cache: the worker's own count of its files tells, and wants them all again
            return
        with os.fdopen(descriptor, "rb", buffering=0) as source:
            offset = 0
            while offset < file.size or not file.size:
                data = source.read(framing.MAX_CHUNK_BYTES)
                if not data and file.size:
                    return
                yield _load(t.FilePart(file.path, file.size, offset, file.mode, file.digest), (data,)), []
                offset += len(data)
                if not file.size:
                    return

    # ── from the worker ──

    def part(self, data: framing.Buffer) -> None:
        """The next bytes of a large parcel.

        Raises:
            ProtocolError: It is larger than any may be, or cannot be written.
        """
        self._spooled += len(data)
        if self._spooled > _RESULT_BYTES:
            raise ProtocolError(f"results of one cell have at most {_RESULT_BYTES >> 30} GiB")
        self._hasher.update(data)
        try:
            if self._spool is None:
                self._spool_path = os.path.join(self._folder, f"xxh3-{secrets.token_hex(8)}.part")
                self._spool = os.open(self._spool_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            left = memoryview(data)
            while left:
                left = left[os.write(self._spool, left) :]
        except OSError as error:
            raise ProtocolError(f"the results cannot be stored: {error.strerror}") from None

    def returned(self, body: t.Returned, buffers: tuple[framing.Buffer, ...]) -> None:
        """The end of the results.

        Raises:
            ProtocolError: What came is not what is announced.
        """
        if self._spool is None:
            if len(buffers) != 1 or len(buffers[0]) != body.size:
                raise ProtocolError(f"results of {body.size} bytes were announced and did not come")
            return
        digest = f"xxh3-{self._hasher.hexdigest()}"
        if buffers or body.size != self._spooled or body.digest != digest:
            raise ProtocolError(f"results of {body.size} bytes were announced, {self._spooled} others came")
        os.replace(self._spool_path, os.path.join(self._folder, digest))
        self._spool_path = ""
        self.close()

    def close(self) -> None:
        """Throw away what was not finished, and begin anew."""
        if self._spool is not None:
            os.close(self._spool)
            self._spool = None
        if self._spool_path:
            with contextlib.suppress(OSError):
                os.unlink(self._spool_path)
        self._spool_path, self._spooled, self._hasher = "", 0, xxhash.xxh3_128()


def _load(body: object, buffers: tuple[framing.Buffer, ...]) -> bytes:
    return framing.pack(framing.encode(body, buffers))
