"""Two ends with a lossy link between them: everything arrives once, in order, and nothing runs twice.

The gateway of these tests is a model of ``endpoints.websocket`` and ``execution.service`` around the real
``GatewayConnection`` and the real ``Journal``; the link can lose what is on its way in both directions at any moment.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kcoral_gateway.execution.journal import Gap, Journal
from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

ID = "execution-1"
HELLO = m.Hello(versions=(m.VERSION,), client_id="notebook-1", instance="kernel-01")
ALL = m.View()
SIZES = (0, 1, 900, 900, 300_000, framing.MAX_CHUNK_BYTES + 7)
TEXT = b"".join(b"%d\n" % number for number in range(200_000))


def execute(execution_id: str = ID, view: m.View = ALL) -> m.Execute:
    return m.Execute(execution_id, m.SessionAsk(""), view=view)


def welcome(instance: str = "gateway-1") -> m.Welcome:
    return m.Welcome(m.VERSION, instance, "kcoral-magic", "ana", "none", "3.12.3")


def event(number: int, body: m.EventBody | None = None, text: bytes = b"x") -> bytes:
    (frame,) = framing.encode(m.Event(ID, number, body or m.Stream("stdout")), (text,) if body is None else ())
    return frame


def sent(frames: list[bytes]) -> list[object]:
    """What frames to the gateway say."""
    decoder = framing.Decoder[m.ToGateway](m.ToGateway)
    return [message.body for frame in frames if (message := decoder.decode(frame)) is not None]


# ── The model ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Record:
    """What is true of all executions, whatever a client has seen of it."""

    folder: Path
    started: Counter[str] = field(default_factory=Counter)  # over all instances
    events: dict[str, list[tuple[m.EventBody, bytes]]] = field(default_factory=dict)  # number 1 at place 0
    lost: set[str] = field(default_factory=set)  # ended by a successor of the gateway that ran them


class Gateway:
    """One instance of a gateway: as ``execution.service`` runs it."""

    def __init__(self, instance: str, record: Record) -> None:
        self.instance = instance
        self.journals: dict[str, Journal] = {}
        self._record = record

    def find(self, execution_id: str) -> Journal | None:
        """What runs here, else what a former instance left on disk, which then ends as lost."""
        path = self._path(execution_id)
        if execution_id not in self.journals:
            events = self._record.events.setdefault(execution_id, [])
            if not path.exists():
                events.clear()
                return None
            journal = Journal.load(path, execution_id, stream_bytes=1 << 30, tail_bytes=1 << 20)
            self.journals[execution_id] = journal
            del events[journal.last :]  # what had not been written died with its instance
            if not journal.is_finished:
                self._record.lost.add(execution_id)
                self.emit(execution_id, m.Finished("failed", 0.0, "lost", "the gateway was restarted"))
        return self.journals[execution_id]

    def run(self, execution_id: str) -> None:
        if self.find(execution_id) is not None:
            return
        self._record.started[execution_id] += 1
        assert self._record.started[execution_id] == 1, f"{execution_id} ran twice"
        path = self._path(execution_id)
        self.journals[execution_id] = Journal(path, execution_id, stream_bytes=1 << 30, tail_bytes=1 << 20)

    def emit(self, execution_id: str, body: m.EventBody, text: bytes | None = None) -> None:
        number = self.journals[execution_id].append(body, () if text is None else (text,))
        events = self._record.events[execution_id]
        events.append((body, text or b""))
        assert number == len(events)

    @property
    def running(self) -> list[str]:
        return [name for name, journal in self.journals.items() if not journal.is_finished]

    def flush(self) -> None:
        for journal in self.journals.values():
            journal.flush()

    def _path(self, execution_id: str) -> Path:
        return self._record.folder / f"{execution_id}.events"


@dataclass
class Flight:
    """Our own count of what one reader has not acknowledged."""

    events: deque[tuple[int, int]] = field(default_factory=deque)
    total: int = 0

    def sent(self, number: int, size: int) -> None:
        assert self.total < c.CREDIT_BYTES, "an event was sent beyond the credit"
        self.events.append((number, size))
        self.total += size

    def acked(self, number: int) -> None:
        while self.events and self.events[0][0] <= number:
            self.total -= self.events.popleft()[1]


class Session:
    """The gateway's end of one websocket: as ``endpoints.websocket`` runs it."""

    def __init__(self, gateway: Gateway, record: Record) -> None:
        self.out: deque[bytes] = deque()
        self._gateway = gateway
        self._record = record
        self._connection = c.GatewayConnection()
        self._catching_up: set[str] = set()
        self._flights: dict[str, Flight] = {}

    def take(self, frame: bytes) -> None:
        if self._connection.hello is None:
            self._connection.opened(frame)
            self.out.append(c.encode_handshake(welcome(self._gateway.instance)))
            return
        message = self._connection.receive(frame)
        match message and message.body:
            case m.Execute(execution_id=execution_id):
                self._gateway.run(execution_id)
            case m.Attach(execution_id=execution_id, after=after):
                self._flights.pop(execution_id, None)
                journal = self._gateway.find(execution_id)
                if journal is None:
                    self._refuse(execution_id, "not_found")
                elif after > journal.last or (after == journal.last and execution_id in self._record.lost):
                    self._refuse(execution_id, "lost")
                else:
                    self._catching_up.add(execution_id)
            case m.Detach(execution_id=execution_id):
                self._catching_up.discard(execution_id)
            case m.Ack(execution_id=execution_id, number=number):
                self._flights.setdefault(execution_id, Flight()).acked(number)

    def _refuse(self, execution_id: str, code: str) -> None:
        self._connection.drop(execution_id)
        self.out += framing.encode(m.Problem(code, "nothing is left of it", execution_id))

    def pump(self) -> bool:
        """Send each reader one piece. Whether there was any."""
        is_any = False
        for execution_id, reader in self._connection.readers.items():
            journal = self._gateway.journals[execution_id]
            if not reader.has_credit:
                continue
            piece = journal.next(reader)
            if piece is None:
                if journal.is_finished and execution_id in self._catching_up:
                    self._catching_up.remove(execution_id)
                    self.out += framing.encode(m.CaughtUp(execution_id))
                continue
            is_any = True
            if isinstance(piece, Gap):
                reader.sent(piece.to, 0)
                self.out += framing.encode(m.Skip(execution_id, piece.to, piece.stream_bytes, piece.lines))
            else:
                size = len(self._record.events[execution_id][piece.number - 1][1])
                self._flights.setdefault(execution_id, Flight()).sent(piece.number, size)
                reader.sent(piece.number, piece.size)
                self.out += piece.frames
        return is_any


class World:
    """A client with a reader that takes its time, a gateway with successors, and a link that loses frames.

    What arrives is compared with the record at once: each number once, in order, whole, or counted in a skip.
    """

    def __init__(self) -> None:
        self.record = Record(Path(tempfile.mkdtemp(prefix="kcoral-test-")))
        self.client = c.ClientConnection(HELLO)
        self.seen: dict[str, list[int]] = {}  # the numbers that came, without those skipped
        self.last: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        self.caught_up: set[str] = set()
        self.attached: set[str] = set()
        self.unread: deque[tuple[str, int, int]] = deque()
        self.session: Session | None = None
        self.is_open = False
        self.up: deque[bytes] = deque()
        self._instances = itertools.count(1)
        self.replace()

    def replace(self) -> None:
        """The gateway dies, its journals stay, and another one takes its place."""
        self.cut()
        self.gateway = Gateway(f"gateway-{next(self._instances)}", self.record)

    def connect(self) -> None:
        self.session = Session(self.gateway, self.record)
        self.up.append(self.client.hello())

    def cut(self) -> None:
        self.client.closed()
        self.session, self.is_open = None, False
        self.up.clear()

    def send(self, frames: list[bytes]) -> None:
        if self.is_open:  # as the transport: without a path nothing is kept
            self.up += frames

    def to_gateway(self) -> None:
        assert self.session is not None
        self.session.take(self.up.popleft())

    def to_client(self) -> None:
        assert self.session is not None
        frame = self.session.out.popleft()
        if not self.is_open:
            self.up += self.client.opened(frame)
            self.is_open = True
        elif (message := self.client.receive(frame)) is not None:
            self._arrived(message)

    def _arrived(self, message: c.Incoming) -> None:
        match message.body:
            case m.Event(execution_id=execution_id, number=number, body=body):
                text = b"".join(map(bytes, message.buffers))
                assert number == self.last[execution_id] + 1
                assert (body, text) == self.record.events[execution_id][number - 1]
                self.last[execution_id] = number
                self.seen[execution_id].append(number)
                self.unread.append((execution_id, number, len(text)))
            case m.Skip(execution_id=execution_id, to=to):
                texts = [text for _, text in self.record.events[execution_id][self.last[execution_id] : to]]
                assert message.body.stream_bytes == sum(map(len, texts))
                assert message.body.lines == sum(text.count(b"\n") for text in texts)
                self.last[execution_id] = to
                self.unread.append((execution_id, to, 0))
            case m.CaughtUp(execution_id=execution_id):
                assert self.last[execution_id] == len(self.record.events[execution_id])
                self.caught_up.add(execution_id)
            case m.Problem(execution_id=execution_id, code=code):
                self.problems[execution_id] = code

    def execute(self, execution_id: str, view: m.View = ALL) -> None:
        self.seen[execution_id], self.last[execution_id] = [], 0
        self.send(self.client.execute(execute(execution_id, view), b"body"))

    def attach(self, execution_id: str, view: m.View = ALL) -> None:
        """Read an execution from its start, whatever of an earlier reading is still on its way."""
        self.seen[execution_id], self.last[execution_id] = [], 0
        self.attached.add(execution_id)
        self.send([*self.client.forget(execution_id), *self.client.attach(execution_id, view)])

    def consume(self) -> None:
        self.send(self.client.consumed(*self.unread.popleft()))

    def exchange(self) -> bool:
        """Let everything that can arrive do so. Whether anything moved."""
        is_any = is_busy = False
        while self.session is not None:
            is_busy = bool(self.up)
            while self.up:
                self.to_gateway()
            is_busy = self.session.pump() or bool(self.session.out) or is_busy
            while self.session.out:
                self.to_client()
            while self.unread:
                self.consume()
            if not is_busy:
                break
            is_any = True
        return is_any

    def settle(self) -> None:
        """Mend the link and let all executions end; then nothing may be missing."""
        if self.session is None:
            self.connect()
        while self.exchange() or self.gateway.running:
            for execution_id in self.gateway.running:
                self.gateway.emit(execution_id, m.Finished("ok"))
        assert self.client.unfinished == []
        for execution_id, last in self.last.items():
            events = self.record.events.get(execution_id, [])
            if execution_id in self.problems:
                assert self.problems[execution_id] == ("lost" if events else "not_found")
                assert not events or execution_id in self.record.lost
                assert last >= len(events)
            else:
                assert last == len(events)
                assert isinstance(events[-1][0], m.Finished)
                assert execution_id in self.caught_up or execution_id not in self.attached

    def close(self) -> None:
        shutil.rmtree(self.record.folder)


class LossyLink(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.names = (f"execution-{number}" for number in itertools.count(1))

    @rule(view=st.sampled_from([ALL, ALL, m.View(1000, 500), m.View(0, 0)]))
    def a_cell_is_run(self, view: m.View) -> None:
        self.world.execute(next(self.names), view)

    @precondition(lambda self: self.world.gateway.running)
    @rule(data=st.data(), shown=st.lists(st.tuples(st.sampled_from(SIZES), st.booleans()), min_size=1, max_size=4))
    def it_shows_something(self, data: st.DataObject, shown: list[tuple[int, bool]]) -> None:
        execution_id = data.draw(st.sampled_from(self.world.gateway.running))
        for size, is_display in shown:
            self.world.gateway.emit(execution_id, m.Display(()) if is_display else m.Stream("stdout"), TEXT[:size])

    @precondition(lambda self: self.world.gateway.running)
    @rule(data=st.data())
    def it_ends(self, data: st.DataObject) -> None:
        self.world.gateway.emit(data.draw(st.sampled_from(self.world.gateway.running)), m.Finished("ok"))

    @precondition(lambda self: set(self.world.last) - self.world.attached)
    @rule(data=st.data(), view=st.sampled_from([ALL, m.View(1000, 500)]))
    def one_is_read_again_from_its_start(self, data: st.DataObject, view: m.View) -> None:
        readable = sorted(set(self.world.last) - self.world.attached - set(self.world.problems))
        if readable:
            self.world.attach(data.draw(st.sampled_from(readable)), view)

    @precondition(lambda self: self.world.session is None)
    @rule(is_greeted=st.booleans())
    def it_connects(self, is_greeted: bool) -> None:
        self.world.connect()
        if is_greeted:
            self.world.to_gateway()
            self.world.to_client()

    @precondition(lambda self: self.world.session is not None)
    @rule(up=st.integers(0, 3), pieces=st.integers(0, 3), down=st.integers(0, 5), read=st.integers(0, 3))
    def some_frames_arrive(self, up: int, pieces: int, down: int, read: int) -> None:
        world = self.world
        assert world.session is not None
        for _ in range(min(up, len(world.up))):
            world.to_gateway()
        for _ in range(pieces):
            world.session.pump()
        for _ in range(min(down, len(world.session.out))):
            world.to_client()
        for _ in range(min(read, len(world.unread))):
            world.consume()

    @precondition(lambda self: self.world.session is not None)
    @rule()
    def everything_arrives(self) -> None:
        self.world.exchange()

    @precondition(lambda self: self.world.session is not None)
    @rule(
        with_it=st.sampled_from(["nothing", "the gateway", "the gateway and what it had not written"]),
        is_back=st.booleans(),
        is_greeted=st.booleans(),
    )
    def the_path_is_lost(self, with_it: str, is_back: bool, is_greeted: bool) -> None:
        if with_it == "the gateway":
            self.world.gateway.flush()
        if with_it != "nothing":
            self.world.replace()
        self.world.cut()
        if is_back:
            self.it_connects(is_greeted)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
            finally:
                self.world.close()


TestLossyLink = LossyLink.TestCase
TestLossyLink.settings = settings(settings.default, max_examples=150, stateful_step_count=50)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_three_minutes_of_silence_while_the_cell_goes_on_printing_then_everything_once_in_order(world: World) -> None:
    world.connect()
    world.execute(ID)
    world.exchange()
    ends = (c.Liveness(0.0), c.Liveness(0.0))
    given_up_s = None
    for now in range(1, 241):
        is_silent = 20 < now <= 200
        world.gateway.emit(ID, m.Stream("stdout"), b"%d\n" % now)
        if world.session is None and not is_silent:
            world.connect()
            ends = (c.Liveness(now), c.Liveness(now))
        if not is_silent:
            world.exchange()
            for end in ends:
                end.heard(now)
        else:  # frames are sent into the silence, and nothing of them arrives
            assert world.session is None or world.session.pump()
            if world.session is not None and all(end.is_dead(now) for end in ends):
                given_up_s = now
                world.cut()
    world.settle()
    assert given_up_s == 20 + c.DEAD_AFTER_S
    assert world.seen[ID] == list(range(1, 242))
    assert [text for _, text in world.record.events[ID]] == [b"%d\n" % second for second in range(1, 241)] + [b""]


@pytest.mark.parametrize("shown", [(m.Stream("stdout"), b"."), (m.ClearOutput(True), None)])
def test_a_reader_that_keeps_up_with_any_number_of_tiny_events_has_credit(
    world: World, shown: tuple[m.EventBody, bytes | None]
) -> None:
    world.connect()
    world.execute(ID)
    world.exchange()
    for _ in range(c.CREDIT_BYTES // 40):
        world.gateway.emit(ID, *shown)
    world.settle()


def test_a_body_never_runs_on_a_second_gateway_however_often_the_link_is_cut(world: World) -> None:
    world.connect()
    world.execute(ID)
    world.exchange()
    world.replace()  # the first gateway dies with the body running, before its first event
    for _ in range(3):
        world.connect()
        world.to_gateway()
        world.to_client()
        world.cut()
    world.settle()
    assert world.record.started == {ID: 1}
    assert world.problems == {ID: "not_found"}


# ── The client's rules, one by one ──────────────────────────────────────────────────────────────────────────────────


def opened_client(instance: str = "gateway-1") -> c.ClientConnection:
    client = c.ClientConnection(HELLO)
    client.hello()
    assert client.opened(c.encode_handshake(welcome(instance))) == []
    return client


def test_a_body_is_sent_again_to_the_same_gateway_until_its_first_event() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    assert sent(client.opened(c.encode_handshake(welcome()))) == [execute()]
    client.receive(event(1))
    assert sent(client.opened(c.encode_handshake(welcome()))) == [m.Attach(ID, 1)]


def test_another_gateway_is_asked_what_it_knows_and_not_told_to_run() -> None:
    client = opened_client()
    client.execute(execute(view=m.View(10, 5)), b"1 + 1")
    assert sent(client.opened(c.encode_handshake(welcome("gateway-2")))) == [m.Attach(ID, 0, m.View(10, 5))]


def test_a_body_given_before_the_first_connection_is_sent_with_it() -> None:
    client = c.ClientConnection(HELLO)
    assert client.execute(execute(), b"1 + 1") == []
    client.hello()
    assert sent(client.opened(c.encode_handshake(welcome()))) == [execute()]


def test_a_body_given_while_the_path_is_lost_runs_on_whichever_gateway_is_next() -> None:
    client = opened_client("gateway-1")
    client.closed()
    assert client.execute(execute(), b"1 + 1") == []
    assert sent(client.opened(c.encode_handshake(welcome("gateway-2")))) == [execute()]
    client.closed()
    assert sent(client.opened(c.encode_handshake(welcome("gateway-3")))) == [m.Attach(ID, 0)]


def test_resuming_leaves_out_what_has_finished() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    assert client.unfinished == [ID]
    client.receive(event(1, m.Finished("ok")))
    assert client.unfinished == []
    assert client.opened(c.encode_handshake(welcome())) == []


def test_late_output_still_comes_after_the_end() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.receive(event(1, m.Finished("ok")))
    late = client.receive(event(2))
    assert late is not None
    assert client.unfinished == []


def test_what_a_client_has_already_is_dropped() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    assert client.receive(event(1)) is not None
    assert client.receive(event(1)) is None
    assert client.receive(event(2)) is not None


def test_a_gap_is_a_broken_connection() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.receive(event(1))
    with pytest.raises(ProtocolError, match=f"event 2 of {ID} was due, got 3"):
        client.receive(event(3))


def test_a_skip_moves_the_number_on_and_an_old_one_is_dropped() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.receive(event(1))
    (skip,) = framing.encode(m.Skip(ID, 50, 1000, 9))
    assert client.receive(skip) is not None
    assert client.receive(skip) is None
    assert client.receive(event(51)) is not None


def test_a_skip_proves_that_the_body_arrived() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.receive(*framing.encode(m.Skip(ID, 50, 1000, 9)))
    assert sent(client.opened(c.encode_handshake(welcome()))) == [m.Attach(ID, 50)]


def test_events_of_an_execution_that_was_forgotten_are_dropped() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    assert sent(client.forget(ID)) == [m.Detach(ID)]
    assert client.forget(ID) == []
    assert client.receive(event(1)) is None
    assert client.consumed(ID, 1, c.CREDIT_BYTES) == []
    assert client.opened(c.encode_handshake(welcome())) == []


def test_a_problem_ends_the_execution_it_names_and_no_other() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    for other in ("", "execution-2"):
        assert client.receive(*framing.encode(m.Problem("usage", "no", other))) is not None
        assert client.unfinished == [ID]
    client.receive(*framing.encode(m.Problem("not_found", "no", ID)))
    assert client.unfinished == []


def test_an_attached_execution_is_read_from_its_start() -> None:
    client = opened_client()
    assert sent(client.attach(ID, m.View(1, 2))) == [m.Attach(ID, 0, m.View(1, 2))]
    assert client.receive(event(1)) is not None
    assert sent(client.opened(c.encode_handshake(welcome("gateway-2")))) == [m.Attach(ID, 1, m.View(1, 2))]


def test_an_attached_execution_is_read_on_after_its_end_until_it_is_caught_up() -> None:
    client = opened_client()
    client.attach(ID, ALL)
    client.receive(event(1, m.Finished("ok")))
    assert client.unfinished == [ID]
    assert sent(client.opened(c.encode_handshake(welcome()))) == [m.Attach(ID, 1)]
    assert client.receive(event(2)) is not None
    assert client.receive(*framing.encode(m.CaughtUp(ID))) is not None
    assert client.unfinished == []


def test_what_is_on_its_way_of_an_earlier_reading_is_not_the_beginning_of_the_next_one() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.receive(event(1))
    client.forget(ID)
    client.attach(ID, ALL)
    (skip,) = framing.encode(m.Skip(ID, 5, 100, 1))
    for frame in (event(2), event(3), skip):
        assert client.receive(frame) is None
    assert client.receive(event(1)) is not None
    assert client.receive(event(2)) is not None


def test_the_end_of_an_earlier_reading_is_not_the_end_of_the_next_one() -> None:
    client = opened_client()
    client.attach(ID, ALL)
    client.receive(event(1, m.Finished("ok")))
    client.forget(ID)
    client.attach(ID, ALL)
    (caught_up,) = framing.encode(m.CaughtUp(ID))
    assert client.receive(caught_up) is None  # of the first reading: it was on its way
    assert client.receive(event(1, m.Finished("ok"))) is not None
    assert client.receive(caught_up) is not None


def test_a_message_before_the_welcome_is_a_protocol_error() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    client.hello()
    with pytest.raises(ProtocolError, match="before the welcome"):
        client.receive(event(1))


def test_half_a_message_of_the_old_path_is_forgotten_on_the_new_one() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    large = framing.encode(m.Event(ID, 1, m.Stream("stdout")), (bytes(framing.MAX_CHUNK_BYTES + 1),))
    assert client.receive(large[0]) is None
    client.hello()
    client.opened(c.encode_handshake(welcome()))
    assert [client.receive(frame) is not None for frame in large] == [False, True]


def test_reading_is_acknowledged_once_enough_has_gathered() -> None:
    client = opened_client()
    client.execute(execute(), b"1 + 1")
    quarter = c.CREDIT_BYTES // 4
    assert client.consumed(ID, 1, quarter - 1) == []
    assert sent(client.consumed(ID, 2, 1)) == [m.Ack(ID, 2)]
    assert client.consumed(ID, 3, quarter - 1) == []


# ── The gateway's rules, one by one ─────────────────────────────────────────────────────────────────────────────────


def opened_gateway() -> c.GatewayConnection:
    gateway = c.GatewayConnection()
    gateway.opened(c.encode_handshake(HELLO))
    return gateway


def receive(gateway: c.GatewayConnection, body: m.ToGateway, *buffers: bytes) -> None:
    for frame in framing.encode(body, buffers):
        gateway.receive(frame)


def test_a_message_before_the_hello_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="a hello was due"):
        receive(c.GatewayConnection(), m.Ping())


@pytest.mark.parametrize("buffers", [(), (b"1", b"2", b"3", b"4")])
def test_a_body_has_source_manifest_and_parcel_at_most(buffers: tuple[bytes, ...]) -> None:
    with pytest.raises(ProtocolError, match="1 to 3 buffers"):
        receive(opened_gateway(), execute(), *buffers)


def test_a_reader_begins_after_the_number_it_was_attached_with_and_goes_with_its_detach() -> None:
    gateway = opened_gateway()
    receive(gateway, m.Attach(ID, 41, m.View(10, 5)))
    assert (gateway.readers[ID].next, gateway.readers[ID].view) == (42, m.View(10, 5))
    receive(gateway, m.Detach(ID))
    assert gateway.readers == {}
    receive(gateway, m.Ack(ID, 41))  # crossed the detach: no error


def test_a_body_that_is_sent_twice_on_one_connection_keeps_its_reader() -> None:
    gateway = opened_gateway()
    receive(gateway, execute(), b"1")
    gateway.readers[ID].sent(1, 10)
    receive(gateway, execute(), b"1")
    assert gateway.readers[ID].next == 2


def test_a_reader_has_credit_until_its_bytes_in_flight_reach_the_limit() -> None:
    reader = c.Reader(ALL)
    reader.sent(1, c.CREDIT_BYTES - 1)
    assert reader.has_credit
    reader.sent(2, 10 * c.CREDIT_BYTES)  # one event may overshoot
    assert not reader.has_credit
    reader.acked(1)
    assert not reader.has_credit
    reader.acked(2)
    assert (reader.has_credit, reader.in_flight_bytes, reader.next) == (True, 0, 3)


def test_an_acknowledgement_may_come_late_or_twice_but_not_for_what_was_never_sent() -> None:
    gateway = opened_gateway()
    receive(gateway, m.Attach(ID, 0))
    gateway.readers[ID].sent(1, 10)
    for _ in range(2):
        receive(gateway, m.Ack(ID, 1))
    with pytest.raises(ProtocolError, match="event 2 was acknowledged, 1 was the last one sent"):
        receive(gateway, m.Ack(ID, 2))


def test_an_acknowledgement_of_an_earlier_reading_may_come_after_the_next_one_began() -> None:
    gateway = opened_gateway()
    receive(gateway, m.Attach(ID, 0))
    gateway.readers[ID].sent(1, 10)
    gateway.readers[ID].sent(2, 10)
    receive(gateway, m.Detach(ID))
    receive(gateway, m.Attach(ID, 0))
    receive(gateway, m.Ack(ID, 2))
    assert gateway.readers[ID].next == 1
    with pytest.raises(ProtocolError, match="event 3 was acknowledged"):
        receive(gateway, m.Ack(ID, 3))


# ── The handshake and liveness ──────────────────────────────────────────────────────────────────────────────────────

NO_HANDSHAKE = {
    "no bytes": b"",
    "no msgpack": b"\xc1",
    "a frame": framing.encode(m.Ping())[0],
    "an array": msgspec.msgpack.encode([1]),
    "another map": msgspec.msgpack.encode({"a": 1}),
    "a field of another type": msgspec.msgpack.encode({**msgspec.to_builtins(HELLO), "versions": "1", "version": "1"}),
    "text that is no UTF-8": b"\x81\xa1\xff\x01",
    "a nesting bomb": b"\x81\xa1x" + b"\x91" * 60_000 + b"\xc0",
    "more than a head": c.encode_handshake(HELLO) + bytes(framing.MAX_HEAD_BYTES),
    "an id that leaves its folder": msgspec.msgpack.encode({**msgspec.to_builtins(HELLO), "client_id": "../../etc"}),
    "an announced array of four thousand million": b"\x81\xa8versions\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("frame", NO_HANDSHAKE.values(), ids=NO_HANDSHAKE)
def test_what_is_no_handshake_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        c.decode_hello(frame)
    with pytest.raises(ProtocolError):
        c.decode_welcome(frame)


@pytest.mark.parametrize(("versions", "shown"), [((), "none"), ((2, 3), "2, 3")])
def test_a_client_that_speaks_none_of_our_versions_is_told_what_to_do(versions: tuple[int, ...], shown: str) -> None:
    frame = c.encode_handshake(m.Hello(versions, "notebook-1", "kernel-01"))
    with pytest.raises(ProtocolError, match=f"speaks version 1, the client {shown}: install the same"):
        c.decode_hello(frame)


def test_a_silent_path_is_asked_once_every_interval_and_given_up_in_time() -> None:
    liveness = c.Liveness(100.0)
    asked = [now for now in range(100, 116) if liveness.wants_ping(now)]
    assert asked == [105, 110, 115]
    assert not liveness.is_dead(100 + c.DEAD_AFTER_S - 0.1)
    assert liveness.is_dead(100 + c.DEAD_AFTER_S)


def test_anything_heard_keeps_a_path_alive() -> None:
    liveness = c.Liveness(0.0, ping_after_s=2.0, dead_after_s=6.0)
    liveness.heard(5.0)
    assert not liveness.wants_ping(6.9)
    assert liveness.wants_ping(7.0)
    assert not liveness.is_dead(10.9)
    assert liveness.is_dead(11.0)
