"""Where the real ``kcoral`` lives, and how tests run it: in its own interpreter, as its users do."""

from __future__ import annotations

import ast
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_WAIT_S = 60
_SCRIPTS = Path(__file__).with_name("scripts")


def find_python() -> str:
    """The interpreter that has ``kcoral``: ``KCORAL_PYTHON``, or the one that make installs."""
    python = os.environ.get("KCORAL_PYTHON") or str(_ROOT / ".venv" / "kcoral" / "bin" / "python")
    asked = "import kcoral; assert kcoral.__version__ == '0.1.1', kcoral.__version__"
    try:
        found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        found = None
    if found is None:
        pytest.fail(f"there is no {python}: `make .venv/.kcoral` installs the real KCoral client", pytrace=False)
    if found.returncode != 0:
        pytest.fail(f"{python} has no kcoral 0.1.1: `make .venv/.kcoral` installs it\n{found.stderr}", pytrace=False)
    return python


def cases(script: str) -> list[str]:
    """The cases of a script: its functions, all but those that begin with an underscore or want arguments."""
    tree = ast.parse((_SCRIPTS / f"{script}.py").read_text())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [f.name for f in functions if not f.name.startswith("_") and len(f.args.args) == 1]


@dataclass(frozen=True)
class Kcoral:
    """The real client and command line, in ``folder``, with a gateway's address in ``KCORAL_URL``."""

    python: str
    url: str
    folder: Path

    def case(self, script: str, name: str, *arguments: str, url: str | None = None) -> str:
        """What a function of one of the scripts prints; a failed assertion of its fails the test."""
        ended = self._run([self.python, str(_SCRIPTS / f"{script}.py"), name, *arguments], url)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def run(self, *arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
        """``kcoral run …``."""
        return self._run(self.command(*arguments), url)

    def command(self, *arguments: str) -> list[str]:
        """As ``run``, not started yet."""
        return [self.python, "-m", "kcoral", "run", *arguments]

    def environment(self, url: str | None = None) -> dict[str, str]:
        """With the address; whatever else KCoral reads is left out."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KCORAL")}
        return {**kept, "KCORAL_URL": url or self.url}

    def _run(self, command: Sequence[str], url: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )


@dataclass
class Relay:
    """Counts what clients send through it: the only evidence of an upload that nobody's word is needed for."""

    port: int
    sent: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)

    def url(self, of: str) -> str:
        """An address through here."""
        return f"{of.rpartition(':')[0]}:{self.port}"


@contextlib.contextmanager
def relay(url: str) -> Iterator[Relay]:
    """Between clients and the gateway at ``url``."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = Relay(listener.getsockname()[1])
    port = int(url.rpartition(":")[2])

    def pump(source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if is_client:
                    made.sent += len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server, True), (server, client, False)):
                    thread = threading.Thread(target=pump, args=ends)
                    made._threads.append(thread)
                    thread.start()

    accepting = threading.Thread(target=serve)
    accepting.start()
    try:
        yield made
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *made._threads):
            thread.join(10)
