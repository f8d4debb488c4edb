"""Cells as attacks run them: ask for an answer, see how something is refused, watch one that does not end."""

from __future__ import annotations

import errno
import json
import queue
import secrets
import statistics
import time
from typing import Any

import psutil

from kcoral_magic import Client, KCoralError, RemoteError
from kcoral_magic.client.results import Output
from kcoral_magic.client.session import EVERYTHING
from kcoral_magic.client.sync import Execution, Session
from kcoral_magic.protocol import messages as m
from tests.support import until

# What attacks are made of. libc's calls raise OSError, as Python's own do.
PRELUDE = """
import ctypes as _c, fcntl, json as _json, mmap, os, shutil, signal, socket, struct, subprocess, sys, threading, time
_libc = _c.CDLL(None, use_errno=True)
_libc.syscall.restype = _c.c_long
def call(result):
    if result < 0:
        code = _c.get_errno()
        raise OSError(code, os.strerror(code))
    return result
def syscall(number, *arguments):
    _c.set_errno(0)
    return call(_libc.syscall(*(_c.c_long(a) if isinstance(a, int) else a for a in (number, *arguments))))
"""


class Running:
    """An execution that is watched while it runs; what arrives is taken whenever it is looked at."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.outputs: list[Output] = []
        self.text = ""

    def look(self) -> m.Finished | None:
        """Take what has arrived; its end, if it has one."""
        while True:
            try:
                output = self.execution.outputs.get_nowait()
            except queue.Empty:
                break
            self.execution.take(output)
            self.outputs.append(output)
            self.text += output.text
        last = next((o.body for o in reversed(self.outputs[-20:]) if isinstance(o.body, m.Finished)), None)
        return last

    def until_said(self, text: str, seconds: float = 15.0) -> None:
        """Wait until ``text`` has been printed."""
        until(lambda: self.look() is not None or text in self.text, seconds, f"the cell says {text!r}")
        assert text in self.text, f"the cell ended with {self.execution.exception()!r} instead of saying {text!r}"

    def end(self, seconds: float = 15.0) -> BaseException | None:
        """Wait for its end; what it raises here. One that does not end fails the test and is killed."""
        try:
            until(self.look, seconds, "the cell ends")
        except AssertionError:
            self.execution.interrupt(kill=True)
            raise
        return self.execution.exception()


class Cell:
    """One session and what attacks do with it."""

    def __init__(self, client: Client, name: str = "", *, gpus: int | None = None) -> None:
        self.client = client
        self.session: Session = client.session(name, gpus=gpus)

    def ask(self, body: str) -> Any:
        """The JSON twin of ``answer`` after ``body`` has run."""
        result = self.session.run(f"{PRELUDE}\n{body}\nprint(_json.dumps(answer))")
        return json.loads(result.stdout.splitlines()[-1])

    def refusal(self, expression: str) -> str:
        """How ``expression`` fails in a cell: ``ENOENT`` and the like, or ``done: …`` if it does not fail."""
        try:
            result = self.session.run(f"{PRELUDE}\n_attempt = lambda: ({expression})\n_attempt()")
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, repr(error))
        except RemoteError as error:
            return f"{error.ename}: {error.evalue}"
        except KCoralError:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return f"done: {(result.text or '')[:500]}"

    def start(self, body: str, *, view: m.View = EVERYTHING) -> Running:
        """Run ``body`` and watch it."""
        return Running(self.session.execute(f"{PRELUDE}\n{body}", view=view))

    def state(self) -> str:
        """What the gateway says of the session; empty if it has none."""
        return next((s.state for s in self.client.sessions() if s.name == self.session.name), "")

    def process(self) -> psutil.Process:
        """The session's worker as the machine sees it, found by a name it gives itself."""
        name = secrets.token_hex(7)
        self.session.run(f"open('/proc/self/comm', 'w').write({name!r})")
        return next(p for p in psutil.process_iter(["name"]) if p.info["name"] == name)

    def latency_s(self, times: int = 15) -> float:
        """The median time of a cell that does nothing."""
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            self.session.run("pass")
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)
