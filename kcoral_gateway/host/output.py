"""From pipe bytes to stream messages: when to send, and what a terminal would no longer show.

Pure: bytes and ``now`` in, text out. The first bytes after a pause leave at once, then at most one batch every
``INTERVAL_S`` or ``BATCH_BYTES`` (facts: batching on the trailing edge delays the first output by its interval).
Progress bars rewrite their line with carriage returns; what was overwritten within ``REWRITE_S`` is left out, which
keeps a bar below ten updates a second. Text is cut at character boundaries only, and bytes that are no UTF-8 become
U+FFFD.
"""

from __future__ import annotations

import codecs
from typing import Literal

INTERVAL_S = 0.010
REWRITE_S = 0.100
BATCH_BYTES = 256 * 1024

StreamName = Literal["stdout", "stderr"]


class OutputBatcher:
    """Collects both streams in the order they were read."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}
        self._parts: list[tuple[StreamName, list[bytes]]] = []
        self._size = 0
        self._rewrites = False
        self._last_s = float("-inf")

    def feed(self, name: StreamName, data: bytes) -> None:
        """``data`` was read from the pipe of ``name``."""
        decoder = self._decoders[name]
        if not data.isascii() or decoder.getstate()[0]:
            data = decoder.decode(data).encode()
        if not data:
            return
        if self._parts and self._parts[-1][0] == name:
            self._parts[-1][1].append(data)
        else:
            self._parts.append((name, [data]))
        self._size += len(data)
        self._rewrites = self._rewrites or b"\r" in data

    @property
    def due_s(self) -> float | None:
        """When to call ``take``; ``None`` while nothing is waiting."""
        if not self._parts:
            return None
        if self._size >= BATCH_BYTES:
            return float("-inf")
        return self._last_s + (REWRITE_S if self._rewrites else INTERVAL_S)

    def take(self, now: float) -> list[tuple[StreamName, bytes]]:
        """Everything that is waiting, as UTF-8, one entry for each run of one stream."""
        parts, self._parts = self._parts, []
        rewrites, self._rewrites = self._rewrites, False
        self._size = 0
        self._last_s = now
        joined = [(name, b"".join(pieces)) for name, pieces in parts]
        return [(name, collapse(data)) for name, data in joined] if rewrites else joined

    def restart(self) -> list[tuple[StreamName, bytes]]:
        """As ``take``, and what comes next is the first of a new cell: it leaves at once."""
        return self.take(float("-inf"))

    def finish(self, now: float) -> list[tuple[StreamName, bytes]]:
        """As ``take``, and half a character at the end of a stream is given up."""
        for name in ("stdout", "stderr"):
            rest = self._decoders[name].decode(b"", final=True)
            if rest:
                self._parts.append((name, [rest.encode()]))
        return self.take(now)


def collapse(data: bytes) -> bytes:
    """Leave out what carriage returns have overwritten.

    ``\\r\\n`` is a line end. The text before a line's first return is kept, since it may continue an earlier batch.
    Lines with escape sequences are left alone: they move the cursor in ways that only a terminal knows.
    """
    *lines, last = data.decode("utf-8", "replace").split("\n")
    ended = [_collapse_line(line, is_open=False) for line in lines]
    return "\n".join([*ended, _collapse_line(last, is_open=True)]).encode()


def _collapse_line(line: str, *, is_open: bool) -> str:
    if line.count("\r") < 2 or "\x1b" in line or "\x08" in line:
        return line
    first, *rest = line.split("\r")
    shown = ""
    for part in rest:
        shown = part + shown[len(part) :]
    last = rest[-1]
    if is_open and len(last) < len(shown):  # the cursor must end behind the last part, where more may follow
        return f"{first}\r{shown}\r{last}"
    return f"{first}\r{shown}" + ("" if last else "\r")  # \r\n stays a line end
