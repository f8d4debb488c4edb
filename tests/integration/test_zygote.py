"""Hosts that end while they start their sandbox: nothing of it may stay, whenever that is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from kcoral_gateway.config import HostSpec, Level, Limits
from tests.support import until

COUNT = 40
FIRST = 390_000  # of the users that workers would run as


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that a worker's user may enter."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_sandbox_outlives_a_host_that_ends_while_it_starts_it(folder: Path, number: signal.Signals) -> None:
    level: Level = "strict" if os.geteuid() == 0 else "user"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen(COUNT)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = subprocess.Popen([sys.executable, "-m", "kcoral_gateway.host"], stdin=theirs.fileno(), cwd="/")
    theirs.close()
    links, hosts = [], set[int]()
    try:
        for turn in range(COUNT):
            spec = HostSpec(
                str(folder / "s"), f"ticket-{turn}", level, Limits(), uid=390_000 + turn, folder=str(folder)
            )
            ours.send(msgspec.json.encode(spec))
            _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
            hosts.add(_pid(descriptors[0]))
            link, _ = listener.accept()  # it has begun; a start takes about 20 ms from here
            links.append(link)
            end = time.perf_counter() + turn * 0.0006  # another moment of it each time
            while time.perf_counter() < end:
                pass
            signal.pidfd_send_signal(descriptors[0], number)
            os.close(descriptors[0])
        for link in links:
            link.close()
        until(lambda: not psutil.Process(zygote.pid).children(recursive=True), 15, "every host has ended")
        until(lambda: not _left(hosts), 15, "every sandbox has ended")
    finally:
        ours.close()
        zygote.wait(10)
        listener.close()


def _pid(descriptor: int) -> int:
    """Of a pidfd."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


def _left(hosts: set[int]) -> list[psutil.Process]:
    """Processes of these hosts' sessions, or of the users that they would run workers as."""
    found = []
    for process in psutil.process_iter(["cmdline", "uids"]):
        line = " ".join(process.info["cmdline"] or ())
        uid = process.info["uids"].real if process.info["uids"] else 0
        is_ours = FIRST <= uid < FIRST + COUNT or any(f"--reuid {FIRST + number} " in line for number in range(COUNT))
        with contextlib.suppress(ProcessLookupError):
            if is_ours or os.getsid(process.pid) in hosts:
                found.append(process)
    return found
