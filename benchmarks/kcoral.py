"""Programs on KCoral 0.1.1's server and on ours, in one run: ``make bench``, or ``python -m benchmarks.kcoral``.

Both serve the CPU, with two workers, one program for each worker, and their default sandbox; KCoral's own client asks
both, but for the rows of our own client and command. The sides take turns, and between two latency requests both pools
are given the time to be full again. Figures are for one machine; only the ratios mean anything elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.report import Pairs, Report, gateway, machine
from kcoral_magic import Client, Program
from kcoral_magic.config import Target

_ROOT = Path(__file__).parents[1]
_MIB = 1024 * 1024
_SIZE = 100 * _MIB
_WORKERS = 2
_LEAVE_S = 0.2  # for the worker that has answered to be gone
_SETTLE_S = 1.0  # a worker that has been started still imports
_WAIT_S = 60.0


class Driver:
    """KCoral's client, in a process of its own."""

    def __init__(self, python: str) -> None:
        # -P: this folder has a kcoral.py, which is not the one it means.
        command = [python, "-P", str(Path(__file__).with_name("kcoral_driver.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *request: object) -> float:
        """Do it: seconds, or requests per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"KCoral's client failed on {request[0]}: its traceback is above")
        return float(json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_WAIT_S)


@contextlib.contextmanager
def kcoral_server(python: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """KCoral's server, from a copy of its environment: its sandbox hides whatever lies below ``/work``."""
    shutil.copytree(Path(python).parents[1], folder / "environment", symlinks=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {"--device": "cpu", "--num-workers": _WORKERS, "--host": "127.0.0.1", "--port": port}
    options |= {"--log-dir": folder / "logs", "--disk-cache-dir": folder / "cache"}
    command = [str(folder / "environment" / "bin" / Path(python).name), "-m", "kcoral", "server", "--no-log-console"]
    command += [str(word) for option in options.items() for word in option]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: has_full_pool(url), "KCoral's server starts", process)
        events = "".join(path.read_text() for path in folder.glob("logs/runs/*/events.jsonl"))
        if '"sandbox_disabled"' in events:
            raise SystemExit(f"KCoral's sandbox does not work here, which would be no comparison:\n{events}")
        yield url, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def has_full_pool(url: str) -> bool:
    """Whether all of KCoral's workers wait for a request."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            load = json.load(answer)["load"]
    except OSError:
        return False
    return bool(load["request_capacity"] == _WORKERS and not load["requests_in_progress"])


def wait_for(what: Callable[[], bool], why: str, process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + _WAIT_S
    while not what():
        if time.monotonic() > end or (process is not None and process.poll() is not None):
            raise RuntimeError(f"this did not happen: {why}")
        time.sleep(0.02)


class Sides:
    """Both servers and what asks them."""

    def __init__(
        self, python: str, target: Target, ours: psutil.Process, their_url: str, theirs: psutil.Process
    ) -> None:
        assert target.url is not None
        self.target = target
        self.processes = (ours, theirs)
        self.urls = (target.url.replace("ws://", f"http://x:{target.token}@"), their_url)
        self.driver = Driver(python)
        scripts = Path(sys.executable).parent, Path(python).parent
        code = ("-c", "print(1)")
        self.commands = (
            [str(scripts[0] / "kcoral-magic"), "run", "python", "--", *code],
            [str(scripts[1] / "kcoral"), "run", "python", "--", *code],
        )

    def settle(self) -> None:
        """Wait until both have a worker for whoever comes next."""
        ours, _ = self.processes
        time.sleep(_LEAVE_S)
        wait_for(lambda: has_full_pool(self.urls[1]), "KCoral's pool is full")
        wait_for(lambda: has_settled(ours), "our gateway has spare workers")

    def rounds(self, count: int, ours: Callable[[], float], theirs: Callable[[], float]) -> Pairs:
        """The two taking turns; one round before is thrown away."""
        found = []
        for number in range(count + 1):
            calls: list[Callable[[], float]] = [ours, theirs]
            if number % 2:  # neither always comes right after the other
                calls.reverse()
            values = []
            for call in calls:
                self.settle()
                values.append(call())
            found.append(values[::-1] if number % 2 else values)
        return found[1:]

    def http(self, count: int, *request: object) -> Pairs:
        """Rounds of one request of KCoral's client."""
        name, *arguments = request
        ours, theirs = (lambda url=url: self.driver(name, url, *arguments) for url in self.urls)
        return self.rounds(count, ours, theirs)

    def command(self, side: int) -> float:
        """Seconds of a whole command."""
        assert self.target.token is not None
        assert self.target.url is not None
        own = {"KCORAL_MAGIC_URL": self.target.url, "KCORAL_MAGIC_TOKEN": self.target.token, "KCORAL_URL": self.urls[1]}
        began = time.perf_counter()
        ran = subprocess.run(
            self.commands[side], env={**os.environ, **own}, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        took = time.perf_counter() - began
        if ran.stdout != "1\n":
            raise RuntimeError(f"{self.commands[side][0]} printed {ran.stdout!r}\n{ran.stderr}")
        return took


def has_settled(process: psutil.Process) -> bool:
    """Whether our gateway has workers, and all of them have had the time to become ready."""
    born = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "kcoral_gateway.worker" in " ".join(child.cmdline()):
                born.append(child.create_time())
    return bool(born) and time.time() - max(born) >= _SETTLE_S


# ── rows ──


def http(sides: Sides, report: Report, count: int) -> None:
    report.ratio("trivial program, fresh sandboxed worker, HTTP", sides.http(2 * count, "trivial"), 0.35)


def websocket(sides: Sides, report: Report, count: int) -> None:
    program = Program()
    module = program.upload(kind="module", source="def add(a, b): return a + b")
    made = program.run(fn=program.get_function(module=module, name="add", cpu_only=True), args=[1, 2])
    program.return_(key="made", value=made)
    with Client(target=sides.target) as client:

        def ours() -> float:
            began = time.perf_counter()
            result = client.execute(program, gpu_count=0)
            took = time.perf_counter() - began
            if result["made"] != 3:
                raise RuntimeError("another answer was expected")
            return took

        pairs = sides.rounds(2 * count, ours, lambda: sides.driver("trivial", sides.urls[1]))
    report.ratio("the same, our client / KCoral's", pairs, 0.2)


def load(sides: Sides, report: Report, count: int) -> None:
    pairs = sides.http(max(3, count // 2), "load", 8, 4.0)
    report.ratio(f"{_WORKERS} fresh workers, 8 clients", pairs, 2.5, unit="requests/s", is_least=True)


def known(sides: Sides, report: Report, count: int) -> None:
    report.ratio("100 MiB upload, known already", sides.http(count, "upload_known", _SIZE), 0.3)


def new(sides: Sides, report: Report, count: int) -> None:
    report.ratio("100 MiB upload, new", sides.http(count, "upload_new", _SIZE), 0.6)


def back(sides: Sides, report: Report, count: int) -> None:
    report.ratio("100 MiB returned", sides.http(count, "get_back", _SIZE), 0.6)


def command(sides: Sides, report: Report, count: int) -> None:
    label = "kcoral-magic run python / kcoral run python"
    if subprocess.run([sides.commands[0][0], "run", "--help"], capture_output=True, check=False).returncode != 0:
        report.add(label, "not there yet", "", "", "≤ 0.5", False)
        return
    report.ratio(label, sides.rounds(2 * count, lambda: sides.command(0), lambda: sides.command(1)), 0.5)


def memory(sides: Sides, report: Report, count: int) -> None:
    """The most that each front-end process grows by."""
    grown = []
    for url, process in zip(sides.urls, sides.processes, strict=True):
        sides.settle()
        before = peak = process.memory_info().rss
        echo = threading.Thread(target=sides.driver, args=("echo", url, 2 * _SIZE))
        echo.start()
        while echo.is_alive():
            peak = max(peak, process.memory_info().rss)
            echo.join(0.01)
        grown.append((peak - before) / _MIB)
    ours, theirs = grown
    report.add("front end's memory, 200 MiB echo", f"{ours:.1f} / {theirs:.1f} MiB", "", "", "< 100 MiB", ours < 100)


ROWS: dict[str, Callable[[Sides, Report, int], None]] = {
    row.__name__: row for row in (http, websocket, load, known, new, back, command, memory)
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=list(ROWS), help="a row; repeatable")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args(arguments)
    python = os.environ.get("KCORAL_PYTHON") or str(_ROOT / ".venv" / "kcoral" / "bin" / "python")
    if not os.access(python, os.X_OK):
        raise SystemExit(f"there is no {python}: `make .venv/.kcoral` installs the real KCoral")
    os.environ.pop("PYTHONUNBUFFERED", None)
    report = Report("ours / KCoral")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        their_url, theirs = stack.enter_context(kcoral_server(python, folder))
        target, ours = stack.enter_context(gateway(folder, "--cpu-workers", str(_WORKERS)))
        sides = Sides(python, target, ours, their_url, theirs)
        stack.callback(sides.driver.close)
        for url in sides.urls:
            sides.driver("trivial", url)
        for name in options.only or ROWS:
            ROWS[name](sides, report, options.rounds)
    print("\n" + report.markdown())
    print(f"\nKCoral 0.1.1, {machine('uvicorn', 'uvloop')}; {options.rounds} rounds, {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(report.rows, indent=1))
    sys.exit(0 if report.is_met else 1)


if __name__ == "__main__":
    main()
