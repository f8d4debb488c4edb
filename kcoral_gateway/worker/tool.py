"""Runs a tool as a child of the worker: its output is the body's, its input comes from the client, its files go back.

Everything happens on the worker's main thread, which waits for three things at once: the child's end, the client's
input, and the time limit. An interrupt goes to the child; what it has written until then is kept.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kcoral_gateway.worker import files
from kcoral_gateway.worker.stdin import Stdin

_PATIENCE_S = 5.0  # from the interrupt to the kill, as everywhere
_status = 0
_NOT_FOUND, _TIMED_OUT = 127, 124  # as shells and timeout(1) have it


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    reads_input: bool,
    timeout_s: float | None,
    fetch: Sequence[str],
    folder: str = "",
    hint: str = "",
) -> dict[str, Any]:
    """Run ``argv`` to its end.

    Args:
        folder: Made anew before, for what the tool writes.
        fetch: Patterns of files and folders in the workspace that go back, however it ended.
        hint: What to do if there is no such program.

    Returns:
        ``status`` (128 + N after signal N, 124 after the time limit, 127 without the program), ``files`` as
        ``[(path, mode, data)]``, ``problems`` as texts.
    """
    global _status
    if folder:  # what an earlier run left there must not come back as this one's
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
    whole = {**os.environ, **env}
    program = shutil.which(argv[0], path=whole.get("PATH"))
    if program is None:
        text = f"{argv[0]}: there is no such program where the worker runs"
        print(f"{text}: {hint}" if hint else text, file=sys.stderr)
        _status = _NOT_FOUND
        return {"status": _status, "files": [], "problems": []}
    sys.stdout.flush()
    sys.stderr.flush()
    child = subprocess.Popen(
        [program, *argv[1:]],
        env=whole,
        stdin=subprocess.PIPE if reads_input else subprocess.DEVNULL,
        start_new_session=True,
    )
    _status = _Waiting(child, timeout_s).wait()
    if folder:
        with contextlib.suppress(Exception, KeyboardInterrupt):  # a strange report is the client's to refuse
            from kcoral_gateway.worker import listing  # most programs are no profilers

            listing.write(folder)
    found, problems = _found(fetch)
    return {"status": _status, "files": found, "problems": problems}


def take_status() -> int:
    """The exit status of the last tool, once: of the body that ran it."""
    global _status
    taken, _status = _status, 0
    return taken


class _Waiting:
    """A child that runs."""

    def __init__(self, child: subprocess.Popen[bytes], timeout_s: float | None) -> None:
        self._child = child
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._has_timed_out = False
        self._is_interrupted = False

    def wait(self) -> int:
        ended = os.pidfd_open(self._child.pid)
        asked = sys.stdin if self._child.stdin is not None else None
        feeder = _Feeder(self._child, asked) if isinstance(asked, Stdin) else None
        try:
            while self._child.poll() is None:
                try:
                    self._once(ended, feeder)
                except KeyboardInterrupt:
                    self._interrupt()
        finally:
            os.close(ended)
            if feeder is not None:
                feeder.close()
            self._signal(signal.SIGKILL)  # what it left behind in its session
        if self._has_timed_out:
            return _TIMED_OUT
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _once(self, ended: int, feeder: _Feeder | None) -> None:
        left = None if self._end_s is None else self._end_s - time.monotonic()
        if left is not None and left <= 0:
            if self._has_timed_out or self._is_interrupted:
                self._signal(signal.SIGKILL)
                self._end_s = None
            else:
                self._has_timed_out = True
                self._signal(signal.SIGTERM)
                self._end_s = time.monotonic() + _PATIENCE_S
            return
        if feeder is None:
            select.select([ended], [], [], left)
        else:
            feeder.turn(ended, left)

    def _interrupt(self) -> None:
        """The first press is the child's to handle (the host has passed it on); a second, or five seconds, end it."""
        if self._is_interrupted:
            self._signal(signal.SIGKILL)
        self._is_interrupted = True
        self._end_s = time.monotonic() + _PATIENCE_S

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


class _Feeder:
    """Asks the client for its input, a piece at a time, and writes it to the child on a thread: a pipe may be full."""

    def __init__(self, child: subprocess.Popen[bytes], stdin: Stdin) -> None:
        assert child.stdin is not None
        self._to = child.stdin
        self._stdin = stdin
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._written, self._told = os.pipe()
        self._is_asked = False
        self._is_over = not stdin.is_allowed
        self._thread = threading.Thread(target=self._write, name="kcoral-stdin", daemon=True)
        self._thread.start()
        if self._is_over:
            self._pieces.put(None)
        else:
            self._ask()

    def _ask(self) -> None:
        self._stdin.ask_piece()
        self._is_asked = True

    def turn(self, ended: int, left: float | None) -> None:
        """Wait until something happens, and act on it."""
        if self._is_asked:
            if self._stdin.has_piece(left, ended):
                self._is_asked = False
                piece = self._stdin.piece()
                self._is_over = piece is None
                self._pieces.put(piece)
            return
        ready, _, _ = select.select([ended] if self._is_over else [ended, self._written], [], [], left)
        if self._written in ready:
            os.read(self._written, 1)
            self._ask()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the child reads no more
            while (piece := self._pieces.get()) is not None:
                self._to.write(piece)
                self._to.flush()
                os.write(self._told, b".")
        with contextlib.suppress(OSError):
            self._to.close()

    def close(self) -> None:
        """The child has ended."""
        self._pieces.put(None)
        self._thread.join(1.0)
        os.close(self._written)
        os.close(self._told)


def _found(patterns: Sequence[str]) -> tuple[list[tuple[str, int, memoryview]], list[str]]:
    """Files by their paths in the workspace, and why a pattern brought none."""
    found: dict[str, tuple[str, int, memoryview]] = {}
    problems = []
    for pattern in patterns:
        try:
            named = files.digests([pattern])
            contents = files.contents([path for path, *_ in named])
        except OSError as error:
            problems.append(str(error))
            continue
        if not named and not os.path.isdir(pattern):
            problems.append(f"{pattern!r} is a link, a pipe or a device: only files and folders come back")
        for (path, name, _, mode, _), (_, data) in zip(named, contents, strict=True):
            inside = os.path.relpath(path)
            place = name if inside.startswith("..") else inside
            found[place] = (place, mode, data)
    return list(found.values()), problems
