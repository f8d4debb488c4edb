"""What a cell costs, against a local ipykernel in the same run: ``make bench``.

Cases alternate in rounds, so that a busy moment of the machine meets both sides; each round gives one ratio, the table
shows the median ratio and its range. Figures are for one machine; only the ratios mean anything elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

from benchmarks.report import Pairs, Report, gateway, machine
from kcoral_magic import Client
from kcoral_magic.config import Target
from kcoral_magic.protocol import messages as m

_LINES = 100_000
_PAUSE_S = 8.0


class Kernel:
    """A local ipykernel, as a front end sees it."""

    def __init__(self) -> None:
        began = time.perf_counter()
        self._manager = KernelManager()
        self._manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self.client = self._manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.start_s = time.perf_counter() - began

    def run(self, source: str, on_stream: Callable[[str], None] = lambda text: None) -> float:
        """Seconds from execute to idle."""
        began = time.perf_counter()
        wanted = self.client.execute(source)
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != wanted:
                continue
            if message["msg_type"] == "stream":
                on_stream(message["content"]["text"])
            elif message["msg_type"] == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            elif message["content"].get("execution_state") == "idle":
                break
        took = time.perf_counter() - began
        with contextlib.suppress(Empty):
            self.client.get_shell_msg(timeout=10)
        return took

    def close(self) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def run_cell(session: Any, source: str = "pass") -> float:
    began = time.perf_counter()
    session.run(source)
    return time.perf_counter() - began


def first_output(session: Any, source: str) -> float:
    began = time.perf_counter()
    first = 0.0
    for output in session.execute(source):
        if isinstance(output.body, m.Stream) and not first:
            first = time.perf_counter() - began
    return first


def kernel_first_output(kernel: Kernel, source: str) -> float:
    began = time.perf_counter()
    seen: list[float] = []
    kernel.run(source, lambda text: seen.append(time.perf_counter() - began))
    return seen[0]


def rounds(count: int, ours: Callable[[], float], theirs: Callable[[], float], repeat: int) -> Pairs:
    """``count`` rounds: a block of ``repeat`` calls of each side, and their medians. Warm caches for both."""
    found = []
    for _ in range(count):
        blocks = [statistics.median(call() for _ in range(repeat)) for call in (ours, theirs)]
        found.append((blocks[0], blocks[1]))
    return found


def alternating(count: int, ours: Callable[[], float], theirs: Callable[[], float], repeat: int) -> Pairs:
    """The same with the two sides taking turns call by call: each finds its caches cold."""
    found = []
    for _ in range(count):
        calls = [(ours(), theirs()) for _ in range(repeat)]
        found.append((statistics.median(a for a, _ in calls), statistics.median(b for _, b in calls)))
    return found


def throughput(session: Any, kernel: Kernel, report: Report, count: int) -> None:
    source = f"for i in range({_LINES}): print(i)"
    expected = "".join(f"{i}\n" for i in range(_LINES))
    pairs, frames = [], 0
    for _ in range(count):
        began = time.perf_counter()
        execution = session.execute(source)
        frames = max(frames, sum(isinstance(output.body, m.Stream) for output in execution))
        ours = time.perf_counter() - began
        if execution.result().stdout != expected:
            raise RuntimeError("lines were lost")
        got: list[str] = []
        theirs = kernel.run(source, got.append)
        pairs.append((_LINES / ours, _LINES / theirs))
    values = sorted(ours / theirs for ours, theirs in pairs)
    mine, peer = statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
    middle = statistics.median(values)
    report.add(
        "100,000 printed lines, complete",
        f"{mine:,.0f} / {peer:,.0f} lines/s",
        f"{middle:.2f}",
        f"{values[0]:.2f}–{values[-1]:.2f}",
        "≥ 2",
        middle >= 2,
    )
    report.add("  their frames", f"{frames:,}", "", "", "≤ 10,000", frames <= 10_000)


def starts(client: Client, report: Report, count: int) -> None:
    spare, cold = [], []
    with contextlib.closing(Kernel()) as warm_up:
        warm_up.run("pass")
    for number in range(count):
        kernel = Kernel()
        kernel.close()
        # A first session of a shape starts cold and leaves a spare behind; the second takes it.
        for name, into in ((f"cold-{number}", cold), (f"spare-{number}", spare)):
            if into is spare:
                time.sleep(1.0)  # the spare is started in the background: give it the time a person takes
            else:
                drop_spare(client)
            session = client.session(name, gpus=0)
            began = time.perf_counter()
            session.run("pass")
            into.append((time.perf_counter() - began, kernel.start_s))
        for name in (f"cold-{number}", f"spare-{number}"):
            client.close_session(name)
    report.ratio("new session on a spare worker / kernel start", spare, 0.05)
    report.ratio("new session, cold, without torch / kernel start", cold, 0.6)


def drop_spare(client: Client) -> None:
    """Make the next session of no GPU a cold one: the spare is kept for the last shape, so use another."""
    client.session("other-shape", gpus=1).run("pass")
    client.close_session("other-shape")
    time.sleep(1.0)


def paused_client(target: Target, process: psutil.Process, report: Report) -> None:
    """A client that is stopped in the middle of a flood."""
    source = (
        "import sys\nfrom kcoral_magic import Client\nfrom kcoral_magic.config import Target\n"
        f"with Client(target=Target({target.url!r}, sys.stdin.readline().strip())) as client:\n"
        f"    for output in client.session(gpus=0).execute('!timeout {_PAUSE_S:.0f} yes'):\n"
        "        print('.', end='', flush=True)\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdin is not None
    assert reader.stdout is not None
    assert target.token is not None
    before = process.memory_info().rss
    reader.stdin.write(target.token.encode() + b"\n")
    reader.stdin.close()
    reader.stdout.read(5)
    reader.send_signal(signal.SIGSTOP)
    peak = before
    until = time.monotonic() + _PAUSE_S
    while time.monotonic() < until:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.05)
    reader.send_signal(signal.SIGCONT)
    reader.kill()
    reader.wait()
    grown = (peak - before) / 2**20
    report.add("gateway memory, client paused under yes", f"{grown:.1f} MiB", "", "", "< 64 MiB", grown < 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--latency", action="store_true", help="the first figures only")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args()
    os.environ.pop("PYTHONUNBUFFERED", None)
    report = Report("ours / ipykernel")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), "--simulate-gpus", "2") as (target, process):
        measure(target, process, report, options.rounds, is_latency_only=options.latency)
    print("\n" + report.markdown())
    packages = ("ipykernel", "ipython", "websockets", "uvicorn", "uvloop")
    print(f"\n{machine(*packages)}; {options.rounds} rounds")
    if options.json:
        options.json.write_text(json.dumps(report.rows, indent=1))
    sys.exit(0 if report.is_met else 1)


def measure(
    target: Target, process: psutil.Process, report: Report, count: int, *, is_latency_only: bool = False
) -> None:
    with Client(target=target) as client, contextlib.closing(Kernel()) as kernel:
        session = client.session(gpus=0)
        run_cell(session)
        kernel.run("pass")
        report.ratio(
            "trivial cell, client API / ipykernel execute → idle",
            rounds(count, lambda: run_cell(session), lambda: kernel.run("pass"), 40),
            0.3,
        )
        report.ratio(
            "  the same, the two taking turns call by call",
            alternating(count, lambda: run_cell(session), lambda: kernel.run("pass"), 40),
            1.0,  # cold caches on both sides; not a bar of anybody but ours: no dearer than a local cell
        )
        flushed = "print(1, flush=True)"
        report.ratio(
            "first output of a flushed print",
            rounds(count, lambda: first_output(session, flushed), lambda: kernel_first_output(kernel, flushed), 25),
            0.5,
        )
        in_kernel(target, report, count)
        if is_latency_only:
            return
        throughput(session, kernel, report, count)
        starts(client, report, count)
    paused_client(target, process, report)


def in_kernel(target: Target, report: Report, count: int) -> None:
    """``%%kcoral`` in a kernel against a plain cell of that kernel."""
    with contextlib.closing(Kernel()) as kernel:
        assert target.url
        assert target.token
        kernel.run(
            f"import os; os.environ.update(KCORAL_MAGIC_URL={target.url!r}, KCORAL_MAGIC_TOKEN={target.token!r})"
        )
        kernel.run("%load_ext kcoral_magic")
        kernel.run("%%kcoral --gpus 0\npass")
        pairs = rounds(count, lambda: kernel.run("%%kcoral\npass"), lambda: kernel.run("pass"), 25)
    report.ratio("%%kcoral pass / pass, both in one kernel", pairs, 1.5)


if __name__ == "__main__":
    main()
