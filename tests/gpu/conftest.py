"""What a GPU machine has, asked once. Each test names what it needs; what is missing skips it, with the reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kcoral_magic import Client
from tests.support import GatewayProcess


def _inventory() -> dict[str, object]:
    command = [sys.executable, "-m", "kcoral_gateway.host", "inventory"]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def inventory() -> dict[str, object]:
    """NVML's list; without a GPU every test of this lane is skipped."""
    found = _inventory()
    if not found["gpus"]:
        pytest.skip(f"not run on a GPU: {found['reason']}")
    return found


@pytest.fixture(scope="session")
def torch(inventory: dict[str, object]) -> object:
    """The machine's own torch, if it sees the GPU."""
    found = pytest.importorskip("torch", reason="torch is not installed here")
    if not found.cuda.is_available():
        pytest.skip("the torch here has no CUDA")
    return found


@pytest.fixture(scope="session")
def nvcc(inventory: dict[str, object]) -> str:
    """The compiler, as workers find it."""
    path = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if path is None:
        pytest.skip("nvcc is not installed here")
    return path


@pytest.fixture(scope="session")
def real(inventory: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a gateway that has this machine's GPUs; its workers' isolation is printed."""
    gateway = GatewayProcess(tmp_path_factory.mktemp("gpu") / "state", gpus=0)
    try:
        with gateway.client() as client:
            print(f"isolation: {client.connect().sandbox}")
            yield client
    finally:
        gateway.stop()
