"""Fork bombs meet the limit of their own session, and end with it."""

from __future__ import annotations

import contextlib

import psutil
import pytest

from tests.attacks.cells import Cell
from tests.attacks.layouts import PROCESSES, BoxedGateway
from tests.support import until

pytestmark = pytest.mark.attack
# Every process forks and spins; whoever may not fork says so once.
BOMB = """
def spin():
    while True:
        try:
            os.fork()
        except BlockingIOError:
            pass
if os.fork() == 0:
    spin()
count = 0
while count < 200:
    try:
        if os.fork() == 0:
            spin()
        count += 1
    except BlockingIOError:
        break
print('full', count, flush=True)
while True:
    time.sleep(1)
"""


def _alive(host: psutil.Process) -> list[psutil.Process]:
    """What runs below a worker host; those that have ended and wait for a careless parent do not count."""
    found = []
    for process in host.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _exploded(gateway: BoxedGateway) -> psutil.Process:
    """The host below which the bomb is."""
    return max(gateway.hosts(), key=lambda host: len(host.children(recursive=True)))


@pytest.mark.parametrize(
    "one_more",
    [
        "if os.fork() == 0: time.sleep(60); os._exit(0)",
        "subprocess.Popen(['sleep', '60'])",
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ],
    ids=["fork", "program", "thread"],
)
def test_processes_and_threads_beyond_the_limit_are_refused_in_the_cell(
    one_more: str, cell: Cell, other: Cell, gateway: BoxedGateway
) -> None:
    made, error = cell.ask(
        f"made, answer = 0, None\n"
        f"while answer is None and made < 200:\n"
        f"    try:\n"
        f"        {one_more}\n"
        f"        made += 1\n"
        f"    except (OSError, RuntimeError) as refused: answer = [made, str(refused)]"
    )
    assert PROCESSES // 2 < made < PROCESSES
    assert "Resource temporarily unavailable" in error or "can't start new thread" in error
    # The limit is each session's own: another one has room, also where all workers are one user.
    assert other.session.run("!echo started").stdout.strip() == "started"


def test_a_fork_bomb_does_not_slow_another_session_and_dies_with_its_own(
    gateway: BoxedGateway, cell: Cell, other: Cell
) -> None:
    cell.session.run("pass")
    quiet_s = other.latency_s()
    bomb = cell.start(BOMB)
    bomb.until_said("full")
    host = _exploded(gateway)
    during_s = other.latency_s()
    exploded = _alive(host)
    assert PROCESSES // 2 < len(exploded) <= PROCESSES + 3  # and the sandbox's own
    assert other.session.run("!echo started").stdout.strip() == "started"
    bomb.execution.interrupt(kill=True)
    bomb.end(5)
    _, left = psutil.wait_procs([host, *exploded], 3)
    assert left == []
    assert during_s < max(4 * quiet_s, 0.05), f"{quiet_s * 1e3:.1f} ms before, {during_s * 1e3:.1f} ms during"


def test_an_interrupt_ends_a_fork_bomb_s_children_and_keeps_the_session(cell: Cell, gateway: BoxedGateway) -> None:
    cell.session.run("kept = 1")
    bomb = cell.start(BOMB)
    bomb.until_said("full")
    host = _exploded(gateway)
    bomb.execution.interrupt()
    assert isinstance(bomb.end(20), KeyboardInterrupt)  # all of them want the two processors
    until(lambda: len(_alive(host)) <= 3, 10, "the children are gone")
    assert cell.session.run("kept").text == "1"
