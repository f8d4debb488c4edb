"""What a terminal would show of a stream that moves its cursor: progress bars as one live block.

Notebook files keep every carriage return a bar has written. Here a stream is cut into plain text, which goes through
as it is, and live blocks, which are shown as one display and updated in place: the saved notebook holds their final
state. A block begins with the first line that is rewritten and ends with the first text that moves no cursor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# ECMA-48: CSI sequences. Handled: A B C D (moves), K (erase in line), m (colour, kept); others are dropped.
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r|\n|\x08)|([^\x1b\r\n\x08]+)|(\x1b)")
_MOVES = re.compile(r"\r(?!\n)|\x1b\[[0-9;?]*[A-DJK]")
_UNFINISHED = re.compile(r"(\r|\x1b(\[[0-9;?]*)?)\Z")  # may go on in the next piece: \r\n, or the rest of a sequence
_COLUMNS = 1000  # as far as moves alone may take the cursor
_BLOCK_LINES = 200  # a program that draws more than a screen of live lines gets its newest


@dataclass(frozen=True)
class Plain:
    """Text to append."""

    text: str


@dataclass(frozen=True)
class Live:
    """The whole of the current block; ``is_new`` begins another display."""

    text: str
    is_new: bool


class Screen:
    """One stream's terminal."""

    def __init__(self) -> None:
        self._lines: list[list[str]] | None = None  # of the open block; a cell is a character with its colour before it
        self._row = self._column = 0
        self._colour = ""
        self._held = ""  # the beginning of something at the end of the last piece
        self._line = ""  # what of the current line has been shown as plain text

    def feed(self, text: str) -> list[Plain | Live]:
        """What to show for the next piece of the stream."""
        text, self._held = self._held + text, ""
        if (unfinished := _UNFINISHED.search(text)) is not None:
            self._held = unfinished[0]
            text = text[: unfinished.start()]
        return self._feed(text)

    def flush(self) -> list[Plain | Live]:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return self._feed(held) if held and self._lines is not None else [Plain(held)] if held else []

    def _feed(self, text: str) -> list[Plain | Live]:
        if not text:
            return []
        if "\r\n" in text:
            text = text.replace("\r\n", "\n")
        out: list[Plain | Live] = []
        if self._lines is not None and self._is_at_rest and not _MOVES.search(text):
            self._lines = None
        if self._lines is None:
            move = _MOVES.search(text)
            if move is None:
                self._line = (self._line + text).rpartition("\n")[2][-_COLUMNS:]
                return [Plain(text)]
            start = text.rfind("\n", 0, move.start()) + 1
            if start:
                out.append(Plain(text[:start]))
            elif self._line:  # its beginning stands there already: blank it out, the block shows it
                out.append(Plain(f"\r{' ' * len(self._line)}\r"))
                text = self._line + text
            text, self._line = text[start:], ""
            self._lines, self._row, self._column, self._colour = [[]], 0, 0, ""
            self._write(text)
            out.append(Live(self._shown(), True))
        else:
            self._write(text)
            out.append(Live(self._shown(), False))
        return out

    @property
    def _is_at_rest(self) -> bool:
        """The cursor stands on a fresh line below everything."""
        assert self._lines is not None
        is_below = 0 < self._row == len(self._lines) - 1
        return is_below and self._column == 0 and not self._lines[-1] and not self._colour

    def _write(self, text: str) -> None:
        assert self._lines is not None
        for token in _TOKEN.finditer(text):
            arguments, final, control, plain, _ = token.groups()
            if plain:
                self._put(plain)
            elif control == "\n":
                self._down(1)
                self._column = 0
            elif control == "\r":
                self._column = 0
            elif control == "\x08":
                self._column = max(0, self._column - 1)
            elif final:
                self._sequence(arguments, final, token.group())

    def _put(self, text: str) -> None:
        assert self._lines is not None
        line = self._lines[self._row]
        if len(line) < self._column:
            line.extend(" " * (self._column - len(line)))
        cells = list(text)
        if self._colour and cells:
            cells[0] = self._colour + cells[0]
            self._colour = ""
        line[self._column : self._column + len(cells)] = cells
        self._column += len(cells)

    def _sequence(self, arguments: str, final: str, whole: str) -> None:
        assert self._lines is not None
        count = int(arguments) if arguments.isdigit() and len(arguments) < 5 else 1
        if final == "m":
            self._colour += whole
        elif final == "A":
            self._row = max(0, self._row - count)
        elif final == "B":
            self._down(count)
        elif final == "C":
            self._column = max(self._column, min(self._column + count, _COLUMNS))
        elif final == "D":
            self._column = max(0, self._column - count)
        elif final == "K":
            line = self._lines[self._row]
            if arguments in ("", "0"):
                del line[self._column :]
            elif arguments == "2":
                line.clear()

    def _down(self, count: int) -> None:
        assert self._lines is not None
        self._row += min(count, _BLOCK_LINES)
        while len(self._lines) <= self._row:
            self._lines.append([])
        if len(self._lines) > _BLOCK_LINES:
            extra = len(self._lines) - _BLOCK_LINES
            del self._lines[:extra]
            self._row -= extra

    def _shown(self) -> str:
        assert self._lines is not None
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip("\n")
