"""Several named values as one run of bytes: an index, then raw parts at multiples of 64.

64, because numpy and Arrow want aligned memory and the receiver reads arrays where they arrived. The layout holds
offsets, so nothing of it is trusted: every range is checked against the parcel before anything is read.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values.buffers import Buffer

ALIGN = 64
_UNCOPIED_BYTES = 64 * 1024  # smaller parts are joined: a message has few buffers
MAX_INDEX_BYTES = 4 * 1024 * 1024
_LENGTH = struct.Struct("<II")
_MAGIC = 0x4B50_0001  # "KP", version 1
Span = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]  # start and length in the data


class Entry(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One value. ``digest`` is its sender's; ``shown`` is for people; ``notes`` say what arrives otherwise."""

    name: str
    format: str
    head: Span
    buffers: tuple[Span, ...] = ()
    digest: str = ""
    shown: str = ""
    notes: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()  # of the sender's packages, with a pickle
    group: int = 0  # pickles of one group share a memo


class Parcel:
    """Segments to send one after the other; the values' own memory is not copied."""

    def __init__(self, entries: Sequence[Entry], parts: Sequence[Buffer]) -> None:
        index = msgspec.msgpack.encode(entries)
        lead = _LENGTH.pack(_MAGIC, len(index)) + index + secrets.token_bytes(8)  # no two are one blob
        self.segments: list[memoryview] = []
        small = [memoryview(lead), memoryview(bytes(-len(lead) % ALIGN))]
        for part in parts:
            view = memoryview(part)
            if view.nbytes >= _UNCOPIED_BYTES:
                self.segments += [memoryview(b"".join(small)), view]
                small = []
            else:
                small.append(view)
            small.append(memoryview(bytes(-view.nbytes % ALIGN)))
        self.segments.append(memoryview(b"".join(small)))
        self.segments = [segment for segment in self.segments if segment.nbytes]
        self.size = sum(segment.nbytes for segment in self.segments)

    def digest(self) -> str:
        """What the receiver checks the bytes by; fast, and no protection against anybody."""
        hasher = xxhash.xxh3_128()
        for segment in self.segments:
            hasher.update(segment)
        return f"xxh3-{hasher.hexdigest()}"

    def chunks(self, size: int, start: int = 0) -> Iterator[list[memoryview]]:
        """The bytes from ``start`` on in pieces of ``size``, each as the parts it is made of."""
        piece: list[memoryview] = []
        left = size
        for segment in self.segments:
            if start >= segment.nbytes:
                start -= segment.nbytes
                continue
            place, start = start, 0
            while place < segment.nbytes:
                part = segment[place : place + left]
                piece.append(part)
                place += part.nbytes
                left -= part.nbytes
                if not left:
                    yield piece
                    piece, left = [], size
        if piece:
            yield piece

    def joined(self) -> bytes:
        """All of it, for a small one."""
        return b"".join(self.segments)


def pack(entries: Sequence[tuple[Entry, Buffer, Sequence[Buffer]]]) -> Parcel:
    """A parcel of entries with their heads and buffers; the entries' own spans are filled in."""
    placed: list[Entry] = []
    parts: list[Buffer] = []
    at = 0

    def place(part: Buffer) -> tuple[int, int]:
        nonlocal at
        span = (at, memoryview(part).nbytes)
        parts.append(part)
        at += span[1] + -span[1] % ALIGN
        return span

    for entry, head, buffers in entries:
        placed.append(msgspec.structs.replace(entry, head=place(head), buffers=tuple(place(b) for b in buffers)))
    return Parcel(placed, parts)


_decoder = msgspec.msgpack.Decoder(tuple[Entry, ...])


class Opened:
    """A parcel as it arrived: entries, and their parts as views of it."""

    def __init__(self, data: Buffer) -> None:
        """Read the index.

        Raises:
            ValueRefused: The bytes are no parcel, or an entry lies outside of it.
        """
        view = memoryview(data)
        if view.nbytes < _LENGTH.size:
            raise ValueRefused(f"a parcel has at least {_LENGTH.size} bytes, got {view.nbytes}")
        magic, index_bytes = _LENGTH.unpack_from(view)
        if magic != _MAGIC or index_bytes > min(MAX_INDEX_BYTES, view.nbytes - _LENGTH.size):
            raise ValueRefused("the bytes are no parcel of values")
        lead = _LENGTH.size + index_bytes + 8
        try:
            self.entries = _decoder.decode(view[_LENGTH.size : lead - 8])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueRefused(f"the parcel's index cannot be read: {error}") from None
        self._data = view[min(lead + -lead % ALIGN, view.nbytes) :]
        for entry in self.entries:
            for start, length in (entry.head, *entry.buffers):
                if start + length > self._data.nbytes:
                    raise ValueRefused(f"a part of {entry.name!r:.40} lies outside of its parcel")

    def part(self, span: Span) -> memoryview:
        """The bytes of a span."""
        return self._data[span[0] : span[0] + span[1]]
