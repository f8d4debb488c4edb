"""Values, files and questions under attack: a worker that lies about them, clients that want others' or too much."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import xxhash
from websockets.exceptions import ConnectionClosed

from kcoral_magic import Client
from kcoral_magic.client.files import Digests, FileSet, LocalFile
from kcoral_magic.errors import ExecutionLost, KCoralError, RemoteError, ValueRefused
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values.codec import Opaque
from tests.attacks.cells import PRELUDE, Cell, Running
from tests.attacks.layouts import BoxedGateway, one_layout
from tests.attacks.test_client_frames import HELLO, Stranger, _open
from tests.attacks.test_frames import CHANNEL, HANG
from tests.integration.test_values import SmallGateway
from tests.notebooks.kernels import Kernel
from tests.support import GatewayProcess, until

pytestmark = [pytest.mark.attack, one_layout]
MIB = 1024 * 1024
D = "'xxh3-' + '0' * 32"


@pytest.fixture
def wary(gateway: BoxedGateway, token: str) -> Iterator[Cell]:
    """A session of a client that does not trust its gateway."""
    with Client(target=gateway.target(token, is_trusted=False)) as client:
        yield Cell(client, gpus=0)


# ── a worker's messages ──

TAKE_SPOOL = "_, given, _, _ = socket.recv_fds(channel, 65536, 4)\nspool = given[0]"
BREACHES = {
    "a-blob-of-its-own": f"send(['Returned', {D}, 5, [], 'xxh3-' + '1' * 32])",
    "fewer-bytes": f"send(['Returned', {D}, 5, [], None], b'four')",
    "more-bytes": f"send(['Returned', {D}, 5, [], None], b'sixsix')",
    "two-buffers": f"send(['Returned', {D}, 4, [], None], b'ab', b'cd')",
    "65-gib": f"send(['Returned', {D}, 65 << 30, [], None])",
    "negative": f"send(['Returned', {D}, -1, [], None])",
    "no-number": f"send(['Returned', {D}, 1e300, [], None])",
    "digest-with-a-path": "send(['Returned', '../../tokens.json', 5, [], None])",
    "digest-with-a-newline": "send(['Returned', 'xxh3-' + '0' * 32 + '\\n', 5, [], None])",
    "announced-twice": f"for _ in range(2): send(['Returned', {D}, 1 << 20, [], None])",
    "written-and-never-announced": "send(['Written'])",
    "written-at-once": f"send(['Returned', {D}, 1 << 20, [], None]); send(['Written'])",
    "written-twice": (
        f"send(['Returned', {D}, 100, [], None])\n{TAKE_SPOOL}\nos.write(spool, b'x' * 100)\n"
        "send(['Written']); send(['Written'])"
    ),
    "more-than-announced": f"send(['Returned', {D}, 100, [], None])\n{TAKE_SPOOL}\nos.write(spool, b'x' * 101)",
    "less-than-announced": (
        f"send(['Returned', {D}, 100, [], None])\n{TAKE_SPOOL}\nos.write(spool, b'x' * 99); send(['Written'])"
    ),
    "names-without-end": "send(['Names', [f'n{n}' for n in range(100_000)]])",
    "a-name-without-end": "send(['Names', ['n' * 300]])",
    "a-name-of-nothing": "send(['Want', [''], False, ''])",
    "another-verdict": "send(['Bound', [['BoundName', 'x', 'stolen', '']]])",
    "a-question-without-end": "send(['InputRequest', 'q' * 1_000_000, False])",
    "the-host-s-messages": "send(['Supplied', 'forged-execution', 0, ''], b'')",
    "the-host-s-spool": "send(['Spool'])",
    "the-client-s-messages": f"send(['Supply', 'forged-execution', {D}, 5, ''], b'', b'')",
    "the-client-s-fetch": f"send(['Fetch', 1, {D}, 0, 100])",
    "the-gateway-s-file": "send(['FilePart', '../x', 1, 0, 420, ''], b'x')",
}


@pytest.mark.parametrize("way", BREACHES)
def test_a_worker_that_lies_about_values_is_ended_and_nobody_else(way: str, cell: Cell, other: Cell) -> None:
    running = cell.start(f"{CHANNEL}\n{BREACHES[way]}{HANG}")
    error = running.end(10)
    assert isinstance(error, ExecutionLost), error
    assert "broke the protocol" in str(error)
    assert len(str(error)) < 2000
    assert cell.session.run("1").text == "1"


HARMLESS = {
    "bound-to-what-was-never-offered": "send(['Bound', [['BoundName', f'n{n}', 'new', 'w' * 99] for n in range(300)]])",
    "names-that-are-none": "send(['Names', ['__import__(\"os\")', 'a\\nb', '\\x1b[31m', 'x' * 256]])",
    "questions-that-nobody-answers": "for _ in range(500): send(['InputRequest', 'who? ', False])",
    "wishes-without-end": "send(['Want', [f'n{n}' for n in range(1500)], False, '3.12'])",
    "wishes-over-and-over": "for _ in range(50): send(['Want', ['n'], True, '9.9'])",
}


@pytest.mark.parametrize("way", HARMLESS)
def test_forged_messages_of_the_right_form_harm_their_own_cell_at_most(way: str, cell: Cell, other: Cell) -> None:
    running = cell.start(f"{CHANNEL}\n{HARMLESS[way]}\nprint('sent', flush=True)")
    assert running.end(10) is None
    assert running.text.endswith("sent\n")
    assert cell.session.run("after", send={"after": 2}).text == "2"


def test_a_worker_gets_what_was_offered_for_its_cell_and_nothing_else(cell: Cell) -> None:
    body = "send(['Want', ['unoffered', 'earlier'], True, '3.12'])\nprint(channel.recv(65536))"
    cell.session.run("1", send={"earlier": "of-an-earlier-cell"})
    text = cell.session.run(f"{PRELUDE}\n{CHANNEL}\n{body}", send={"mine": 1}).stdout
    assert "names that were not offered" in text
    assert "of-an-earlier-cell" not in text


# ── what a worker returns ──

FORGE = """
import io, msgspec, pickle, xxhash
from kcoral_magic.values import codec, parcel
class Lie:
    problems = {}
    def __init__(self, data, digest=None):
        self.data, self.parcel, self.size, self.segments = data, self, len(data), [memoryview(data)]
        self._digest = digest or 'xxh3-' + xxhash.xxh3_128(data).hexdigest()
    def digest(self): return self._digest
    def joined(self): return self.data
def entry(kind, head, *buffers, name='x'):
    return parcel.Entry(name, kind, (0, 0), (), '', ''), head, list(buffers)
def tree(node, *buffers, name='x'):
    return entry('tree', msgspec.msgpack.encode(node), *buffers, name=name)
def placed(*entries):
    return parcel.pack(entries).joined()
def raw(index, data=b''):
    packed = msgspec.msgpack.encode(index)
    lead = struct.pack('<II', parcel._MAGIC, len(packed)) + packed + bytes(8)
    return lead + bytes(-len(lead) % 64) + data
def returns(data, digest=None):
    codec.pack = lambda values, **options: Lie(data, digest)
"""
LIES = {
    "array-of-objects": "placed(tree([30, '|O', [1], 0, False, False], bytes(8)))",
    "array-too-large": "placed(tree([30, '<f8', [1 << 40], 0, False, False], bytes(8)))",
    "array-that-overflows": "placed(tree([30, '<f8', [1 << 32, 1 << 32], 0, False, False], b''))",
    "array-of-nothing-without-end": "placed(tree([30, '|V0', [1 << 40], 0, False, False], b''))",
    "array-of-less-than-nothing": "placed(tree([30, '<f8', [-1, -1], 0, False, False], bytes(8)))",
    "array-of-another-buffer": "placed(tree([30, '<f8', [1], 7, False, False], bytes(8)))",
    "array-of-nonsense": "placed(tree([30, 'x' * 5000, [1], 0, False, False], bytes(8)))",
    "array-without-parts": "placed(tree([30]))",
    "tensor-too-short": "placed(tree([31, 'float32', [3], 0, False, False], bytes(5)))",
    "tensor-of-a-method": "placed(tree([31, 'save', [1], 0, False, False], bytes(8)))",
    "table-of-garbage": "placed(tree([32, 'pandas', 0, []], b'garbage' * 10))",
    "depth-bomb": "placed(entry('tree', b'\\x92\\x01\\x91' * 20_000 + b'\\xc0'))",
    "class-that-runs": "placed(tree([40, ['subprocess', 'Popen', ''], ['args'], [['touch', MARK]]]))",
    "enum-that-runs": "placed(tree([42, ['os', 'system', ''], 'touch']))",
    "reference-to-nothing": "placed(tree([7, 5]))",
    "tag-of-nothing": "placed(tree([999, 1]))",
    "pickle": "placed(entry('pickle', pickle.dumps(Trap())))",
    "module": "placed(entry('module', b'this'))",
    "source": "placed(entry('source', msgspec.msgpack.encode(('x', 'f', f'x = open({MARK!r}, \"w\")'))))",
    "format-of-nothing": "placed(entry('yaml', b'x'))",
    "span-outside": "raw([['x', 'tree', [0, 1 << 40], [], '', '', []]], bytes(64))",
    "span-of-less-than-nothing": "raw([['x', 'tree', [-64, 64], [], '', '', []]], bytes(64))",
    "buffer-outside": "raw([['x', 'tree', [0, 1], [[1 << 62, 1 << 62]], '', '', []]], b'\\xc0')",
    "index-of-nonsense": "raw('nothing')",
    "index-longer-than-all": "struct.pack('<II', parcel._MAGIC, 1 << 22) + bytes(100)",
    "garbage": "bytes(range(256)) * 10",
    "short": "b'KP'",
}


@pytest.mark.parametrize("way", LIES)
def test_a_result_that_lies_is_refused_and_runs_nothing_here(way: str, wary: Cell, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    sys.modules.pop("this", None)
    wary.session.run(
        f"{PRELUDE}\n{FORGE}\nMARK = {str(mark)!r}\n"
        "class Trap:\n    def __reduce__(self): return io.open, (MARK, 'w')\n"
        f"returns({LIES[way]})\nx = 1"
    )
    execution = wary.session.execute("", wants=["x"])
    with pytest.raises(ValueRefused) as caught:
        execution.result()
    assert len(str(caught.value)) < 2000
    assert execution.collected().values == {}
    assert not mark.exists()
    assert "this" not in sys.modules
    assert wary.session.run("x").text == "1"


def test_a_result_of_another_digest_is_refused(wary: Cell) -> None:
    wary.session.run(f"{PRELUDE}\n{FORGE}\nreturns(placed(tree(1)), 'xxh3-' + '0' * 32)\nx = 1")
    with pytest.raises(ValueRefused, match="damaged on the way"):
        wary.session.run("", wants=["x"])


def test_names_that_were_not_asked_for_do_not_come(wary: Cell) -> None:
    lie = "placed(tree('asked'), tree('pushed', name='open'), tree('pushed', name='get_ipython'))"
    wary.session.run(f"{PRELUDE}\n{FORGE}\nreturns({lie})\nx = 1")
    execution = wary.session.execute("", wants=["x"])
    list(execution)
    assert set(execution.collected().values) <= {"x"}


def test_a_placeholder_s_texts_stay_short(wary: Cell) -> None:
    lie = "placed(entry('opaque', msgspec.msgpack.encode(('k' * 10**6, 't' * 10**6, ''))))"
    wary.session.run(f"{PRELUDE}\n{FORGE}\nreturns({lie})\nx = 1")
    value = wary.session.run("", wants=["x"]).values["x"]
    assert isinstance(value, Opaque)
    assert len(repr(value)) < 1000


# ── results beside the events ──

SPOOLED = f"""
import xxhash
from kcoral_magic.values import codec
data = codec.pack({{'x': bytes(2**20)}}, may_pickle=False).parcel.joined()
send(['Returned', 'xxh3-' + xxhash.xxh3_128(data).hexdigest(), len(data), [], None])
{TAKE_SPOOL}
"""


@pytest.mark.parametrize(
    "after",
    ["os.pwrite(spool, b'changed' * 100, 5000)", "os.ftruncate(spool, 100)", "os.write(spool, b'x' * 2**20)"],
    ids=["changed", "cut", "grown"],
)
def test_results_that_change_after_they_were_written_come_whole_or_not_at_all(after: str, cell: Cell) -> None:
    tried = f"try: {after}\nexcept OSError: pass\ntime.sleep(0.2)"
    running = cell.start(f"{CHANNEL}\n{SPOOLED}\nos.write(spool, data)\nsend(['Written'])\n{tried}")
    error = running.end(15)
    values = running.execution.collected().values
    assert error is None or isinstance(error, KCoralError)
    assert values.get("x", bytes(2**20)) == bytes(2**20)
    assert cell.session.run("1").text == "1"


GROW = "for _ in range(384): os.write(spool, bytes(2**20))"


def _most_stored(running: Running, gateway: GatewayProcess) -> int:
    """Run to the end; the most bytes that files of the store had meanwhile, those without a name included."""
    most = 0

    def look() -> bool:
        nonlocal most
        sizes: dict[int, int] = {}
        for process in (gateway.me, *gateway.me.children(recursive=True)):
            for link in Path(f"/proc/{process.pid}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    if "/artifacts/" in os.readlink(link):
                        sizes[link.stat().st_ino] = link.stat().st_blocks * 512
        most = max(most, sum(sizes.values()))
        return running.look() is not None

    until(look, 20, "the cell ends")
    return most


def test_results_leave_no_way_to_fill_the_gateway_s_disk(cell: Cell, gateway: BoxedGateway) -> None:
    # A session has 128 MiB of files here; what it writes elsewhere counts against nobody.
    written = f"os.write(spool, data)\nsend(['Written'])\ntime.sleep(0.3)\n{GROW}"
    assert _most_stored(cell.start(f"{CHANNEL}\n{SPOOLED}\n{written}"), gateway) < 64 * MIB


def test_results_that_were_announced_and_never_came_end_with_their_cell(cell: Cell, gateway: BoxedGateway) -> None:
    running = cell.start(f"{CHANNEL}\n{SPOOLED}\nos.write(spool, data[: len(data) // 2])")
    error = running.end(10)
    assert isinstance(error, KCoralError)
    assert cell.session.run("1").text == "1"
    until(lambda: not list((gateway.state / "artifacts").glob("*/*.part")), 5, "the half is gone")


def test_results_that_do_not_come_can_be_left_and_their_worker_ended(cell: Cell) -> None:
    running = cell.start(f"{CHANNEL}\n{SPOOLED}\nprint('sent', flush=True)\nwhile True: time.sleep(1)")
    until(lambda: cell.state() == "running", 5, "it runs")
    time.sleep(0.3)  # what it printed is held back behind the results: nothing can be waited for
    running.execution.interrupt()
    assert isinstance(running.end(5), KeyboardInterrupt | KCoralError)
    cell.session.restart()
    assert cell.session.run("1").text == "1"


@pytest.mark.skipif(psutil.virtual_memory().total > 32 << 30, reason="this machine has room for what is announced")
@pytest.mark.skipif(Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1", reason="memory without end")
def test_results_larger_than_this_machine_are_refused_before_they_come(cell: Cell) -> None:
    sparse = "try: os.ftruncate(spool, size)\nexcept OSError: pass"
    huge = f"size = 40 << 30\nsend(['Returned', {D}, size, [], None])\n{TAKE_SPOOL}"
    running = cell.start(f"{CHANNEL}\n{huge}\n{sparse}\nsend(['Written'])")
    error = running.end(10)
    assert isinstance(error, KCoralError)
    assert cell.session.run("1").text == "1"


# ── what is another principal's ──


@pytest.fixture
def stranger(gateway: BoxedGateway, token: str) -> Iterator[Stranger]:
    """The attacker's websocket after its handshake."""
    with _open(gateway, token) as websocket:
        websocket.send(c.encode_handshake(HELLO))
        websocket.recv(timeout=5)
        yield Stranger(websocket)


@pytest.fixture
def rich(gateway: BoxedGateway, other_token: str, other: Cell) -> Iterator[Stranger]:
    """Another principal's, which has blobs of its own."""
    with _open(gateway, other_token) as websocket:
        websocket.send(c.encode_handshake(m.Hello((m.VERSION,), "rich-client", "rich-instance")))
        websocket.recv(timeout=5)
        yield Stranger(websocket)


def _digest(data: bytes, kind: str) -> str:
    computed = hashlib.sha256(data) if kind == "sha256" else xxhash.xxh3_128(data)
    return f"{kind}-{computed.hexdigest()}"


def _ask(stranger: Stranger, body: Any, *buffers: bytes) -> Any:
    stranger.send(body, *buffers)
    return stranger.receive().body


@pytest.mark.parametrize("kind", ["sha256", "xxh3"])
def test_another_s_blob_cannot_be_seen_fetched_dropped_or_replaced(
    kind: str, stranger: Stranger, rich: Stranger
) -> None:
    data = secrets.token_bytes(1000)
    digest = _digest(data, kind)
    assert _ask(rich, t.Chunk(1, digest, 1000, 0), data) == t.Held(1, (1000,))
    assert _ask(stranger, t.Have(2, ((digest, 1000),))) == t.Held(2, (0,))
    for fetch in (t.Fetch(3, digest, 0, 1000), t.Fetch(3, digest, 0, 1), t.Fetch(3, digest, 999, 1)):
        assert _ask(stranger, fetch).code == "not_found"
    stranger.send(t.Drop(digest))
    assert _ask(stranger, t.Chunk(4, digest, 1000, 0), data[:10]) == t.Held(4, (10,))
    assert _ask(rich, t.Have(5, ((digest, 1000),))) == t.Held(5, (1000,))
    rich.send(t.Fetch(6, digest, 0, 1000))
    assert bytes(rich.receive().buffers[0]) == data
    rich.send(t.Drop(digest))
    stranger.send(t.Drop(digest))


def test_another_s_execution_cannot_be_supplied_or_answered(stranger: Stranger, other: Cell) -> None:
    running = Running(other.session.execute("answer = input('who? ')", allows_input=True))
    until(lambda: running.look() or any(isinstance(o.body, t.InputRequest) for o in running.outputs), 10, "it asks")
    execution_id = running.execution.execution_id
    for body in (t.InputReply(execution_id), t.Supply(execution_id), t.Supply(execution_id, problem="forged")):
        buffers = (b"forged",) if isinstance(body, t.InputReply) else (b"", b"")
        assert _ask(stranger, body, *buffers).code == "not_found"
    running.execution.answer("the owner")
    assert running.end(10) is None
    assert other.session.run("answer").text == "'the owner'"


def test_files_of_another_principal_cannot_be_placed_by_their_digest(stranger: Stranger, rich: Stranger) -> None:
    data = secrets.token_bytes(100)
    digest = _digest(data, "sha256")
    assert _ask(rich, t.Chunk(1, digest, 100, 0), data) == t.Held(1, (100,))
    manifest = msgspec.msgpack.encode(t.Manifest(files=(t.FileIn("stolen", digest, 100),)))
    ask = m.SessionAsk("thief", 0)
    stranger.send(m.Execute(secrets.token_hex(12), ask), b"import os; print(os.path.exists('stolen'))", manifest, b"")
    shown = b"".join(bytes(buffer) for message in stranger.to_end() for buffer in message.buffers)
    assert b"True" not in shown
    assert data not in shown
    stranger.send(m.CloseSession(9, "thief"))  # if it came to one
    until(lambda: isinstance(stranger.receive().body, m.Done | m.Problem), 5, "it is closed")


# ── hostile uploads ──

GOOD = b"0123456789" * 10
OWN = _digest(GOOD, "sha256")


@pytest.mark.parametrize(
    ("offset", "size", "data"),
    [(0, 5, GOOD), (10, 100, GOOD[10:]), (1 << 62, 1 << 63, b"x"), (0, 99, GOOD)],
    ids=["beyond", "gap", "far", "one-beyond"],
)
def test_bytes_at_the_wrong_place_are_refused(stranger: Stranger, offset: int, size: int, data: bytes) -> None:
    digest = _digest(secrets.token_bytes(8), "sha256")
    stranger.send(t.Chunk(1, digest, size, offset), data)
    try:
        assert isinstance(stranger.receive().body, m.Problem)
    except ConnectionClosed:
        return


def test_repeats_and_overlaps_change_nothing(stranger: Stranger) -> None:
    data = secrets.token_bytes(100)
    digest = _digest(data, "xxh3")
    assert _ask(stranger, t.Chunk(1, digest, 100, 0), data[:60]) == t.Held(1, (60,))
    assert _ask(stranger, t.Chunk(2, digest, 100, 0), bytes(60)) == t.Held(2, (60,))
    assert _ask(stranger, t.Chunk(3, digest, 100, 10), bytes(20)) == t.Held(3, (60,))
    assert _ask(stranger, t.Chunk(4, digest, 100, 60), data[60:]) == t.Held(4, (100,))
    stranger.send(t.Fetch(5, digest, 0, 100))
    assert bytes(stranger.receive().buffers[0]) == data
    stranger.send(t.Drop(digest))


@pytest.mark.parametrize("kind", ["sha256", "xxh3"])
def test_bytes_of_another_digest_are_thrown_away(stranger: Stranger, kind: str) -> None:
    digest = _digest(secrets.token_bytes(8), kind)
    problem = _ask(stranger, t.Chunk(1, digest, 100, 0), GOOD)
    assert isinstance(problem, m.Problem)
    assert "not those of their digest" in problem.message
    assert _ask(stranger, t.Have(2, ((digest, 100),))) == t.Held(2, (0,))
    assert _ask(stranger, t.Fetch(3, digest, 0, 100)).code == "not_found"


@pytest.mark.parametrize(
    "body",
    [
        ["Fetch", 1, OWN, -1, 10],
        ["Fetch", 1, OWN, 0, -1],
        ["Fetch", 1, OWN, 0, (1 << 20) + 1],
        ["Fetch", 1, "sha256-../../tokens.json", 0, 10],
        ["Fetch", 1, "../tokens.json", 0, 10],
        ["Drop", "xxh3-" + "/" * 32],
        ["Have", 1, [[OWN, -5]]],
        ["Chunk", 1, OWN, -1, 0],
        ["Supply", "another-execution\n", None, 0, ""],
        ["Manifest"],
    ],
    ids=str,
)
def test_requests_that_are_none_end_their_connection_only(stranger: Stranger, body: Any, other: Cell) -> None:
    stranger.send(body, *([b"", b""] if body[0] == "Supply" else [b"x"] if body[0] == "Chunk" else []))
    assert stranger.closed()[0] == c.CLOSE_PROTOCOL


@pytest.mark.parametrize(("offset", "length"), [(0, 1 << 20), (1 << 40, 1), (1 << 62, 1 << 20), (99, 2)])
def test_a_range_outside_of_a_blob_is_a_problem_and_no_more(stranger: Stranger, offset: int, length: int) -> None:
    assert _ask(stranger, t.Chunk(1, OWN, 100, 0), GOOD) == t.Held(1, (100,))
    problem = _ask(stranger, t.Fetch(2, OWN, offset, length))
    assert isinstance(problem, m.Problem)
    assert problem.request == 2
    assert _ask(stranger, t.Have(3, ((OWN, 100),))) == t.Held(3, (100,))


def test_a_hundred_thousand_questions_at_once_are_refused_and_many_small_ones_answered(
    stranger: Stranger, other: Cell, gateway: BoxedGateway
) -> None:
    before = gateway.rss_bytes()
    for number in range(100):
        many = tuple((_digest(bytes([number, n % 256]), "sha256"), 1) for n in range(400))
        held = _ask(stranger, t.Have(number, many))
        assert len(held.offsets) == 400
    head = msgspec.msgpack.encode([["Have", 1, [[OWN, 1]] * 100_000]])
    with contextlib.suppress(ConnectionClosed):
        stranger.websocket.send(len(head).to_bytes(4, "little") + head)
    assert stranger.closed()[0] in (c.CLOSE_PROTOCOL, 1009, 0)
    assert gateway.rss_bytes() - before < 64 * MIB


def test_what_an_execution_does_not_wait_for_is_nothing_to_it(stranger: Stranger) -> None:
    execution_id = secrets.token_hex(12)
    stranger.run("print('done')", execution_id, "unasked")
    for body in (t.Supply(execution_id), t.InputReply(execution_id)):  # it has ended
        stranger.send(body, *([b"", b""] if isinstance(body, t.Supply) else [b"late"]))
    problem = _ask(stranger, t.Supply(execution_id, _digest(b"nowhere", "xxh3"), 7), b"", b"")
    assert problem.code == "not_found"
    shown = b"".join(bytes(b) for message in stranger.run("print(2)", session="unasked") for b in message.buffers)
    assert shown == b"2\n"
    stranger.send(m.CloseSession(9, "unasked"))
    until(lambda: isinstance(stranger.receive().body, m.Done), 5, "it is closed")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SmallGateway]:
    """A gateway that stores 8 MiB for each principal."""
    process = SmallGateway(tmp_path, 8 * MIB)
    yield process
    process.stop()


@contextlib.contextmanager
def _principal(gateway: SmallGateway, name: str) -> Iterator[Stranger]:
    with _open(gateway, gateway.token(name)) as websocket:
        websocket.send(c.encode_handshake(m.Hello((m.VERSION,), f"{name}-client", f"{name}-instance")))
        websocket.recv(timeout=5)
        yield Stranger(websocket)


@pytest.mark.usefixtures("layout")
def test_uploads_fill_their_own_principal_s_limit_only(shared: SmallGateway) -> None:
    with _principal(shared, "mallory") as mallory, _principal(shared, "alice") as alice:
        digests = [_digest(bytes([number]), "xxh3") for number in range(12)]
        replies = [_ask(mallory, t.Chunk(n, digest, 2 * MIB, 0), bytes(MIB)) for n, digest in enumerate(digests)]
        assert [reply for reply in replies[:7] if not isinstance(reply, t.Held)] == []
        for reply in replies[8:]:
            assert isinstance(reply, m.Problem)
            assert "8.0 MiB" in reply.message
        assert sum(path.stat().st_size for path in (shared.state / "artifacts").rglob("*.part")) <= 8 * MIB
        data = secrets.token_bytes(MIB)
        assert _ask(alice, t.Chunk(1, _digest(data, "sha256"), MIB, 0), data) == t.Held(1, (MIB,))
        mallory.send(t.Drop(digests[0]))
        assert _ask(mallory, t.Chunk(99, digests[11], 2 * MIB, 0), bytes(MIB)) == t.Held(99, (MIB,))


@pytest.mark.usefixtures("layout")
def test_a_result_that_the_store_refused_is_not_stored_all_the_same(shared: SmallGateway) -> None:
    announced = f"send(['Returned', {D}, 1 << 29, [], None])\n{TAKE_SPOOL}\ntime.sleep(0.3)"
    with shared.client(shared.token("mallory")) as client:
        running = Cell(client, gpus=0).start(f"{CHANNEL}\n{announced}\n{GROW}")
        assert _most_stored(running, shared) < 64 * MIB


@pytest.mark.usefixtures("layout")
def test_tiny_blobs_count_with_what_they_take_on_disk(shared: SmallGateway) -> None:
    with _principal(shared, "mallory") as mallory:
        for number in range(2100):  # 8.2 MiB in blocks of 4 KiB
            reply = _ask(mallory, t.Chunk(number, _digest(b"%d" % number, "xxh3"), 2, 0), b"x")
            if isinstance(reply, m.Problem):
                return
    raise AssertionError("2100 files of a byte were taken within 8 MiB")


# ── paths ──


@pytest.mark.parametrize(
    "path", ["/tmp/escaped", "../escaped", "a/../../escaped", "..", ".", "a\0b", "/", "//etc/escaped", "a/.."]
)
def test_a_file_for_a_session_stays_below_its_workspace(path: str, cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    files = FileSet({path: Digests().look(tmp_path / "x")})
    with pytest.raises((KCoralError, ValueError)):
        cell.session.run("1", files=files)
    cell.session.restart()  # what it was told it has, it does not have
    assert cell.session.run("import os; os.path.exists('/tmp/escaped') or os.path.exists('/escaped')").text == "False"


def test_a_file_brings_no_special_mode(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    looked = Digests().look(tmp_path / "x")
    files = FileSet({"a\\..\\b": LocalFile(looked.path, looked.digest, looked.size, 0o6777)})
    cell.session.run("1", files=files)
    assert cell.session.run("import os; oct(os.stat('a\\\\..\\\\b').st_mode & 0o7777)").text == "'0o755'"


@pytest.fixture
def kernel(gateway: BoxedGateway, token: str, tmp_path: Path) -> Iterator[Kernel]:
    """A notebook kernel of the attacker's principal, in a folder of its own."""
    (home := tmp_path / "home").mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    started = Kernel(str(home), env | {"HOME": str(home), "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token})
    started.run("%load_ext kcoral_magic")
    yield started
    started.run("%kcoral close")
    started.close()


NAMES_FILES = """%%kcoral
import hashlib, kcoral_gateway.worker.files as files
data = b'attack'
digest = 'sha256-' + hashlib.sha256(data).hexdigest()
names = {names!r}
files.digests = lambda patterns: [(name, name, len(data), 0o6777, digest) for name in names]
files.contents = lambda paths: [(path, memoryview(data)) for path in paths]
"""


def test_a_fetched_file_lands_below_its_folder_or_not_at_all(kernel: Kernel, tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (home / "got").mkdir()
    (home / "got" / "way").symlink_to(outside)
    (home / "got" / "link").symlink_to(outside / "precious")
    (home / "got" / "twin").hardlink_to(outside / "precious")
    os.mkfifo(home / "got" / "pipe")
    for name in (
        str(outside / "absolute"), "../outside/up", "a/../../../outside/up", "way/through", "..\\outside\\up", "n\0ul",
        "", ".", "..", "/", "a/..", " ",
    ):  # fmt: skip
        kernel.run(NAMES_FILES.format(names=[name]))
        refused = kernel.run("%kcoral get anything --to got")
        assert refused.reply["content"]["status"] == "error", name
        assert "attack" not in refused.traceback
    for name in ("link", "twin", "pipe", "fine", "sub/deep/fine"):
        kernel.run(NAMES_FILES.format(names=[name]))
        assert "1 file" in kernel.run("%kcoral get anything --to got").shown()[0], name
        assert (home / "got" / name).read_bytes() == b"attack"
        assert not (home / "got" / name).is_symlink()
        assert (home / "got" / name).stat().st_mode & 0o7000 == 0
    assert {path.name for path in outside.iterdir()} == {"precious"}
    assert (outside / "precious").read_text() == "kept"


@pytest.mark.parametrize(
    "lie",
    ["[1, 2]", "'text'", "[('a', 'a', -1, 0o644, 'sha256-x')]", "[('a',) * 5]", "None", "{'a': 1}"],
)
def test_a_list_of_files_that_is_none_is_refused(kernel: Kernel, lie: str) -> None:
    kernel.run(f"%%kcoral\nimport kcoral_gateway.worker.files as files\nfiles.digests = lambda patterns: {lie}")
    refused = kernel.run("%kcoral get anything --to got")
    assert refused.reply["content"]["status"] == "error"
    assert kernel.run("%%kcoral\n1").shown() == ["1"]


def test_links_pipes_and_devices_of_a_workspace_lead_nowhere(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(
        "%%kcoral\nimport os\nos.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'passwd'); os.mkfifo('pipe')\n"
        "os.symlink('/dev/zero', 'zero'); open('real', 'w').write('r'); os.symlink('.', 'loop')"
    )
    began = time.monotonic()
    kernel.run("%kcoral get '*' --to got")
    assert time.monotonic() - began < 5
    got = tmp_path / "home" / "got"
    assert [path.name for path in got.rglob("*") if path.is_file()] == ["real"]
    kernel.run("%kcoral get etc/passwd --to inside")
    seen = tmp_path / "home" / "inside" / "passwd"
    users = [line.split(":")[0] for line in seen.read_text().splitlines()] if seen.exists() else []
    assert len(users) <= 3  # the sandbox's own list, never this machine's


def test_an_error_of_a_session_s_answer_names_no_code_of_ours(cell: Cell) -> None:
    with pytest.raises((RemoteError, ValueRefused)) as caught:
        cell.session.run(
            "", wants=[("found", "__import__('kcoral_gateway.worker.files', fromlist=['x']).listing('\\0')")]
        )
    assert len(str(caught.value)) < 2000
