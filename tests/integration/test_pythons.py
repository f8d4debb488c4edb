"""Interpreter environments that a gateway offers by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoral_magic import Client
from kcoral_magic.errors import ExecutionLost, NotFoundError, SessionShapeError
from tests.attacks.layouts import make_environment
from tests.support import GatewayProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One with another environment beside its own that has its packages, and one that has none."""
    folder = tmp_path_factory.mktemp("pythons")
    folder.chmod(0o755)
    other = make_environment(folder / "other", Path(os.path.realpath(sys.executable)))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    options = ["--python", f"other={other}", "--python", f"bare={folder / 'bare' / 'bin' / 'python'}"]
    process = GatewayProcess(folder / "state", *options, gpus=0)
    process.spares = 3
    yield process
    process.stop()


def test_a_session_runs_in_the_environment_that_it_names(client: Client) -> None:
    other, own = client.session("other", python="other"), client.session("own")
    assert other.run("import sys; print(sys.prefix)").stdout.endswith("/other\n")
    assert not own.run("import sys; print(sys.prefix)").stdout.endswith("/other\n")
    with pytest.raises(SessionShapeError, match="use --session NAME"):
        client.session("own", python="other").run("1")
    other.close()
    own.close()


def test_an_unknown_environment_is_refused_with_those_there_are(client: Client) -> None:
    with pytest.raises(NotFoundError, match="no interpreter environment 'torch', this gateway has other, bare"):
        client.session("x", python="torch").run("1")


def test_an_environment_without_the_packages_says_which_is_missing(client: Client) -> None:
    with pytest.raises(ExecutionLost, match="ModuleNotFoundError: No module named"):
        client.session("bare", python="bare").run("1")
    client.close_session("bare")
