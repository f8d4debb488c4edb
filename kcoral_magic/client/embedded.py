"""The user's own gateway on this machine: found if it runs, started if not.

One for a user and product version: the gateway's lock on its state folder decides a race between two starters, so
starting needs no lock here. It ends by itself when nobody needs it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kcoral_magic.errors import GatewayUnreachable, NotConnectedError, UsageError
from kcoral_magic.protocol import __version__

_START_S = 30.0
_SOCKET_PATH_BYTES = 100  # sun_path of sockaddr_un holds 108


def state_dir() -> Path:
    """Where the own gateway of this product version keeps its socket and journals."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    folder = Path(base) / "kcoral-gateway" / f"own-{__version__}"
    if len(os.fsencode(folder / "gateway.sock")) <= _SOCKET_PATH_BYTES:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kcoral-{digest}"


def find(folder: Path) -> str | None:
    """The socket of a running gateway."""
    try:
        path = json.loads((folder / "gateway.json").read_text("utf-8"))["socket"]
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2.0)
            probe.connect(path)
        return str(path)
    except (OSError, ValueError, KeyError):
        return None


def ensure(options: Sequence[str] = (), *, clock_s: float = _START_S) -> str:
    """The socket of the user's own gateway, started if need be. Blocks for up to ``clock_s`` seconds.

    Raises:
        NotConnectedError: The gateway's packages are not installed, or this system cannot run one.
        GatewayUnreachable: It did not start; the message has its last words.
    """
    folder = state_dir()
    _check_private(folder)
    if (found := find(folder)) is not None:
        _check_options(folder, options)
        return found
    missing = [name for name in ("kcoral_gateway", "uvicorn", "starlette") if importlib.util.find_spec(name) is None]
    if missing or not hasattr(socket, "AF_UNIX") or not sys.platform.startswith("linux"):
        here = "pip install 'kcoral-magic[gateway]' to run cells on this machine, or "
        raise NotConnectedError(
            f"no gateway is configured: {here if sys.platform.startswith('linux') else ''}"
            "%kcoral connect URL to use one elsewhere"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "options").write_text(" ".join(options), "utf-8")
    log = folder / "gateway.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kcoral_gateway", "--state", str(folder), "--host", "none", "--embedded", *options],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # it outlives this kernel, and a Ctrl-C here is not meant for it
        )
    until = time.monotonic() + clock_s
    while time.monotonic() < until:
        if (found := find(folder)) is not None:
            return found
        if process.poll() is not None and (found := _after_exit(folder)) is not None:
            return found
        if process.poll() is not None:
            break
        time.sleep(0.02)
    said = log.read_text("utf-8", "replace").strip().splitlines()
    raise GatewayUnreachable(f"your own gateway did not start: {said[-1] if said else 'it said nothing'} (log: {log})")


def _check_private(folder: Path) -> None:
    """Nobody else may own or write the folder whose socket gets our cells."""
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        return
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink()):
        raise NotConnectedError(f"{folder} must be a folder of your own that nobody else can open (chmod 700)")


def _check_options(folder: Path, options: Sequence[str]) -> None:
    """Options are for starting: a gateway that runs already with others must not pretend to have them."""
    try:
        running = (folder / "options").read_text("utf-8").split()
        pid = json.loads((folder / "gateway.json").read_text("utf-8"))["pid"]
    except (OSError, ValueError, KeyError):
        return
    if options and running != list(options):
        raise UsageError(
            f"your own gateway runs already, with {' '.join(running) or 'no options'} instead of {' '.join(options)}: "
            f"stop it (kill {pid}) and try again; what runs in it ends"
        )


def _after_exit(folder: Path) -> str | None:
    """Ours has ended: another starter may have won the race and be on its way."""
    for _ in range(100):
        if (found := find(folder)) is not None:
            return found
        time.sleep(0.02)
    return None
