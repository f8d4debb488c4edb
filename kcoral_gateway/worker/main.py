"""The worker: waits for bodies on its channel and runs them, one at a time.

SIGINT means something only while a body runs; at any other moment it must not end the worker. SIGUSR1, and a crash,
make faulthandler write where the main thread stands to a pipe of the host, also while C code holds the interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

from kcoral_gateway.worker.inbox import HostGone, Inbox
from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_gateway.worker.output import Output
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_PR_SET_PDEATHSIG = 1
_IDLE_S = 0.05  # a program that is waited for comes sooner


def main(channel_fd: int, fault_fd: int, limits: dict[str, int], blobs: str = "") -> None:
    """Serve the host at the other end of ``channel_fd`` until it goes or says so.

    With ``blobs``, the folder of its principal's files, it runs programs, and cells of IPython not at all: it starts in
    a third of the time.
    """
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # without a sandbox nothing else ends it with its host
    channel = socket.socket(fileno=channel_fd)
    os.set_inheritable(channel_fd, False)
    os.set_inheritable(fault_fd, False)
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    faulthandler.enable(file=fault_fd, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=fault_fd, all_threads=False)
    sys.argv = [""]
    sys.dont_write_bytecode = True  # Python takes it for current by whole seconds: a quick edit would not be seen
    output = Output(channel, interrupts)
    output.install()
    inbox = Inbox(channel, interrupts)
    serve: Callable[[framing.Message[m.ToWorker]], bool]
    if blobs:
        from kcoral_gateway.worker.program import Programs, warm_up

        serve = Programs(output, inbox, interrupts, blobs).serve
    else:
        from kcoral_gateway.worker.execute import Executor

        serve = Executor(output, inbox, interrupts).serve
    gc.collect()
    gc.freeze()  # what was imported stays: later collections need not walk it
    output.send(m.Ready(sys.version.split()[0]))
    with contextlib.suppress(HostGone):
        if blobs and not inbox.wait(_IDLE_S):
            warm_up()
        while serve(inbox.next()):
            pass
