"""A worker that writes to its own channel: whatever it sends, its cell ends as lost and everybody else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoral_gateway.config import MiB
from kcoral_magic.errors import ExecutionLost
from kcoral_magic.protocol import messages as m
from tests.attacks.cells import Cell, Running
from tests.attacks.layouts import BoxedGateway, one_layout
from tests.support import until

pytestmark = pytest.mark.attack
# Finds the channel among the descriptors and speaks its language without our code's checks.
CHANNEL = """
import msgspec
fd = next(int(n) for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')
          and os.readlink(f'/proc/self/fd/{n}').startswith('socket:'))
channel = socket.socket(fileno=os.dup(fd))
def raw(data):
    channel.sendall(data)
def packed(frame):
    return struct.pack('<I', len(frame)) + frame
def message(body, *buffers, sizes=None):
    sizes = [len(buffer) for buffer in buffers] if sizes is None else sizes
    head = msgspec.msgpack.encode([body, sizes] if sizes else [body])
    return packed(struct.pack('<I', len(head)) + head + b''.join(buffers))
def send(*parts, **options):
    raw(message(*parts, **options))
"""
HANG = "\nprint('sent', flush=True)\ntime.sleep(60)"
MALFORMED = {
    "garbage": "raw(bytes(range(255, 0, -1)) * 40)",
    "zeros": "raw(bytes(4096))",
    "text": "raw(b'GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')",
    "huge-frame": "raw(struct.pack('<I', 0xFFFFFFFF))",
    "frame-one-too-long": "raw(struct.pack('<I', 4 + 65536 + (1 << 20) + 1))",
    "huge-head": "raw(packed(struct.pack('<I', 0x7FFFFFFF) + b'x'))",
    "head-beyond-its-frame": "raw(packed(struct.pack('<I', 100) + b'x' * 50))",
    "empty-frame": "raw(packed(b''))",
    "depth-bomb": "raw(packed(struct.pack('<I', 60_000) + b'\\x91' * 60_000))",
    "depth-bomb-of-maps": "raw(packed(struct.pack('<I', 60_000) + b'\\x81' * 60_000))",
    "huge-array-announced": "raw(packed(struct.pack('<I', 5) + b'\\xdd\\xff\\xff\\xff\\xff'))",
    "huge-string-announced": "raw(packed(struct.pack('<I', 5) + b'\\xdb\\xff\\xff\\xff\\xff'))",
    "extension-type": "raw(packed(struct.pack('<I', 6) + b'\\xd6\\xff\\0\\0\\0\\0'))",
    "not-utf8": "raw(packed(struct.pack('<I', 6) + b'\\x91\\x91\\xa3\\xff\\xfe\\xfd'))",
    "unknown-message": "send(['Nonsense'])",
    "unknown-message-of-a-long-name": "send(['N' * 60_000])",
    "gateway-s-message": "send(['Run', 'forged-execution', [1, 1]], b'1')",
    "host-s-message": "send(['Gone', 'lost', 'forged'])",
    "other-execution": "send(['Emit', 'forged-execution', ['Stream', 'stdout', False]], b'forged')",
    "forged-event": "send(['Event', 'forged-execution', 1, ['Stream', 'stdout', False]], b'forged')",
    "stream-past-the-pipe": "send(['Stream', 'stdout', False], b'forged')",
    "forged-finished": "send(['Finished', 'ok', 1.0, '', ''])",
    "too-many-fields": "send(['ClearOutput', True, 'more'])",
    "too-few-fields": "send(['Display'])",
    "wrong-type": "send(['ClearOutput', 'yes'])",
    "unknown-status": "send(['Ended', 'failed', 1.0, ''])",
    "ready-again": "send(['Ready', '3'])",
    "bundle-without-metadata": "send(['Display', ['text/plain'], None, False], b'abc')",
    "bundle-with-too-many-buffers": "send(['Result', ['text/plain'], 1], b'a', b'{}', b'c')",
    "error-without-text": "send(['Error', 'a', 'b', 'c', False])",
    "negative-size": "send(['Display', ['a', 'b'], None, False], b'abc', sizes=[-3, 3, 3])",
    "sizes-that-overflow": "send(['Display', ['a'], None, False], b'abc', sizes=[2**63, 2**63])",
    "sizes-beyond-the-limit": "send(['Display', ['a'], None, False], b'abc', sizes=[1 << 40, 3])",
    "sizes-that-do-not-fit": "send(['Display', ['a'], None, False], b'abc', sizes=[1, 1])",
    "a-thousand-buffers": "send(['Display', ['a'], None, False], *[b''] * 1000)",
    "a-name-too-long": "send(['Error', 'e' * 5000, 'b', 'c', False], b'', b'', b'')",
    "continuation-of-nothing": "raw(packed(struct.pack('<I', 0) + b'more'))",
    "message-within-a-message": (
        "first = message(['Display', ['a'], None, False], b'x' * (2 << 20), b'{}')\n"
        "size = struct.unpack('<I', first[4:8])[0]\n"
        "part = first[4:8 + size] + b'x' * (1 << 20)\n"
        "raw(packed(part)); raw(packed(part))"
    ),
    "continuation-too-long": (
        "first = message(['Display', ['a'], None, False], b'x' * ((1 << 20) + 8), b'{}')\n"
        "size = struct.unpack('<I', first[4:8])[0]\n"
        "raw(packed(first[4:8 + size] + b'x' * (1 << 20)))\n"
        "raw(packed(struct.pack('<I', 0) + b'x' * 100))"
    ),
}


def _hostile(cell: Cell, body: str) -> Running:
    return cell.start(f"{CHANNEL}\n{body}")


def _is_lost(running: Running, said: str = "the worker broke the protocol") -> None:
    error = running.end(10)
    assert isinstance(error, ExecutionLost), error
    assert said in str(error)
    assert len(str(error)) < 2000


@one_layout
@pytest.mark.parametrize("way", MALFORMED)
def test_a_malformed_frame_ends_its_cell_as_lost_and_nothing_else(way: str, cell: Cell, other: Cell) -> None:
    _is_lost(_hostile(cell, MALFORMED[way] + HANG))
    result = cell.session.run("'fd' in globals()")
    assert result.text == "False"
    assert "broke the protocol" in " ".join(result.notices)


def test_garbage_is_survived_in_either_layout(cell: Cell, other: Cell) -> None:
    _is_lost(_hostile(cell, MALFORMED["garbage"] + HANG))


@one_layout
@pytest.mark.parametrize("short_by", [0, 28, 30, 31, 32, 33, 40])
def test_a_head_that_outgrows_the_limit_on_its_way_is_the_worker_s_fault(
    short_by: int, cell: Cell, other: Cell
) -> None:
    # Host and gateway put the message into ones of their own, which are longer: by bytes that decide here.
    running = _hostile(
        cell,
        "sizes = [0] * 140 + [2]\n"
        "head = lambda lengths: [['Display', ['n' * length for length in lengths], None, False], sizes]\n"
        f"missing = 65536 - {short_by} - len(msgspec.msgpack.encode(head([300] * 140)))\n"
        "send(head([300 + missing // 140 + (n < missing % 140) for n in range(140)])[0], b'{}', sizes=sizes)",
    )
    error = running.end(10)
    assert error is None or "the worker broke the protocol" in str(error)
    assert (error is None) == any(isinstance(output.body, m.Display) for output in running.outputs)
    assert cell.session.run("1").text == "1"


@one_layout
@pytest.mark.parametrize(
    "way",
    [
        "os.close(fd); channel.close()",
        "channel.shutdown(socket.SHUT_RDWR)",
        "channel.shutdown(socket.SHUT_WR)",
        "os.execv('/bin/sleep', ['sleep', '60'])",
    ],
)
def test_a_worker_that_hangs_up_is_lost(way: str, cell: Cell, other: Cell) -> None:
    _is_lost(_hostile(cell, way + HANG), "worker")
    assert cell.session.run("1").text == "1"


@one_layout
@pytest.mark.parametrize("kill", [False, True], ids=["interrupt", "kill"])
def test_half_a_frame_and_silence_is_ended_by_the_stop_button(kill: bool, cell: Cell, other: Cell) -> None:
    running = _hostile(cell, "raw(struct.pack('<I', 1000) + b'half')" + HANG)
    running.until_said("sent")
    running.execution.interrupt(kill=kill)
    error = running.end(5)
    # Interrupted, the worker reports its end in the middle of the frame it began.
    assert isinstance(error, ExecutionLost | KeyboardInterrupt)
    assert cell.session.run("1").text == "1"


@one_layout
def test_a_forged_end_ends_its_own_cell_only(cell: Cell, other: Cell) -> None:
    running = _hostile(cell, "send(['Ended', 'ok', float('nan'), ''])" + HANG)
    assert running.end(5) is None
    # The worker is still busy with what it denied: its next cell waits until somebody stops it.
    following = cell.start("print('late')")
    until(lambda: cell.state() == "running", 5, "it was sent")
    following.execution.interrupt(kill=True)
    assert isinstance(following.end(5), ExecutionLost)
    assert cell.session.run("1").text == "1"


@one_layout
def test_a_worker_that_ends_what_does_not_run_is_lost(cell: Cell, other: Cell) -> None:
    worker = cell.process()
    running = _hostile(
        cell,
        "def late():\n"
        "    time.sleep(0.3)\n"
        "    send(['Ended', 'ok', 1.0, ''])\n"
        "threading.Thread(target=late, daemon=True).start()",
    )
    assert running.end(5) is None
    worker.wait(5)
    assert "broke the protocol" in " ".join(cell.session.run("pass").notices)


@one_layout
def test_a_deaf_worker_that_denied_its_cell_cannot_keep_its_host_from_obeying(cell: Cell, other: Cell) -> None:
    assert _hostile(cell, "send(['Ended', 'ok', 1.0, ''])" + HANG).end(5) is None
    # More source than a socket's buffer takes: nobody reads it.
    following = cell.start("#" + "x" * 4_000_000)
    until(lambda: cell.state() == "running", 5, "it was sent")
    following.execution.interrupt(kill=True)
    assert isinstance(following.end(5), ExecutionLost)
    assert cell.session.run("1").text == "1"


@one_layout
def test_forged_text_of_where_it_stands_stays_short(cell: Cell) -> None:
    running = _hostile(
        cell,
        "pipe = max(int(n) for n in os.listdir('/proc/self/fd') if os.path.lexists(f'/proc/self/fd/{n}')\n"
        "           and os.readlink(f'/proc/self/fd/{n}').startswith('pipe:'))\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('sent', flush=True)\n"
        "line = b'File \"' + b'f' * 290 + b'\", line 1 in ' + b'g' * 190 + b'\\n'\n"
        "while True: os.write(pipe, line * 100)",
    )
    running.until_said("sent")
    running.execution.interrupt()
    until(lambda: running.look() or any(isinstance(o.body, m.Stuck) for o in running.outputs), 10, "it says where")
    running.execution.interrupt(kill=True)
    assert isinstance(running.end(5), ExecutionLost)
    assert all(len(o.body.where) < 1000 for o in running.outputs if isinstance(o.body, m.Stuck))


FLOODS = {
    "clear-output": "message(['ClearOutput', True])",
    "errors": "message(['Error', 'a', 'b', 'c', False], b'', b'', b'')",
    "updates": "message(['Display', ['text/plain'], 'same-id', True], b'x' * 100, b'{}')",
}


@one_layout
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_messages_is_bounded_and_is_stopped_soon(
    flood: str, cell: Cell, other: Cell, gateway: BoxedGateway
) -> None:
    quiet_s = other.latency_s()
    before = gateway.rss_bytes()
    running = _hostile(cell, f"print('sent', flush=True)\nmany = {FLOODS[flood]} * 1000\nwhile True: raw(many)")
    until(lambda: running.look() or len(running.outputs) > 5000, 10, "it floods")
    during_s = other.latency_s()
    running.execution.interrupt(kill=True)
    assert isinstance(running.end(10), ExecutionLost)
    assert gateway.rss_bytes() - before < 64 * MiB
    assert during_s < max(4 * quiet_s, 0.05), f"{quiet_s * 1e3:.1f} ms before, {during_s * 1e3:.1f} ms during"


@one_layout
@pytest.mark.parametrize(
    "each",
    [
        "message(['Result', ['text/plain'], 1], b'x' * 1_000_000, b'{}')",
        "message(['Error', 'a', 'b', 'c', False], b'x' * 1_000_000, b'', b'')",
        "message(['Display', ['text/plain'], None, False], b'x' * 1_000_000, b'{}')",
    ],
    ids=["results", "errors", "displays"],
)
def test_what_one_cell_sends_takes_a_bounded_part_of_the_gateway_s_disk(
    each: str, cell: Cell, gateway: BoxedGateway, other: Cell
) -> None:
    def kept() -> int:
        return sum(path.stat().st_size for path in Path(gateway.state, "journals").rglob("*.events"))

    before = kept()
    running = _hostile(cell, f"one = {each}\nfor _ in range(400): raw(one)\nprint('sent', flush=True)")
    until(lambda: running.look() or kept() - before > 300 * MiB, 30, "400 MB are sent, or too much is kept")
    running.execution.interrupt(kill=True)
    running.end(10)
    assert kept() - before < 280 * MiB  # 256 MiB and what was under way
