"""The sandbox's two layouts as attacks meet them, and how to start a gateway in each on this machine.

``strict`` needs a gateway run by root, ``user`` one run by somebody else. Tests run by root start the second under an
unprivileged id; repository, virtual environment and interpreter may lie in folders only root may enter, so that
gateway then gets a copy of its packages, and if need be of the interpreter, in a world-readable folder.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement

import kcoral_gateway
from tests.support import GatewayProcess

MEMORY_GIB, WORKSPACE_GIB, PROCESSES = 0.5, 0.125, 48  # limits that attacks reach at once
UNPRIVILEGED = 65534  # nobody: in every distribution, owner of nothing
_DROP = ("setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups")
_PACKAGES = Path(kcoral_gateway.__file__).parents[1]


# For attacks on what both layouts share: the journal, the wire, the host's reading of a worker.
one_layout = pytest.mark.parametrize(
    "layout", ["strict" if os.geteuid() == 0 else "user"], indirect=True, scope="package"
)


class Unavailable(Exception):
    """This layout cannot be tried here; the message says why."""


@dataclass(frozen=True)
class Layout:
    """How to start a gateway so that its workers are boxed at ``level``."""

    level: str
    uid: int  # the gateway's
    python: str = sys.executable
    prefix: tuple[str, ...] = ()

    def own(self, path: Path) -> Path:
        """Make a folder that belongs to the gateway's user alone."""
        path.mkdir(mode=0o700)
        self.give(path)
        return path

    def give(self, path: Path) -> None:
        """Make ``path`` the gateway's user's."""
        if os.geteuid() != self.uid:
            os.chown(path, self.uid, self.uid)


def find(level: str, folder: Path) -> Layout:
    """The layout on this machine; ``folder`` (world-readable) may take copies.

    Raises:
        Unavailable: It cannot be had here.
    """
    me = os.geteuid()
    if level == "strict":
        if me != 0:
            raise Unavailable(f"the strict layout is for gateways run by root, these tests run as user id {me}")
        return Layout(level, 0)
    if me != 0:
        return Layout(level, me)
    if shutil.which("setpriv") is None:
        raise Unavailable("setpriv (util-linux) is not installed: root cannot start the gateway as somebody else")
    tried = []
    for python in _interpreters(folder):
        error = _trouble(python)
        if not error:
            return Layout(level, UNPRIVILEGED, str(python), _DROP)
        tried.append(f"{python}: {error}")
    raise Unavailable(f"user id {UNPRIVILEGED} can run no Python {sys.version_info[:2]} here ({'; '.join(tried)})")


def _interpreters(folder: Path) -> Iterator[Path]:
    """What may serve, cheapest first; the later ones are made when the earlier failed."""
    yield Path(sys.executable)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if os.path.exists(system := f"/usr/bin/{version}"):
        yield make_environment(folder / "system", Path(system))
    base = folder / "base"
    shutil.copytree(
        Path(sys.base_prefix) / "lib" / version,
        base / "lib" / version,
        symlinks=True,
        ignore=shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "idlelib", "config-*"),
    )
    for library in (Path(sys.base_prefix) / "lib").glob("libpython*"):
        shutil.copy2(library, base / "lib")
    (base / "bin").mkdir()
    shutil.copy2(os.path.realpath(sys.executable), base / "bin" / version)
    yield make_environment(folder / "copied", base / "bin" / version)


def _trouble(python: Path) -> str:
    """Why the unprivileged user cannot run the gateway with ``python``; empty if they can."""
    # Our own packages are looked for, not imported: what is broken in them shall fail, not skip. And a second start,
    # since setpriv's own exec still has root's rights over the path.
    probe = (
        "import IPython, importlib.util, msgspec, starlette, subprocess, sys, uvicorn\n"
        "assert importlib.util.find_spec('kcoral_gateway.app') and importlib.util.find_spec('kcoral_magic.errors')\n"
        "subprocess.run([sys.executable, '-c', ''], check=True)"
    )
    command = [*_DROP, str(python), "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env={"HOME": "/"})
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def make_environment(folder: Path, base: Path) -> Path:
    """A virtual environment by hand (PEP 405): Debian's own venv module may be missing."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    for name in ("kcoral_gateway", "kcoral_magic"):
        shutil.copytree(_PACKAGES / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(
            packages / name, quiet=1
        )  # nobody else could write these, and every worker would compile
    for distribution in _needed("kcoral-magic[gateway]"):
        for file in distribution.files or ():
            if ".." in file.parts or file.parts[0].startswith(("__editable__", "_editable_impl")):
                continue  # programs in bin/, and the pointer of an editable install to where the repository is
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            _place(str(distribution.locate_file(file)), target)
    return folder / "bin" / "python"


def _place(source: str, target: Path) -> None:
    """``source`` under another name, which costs nothing, or a copy where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _needed(requirement: str) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions that ``requirement`` stands for, with all they need."""
    todo, seen = [Requirement(requirement)], set[tuple[str, tuple[str, ...]]]()
    while todo:
        wanted = todo.pop()
        key = (wanted.name.lower().replace("_", "-"), tuple(sorted(wanted.extras)))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(wanted.name)
        yield distribution
        for text in distribution.requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                todo.append(need)


@dataclass
class Secrets:
    """What the gateway's side holds and no cell may see."""

    token: str = "secret-of-the-gateways-environment"  # in its environment as KC_TOKEN
    file: str = "secret-in-a-file-of-the-gateways-user"  # what each of ``files`` holds
    files: list[Path] = field(default_factory=list)
    folder: Path = Path("/")  # open in the gateway as an inherited descriptor


class BoxedGateway(GatewayProcess):
    """A gateway in one layout, with secrets around it."""

    def __init__(self, layout: Layout, folder: Path, *options: str, gpus: int = 2) -> None:
        self.layout = layout
        self.secrets = Secrets(folder=folder)
        self.held_sessions = 0  # sessions that outlive a test on purpose
        self.principals: set[str] = set()
        home, state = layout.own(folder / "home"), layout.own(folder / "state")
        layout.own(home / ".ssh")
        for path in (home / ".ssh" / "id_ed25519", home / "tls-key.pem", state / "tls-key.pem", folder / "outside"):
            path.write_text(self.secrets.file)
            layout.give(path)
            self.secrets.files.append(path)
        # Opened by the shell, inherited by everything it starts: what a careless service manager leaves behind.
        leak = ("/bin/sh", "-c", 'exec 9<"$0"; exec "$@"', str(folder))
        super().__init__(
            state,
            "--sandbox",
            layout.level,
            *options,
            python=layout.python,
            prefix=(*leak, *layout.prefix),
            env={"KC_TOKEN": self.secrets.token, "HOME": str(home), "TMPDIR": "/tmp"},
            gpus=gpus,
        )
        self.secrets.files += [state / "tokens.json", state / "gateway.json"]

    def interpreters(self) -> list[psutil.Process]:
        """The workers' own processes: the base class's ``workers`` count the sandbox's around them too."""
        return [worker for worker in self.workers() if worker.cmdline()[1:2] == ["-I"]]

    def token(self, name: str = "tester") -> str:
        """As the base class's, which knows commands without a prefix only."""
        self.principals.add(name)
        return self._ask("token", "add", name)

    def revoke(self, name: str) -> None:
        """Take the tokens of ``name`` back."""
        for line in self._ask("token", "list").splitlines():
            if line.split()[1] == name:
                self._ask("token", "revoke", line.split()[0])

    def _ask(self, *arguments: str) -> str:
        command = [*self._command[: self._command.index("--port")], *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()
