"""A real ipykernel as a front end sees it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """What one execute request came to."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    msg_id: str = ""

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [message["content"] for message in self.messages if message["msg_type"] in kinds]

    def text(self, name: str = "stdout") -> str:
        return "".join(content["text"] for content in self.of("stream") if content["name"] == name)

    @property
    def traceback(self) -> str:
        return _ANSI.sub("", "\n".join(self.of("error")[-1]["traceback"]))

    @property
    def ename(self) -> str:
        return str(self.of("error")[-1]["ename"])

    def shown(self) -> list[str]:
        """The cell's outputs as a notebook keeps them: updates applied, clears obeyed, texts only."""
        outputs: list[list[str]] = []
        clears = False
        for message in self.messages:
            content, kind = message["content"], message["msg_type"]
            if kind == "clear_output":
                clears = content["wait"]
                if not clears:
                    outputs = []
                continue
            if kind not in ("stream", "display_data", "execute_result", "update_display_data", "error"):
                continue
            if clears:
                outputs, clears = [], False
            display_id = content.get("transient", {}).get("display_id", "")
            text = content.get("text") or content.get("data", {}).get("text/plain", "") or content.get("ename", "")
            if kind == "update_display_data":
                for output in outputs:
                    if output[0] == f"display:{display_id}":
                        output[1] = text
            elif kind == "stream" and outputs and outputs[-1][0] == f"stream:{content['name']}":
                outputs[-1][1] += text
            else:
                outputs.append([f"display:{display_id}" if kind != "stream" else f"stream:{content['name']}", text])
        return [output[1] for output in outputs]


class Kernel:
    """One kernel process."""

    def __init__(self, cwd: str, env: dict[str, str]) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel(cwd=cwd, env=env, extra_arguments=["--log-level=ERROR"])
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def send(self, source: str) -> Cell:
        return Cell(msg_id=self.client.execute(source))

    def wait(self, cell: Cell, seconds: float = 30.0, until: Any = None) -> Cell:
        """Collect until idle and replied, or until ``until(cell)`` is true."""
        end = time.monotonic() + seconds
        while True:
            assert time.monotonic() < end, f"not idle after {seconds} s: {cell.messages[-3:]}"
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != cell.msg_id:
                continue
            cell.messages.append(message)
            cell.times_s.append(time.monotonic())
            if until is not None and until(cell):
                return cell
            if message["content"].get("execution_state") == "idle":
                break
        while cell.reply.get("parent_header", {}).get("msg_id") != cell.msg_id:
            cell.reply = self.client.get_shell_msg(timeout=10)
        return cell

    def run(self, source: str, seconds: float = 30.0) -> Cell:
        return self.wait(self.send(source), seconds)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
