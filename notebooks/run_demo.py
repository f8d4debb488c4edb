"""``make demo``: runs quickstart.ipynb in a real kernel and prints what its cells print, as they print it.

The demo brings a gateway of its own, in a folder of its own: with two simulated GPUs, unless this machine has two real
ones that nobody uses.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
_BOLD, _DIM, _END = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Printing(NotebookClient):
    """Prints each output message when it arrives; what is updated in place, on one line of a terminal."""

    live = ""

    def show_live(self, text: str) -> None:
        self.live = text
        if sys.stdout.isatty():
            show(f"\r\x1b[K{text}")

    def end_live(self) -> None:
        if self.live:
            show("\n" if sys.stdout.isatty() else f"{self.live}\n")
        self.live = ""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        content = msg["content"]
        match msg["msg_type"]:
            case "display_data" | "update_display_data" if content.get("transient", {}).get("display_id"):
                self.show_live(content["data"].get("text/plain", ""))
            case "stream":
                self.end_live()
                show(content["text"])
            case "display_data" | "execute_result":
                self.end_live()
                bundle(content["data"])
            case "error":
                self.end_live()
                show("\n".join(content["traceback"]) + "\n")
        return super().process_message(msg, cell, cell_index)


def show(text: str) -> None:
    print(text if sys.stdout.isatty() else _ANSI.sub("", text), end="", flush=True)


def bundle(data: dict[str, Any]) -> None:
    if "image/png" in data:
        size = len(base64.b64decode(data["image/png"]))
        show(f"[a picture, {size:,} bytes: see it in the notebook]\n")
    else:
        show(f"{data.get('text/plain', '')}\n")


def gateway_options() -> str:
    """Two real GPUs if they are there and idle, else two simulated ones."""
    asked = subprocess.run([sys.executable, "-m", "kcoral_gateway.host", "inventory"], capture_output=True, check=True)
    found = json.loads(asked.stdout)
    free = [gpu for gpu in found["gpus"] if gpu["uuid"] not in found["busy"]]
    if len(free) >= 2:
        print(f"GPUs: {len(free)} × {free[0]['name']}")
        return ""
    print("GPUs: this machine has no two free ones, so the demo asks its gateway to SIMULATE two (--simulate-gpus 2).")
    return "--simulate-gpus 2"


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kcoral-demo-", ignore_cleanup_errors=True) as state:
        options = gateway_options()
        environment = {"XDG_STATE_HOME": state, "XDG_CONFIG_HOME": state, "KCORAL_GATEWAY_OPTIONS": options}
        os.environ.update(environment)
        for name in ("KCORAL_MAGIC_URL", "KCORAL_MAGIC_TOKEN"):
            os.environ.pop(name, None)
        notebook = nbformat.read(HERE / "quickstart.ipynb", as_version=4)
        try:
            run(notebook)
        finally:
            stop_gateways(Path(state))
    print(f"\n{_BOLD}The demo ran in {time.monotonic() - began:.0f} s.{_END} To open the notebook in JupyterLab:\n")
    print(f"    {BIN.relative_to(Path.cwd()) if BIN.is_relative_to(Path.cwd()) else BIN}/pip install jupyterlab")
    lab = BIN.relative_to(Path.cwd()) if BIN.is_relative_to(Path.cwd()) else BIN
    print(f"    KCORAL_GATEWAY_OPTIONS='{options}' {lab}/jupyter lab notebooks/quickstart.ipynb\n")


def run(notebook: Any) -> None:
    resources = {"metadata": {"path": str(HERE)}}
    quiet = ["--log-level=ERROR"]
    client = Printing(notebook, timeout=60, kernel_name="python3", resources=resources, extra_arguments=quiet)
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                print(f"\n{_BOLD}{cell.source.splitlines()[0].lstrip('# ')}{_END}")
                continue
            print("\n" + "\n".join(f"{_DIM}  │ {line}{_END}" for line in cell.source.splitlines()))
            client.execute_cell(cell, index)
            client.end_live()


def stop_gateways(state: Path) -> None:
    for path in state.glob("kcoral-gateway/*/gateway.json"):
        os.kill(json.loads(path.read_text())["pid"], signal.SIGTERM)
        for _ in range(200):
            if not path.exists():
                break
            time.sleep(0.05)


if __name__ == "__main__":
    main()
