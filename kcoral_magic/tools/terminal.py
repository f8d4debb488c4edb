"""A tool's run at a terminal: bytes as they come, Ctrl-C for the program there, its exit status as ours."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from kcoral_magic.client.results import Output, Progress, Reconnected, Reconnecting
from kcoral_magic.errors import ExecutionLost
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.tools import job

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution

_LEAVING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PIECE_BYTES = 64 * 1024
_KILLS_AT = 3  # presses of Ctrl-C
_KILLED, _INTERRUPTED, _LOST = 137, 130, 70  # the last is EX_SOFTWARE of <sysexits.h>


def run(client: Client, ask: job.Ask) -> int:
    """Run it to its end; its exit status.

    Raises:
        KCoralError: It could not run.
    """
    execution = job.start(client, ask)
    shown = _Shown(execution)
    former = signal.signal(signal.SIGINT, lambda number, frame: shown.press())
    for number in _LEAVING:
        signal.signal(number, _leave)
    try:
        execution.follow(shown.show)
        shown.clear()
        ended = job.ended(execution, ask)
    except ExecutionLost as error:
        if shown.presses < _KILLS_AT:
            _say(str(error))
        return _KILLED if shown.presses >= _KILLS_AT else _LOST
    except KeyboardInterrupt:  # before it began
        return _INTERRUPTED
    except _Left as left:  # nobody reads it any more: it ends there too
        with contextlib.suppress(Exception):
            execution.interrupt(kill=True)
        return 128 + left.number
    finally:
        shown.clear()
        signal.signal(signal.SIGINT, former)
    for text in ended.problems:
        _say(text)
    if ended.saved and sys.stderr.isatty():
        _say(f"saved {', '.join(map(str, ended.saved[:5]))}{' …' if len(ended.saved) > 5 else ''}")
    if ended.status == job.TIMED_OUT and ask.timeout_s is not None:
        _say(f"it ran longer than {ask.timeout_s:g} s (--timeout) and was ended")
    return ended.status


class _Left(BaseException):
    """The terminal has gone, or somebody ends us."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _leave(number: int, frame: object) -> None:
    raise _Left(number)


def _say(text: str) -> None:
    sys.stderr.write(f"kcoral-magic: {text}\n")
    sys.stderr.flush()


class _Shown:
    """Writes outputs as they come, and a line on the wait where somebody sees it."""

    def __init__(self, execution: Execution) -> None:
        self.presses = 0
        self._execution = execution
        self._is_tty = sys.stderr.isatty()
        self._has_line = False

    def press(self) -> None:
        """Ctrl-C: the program there gets it; the second kills it, the third ends its worker."""
        self.presses += 1
        # On a thread: a signal may come at any line, in the middle of what the client does.
        threading.Thread(target=self._interrupt, args=(self.presses >= _KILLS_AT,), daemon=True).start()

    def _interrupt(self, kill: bool) -> None:
        with contextlib.suppress(Exception):  # it has ended meanwhile
            self._execution.interrupt(kill=kill)

    def show(self, output: Output) -> None:
        """The next output."""
        body = output.body
        match body:
            case m.Stream(name=name):
                self.clear()
                stream = sys.stdout if name == "stdout" else sys.stderr
                stream.flush()
                with contextlib.suppress(BlockingIOError):
                    stream.buffer.write(output.buffers[0])
                stream.buffer.flush()
            case t.InputRequest():
                threading.Thread(target=self._answer, name="kcoral-stdin", daemon=True).start()
            case m.Queued(ahead=ahead):
                self._line(f"queued: {ahead} ahead" if ahead else "queued: next")
            case m.Behind(ahead=ahead):
                self._line(f"behind {ahead} earlier in this session")
            case m.Starting():
                self._line("starting a worker")
            case m.Started():
                self.clear()
            case m.Notice(text=text):
                self.clear()
                _say(text)
            case Progress(what=what, done=done, size=size):
                self._line(f"{what}: {done / max(size, 1):.0%} of {size / 2**20:.0f} MiB")
            case Reconnecting():
                self._line("the connection is gone; it goes on there")
            case Reconnected():
                self.clear()
            case _:
                pass

    def clear(self) -> None:
        """Take the line on the wait away."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False

    def _line(self, text: str) -> None:
        if self._is_tty:
            sys.stderr.write(f"\r\x1b[K{text} …")
            sys.stderr.flush()
            self._has_line = True

    def _answer(self) -> None:
        """The next piece of our own input; none at its end. On a thread: it may take as long as it likes."""
        try:
            data = os.read(sys.stdin.fileno(), _PIECE_BYTES)
        except (OSError, ValueError):
            data = b""
        with contextlib.suppress(Exception):  # it has ended meanwhile
            self._execution.answer(data or None)
