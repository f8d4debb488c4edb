"""What integration tests stand on: a real gateway process on port 0, and a look at what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from kcoral_magic import Client
from kcoral_magic.config import Target

T = TypeVar("T")
START_S = 60.0


def until(what: Callable[[], T], seconds: float = 20.0, why: str = "") -> T:
    """Wait for an event: the first true value of ``what``."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {seconds} s: {why or what}")
        time.sleep(0.01)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended between the listing and the question; a zombie is one too
        return ""


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


class GatewayProcess:
    """``kcoral-gateway`` as people start it."""

    def __init__(
        self,
        state: Path,
        *options: str,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        gpus: int = 2,
    ) -> None:
        self.state = state
        self.principals: set[str] = set()  # each may have ``spares`` spare workers
        self.spares = 1
        self._command = [*prefix, python, "-m", "kcoral_gateway", "--state", str(state), "--port", "0", *options]
        self._token_command = self._command[: self._command.index("--port")]
        if gpus:
            self._command += ["--simulate-gpus", str(gpus)]
        self._env = {**os.environ, **(env or {})}
        self.log = state.parent / f"{state.name}.log"
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._env, cwd="/")

        def up() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            return (self.state / "gateway.json").exists()

        until(up, START_S, "the gateway starts")
        run = json.loads((self.state / "gateway.json").read_text())
        self.pid: int = run["pid"]
        self.url: str = run["url"]
        self.socket: str = run["socket"]

    def token(self, name: str = "tester") -> str:
        self.principals.add(name)
        made = subprocess.run([*self._token_command, "token", "add", name], capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def target(self, token: str | None = None, *, is_trusted: bool = True) -> Target:
        return Target(self.url, token or self.token(), is_trusted=is_trusted)

    def client(self, token: str | None = None, **options: object) -> Client:
        return Client(target=self.target(token), **options)

    @property
    def me(self) -> psutil.Process:
        return psutil.Process(self.pid)

    def hosts(self) -> list[psutil.Process]:
        children = [child for zygote in self.zygotes() for child in _children(zygote)]
        return [child for child in children if "kcoral_gateway.host" in _command(child)]

    def zygotes(self) -> list[psutil.Process]:
        """What forks the hosts."""
        return [child for child in self.me.children() if "kcoral_gateway.host" in _command(child)]

    def workers(self) -> list[psutil.Process]:
        return [p for p in self.me.children(recursive=True) if "kcoral_gateway.worker" in _command(p)]

    def rss_bytes(self) -> int:
        return int(self.me.memory_info().rss)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)

    def restart(self) -> None:
        """Start again after ``kill``, on the same port."""
        self._command[self._command.index("--port") + 1] = self.url.rpartition(":")[2]
        (self.state / "gateway.json").unlink()
        self.start()

    def stop(self) -> None:
        if self.process.poll() is None:
            tree = self.me.children(recursive=True)
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
            _, alive = psutil.wait_procs(tree, 10)
            assert not alive, f"left behind: {alive}"
