"""Cells that do not want to end: stopped, deaf to signals, stuck in C, or leaving daemons behind."""

from __future__ import annotations

import secrets
import time

import psutil
import pytest

from kcoral_magic import Client
from kcoral_magic.errors import ExecutionLost, ExecutionTimeout
from kcoral_magic.protocol import messages as m
from tests.attacks.cells import PRELUDE, Cell, Running
from tests.attacks.layouts import BoxedGateway, one_layout
from tests.support import until

pytestmark = pytest.mark.attack
DEAF = (
    "def deaf(*_): print('heard it', flush=True)\n"
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, deaf)\n"
    "print('deaf', flush=True)\n"
    "while True: time.sleep(1)"
)
# A mutex that is locked twice: no signal ends the second wait, and PyDLL keeps the interpreter's lock.
STUCK = (
    "lib, mutex = _c.PyDLL(None), _c.create_string_buffer(64)\n"
    "lib.pthread_mutex_lock(mutex)\n"
    "print('stuck', flush=True)\n"
    "lib.pthread_mutex_lock(mutex)  # here"
)


def _killed(running: Running, seconds: float = 2.0) -> None:
    """The second press ends it, soon."""
    began = time.monotonic()
    running.execution.interrupt(kill=True)
    error = running.end(10)
    assert isinstance(error, ExecutionLost)
    assert "killed as asked" in str(error)
    assert time.monotonic() - began < seconds


def _marked(marker: str) -> list[psutil.Process]:
    """The machine's processes whose command line has ``marker``."""
    return [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or ())]


def test_a_worker_that_stops_itself_is_ended_by_the_second_press(
    cell: Cell, gateway: BoxedGateway, other: Cell
) -> None:
    running = cell.start("print('stopping', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)")
    running.until_said("stopping")
    until(lambda: [w for w in gateway.interpreters() if w.status() == psutil.STATUS_STOPPED], 5, "it has stopped")
    running.execution.interrupt()
    _killed(running)
    assert cell.session.run("1").text == "1"


def test_a_cell_that_ignores_every_polite_signal_is_ended_by_the_second_press(cell: Cell) -> None:
    running = cell.start(DEAF)
    running.until_said("deaf")
    running.execution.interrupt()
    running.until_said("heard it")
    _killed(running)


def test_a_cell_that_blocks_every_signal_is_ended_by_the_second_press(cell: Cell) -> None:
    running = cell.start(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nprint('deaf', flush=True)\nwhile True: time.sleep(1)"
    )
    running.until_said("deaf")
    running.execution.interrupt()
    _killed(running)


def test_a_cell_that_swallows_interrupts_is_ended_by_its_time_limit(cell: Cell) -> None:
    body = (
        "import time\nwhile True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: print('swallowed', flush=True)"
    )
    running = Running(cell.session.execute(body, timeout_s=0.3))
    assert isinstance(running.end(15), ExecutionTimeout)
    assert "swallowed" in running.text


def test_code_stuck_in_c_is_named_by_its_line_and_ended_by_the_second_press(cell: Cell) -> None:
    running = cell.start(STUCK)
    running.until_said("stuck")
    running.execution.interrupt()

    def told() -> m.Stuck | None:
        running.look()
        return next((output.body for output in running.outputs if isinstance(output.body, m.Stuck)), None)

    stuck = until(told, 15, "it is told where the interpreter stands")
    line = next(n for n, text in enumerate(f"{PRELUDE}\n{STUCK}".splitlines(), 1) if text.endswith("# here"))
    assert stuck.where == f"Cell In[1], line {line}"
    assert 4 < stuck.waited_s < 10
    _killed(running)


DAEMON = (
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        for number in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}}:\n"
    "            signal.signal(number, signal.SIG_IGN)\n"
    "        os.execvp('sleep', ['sleep', '{marker}'])\n"
    "    os._exit(0)\n"
    "os.wait()"
)


@pytest.mark.parametrize("end", ["close", "restart", "kill", "crash"])
def test_a_detached_daemon_ends_with_its_session(end: str, client: Client, cell: Cell) -> None:
    marker = f"9{secrets.randbelow(10**9):09d}.5"
    assert cell.start(DAEMON.format(marker=marker)).end() is None
    daemons = until(lambda: _marked(marker), 5, "the daemon runs")
    assert cell.session.run("1").text == "1"
    assert _marked(marker)
    match end:
        case "close":
            cell.session.close()
        case "restart":
            cell.session.restart()
        case "kill":
            running = cell.start("print('running', flush=True)\ntime.sleep(60)")
            running.until_said("running")
            _killed(running)
        case _:
            with pytest.raises(ExecutionLost):
                cell.session.run("import os\nos._exit(1)")
    _, left = psutil.wait_procs(daemons, 3)
    assert left == []


def test_an_interrupted_cell_s_detached_daemon_ends_with_the_cell(cell: Cell) -> None:
    marker = f"9{secrets.randbelow(10**9):09d}.5"
    running = cell.start(f"{DAEMON.format(marker=marker)}\nprint('left', flush=True)\ntime.sleep(60)")
    running.until_said("left")
    daemons = until(lambda: _marked(marker), 5, "the daemon runs")
    running.execution.interrupt()
    assert isinstance(running.end(5), KeyboardInterrupt)
    _, left = psutil.wait_procs(daemons, 3)
    assert left == []


def test_a_signal_between_two_cells_ends_nothing(cell: Cell) -> None:
    marker = f"9{secrets.randbelow(10**9):09d}.5"
    sender = f"sleep 0.2; kill -INT $PPID; exec sleep {marker}"
    cell.session.run(f"import subprocess\nkept = 1\nsender = subprocess.Popen(['sh', '-c', {sender!r}])")
    until(lambda: _marked(marker), 5, "the signal was sent")
    assert cell.session.run("sender.kill(); kept").text == "1"


@one_layout
@pytest.mark.parametrize(
    ("crash", "cause"),
    [
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "SIGBUS"),
        ("os._exit(3)", "exit code 3"),
    ],
)
def test_a_crash_is_named_for_what_it_was(crash: str, cause: str, cell: Cell) -> None:
    with pytest.raises(ExecutionLost, match=cause):
        cell.session.run(f"import ctypes, os, signal\n{crash}")


def test_signals_to_the_own_process_group_reach_no_one_else(cell: Cell, gateway: BoxedGateway, other: Cell) -> None:
    running = cell.start("os.killpg(0, signal.SIGKILL)")
    assert isinstance(running.end(5), ExecutionLost)
    assert gateway.me.is_running()
