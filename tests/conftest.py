"""Fixtures of all lanes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kcoral_magic import Client
from tests.support import GatewayProcess, until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A real gateway with two simulated GPUs, one for a test module."""
    process = GatewayProcess(tmp_path_factory.mktemp("gw") / "state")
    yield process
    process.stop()


@pytest.fixture(scope="module")
def token(gateway: GatewayProcess) -> str:
    return gateway.token()


@pytest.fixture
def client(gateway: GatewayProcess, token: str) -> Iterator[Client]:
    with gateway.client(token) as connected:
        yield connected


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test: no thread, process, descriptor or workspace more than before (spare workers may stay)."""
    if "gateway" not in request.fixturenames:
        yield
        return
    gateway: GatewayProcess = request.getfixturevalue("gateway")
    threads = set(threading.enumerate())
    workspaces = set(Path("/tmp").glob("kcoral-workspace-*"))
    yield

    def settled() -> bool:
        try:
            hosts = gateway.hosts()
            links = len(os.listdir(f"/proc/{gateway.pid}/fd"))
        except (psutil.NoSuchProcess, FileNotFoundError):  # the test killed it
            return True
        # Without sessions a gateway has its listeners, epoll, log and lock, and one pipe-free link for each spare.
        # A principal may have a spare for cells, and one for each program that ran at once.
        return len(hosts) <= gateway.spares * max(1, len(gateway.principals)) and links <= 24 + 2 * len(hosts)

    until(settled, 20, "only spare workers are left")
    until(lambda: set(threading.enumerate()) <= threads, 10, f"threads end: {set(threading.enumerate()) - threads}")
    assert set(Path("/tmp").glob("kcoral-workspace-*")) <= workspaces


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, so that tests of the user's own gateway meet no other; what they started is ended."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "KCORAL_MAGIC_URL", "KCORAL_MAGIC_TOKEN", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    for process in psutil.process_iter(["cmdline", "environ"]):
        if "kcoral_gateway" in " ".join(process.info["cmdline"] or ()) and str(tmp_path) in " ".join(
            (process.info["environ"] or {}).values()
        ):
            process.terminate()
    shutil.rmtree(tmp_path, ignore_errors=True)
