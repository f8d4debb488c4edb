"""Forks worker hosts: importing what one needs takes four times as long as being one.

It reads a ``HostSpec`` from the socket on its standard input, forks, and answers with a descriptor of the child (a
pidfd, pidfd_open(2)), which stays right whatever becomes of the number. It holds nothing of anybody: a spec is known
to the child alone. At the end of the input it ends; the hosts end with their gateway, each by itself.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import signal
import socket
from pathlib import Path

from kcoral_gateway.host import main as host

_SPEC_BYTES = 1 << 20


def serve() -> None:
    """Fork a host for each spec, until nobody can ask any more."""
    _compile_ahead()
    gc.freeze()  # what was imported stays shared between the hosts: a collection must not write to it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: _reap())
    channel = socket.socket(fileno=0)
    while spec := channel.recv(_SPEC_BYTES):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # till there is a descriptor, its number is its own
        pid = os.fork()
        if pid == 0:
            _become_host(channel, spec)
        descriptor = os.pidfd_open(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            socket.send_fds(channel, [b"."], [descriptor])
        except OSError:
            return
        finally:
            os.close(descriptor)


def _compile_ahead() -> None:
    """Workers may not write: what has no bytecode yet, each of them would compile at its start."""
    root = Path(__file__).parents[2]
    for package in ("kcoral_gateway", "kcoral_magic"):
        compileall.compile_dir(root / package, quiet=2)  # where we may not write either, so be it


def _become_host(channel: socket.socket, spec: bytes) -> None:
    """In the child; it never returns."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        channel.detach()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        host.main(spec)
        status = 0
    finally:
        os._exit(status)


def _reap() -> None:
    """Take what has ended, and with it what it was just starting: a sandbox that waits for a word of its host."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ended.si_pid, signal.SIGKILL)  # not reaped yet: the number is its own
            os.waitpid(ended.si_pid, 0)
