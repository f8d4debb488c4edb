"""The real KCoral client, in its own environment, against our gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kcoral.environment import Kcoral, find_python
from tests.support import GatewayProcess


@pytest.fixture(scope="session")
def kcoral_python() -> str:
    """The interpreter that has ``kcoral``."""
    return find_python()


@pytest.fixture(scope="session")
def gateway(kcoral_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for all of these tests; asked for after the environment, so that a missing one is said at once."""
    process = GatewayProcess(tmp_path_factory.mktemp("kcoral") / "state", "--cpu-workers", "4")
    process.spares = 16  # two GPUs, eight workers each
    yield process
    process.stop()


@pytest.fixture(scope="session")
def token(gateway: GatewayProcess) -> str:
    return gateway.token()


@pytest.fixture
def kcoral(kcoral_python: str, gateway: GatewayProcess, token: str, tmp_path: Path) -> Kcoral:
    """The client and the command, with ``KCORAL_URL`` set."""
    return Kcoral(kcoral_python, address(gateway, token), tmp_path)


@pytest.fixture
def address_of(gateway: GatewayProcess) -> Callable[[str], str]:
    """``KCORAL_URL`` with another token."""
    return lambda token: address(gateway, token)


def address(gateway: GatewayProcess, token: str) -> str:
    return gateway.url.replace("ws://", f"http://x:{token}@")
