"""A message and its frames: bytes in, messages out.

A frame is a u32 (little endian) head length, a msgpack head, and raw buffers. The head names the message and the
length of each buffer. A message whose buffers do not fit one frame goes on in continuation frames (head length 0), so
that a frame never exceeds ``MAX_FRAME_BYTES`` and a small message may overtake a large one between its parts
(PROTOCOL.md, section 2).

Everything here treats the peer as hostile: lengths are checked before anything is allocated, a head is small, and a
msgspec decoder bound to one closed union refuses unknown types, unknown fields and nesting bombs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from kcoral_magic.errors import ProtocolError

MAX_HEAD_BYTES = 64 * 1024  # a head holds names and numbers; payload travels in buffers
MAX_CHUNK_BYTES = 1024 * 1024  # facts: 1 MiB frames were the fastest of 64 KiB … 16 MiB
MAX_FRAME_BYTES = 4 + MAX_HEAD_BYTES + MAX_CHUNK_BYTES
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # one display or result; values have their own messages
MAX_BUFFERS = 256  # MIME types of one bundle; a real one has fewer than ten

_LARGE_BYTES = 128 * 1024  # a frame from here on is read into its own memory
_LENGTH = struct.Struct("<I")
Buffer = bytes | bytearray | memoryview
M = TypeVar("M")


class Head(msgspec.Struct, Generic[M], array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a first frame starts with: the message and the sizes of its buffers in bytes."""

    message: M
    buffer_bytes: tuple[int, ...] = ()


class Message(msgspec.Struct, Generic[M], frozen=True):
    """A decoded message with its buffers (contiguous, read-only by convention)."""

    body: M
    buffers: tuple[Buffer, ...] = ()


_encoder = msgspec.msgpack.Encoder()


def encode(body: object, buffers: Sequence[Buffer] = ()) -> list[bytes]:
    """The frames of one message, each at most ``MAX_FRAME_BYTES``.

    Raises:
        ProtocolError: The head or the buffers exceed their limits; nothing may be sent.
    """
    sizes = tuple(buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers)
    head = _encoder.encode((body, sizes) if sizes else (body,))
    if len(head) > MAX_HEAD_BYTES:
        raise ProtocolError(f"a message head must fit {MAX_HEAD_BYTES} bytes, got {len(head)}")
    total = sum(sizes)
    if total > MAX_MESSAGE_BYTES or len(sizes) > MAX_BUFFERS:
        raise ProtocolError(
            f"a message carries at most {MAX_MESSAGE_BYTES >> 20} MiB in {MAX_BUFFERS} buffers, "
            f"got {total / (1 << 20):.1f} MiB in {len(sizes)}"
        )
    if total <= MAX_CHUNK_BYTES:
        return [b"".join((_LENGTH.pack(len(head)), head, *buffers))]
    payload = memoryview(b"".join(buffers))
    frames = [b"".join((_LENGTH.pack(len(head)), head, payload[:MAX_CHUNK_BYTES]))]
    for start in range(MAX_CHUNK_BYTES, total, MAX_CHUNK_BYTES):
        part = payload[start : start + MAX_CHUNK_BYTES]
        frames.append(_LENGTH.pack(0) + part)
    return frames


class Decoder(Generic[M]):
    """Turns the frames of one direction of one connection into messages of one union.

    After an error the decoder is spent: the peer broke the framing, so nothing later can be trusted to be aligned.
    """

    def __init__(
        self, union: Any, *, max_message_bytes: int = MAX_MESSAGE_BYTES, max_head_bytes: int = MAX_HEAD_BYTES
    ) -> None:
        # ``union`` is the value of M: a union is no ``type`` that could be checked against it.
        self._heads: msgspec.msgpack.Decoder[Head[M]] = msgspec.msgpack.Decoder(Head[union])
        self._max_message_bytes = max_message_bytes
        self._max_head_bytes = max_head_bytes
        self._open: tuple[M, tuple[int, ...], bytearray, int] | None = None

    def decode(self, frame: Buffer) -> Message[M] | None:
        """The message that ``frame`` completes, or ``None`` while parts are missing.

        Raises:
            ProtocolError: The frame is malformed, too large or not expected here.
        """
        size = len(frame)
        if size < 4:
            raise ProtocolError(f"a frame starts with a 4-byte head length, got {size} bytes in all")
        if size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame has at most {MAX_FRAME_BYTES} bytes, got {size}")
        (head_bytes,) = _LENGTH.unpack_from(frame)
        if head_bytes == 0:
            return self._continue(memoryview(frame)[4:])
        if head_bytes > self._max_head_bytes or 4 + head_bytes > size:
            limit = self._max_head_bytes
            raise ProtocolError(f"a head has at most {limit} bytes and lies in its frame, got {head_bytes}")
        view = memoryview(frame)
        try:
            head = self._heads.decode(view[4 : 4 + head_bytes])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the head is no known message: {error}") from None
        return self._start(head.message, head.buffer_bytes, view[4 + head_bytes :])

    def _start(self, body: M, sizes: tuple[int, ...], payload: memoryview) -> Message[M] | None:
        if len(sizes) > MAX_BUFFERS or any(size < 0 for size in sizes):
            raise ProtocolError(f"a message has at most {MAX_BUFFERS} buffers of 0 bytes or more, got {sizes[:8]}")
        total = sum(sizes)
        if total > self._max_message_bytes:
            raise ProtocolError(f"a message carries at most {self._max_message_bytes} bytes, got {total}")
        if len(payload) == total:
            return Message(body, tuple(_split(payload, sizes)) if sizes else ())
        if len(payload) > total or len(payload) != MAX_CHUNK_BYTES:
            raise ProtocolError(f"buffers of {total} bytes were announced, the first frame has {len(payload)}")
        if self._open is not None:
            raise ProtocolError("a second message began before the last part of the first")
        # Grows as parts arrive, so that an announced size alone allocates nothing.
        self._open = (body, sizes, bytearray(payload), total)
        return None

    def _continue(self, part: memoryview) -> Message[M] | None:
        if self._open is None:
            raise ProtocolError("a continuation frame came with no message open")
        body, sizes, collected, total = self._open
        left = total - len(collected)
        if len(part) != min(left, MAX_CHUNK_BYTES):
            raise ProtocolError(f"a continuation of {min(left, MAX_CHUNK_BYTES)} bytes was due, got {len(part)}")
        collected += part
        if len(collected) < total:
            return None
        self._open = None
        return Message(body, tuple(_split(memoryview(collected), sizes)))


def _split(payload: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield payload[start : start + size]
        start += size


def pack(frames: Sequence[bytes]) -> bytes:
    """Frames for a byte stream (unix socket, journal): each behind its u32 length."""
    return b"".join(piece for frame in frames for piece in (_LENGTH.pack(len(frame)), frame))


def frame_with_room(body: object, size: int) -> tuple[bytearray, memoryview]:
    """A frame whose one buffer of ``size`` bytes is still to be filled in, and where: a file is read right into it.

    Raises:
        ProtocolError: It does not fit one frame.
    """
    if size > MAX_CHUNK_BYTES:
        raise ProtocolError(f"a buffer of {size} bytes fits no single frame")
    head = _encoder.encode((body, (size,)))
    frame = bytearray(4 + len(head) + size)
    _LENGTH.pack_into(frame, 0, len(head))
    frame[4 : 4 + len(head)] = head
    return frame, memoryview(frame)[4 + len(head) :]


class StreamSplitter:
    """Cuts a byte stream back into frames; the stream's websocket equivalent of message boundaries.

    A frame whose end is far off gets memory of its own (``room``), so that its bytes are read to where they stay.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._large: bytearray | None = None  # the frame that is being read into its own memory
        self._filled = 0

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes may be read to directly; tell ``filled`` how many came."""
        return None if self._large is None else memoryview(self._large)[self._filled :]

    def filled(self, count: int) -> bytearray | None:
        """``count`` bytes were read into ``room``; the frame, if that completes it."""
        assert self._large is not None
        self._filled += count
        if self._filled < len(self._large):
            return None
        frame, self._large = self._large, None
        return frame

    def feed(self, data: Buffer) -> list[bytes | bytearray]:
        """The frames that ``data`` completes.

        Raises:
            ProtocolError: A frame announces more than ``MAX_FRAME_BYTES``.
        """
        return list(self.split(data))

    def split(self, data: Buffer) -> Iterator[bytes | bytearray]:
        """As ``feed``, one by one: what comes before an error is given out first."""
        if self._large is not None:
            view = memoryview(data)
            part = view[: len(self._large) - self._filled]
            self._large[self._filled : self._filled + part.nbytes] = part
            whole = self.filled(part.nbytes)
            if whole is None:
                return
            yield whole
            data = view[part.nbytes :]
        self._buffer += data
        start, end = 0, len(self._buffer)
        try:
            while end - start >= 4:
                (size,) = _LENGTH.unpack_from(self._buffer, start)
                if size > MAX_FRAME_BYTES:
                    raise ProtocolError(f"a frame has at most {MAX_FRAME_BYTES} bytes, {size} were announced")
                if end - start - 4 < size:
                    if size >= _LARGE_BYTES:
                        self._begin_large(size, start + 4)
                        start = end
                    break
                frame = bytes(memoryview(self._buffer)[start + 4 : start + 4 + size])
                start += 4 + size
                yield frame
        finally:
            del self._buffer[:start]

    def _begin_large(self, size: int, start: int) -> None:
        self._large = bytearray(size)
        part = memoryview(self._buffer)[start:]
        self._large[: part.nbytes] = part
        self._filled = part.nbytes
        part.release()

    @property
    def has_partial(self) -> bool:
        """Whether bytes of an unfinished frame are waiting."""
        return bool(self._buffer) or self._large is not None
