"""Files: a session fills its own folders only, each of which has a size, and what it leaves is gone with it."""

from __future__ import annotations

import pytest

from kcoral_gateway.config import GiB, Limits
from tests.attacks.cells import Cell
from tests.attacks.layouts import WORKSPACE_GIB, BoxedGateway

pytestmark = pytest.mark.attack
FILL = (
    "written, answer = 0, ''\n"
    "with open('/workspace/full', 'wb', buffering=0) as file:\n"
    "    try:\n"
    "        while written < 4 << 30: written += file.write(bytes(1 << 20))\n"
    "    except OSError as error: answer = [written, error.errno, os.strerror(error.errno)]"
)


def test_a_full_workspace_says_so_in_its_own_session_only(cell: Cell, other: Cell) -> None:
    written, _, text = cell.ask(FILL)
    assert text == "No space left on device"
    assert WORKSPACE_GIB * GiB - (2 << 20) <= written <= WORKSPACE_GIB * GiB
    assert (
        other.ask("answer = open('/workspace/mine', 'wb').write(bytes(50 << 20)); os.remove('/workspace/mine')")
        == 50 << 20
    )
    # The session itself goes on: it tidies up and has room again.
    assert cell.ask("os.remove('full'); answer = open('again', 'w').write('x' * 1000)") == 1000


def test_a_cell_that_fills_its_workspace_fails_as_any_python_does(cell: Cell) -> None:
    with pytest.raises(OSError, match="No space left on device"):
        cell.session.run("with open('full', 'wb') as file:\n    while True: file.write(bytes(1 << 20))")
    assert cell.session.run("import os; os.path.getsize('full') > 0").text == "True"


def test_every_place_that_can_be_written_has_a_size(attacker: Cell) -> None:
    # A tmpfs without a size holds half of the machine's memory.
    sizes = attacker.ask(
        "answer = {}\n"
        "for line in open('/proc/self/mountinfo'):\n"
        "    place = line.split()[4].encode().decode('unicode_escape')\n"
        "    if ' - devpts ' not in line and os.path.isdir(place) and os.access(place, os.W_OK):\n"
        "        usage = os.statvfs(place)\n"
        "        answer[place] = usage.f_blocks * usage.f_frsize"
    )
    limits = Limits()
    assert sizes.pop("/workspace") == WORKSPACE_GIB * GiB
    assert sizes.pop("/tmp") == limits.tmp_bytes
    assert sizes.pop("/dev/shm") == limits.shm_bytes
    assert sizes == {}


def test_a_hundred_thousand_small_files_do_not_slow_others_and_go_with_their_session(
    cell: Cell, other: Cell, gateway: BoxedGateway
) -> None:
    # Not all of /tmp: an interpreter that lies there is bound below it.
    count = "answer = sum(len(os.listdir(f'/tmp/{n}')) for n in range(10) if os.path.isdir(f'/tmp/{n}'))"
    quiet_s = other.latency_s()
    making = cell.start(
        "for folder in range(10):\n"
        "    os.mkdir(f'/tmp/{folder}')\n"
        "    if folder == 2: print('many', flush=True)\n"
        "    for name in range(10_000):\n"
        "        with open(f'/tmp/{folder}/{name}', 'w'): pass\n"
        "print('made', flush=True)\n"
    )
    making.until_said("many")
    during_s = other.latency_s()
    making.until_said("made", 30)
    making.end()
    assert during_s < max(4 * quiet_s, 0.05), f"{quiet_s * 1e3:.1f} ms before, {during_s * 1e3:.1f} ms during"
    assert cell.ask(count) >= 100_000
    cell.session.restart()
    assert cell.ask(count) < 1000


def test_small_files_fill_the_workspace_at_its_size(cell: Cell, other: Cell) -> None:
    made, text = cell.ask(
        "made, answer = 0, None\n"
        "while answer is None and made < 200_000:\n"
        "    try:\n"
        "        with open(f'/workspace/{made}', 'w') as file: file.write('x')\n"
        "        made += 1\n"
        "    except OSError as error: answer = [made, os.strerror(error.errno)]"
    )
    assert text == "No space left on device"
    assert made <= WORKSPACE_GIB * GiB // 4096
    assert other.ask("answer = open('/workspace/mine', 'w').write('x'); os.remove('/workspace/mine')") == 1


def test_a_new_worker_finds_nothing_of_the_last_one_s_files(cell: Cell) -> None:
    cell.session.run("for top in ('/workspace', '/tmp', '/dev/shm'): open(f'{top}/left-behind', 'w').write('x')")
    cell.session.restart()
    left = cell.ask("answer = [f for top in ('/workspace', '/tmp', '/dev') for _, _, fs in os.walk(top) for f in fs]")
    assert "left-behind" not in left
