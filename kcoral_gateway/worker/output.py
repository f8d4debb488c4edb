"""What a body writes, in the order it was written.

Descriptors 1 and 2 are pipes the host reads, and a channel carries everything else, so three streams must be put back
into one order. The rule (facts: 240,000 events, none misplaced): before it writes to another of the three, the worker
waits until the host has read both pipes empty. The reader takes channel messages before pipe bytes. With one writing
thread the order is exact; with several, or with live child processes, it is best effort.

The host reads a busy pipe every few milliseconds only: woken for every line, it would take the core that prints them.
A worker that waits for it rings first (``Drain``, the one message that may pass bytes in a pipe).

``sys.stdout`` is line buffered, as on a terminal, so that C code's output (its stdio is line buffered too) falls in
line without the user flushing. Partial lines follow within ``PARTIAL_LINE_S``. A stream that nobody else has written
since keeps C's own ``write``: the hook is on the other one, which asks for the turn when it is written.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import io
import os
import socket
import sys
import termios
import threading
import time
from collections.abc import Sequence

from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

PARTIAL_LINE_S = 0.005
IDLE_S = 0.25  # between two looks at what threads print while no body runs
_STUCK_SPINS = 1500  # about two seconds of them
_BUFFER_BYTES = 64 * 1024
_LINE_BUFFERED = 1  # _IOLBF of <stdio.h>


class Output:
    """The worker's three ways out, kept in order."""

    def __init__(self, channel: socket.socket, interrupts: Interrupts) -> None:
        self._channel = channel
        self._interrupts = interrupts
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._libc = ctypes.CDLL(None)
        self._drain = framing.pack(framing.encode(m.Drain()))
        self.is_running = threading.Event()  # set while a body runs: partial lines are then looked for often
        self.stdout = OrderedStream(1)
        self.stderr = OrderedStream(2)
        self._take_turn(self.stdout, self.stderr)

    def install(self) -> None:
        """Become ``sys.stdout`` and ``sys.stderr``, and make C's stdio line buffered."""
        for name in ("stdout", "stderr"):
            with contextlib.suppress(ValueError, AttributeError):
                self._libc.setvbuf(ctypes.c_void_p.in_dll(self._libc, name), None, _LINE_BUFFERED, 0)
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        threading.Thread(target=self._flush_partial_lines, name="kcoral-flush", daemon=True).start()
        os.register_at_fork(after_in_child=self._in_child)

    @property
    def is_owner(self) -> bool:
        """Whether this process may use the channel; a forked child may not."""
        return os.getpid() == self._owner

    def send(self, body: object, buffers: Sequence[framing.Buffer] = ()) -> None:
        """Send a message after everything written so far.

        Raises:
            ProtocolError: The message is too large; nothing was sent.
        """
        data = framing.pack(framing.encode(body, buffers))
        with self._lock:
            self.settle()
            with self._interrupts.held():
                self._channel.sendall(data)

    def settle(self) -> None:
        """Flush Python's and C's buffers and wait until the host has read both pipes."""
        with self._lock:
            self._flush(self.stdout)
            self._flush(self.stderr)
            self._libc.fflush(None)
            self.wait_read()

    def wait_read(self) -> None:
        """Wait until both pipes are empty; as long as the host lives, since it alone empties them.

        A process that an earlier cell left running may fill them for ever: with one alive, the wait ends after about
        two seconds, and what it wrote then may be told a little late.
        """
        waiting = array.array("i", [0])
        pause_s = 0.0
        for spin in range(1 << 62):
            left = 0
            for descriptor in (1, 2):
                try:
                    fcntl.ioctl(descriptor, termios.FIONREAD, waiting, True)
                    left += waiting[0]
                except OSError:  # user code closed or replaced the descriptor: nothing of ours is in it
                    continue
            if not left:
                return
            if spin == 0 and self.is_owner:
                with self._lock, self._interrupts.held():
                    self._channel.sendall(self._drain)
            if spin > 20:
                pause_s = min(0.001, pause_s + 0.00002)
            if spin % _STUCK_SPINS == _STUCK_SPINS - 1 and _has_company():
                return  # somebody else goes on writing: these pipes may never be empty
            time.sleep(pause_s)

    def _take_turn(self, stream: OrderedStream, other: OrderedStream) -> None:
        """``stream`` is written from now on; ``other`` asks for the turn when it is."""
        with self._lock:
            if vars(other).pop("write", None) is None:
                self._flush(other)
                self.wait_read()
            vars(stream).pop("write", None)

            def write(text: str) -> int:
                self._take_turn(other, stream)
                return other.write(text)

            vars(other)["write"] = write

    def _flush_partial_lines(self) -> None:
        while True:
            self.is_running.wait(IDLE_S)
            time.sleep(PARTIAL_LINE_S)
            self._flush(self.stdout)
            self._flush(self.stderr)

    def _flush(self, stream: OrderedStream) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed by user code: its output is then its own affair
            stream.flush()

    def _in_child(self) -> None:
        # A child's copy of the channel must never speak for the worker; its prints travel through the pipes.
        self._lock = threading.RLock()
        self._channel.close()


def _has_company() -> bool:
    """Whether other processes live in this sandbox (process 1 and this one are always there)."""
    return sum(name.isdigit() for name in os.listdir("/proc")) > 2


class OrderedStream(io.TextIOWrapper):
    """``sys.stdout`` or ``sys.stderr``: line buffered, and never overtaking the other."""

    def __init__(self, descriptor: int) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw, _BUFFER_BYTES), "utf-8", "backslashreplace", newline="\n", line_buffering=True
        )

    def close(self) -> None:
        """Flush only: closing ``sys.stdout`` in one cell must not silence the next."""
        with contextlib.suppress(ValueError, OSError):
            self.flush()

    def isatty(self) -> bool:
        """Not a terminal, as in a notebook."""
        return False
