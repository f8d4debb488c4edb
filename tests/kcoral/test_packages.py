"""Programs that import ``kcoral.builtins``: the gateway runs in an environment that has it, as a GPU host's would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kcoral.conftest import address
from tests.kcoral.environment import Kcoral, cases
from tests.support import GatewayProcess


@pytest.fixture(scope="module")
def gateway(kcoral_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway without GPUs whose own interpreter is KCoral's: workers have the gateway's packages."""
    process = GatewayProcess(tmp_path_factory.mktemp("packages") / "state", python=kcoral_python, gpus=0)
    process.spares = 4
    yield process
    process.stop()


@pytest.fixture(scope="module")
def token(gateway: GatewayProcess) -> str:
    return gateway.token()


@pytest.fixture
def kcoral(kcoral_python: str, gateway: GatewayProcess, token: str, tmp_path: Path) -> Kcoral:
    return Kcoral(kcoral_python, address(gateway, token), tmp_path)


@pytest.mark.parametrize("name", cases("packages"))
def test_packages(kcoral: Kcoral, name: str) -> None:
    kcoral.case("packages", name)
