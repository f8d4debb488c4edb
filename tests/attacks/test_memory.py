"""Memory: whatever it is taken by, beyond the limit it is refused or ends its own session, and the cell says so."""

from __future__ import annotations

import pytest

from kcoral_magic import Client
from kcoral_magic.errors import ExecutionLost
from tests.attacks.cells import Cell
from tests.attacks.layouts import MEMORY_GIB
from tests.support import until

pytestmark = pytest.mark.attack
LIMIT = f"its limit is {MEMORY_GIB:.2f} GiB"
_TOUCH = "for at in range(0, 768 << 20, 4096): held[at] = 1"
# Each takes 768 MiB in steps, half as much again as the limit, and would then say that it has them.
WAYS = {
    "objects": "held = []\nfor _ in range(48): held.append(bytearray(1 << 24))",
    "mapping": f"held = mmap.mmap(-1, 768 << 20, mmap.MAP_PRIVATE)\n{_TOUCH}",
    "shared-mapping": f"held = mmap.mmap(-1, 768 << 20, mmap.MAP_SHARED)\n{_TOUCH}",
    "children": (
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        held = bytearray(b'x') * (128 << 20)\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "time.sleep(1)"
    ),
    "detached-children": (
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            held = bytearray(b'x') * (128 << 20)\n"
        "            time.sleep(30)\n"
        "        os._exit(0)\n"
        "time.sleep(1)"
    ),
    "/dev/shm": "with open('/dev/shm/held', 'wb') as file:\n    for _ in range(48): file.write(bytes(1 << 24))",
    "/tmp": "with open('/tmp/held', 'wb') as file:\n    for _ in range(48): file.write(bytes(1 << 24))",
    "deleted-file": (
        "held = open('/tmp/held', 'wb')\nos.remove('/tmp/held')\nfor _ in range(48): held.write(bytes(1 << 24))"
    ),
    "memfd": "held = os.memfd_create('held')\nfor _ in range(48): os.write(held, bytes(1 << 24))",
    "system-v": (
        "_libc.shmat.restype = _c.c_void_p\n"
        "for _ in range(6):\n"
        "    held = call(_libc.shmget(0, _c.c_size_t(128 << 20), 0o1600))\n"
        "    at = _libc.shmat(held, None, 0)\n"
        "    _c.memset(at, 1, 128 << 20)\n"
        "    _libc.shmdt(_c.c_void_p(at))"
    ),
    # An empty file takes about 1 KiB of the kernel's memory and no block of its file system.
    "empty-files": (
        "for folder in range(40):\n"
        "    os.mkdir(f'/tmp/{folder}')\n"
        "    for name in range(20_000): os.mknod(f'/tmp/{folder}/{name}')"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_more_memory_than_the_limit_is_refused_or_ends_the_session(way: str, cell: Cell, other: Cell) -> None:
    hog = cell.start(f"{WAYS[way]}\ntime.sleep(1.5)\nprint('holds it all')")
    error = hog.end(30)
    assert error is not None, f"the cell {hog.text.strip()}"
    if isinstance(error, ExecutionLost):
        assert LIMIT in str(error)
    else:
        assert isinstance(error, OSError | MemoryError), error


@pytest.fixture
def placed(client: Client) -> Cell:
    """A session on a GPU."""
    cell = Cell(client, gpus=1)
    assert "GPU-simulated" in str(cell.session.run("import os; os.environ['CUDA_VISIBLE_DEVICES']").text)
    return cell


def test_a_lost_session_keeps_its_gpu_says_why_once_and_gives_it_back_when_it_ends(placed: Cell, other: Cell) -> None:
    free = other.client.gpus().free
    with pytest.raises(ExecutionLost, match=LIMIT):
        placed.session.run(WAYS["objects"])
    assert other.client.gpus().free == free
    result = placed.session.run("'held' in globals()")
    assert result.text == "False"
    assert LIMIT in " ".join(result.notices)
    assert placed.session.run("1").notices == []
    assert other.client.gpus().free == free
    placed.session.close()
    assert until(lambda: other.client.gpus().free == free + 1, 5, "the GPU is free again")


def test_memory_taken_after_the_cell_s_end_counts_too(cell: Cell, other: Cell) -> None:
    worker = cell.process()
    cell.session.run(
        "import threading, time\n"
        "def hog():\n"
        "    time.sleep(0.2)\n"
        "    global held\n"
        "    held = bytearray(b'x') * (768 << 20)\n"
        "threading.Thread(target=hog, daemon=True).start()"
    )
    # Without a cell that runs: the idle worker is watched too.
    worker.wait(5)
    assert LIMIT in " ".join(cell.session.run("pass").notices)


def test_a_limit_of_one_session_is_not_shared_by_the_next(cell: Cell, other: Cell) -> None:
    size = int(MEMORY_GIB * 2**30 * 0.7)
    mine, theirs = (
        cell.session.run(f"held = bytearray(b'x') * {size}; 1"),
        other.session.run(f"x = bytearray({size}); 1"),
    )
    assert (mine.text, theirs.text) == ("1", "1")
    other.session.run("del x")
