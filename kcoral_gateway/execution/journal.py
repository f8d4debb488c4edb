"""An execution's events: append-only, on disk, for any number of readers from any number.

A slow or absent reader never blocks a cell: what it has not read waits here. Text is kept in full up to
``stream_bytes``; after that only the newest ``tail_bytes`` of it, in memory until the end; results are never cut. A
reader's own cut (``View``) is made here too, so that a flood does not cross the network to be thrown away.

Writing is deferred by at most ``FLUSH_S`` (the service's timer): a cell's latency does not wait for a disk, and what a
gateway's death could take is an execution that dies with it anyway.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol.connection import Reader

FLUSH_S = 0.05
_RING_ENTRY_BYTES = 200  # what an entry costs beside its record: a flood of single bytes must not multiply
_FLUSH_BYTES = 256 * 1024
_IN_RING = (1 << 64) - 1
_MAX_FILES = 20_000  # journals of a principal, however small
# An unfinished flood is told on in steps of this much, so that a person sees that it goes on.
_STEP_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Piece:
    """One event as it goes out: its frames, and how many buffer bytes count against the credit."""

    number: int
    frames: list[bytes]
    size: int


@dataclass(frozen=True)
class Gap:
    """The events up to ``to`` are not shown: ``stream_bytes`` of text in ``lines`` lines."""

    to: int
    stream_bytes: int
    lines: int


class Journal:
    """Numbers from 1; ``array``s instead of objects, since a long run has millions of events."""

    def __init__(self, path: Path, execution_id: str, *, stream_bytes: int, tail_bytes: int) -> None:
        self.execution_id = execution_id
        self.is_finished = False
        self._path = path
        self._stream_limit = stream_bytes
        self._tail_limit = tail_bytes
        self._offsets = array("Q")  # of each event's record in the file; _IN_RING for text past the limit
        self._sizes = array("L")  # of each record
        self._payloads = array("L")  # of each event's buffers
        self._text = array("Q", [0])  # bytes of text up to and with each event; [0] is before the first
        self._lines = array("Q", [0])
        self._others = array("Q")  # the numbers of events that are no text
        self._pending = bytearray()
        self._written = 0  # bytes of the file
        self._ring: dict[int, bytes] = {}  # in the order of their numbers
        self._ring_bytes = 0
        self._finish_number = 0

    @property
    def last(self) -> int:
        """The number of the newest event; 0 before the first."""
        return len(self._offsets)

    @property
    def stream_bytes(self) -> int:
        """All the text so far, kept or not."""
        return self._text[-1]

    @property
    def is_dirty(self) -> bool:
        """Whether events wait to be written."""
        return bool(self._pending)

    def append(self, body: m.EventBody, buffers: Sequence[framing.Buffer] = ()) -> int:
        """Add an event; its number."""
        number = self.last + 1
        record = framing.pack(framing.encode(m.Event(self.execution_id, number, body), buffers))
        self._payloads.append(sum(len(buffer) for buffer in buffers))
        if isinstance(body, m.Stream):
            text = buffers[0]
            self._text.append(self._text[-1] + len(text))
            self._lines.append(self._lines[-1] + bytes(text).count(b"\n"))
            if self._text[-1] > self._stream_limit:
                self._to_ring(number, record)
                return number
        else:
            self._text.append(self._text[-1])
            self._lines.append(self._lines[-1])
            self._others.append(number)
        if isinstance(body, m.Finished):
            self.is_finished = True
            self._finish_number = number
            self._settle_ring()
        self._to_file(record)
        if len(self._pending) >= _FLUSH_BYTES:
            try:
                self.flush()
            except OSError:  # a full disk: it is tried again; from here on only the newest text is kept
                self._stream_limit = min(self._stream_limit, self._text[-1])
        return number

    def _to_file(self, record: bytes) -> None:
        self._offsets.append(self._written + len(self._pending))
        self._sizes.append(len(record))
        self._pending += record

    def _to_ring(self, number: int, record: bytes) -> None:
        self._offsets.append(_IN_RING)
        self._sizes.append(len(record))
        self._ring[number] = record
        self._ring_bytes += len(record) + _RING_ENTRY_BYTES
        while self._ring_bytes > self._tail_limit and len(self._ring) > 1:
            self._ring_bytes -= len(self._ring.pop(next(iter(self._ring)))) + _RING_ENTRY_BYTES

    def _settle_ring(self) -> None:
        """The tail of a finished execution goes to disk with the rest, behind the counts of what was dropped."""
        number = 1
        first = next(iter(self._ring), 0)
        while number < first:
            if self._offsets[number - 1] == _IN_RING:
                gap = self._gap(number, self._after_missing(number))
                skip = m.Skip(self.execution_id, gap.to, gap.stream_bytes, gap.lines)
                self._pending += framing.pack(framing.encode(skip))
                number = gap.to
            number += 1
        for number, record in self._ring.items():
            self._offsets[number - 1] = self._written + len(self._pending)
            self._pending += record
        self._ring.clear()
        self._ring_bytes = 0

    def flush(self) -> None:
        """Write what is pending."""
        if not self._pending:
            return
        with open(self._path, "ab", buffering=0, opener=_private) as file:
            left = memoryview(bytes(self._pending))
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:  # a full disk: what is there of this batch goes, all of it is tried again
                os.truncate(self._path, self._written)
                raise
        self._written += len(self._pending)
        self._pending.clear()

    def next(self, reader: Reader) -> Piece | Gap | None:
        """What ``reader`` gets next; ``None`` when it has everything it should have now."""
        number = reader.next
        if number > self.last:
            return None
        if (gap := self._cut(reader, number)) is not None:
            return gap if gap.to >= number else None
        record = self._record(number)
        if record is None:
            return self._gap(number, self._after_missing(number))
        frames = [bytes(frame) for frame in framing.StreamSplitter().feed(record)]  # whole: none is copied
        return Piece(number, frames, self._payloads[number - 1])

    def _cut(self, reader: Reader, number: int) -> Gap | None:
        """The gap that the reader's view makes at ``number``; ``to < number`` means: wait for more."""
        head = reader.view.head_bytes
        if head is None or not self._is_text(number) or self._text[number - 1] < head or number > self._settled:
            return None
        place = bisect_left(self._others, number)
        stop = self._others[place] if place < len(self._others) else self.last + 1  # the next event that is no text
        if stop <= self.last and stop != self._finish_number:
            return self._gap(number, stop - 1)
        # The tail begins with the first event that starts within the last ``tail_bytes``.
        tail = max(self._text[stop - 1] - reader.view.tail_bytes, 0)
        first = bisect_left(self._text, tail, number - 1, stop - 1) + 1
        if self.is_finished:
            return self._gap(number, first - 1) if first > number else None
        if self._text[stop - 1] - self._text[number - 1] > reader.view.tail_bytes + _STEP_BYTES:
            return self._gap(number, first - 1)
        return Gap(number - 1, 0, 0)

    @property
    def _settled(self) -> int:
        """Text after the end (a late thread's) is outside the cut."""
        return self._finish_number or self.last

    def _is_text(self, number: int) -> bool:
        place = bisect_left(self._others, number)
        return place == len(self._others) or self._others[place] != number

    def _gap(self, start: int, to: int) -> Gap:
        return Gap(to, self._text[to] - self._text[start - 1], self._lines[to] - self._lines[start - 1])

    def _after_missing(self, number: int) -> int:
        """The last number of the run of dropped text that ``number`` is in."""
        to = number
        while to < self.last and self._offsets[to] == _IN_RING and not self._in_ring(to + 1):
            to += 1
        return to

    def _in_ring(self, number: int) -> bool:
        return number in self._ring

    def _record(self, number: int) -> bytes | None:
        offset, size = self._offsets[number - 1], self._sizes[number - 1]
        if offset == _IN_RING:
            return self._ring.get(number)
        if offset >= self._written:
            start = offset - self._written
            return bytes(self._pending[start : start + size])
        with open(self._path, "rb") as file:
            return os.pread(file.fileno(), size, offset)

    @classmethod
    def load(cls, path: Path, execution_id: str, *, stream_bytes: int, tail_bytes: int) -> Journal:
        """The journal a former gateway left; a half-written last record is dropped."""
        journal = cls(path, execution_id, stream_bytes=stream_bytes, tail_bytes=tail_bytes)
        counts = (array("Q"), array("Q"))  # bytes and lines of text of each event by itself
        decoder = framing.Decoder[m.ToClient](m.ToClient)
        splitter = framing.StreamSplitter()
        offset = size = 0
        with open(path, "rb") as file:
            while data := file.read(1 << 20):
                try:
                    for frame in splitter.split(data):
                        size += 4 + len(frame)
                        message = decoder.decode(frame)
                        if message is None:
                            continue
                        journal._restore(message, offset, size, counts)
                        offset, size = offset + size, 0
                except ProtocolError:
                    break
        os.truncate(path, offset)
        journal._written = offset
        for own, sums in zip(counts, (journal._text, journal._lines), strict=True):
            sums.extend(accumulate(own))
        return journal

    def _restore(
        self, message: framing.Message[m.ToClient], offset: int, size: int, counts: tuple[array[int], array[int]]
    ) -> None:
        event = message.body
        if isinstance(event, m.Skip):  # stands for dropped text: its counts go to the last event of the run
            self._extend(event.to, counts)
            counts[0][event.to - 1], counts[1][event.to - 1] = event.stream_bytes, event.lines
            return
        if not isinstance(event, m.Event):
            raise ProtocolError("a journal holds events only")
        self._extend(event.number, counts)  # text that was dropped while it ran, or the tail, further on in the file
        place = event.number - 1
        self._offsets[place], self._sizes[place] = offset, size
        self._payloads[place] = sum(len(buffer) for buffer in message.buffers)
        if isinstance(event.body, m.Stream):
            text = bytes(message.buffers[0])
            counts[0][place], counts[1][place] = len(text), text.count(b"\n")
        else:
            self._others.append(event.number)
        if isinstance(event.body, m.Finished):
            self.is_finished, self._finish_number = True, event.number

    def _extend(self, number: int, counts: tuple[array[int], array[int]]) -> None:
        while self.last < number:
            self._offsets.append(_IN_RING)
            for each in (self._sizes, self._payloads, *counts):
                each.append(0)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def prune(folder: Path, *, now: float, days: float, total_bytes: int, keep: Collection[str]) -> list[str]:
    """Remove a principal's journals that are too old, then the oldest until the rest fits; the ids removed.

    Args:
        now: Unix time.
        keep: Executions that are still needed, whatever their age.
    """
    removed = []
    found = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob("*.events"))
    used, count = sum(size for _, size, _ in found), len(found)
    for written, size, path in found:
        is_kept = now - written <= days * 86400 and used <= total_bytes and count <= _MAX_FILES
        if path.stem in keep or is_kept:
            continue
        path.unlink(missing_ok=True)
        removed.append(path.stem)
        used -= size
        count -= 1
    return removed
