"""One gateway in each layout for all attacks, and two people on it: one who attacks, one who must not notice."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kcoral_magic import Client
from tests.attacks.cells import Cell
from tests.attacks.layouts import MEMORY_GIB, PROCESSES, WORKSPACE_GIB, BoxedGateway, Layout, Unavailable, find
from tests.support import until

LEVELS = ("strict", "user")


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own is closed to the unprivileged gateway."""
    path = Path(tempfile.mkdtemp(prefix="kcoral-attacks-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="package", params=LEVELS)
def layout(request: pytest.FixtureRequest, open_folder: Path) -> Layout:
    (folder := open_folder / f"runtime-{request.param}").mkdir()
    try:
        return find(request.param, folder)
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI must try every layout: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="package")
def gateway(layout: Layout, open_folder: Path) -> Iterator[BoxedGateway]:
    """A gateway with tight limits and with secrets around it."""
    (folder := open_folder / f"gateway-{layout.level}").mkdir()
    limits = {"--memory-gib": MEMORY_GIB, "--workspace-gib": WORKSPACE_GIB, "--processes": PROCESSES}
    process = BoxedGateway(layout, folder, *(str(part) for limit in limits.items() for part in limit))
    yield process
    process.stop()


@pytest.fixture(scope="package")
def token(gateway: BoxedGateway) -> str:
    return gateway.token("mallory")


@pytest.fixture(scope="package")
def other_token(gateway: BoxedGateway) -> str:
    return gateway.token("alice")


@pytest.fixture(scope="package")
def other(gateway: BoxedGateway, other_token: str) -> Iterator[Cell]:
    """Another principal's session, the same one through all attacks: it keeps its state and answers."""
    with gateway.client(other_token) as client:
        cell = Cell(client, "others", gpus=0)
        cell.session.run("kept = 0")
        gateway.held_sessions += 1
        yield cell
        gateway.held_sessions -= 1
        cell.session.close()


@pytest.fixture(scope="package")
def attacker(gateway: BoxedGateway, token: str) -> Iterator[Cell]:
    """A session for attacks that are refused and leave it alive."""
    with gateway.client(token) as client:
        cell = Cell(client, "attackers", gpus=0)
        cell.session.run("pass")
        gateway.held_sessions += 1
        yield cell
        gateway.held_sessions -= 1
        cell.session.close()


@pytest.fixture
def cell(client: Client) -> Cell:
    """A session of its own, for attacks that may end it."""
    return Cell(client, gpus=0)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test the gateway is the same process, and only sessions held on purpose and spares are left."""
    if "gateway" not in request.fixturenames:
        yield
        return
    gateway: BoxedGateway = request.getfixturevalue("gateway")
    for name in ("other", "attacker"):  # before the count: they outlive the test
        if name in request.fixturenames:
            request.getfixturevalue(name)
    threads = set(threading.enumerate())
    yield
    assert gateway.process.poll() is None, gateway.log.read_text()[-2000:]

    def settled() -> bool:
        try:
            hosts = gateway.hosts()
            boxes = [box for host in hosts for box in host.children()]
        except psutil.NoSuchProcess:  # one ended while we looked
            return False
        links = len(os.listdir(f"/proc/{gateway.pid}/fd"))
        return (
            len(hosts) <= gateway.held_sessions + len(gateway.principals)
            and len(boxes) <= len(hosts)
            and links <= 28 + 2 * len(hosts)
        )

    until(settled, 20, "only held sessions and one spare worker a principal are left")
    until(lambda: set(threading.enumerate()) <= threads, 10, f"threads end: {set(threading.enumerate()) - threads}")


@pytest.fixture(autouse=True)
def others_go_on(request: pytest.FixtureRequest, no_leaks: None) -> Iterator[None]:
    """After each attack the other principal's session has its state and answers."""
    yield
    if "other" in request.fixturenames:
        other: Cell = request.getfixturevalue("other")
        assert other.session.run("kept").text == "0"
