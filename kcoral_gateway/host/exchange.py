"""Files and values between the gateway's store and the worker, without unpacking any of them.

Towards the worker, files go as pieces and a large parcel as a descriptor of its blob: the worker maps it, nobody copies
it. A parcel's blob is used once, so a worker that could reopen and change it harms nobody; files, which stay in the
cache, are therefore read here and never handed out. A large parcel of results comes through a pipe and goes into a new
blob inside the kernel; its client fetches it meanwhile and checks the digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 1024 * 1024
PART = ".part"  # as in ``storage.artifacts``
_RESULT_BYTES = 64 * 1024 * 1024 * 1024  # of one execution's results; the store has the principal's own limit

Load = tuple[bytes, list[int]]  # bytes for the worker's channel, and the descriptors that go with them


class Exchange:
    """One worker's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._spool: int | None = None
        self._path = ""  # of the blob that is being written
        self._left = 0
        self._is_refused = False
        self.source: int | None = None  # the pipe it comes through; whoever has a loop calls ``receive``

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

    def returned(self, body: t.Returned, buffers: tuple[framing.Buffer, ...]) -> tuple[t.Returned, Iterator[Load]]:
        """Results: whole, or announced. What the gateway is told of them, and what the worker gets to write them to.

        Raises:
            ProtocolError: What came is not what is announced, or it cannot be stored.
        """
        if body.blob is not None or self._spool is not None:
            raise ProtocolError("results were announced twice")
        if buffers or not body.size:
            if sum(map(len, buffers)) != body.size or len(buffers) > 1:
                raise ProtocolError(f"results of {body.size} bytes were announced and did not come")
            return body, iter(())
        if body.size > _RESULT_BYTES:
            raise ProtocolError(f"results of one cell have at most {_RESULT_BYTES >> 30} GiB")
        blob = f"xxh3-{secrets.token_hex(16)}"  # not their digest: equal results of two sessions are two blobs
        self._path = os.path.join(self._folder, blob)
        self._left = body.size
        self._is_refused = False
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._spool = os.open(self._path + PART, flags, 0o600)
        except OSError as error:
            raise ProtocolError(f"the results cannot be stored: {error.strerror}") from None
        # Through a pipe: to a descriptor of the file itself the worker could go on writing for ever.
        self.source, theirs = os.pipe()
        os.set_blocking(self.source, False)
        with contextlib.suppress(OSError):  # over the user's pipe budget: a smaller one works too
            fcntl.fcntl(theirs, _F_SETPIPE_SZ, _PIPE_BYTES)
        return t.Returned(body.digest, body.size, body.problems, blob, body.is_cache), _handed_over(theirs)

    def receive(self) -> int | None:
        """Take what is in the pipe: how many bytes that was, 0 at its end, ``None`` if it has none now.

        Raises:
            ProtocolError: It is more than was announced, or cannot be stored.
        """
        if self.source is None or self._spool is None:
            return 0
        if not os.fstat(self._spool).st_nlink and self._left:  # the store had no room for it: that was told
            self._is_refused = True
            self.close()
            return 0
        try:
            count = os.splice(self.source, self._spool, _PIPE_BYTES)  # in the kernel, without a copy of ours
        except BlockingIOError:
            return None
        except OSError as error:
            raise ProtocolError(f"the results cannot be stored: {error.strerror}") from None
        self._left -= count
        if self._left < 0:
            raise ProtocolError("more results were written than announced")
        return count

    def written(self) -> None:
        """The worker has closed its end: what is left is in the pipe.

        Raises:
            ProtocolError: It has not written what it announced.
        """
        while self.receive():
            pass
        if self._is_refused:
            return
        if self._spool is None or self._left:
            raise ProtocolError(f"{self._left} bytes of results were not written as announced")
        try:
            os.replace(self._path + PART, self._path)
        except FileNotFoundError:  # its client has had it and dropped it, or there was no room for it: that was told
            pass
        except OSError as error:
            raise ProtocolError(f"the results cannot be stored: {error.strerror}") from None
        self._path = ""
        self.close()

    def close(self) -> None:
        """Throw away what was not finished."""
        for descriptor in (self._spool, self.source):
            if descriptor is not None:
                os.close(descriptor)
        self._spool = self.source = None
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path + PART)
        self._path = ""


def _handed_over(descriptor: int) -> Iterator[Load]:
    try:
        yield _load(t.Spool(), ()), [descriptor]
    finally:
        os.close(descriptor)


def _load(body: object, buffers: tuple[framing.Buffer, ...]) -> bytes:
    return framing.pack(framing.encode(body, buffers))
