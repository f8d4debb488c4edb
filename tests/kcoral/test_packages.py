"""Programs that import ``kcoral.builtins``: a gateway has an environment with it, whose name stands in the URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kcoral.conftest import address
from tests.kcoral.environment import Kcoral, cases
from tests.support import GatewayProcess


@pytest.fixture(scope="module")
def gateway(kcoral_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway without GPUs that has KCoral's environment beside its own."""
    state = tmp_path_factory.mktemp("packages") / "state"
    process = GatewayProcess(state, "--python", f"kcoral={kcoral_python}", gpus=0)
    process.spares = 4
    yield process
    process.stop()


@pytest.fixture(scope="module")
def token(gateway: GatewayProcess) -> str:
    return gateway.token()


@pytest.fixture
def kcoral(kcoral_python: str, gateway: GatewayProcess, token: str, tmp_path: Path) -> Kcoral:
    return Kcoral(kcoral_python, address(gateway, token).replace("//x:", "//kcoral:"), tmp_path)


@pytest.mark.parametrize("name", cases("packages"))
def test_packages(kcoral: Kcoral, name: str) -> None:
    kcoral.case("packages", name)
