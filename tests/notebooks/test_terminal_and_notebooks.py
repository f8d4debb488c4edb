"""The other fronts: plain terminal IPython, and notebooks run by nbclient. Public fault 7 in a saved notebook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support import GatewayProcess

pytestmark = pytest.mark.notebook
ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(gateway: GatewayProcess, token: str, tmp_path: Path) -> dict[str, str]:
    dropped = ("PYTHONUNBUFFERED", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"HOME": str(tmp_path), "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token}


def test_a_plain_terminal_ipython_shows_output_values_and_errors(env: dict[str, str]) -> None:
    source = (
        "%load_ext kcoral_magic\n"
        "get_ipython().run_cell_magic('kcoral', '--gpus 0', 'print(\"remote\")\\n6 * 7')\n"
        "get_ipython().run_cell_magic('kcoral', '', '1 / 0')\n"
        "%kcoral sessions\n"
    )
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors", "NoColor"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, env=env, timeout=60)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert "remote\n" in shown
    assert "Out[2]: 42" in shown
    assert "ZeroDivisionError: division by zero" in shown
    assert "(this notebook)" in shown
    assert "kcoral_magic/" not in shown


def _run(cells: list[str], env: dict[str, str]) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    with client.setup_kernel(env=env):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    return notebook


def test_a_saved_notebook_holds_one_final_line_of_a_bar(env: dict[str, str]) -> None:
    notebook = _run(
        [
            "%load_ext kcoral_magic",
            "%%kcoral --gpus 0\nfrom tqdm import tqdm\nimport time\n"
            "for i in tqdm(range(60)): time.sleep(0.01)\nprint('x')",
        ],
        env,
    )
    bar, text = notebook.cells[1].outputs
    assert bar["data"]["text/plain"].startswith("100%")
    assert "\r" not in str(notebook)
    assert text["text"] == "x\n"


def test_a_remote_error_stops_a_notebook_run(env: dict[str, str]) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        _run(["%load_ext kcoral_magic", "%%kcoral --gpus 0\n1 / 0", "print('never')"], env)


def test_the_quickstart_runs_as_it_is_shipped(env: dict[str, str]) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    _run([cell.source for cell in notebook.cells if cell.cell_type == "code"], env)


def test_the_functions_notebook_runs_as_it_is_shipped(
    gateway: GatewayProcess, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "remote_functions.ipynb", as_version=4)
    gateway.spares = 7
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code")
    assert "spread of 10 values" in shown
    assert "[8, 16, 111, 118]" in shown
    assert "19900 200 bytes" in shown
    assert "instruction 6 (run run_6) failed, engine: TypeError" in shown
    assert "from there" in shown
    assert "begins with" in shown


def test_the_values_notebook_runs_as_it_is_shipped(
    gateway: GatewayProcess, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a gateway that is trusted, as one's own is: a class of the notebook comes back as itself."""
    folder = tmp_path / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder)
    notebook = nbformat.read(folder / "values.ipynb", as_version=4)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells[0].source += f"\n%kcoral connect {gateway.url} --trust"
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [str(cell.outputs) for cell in cells]
    assert any("rate 0.5 → 2.0" in text for text in shown)
    assert any("Run('run-5', loss=0.167) True" in text for text in shown)
    assert any("tuned lives in the remote session" in text for text in shown)
    assert not (folder / "fetched").exists()
