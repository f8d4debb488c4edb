"""A kernel with the extension loaded, on a gateway of the test module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.notebooks.kernels import Kernel
from tests.support import GatewayProcess


@pytest.fixture(scope="module")
def kernel(gateway: GatewayProcess, token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = tmp_path_factory.mktemp("home")
    dropped = ("PYTHONUNBUFFERED", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"HOME": str(home), "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token}
    started = Kernel(str(home), env)
    assert started.run("%load_ext kcoral_magic").shown() == []
    yield started
    started.close()


@pytest.fixture(autouse=True)
def fresh_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins without a session of its own, and connected."""
    yield
    if "kernel" in request.fixturenames:
        request.getfixturevalue("kernel").run(
            "try: get_ipython().run_line_magic('kcoral', 'close')\nexcept Exception: pass"
        )
