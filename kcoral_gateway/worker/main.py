"""The worker: waits for bodies on its channel and runs them, one at a time.

SIGINT means something only while a body runs; at any other moment it must not end the worker. SIGUSR1, and a crash,
make faulthandler write where the main thread stands to a pipe of the host, also while C code holds the interpreter.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import platform
import resource
import signal
import socket
import sys
from typing import assert_never

from kcoral_gateway.worker.execute import Executor
from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_gateway.worker.output import Output
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 64 * 1024  # below malloc's mmap threshold: a larger buffer would be mapped anew at every read


def main(channel_fd: int, fault_fd: int, limits: dict[str, int]) -> None:
    """Serve the host at the other end of ``channel_fd`` until it goes or says so."""
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
    output = Output(channel, interrupts)
    output.install()
    executor = Executor(output)
    gc.collect()
    gc.freeze()  # what was imported stays: later collections need not walk it
    output.send(m.Ready(platform.python_version()))

    splitter = framing.StreamSplitter()
    decoder = framing.Decoder[m.ToWorker](m.ToWorker)
    while data := channel.recv(_READ_BYTES):
        for frame in splitter.feed(data):
            message = decoder.decode(frame)
            if message is None:
                continue
            match message.body:
                case m.Run(place=place):
                    source = bytes(message.buffers[0]).decode("utf-8", "replace")
                    ended = executor.run(source, place, interrupts)
                    output.send(ended)
                case m.Shutdown():
                    return
                case _:
                    assert_never(message.body)
