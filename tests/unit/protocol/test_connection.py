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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcoral_gateway.execution.journal import Gap, Journal
from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

ID = "execution-1"
HELLO = m.Hello(versions=(m.VERSION,), client_id="notebook-1", instance="kernel-01")
ALL = m.View()
SIZES = (0, 1, 900, 300_000, 900_000, framing.MAX_CHUNK_BYTES + 7)


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
class Gateway:
    """One instance of a gateway. ``started`` counts over all instances how often a body began to run."""

    instance: str
    folder: Path
    started: Counter[str]
    journals: dict[str, Journal] = field(default_factory=dict)

    def open_journal(self, execution_id: str) -> Journal:
        path = self.folder / f"{execution_id}.events"
        make = Journal.load if path.exists() else Journal
        return make(path, execution_id, stream_bytes=1 << 30, tail_bytes=1 << 20)

    def find(self, execution_id: str) -> Journal | None:
        """As the service: what runs here, else what a former instance left, which then ends as lost."""
        journal = self.journals.get(execution_id)
        if journal is None and (self.folder / f"{execution_id}.events").exists():
            journal = self.journals[execution_id] = self.open_journal(execution_id)
            if not journal.is_finished:
                journal.append(m.Finished("failed", 0.0, "lost", "the gateway was restarted"))
        return journal

    def run(self, execution_id: str) -> None:
        if self.find(execution_id) is None:
            self.started[execution_id] += 1
            self.journals[execution_id] = self.open_journal(execution_id)

    def flush(self) -> None:
        for journal in self.journals.values():
            journal.flush()


class Session:
    """The gateway's end of one websocket, as ``endpoints.websocket`` runs it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.connection = c.GatewayConnection()
        self.in_flight: dict[str, deque[tuple[int, int]]] = {}  # our own count of the credit
        self.out: deque[bytes] = deque()

    def take(self, frame: bytes) -> None:
        if self.connection.hello is None:
            self.connection.opened(frame)
            self.out.append(c.encode_handshake(welcome(self.gateway.instance)))
            return
        message = self.connection.receive(frame)
        match message and message.body:
            case m.Execute(execution_id=execution_id):
                self.gateway.run(execution_id)
            case m.Attach(execution_id=execution_id):
                self.in_flight.pop(execution_id, None)
                if self.gateway.find(execution_id) is None:
                    self.connection.readers.pop(execution_id)
                    self.out += framing.encode(m.Problem("not_found", "no such execution", execution_id))
            case m.Ack(execution_id=execution_id, number=number):
                flight = self.in_flight.setdefault(execution_id, deque())
                while flight and flight[0][0] <= number:
                    flight.popleft()
            case m.Ping():
                self.out += framing.encode(m.Pong())

    def pump(self) -> bool:
        """Send each reader one piece. Whether there was any."""
        is_any = False
        for execution_id, reader in list(self.connection.readers.items()):
            journal = self.gateway.journals[execution_id]
            if not reader.has_credit or (piece := journal.next(reader)) is None:
                continue
            is_any = True
            if isinstance(piece, Gap):
                reader.sent(piece.to, 0)
                self.out += framing.encode(m.Skip(execution_id, piece.to, piece.stream_bytes, piece.lines))
            else:
                flight = self.in_flight.setdefault(execution_id, deque())
                flight.append((piece.number, buffer_bytes(piece.frames)))
                assert sum(size for _, size in list(flight)[:-1]) < c.CREDIT_BYTES, "sent beyond the credit"
                reader.sent(piece.number, piece.size)
                self.out += piece.frames
        return is_any


def buffer_bytes(frames: list[bytes]) -> int:
    decoder = framing.Decoder[m.ToClient](m.ToClient)
    (message,) = [message for frame in frames if (message := decoder.decode(frame)) is not None]
    return sum(len(buffer) for buffer in message.buffers)


class Client:
    """A client's end: a ``ClientConnection``, and a reader that takes its time."""

    def __init__(self) -> None:
        self.connection = c.ClientConnection(HELLO)
        self.seen: dict[str, list[tuple[int, m.EventBody, bytes]]] = {}
        self.skipped: dict[str, list[m.Skip]] = {}
        self.problems: dict[str, str] = {}
        self.unread: deque[tuple[str, int, int]] = deque()

    def take(self, message: c.Incoming) -> None:
        match message.body:
            case m.Event(execution_id=execution_id, number=number, body=body):
                text = b"".join(map(bytes, message.buffers))
                self.seen[execution_id].append((number, body, text))
                self.unread.append((execution_id, number, len(text)))
            case m.Skip(execution_id=execution_id, to=to):
                self.skipped[execution_id].append(message.body)
                self.unread.append((execution_id, to, 0))
            case m.Problem(execution_id=execution_id, code=code):
                self.problems[execution_id] = code


class World:
    """A client, a gateway with a successor each time it dies, and a link that loses what is on its way."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kcoral-test-"))
        self.instances = itertools.count(1)
        self.started: Counter[str] = Counter()
        self.truth: dict[str, list[tuple[int, m.EventBody, bytes]]] = {}
        self.gateway = self.successor()
        self.client = Client()
        self.session: Session | None = None
        self.is_open = False
        self.up: deque[bytes] = deque()

    def successor(self) -> Gateway:
        return Gateway(f"gateway-{next(self.instances)}", self.folder, self.started)

    # ── the link ──

    def connect(self) -> None:
        self.session = Session(self.gateway)
        self.up.append(self.client.connection.hello())

    def cut(self) -> None:
        self.session, self.is_open = None, False
        self.up.clear()

    def send(self, frames: list[bytes]) -> None:
        if self.is_open:  # as the transport: without a path nothing is kept, resuming will send it
            self.up += frames

    def to_gateway(self) -> None:
        assert self.session is not None
        self.session.take(self.up.popleft())

    def to_client(self) -> None:
        assert self.session is not None
        frame = self.session.out.popleft()
        if not self.is_open:
            self.up += self.client.connection.opened(frame)
            self.is_open = True
            return
        message = self.client.connection.receive(frame)
        if message is not None:
            self.client.take(message)

    # ── the ends ──

    def execute(self, execution_id: str, view: m.View) -> None:
        self.client.seen[execution_id], self.client.skipped[execution_id] = [], []
        self.send(self.client.connection.execute(execute(execution_id, view), b"body"))

    def emit(self, execution_id: str, body: m.EventBody, text: bytes | None = None) -> None:
        number = self.gateway.journals[execution_id].append(body, () if text is None else (text,))
        self.truth.setdefault(execution_id, []).append((number, body, text or b""))

    def consume(self) -> None:
        self.send(self.client.connection.consumed(*self.client.unread.popleft()))

    @property
    def running(self) -> list[str]:
        return [name for name, journal in self.gateway.journals.items() if not journal.is_finished]

    def settle(self) -> None:
        """Mend the link, end what runs, and let everything arrive."""
        if self.session is None:
            self.connect()
        for execution_id in self.running:
            self.emit(execution_id, m.Finished("ok"))
        is_busy = True
        while is_busy:
            is_busy = False
            assert self.session is not None
            while self.up:
                self.to_gateway()
                is_busy = True
                for execution_id in self.running:  # began to run just now, by a resumed Execute
                    self.emit(execution_id, m.Finished("ok"))
            is_busy = self.session.pump() or is_busy
            while self.session.out:
                self.to_client()
                is_busy = True
            while self.client.unread:
                self.consume()
                is_busy = True

    def check(self) -> None:
        """What the client has so far is the truth's beginning: each number once, in order, seen or told as skipped."""
        assert all(count == 1 for count in self.started.values()), f"a body ran twice: {self.started}"
        for execution_id, seen in self.client.seen.items():
            truth = dict((number, (body, text)) for number, body, text in self.whole_truth(execution_id))
            skipped = [(skip.to, skip) for skip in self.client.skipped[execution_id]]
            told = sorted([*((number, None) for number, _, _ in seen), *skipped], key=lambda pair: pair[0])
            last = 0
            for number, skip in told:
                if skip is None:
                    assert number == last + 1, f"{execution_id}: event {last + 1} was due, got {number}"
                else:
                    left_out = [truth[n][1] for n in range(last + 1, number + 1)]
                    assert skip.stream_bytes == sum(map(len, left_out))
                    assert skip.lines == sum(text.count(b"\n") for text in left_out)
                last = number
            assert seen == sorted(seen, key=lambda one: one[0])
            for number, body, text in seen:
                assert (body, text) == truth[number]

    def whole_truth(self, execution_id: str) -> list[tuple[int, m.EventBody, bytes]]:
        """What was emitted, and the end that a successor wrote for it."""
        truth = list(self.truth.get(execution_id, ()))
        if not truth or not isinstance(truth[-1][1], m.Finished):
            lost = m.Finished("failed", 0.0, "lost", "the gateway was restarted")
            truth.append((len(truth) + 1, lost, b""))
        return truth

    def check_complete(self) -> None:
        self.check()
        assert self.client.connection.unfinished == []
        for execution_id, seen in self.client.seen.items():
            if execution_id in self.client.problems:
                assert self.client.problems[execution_id] == "not_found"
                assert not self.truth.get(execution_id), "an execution that has a journal was not found"
            else:
                assert seen[-1] == self.whole_truth(execution_id)[-1]

    def close(self) -> None:
        shutil.rmtree(self.folder)


class LossyLink(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.names = (f"execution-{number}" for number in itertools.count(1))

    @rule(view=st.sampled_from([ALL, ALL, m.View(1000, 500), m.View(0, 0)]))
    def a_cell_is_run(self, view: m.View) -> None:
        self.world.execute(next(self.names), view)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), size=st.sampled_from(SIZES), is_display=st.booleans())
    def it_shows_something(self, data: st.DataObject, size: int, is_display: bool) -> None:
        execution_id = data.draw(st.sampled_from(self.world.running))
        number = self.world.gateway.journals[execution_id].last + 1
        text = (b"%d\n" % number * (size // 2 + 1))[:size]
        self.world.emit(execution_id, m.Display(()) if is_display else m.Stream("stdout"), text)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def it_ends(self, data: st.DataObject) -> None:
        self.world.emit(data.draw(st.sampled_from(self.world.running)), m.Finished("ok"))

    @precondition(lambda self: self.world.session is not None and self.world.up)
    @rule(count=st.integers(1, 4))
    def frames_reach_the_gateway(self, count: int) -> None:
        for _ in range(min(count, len(self.world.up))):
            self.world.to_gateway()

    @precondition(lambda self: self.world.session is not None)
    @rule(count=st.integers(1, 4))
    def the_gateway_sends(self, count: int) -> None:
        for _ in range(count):
            self.world.session.pump()

    @precondition(lambda self: self.world.session is not None and self.world.session.out)
    @rule(count=st.integers(1, 8))
    def frames_reach_the_client(self, count: int) -> None:
        for _ in range(min(count, len(self.world.session.out))):
            self.world.to_client()

    @precondition(lambda self: self.world.client.unread)
    @rule(count=st.integers(1, 4))
    def the_reader_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.world.client.unread))):
            self.world.consume()

    @precondition(lambda self: self.world.session is None)
    @rule()
    def it_connects(self) -> None:
        self.world.connect()

    @precondition(lambda self: self.world.session is not None)
    @rule()
    def the_link_is_cut(self) -> None:
        self.world.cut()

    @rule()
    def the_gateway_is_replaced(self) -> None:
        self.world.cut()
        self.world.gateway.flush()
        self.world.gateway = self.world.successor()

    @invariant()
    def what_has_arrived_is_right(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
                self.world.check_complete()
            finally:
                self.world.close()


TestLossyLink = LossyLink.TestCase
TestLossyLink.settings = settings(settings.default, max_examples=60, stateful_step_count=40)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_three_minutes_of_silence_while_the_cell_goes_on_printing_then_everything_once_in_order(world: World) -> None:
    now, tick_s = 0.0, 1.0
    world.connect()
    world.execute(ID, ALL)
    ends: tuple[c.Liveness, c.Liveness] | None = None
    given_up_s: list[float] = []
    is_silent = False
    while now < 240:
        now += tick_s
        is_silent = 20 < now <= 200
        if world.session is None and not is_silent:
            world.connect()
            ends = None
        if world.session is not None and not is_silent:
            while world.up or world.session.pump() or world.session.out:
                while world.up:
                    world.to_gateway()
                while world.session.out:
                    world.to_client()
                while world.client.unread:
                    world.consume()
            ends = ends or (c.Liveness(now), c.Liveness(now))
            for end in ends:  # both ping every five silent seconds, and are answered
                end.heard(now)
        if ends is not None and any(end.is_dead(now) for end in ends):
            given_up_s.append(now)
            world.cut()
            ends = None
        world.emit(ID, m.Stream("stdout"), b"%d\n" % now)
    assert given_up_s == [20 + c.DEAD_AFTER_S]
    world.settle()
    world.check_complete()
    printed = b"".join(text for _, body, text in world.client.seen[ID] if isinstance(body, m.Stream))
    assert printed == b"".join(b"%d\n" % second for second in range(1, 241))
    assert [number for number, _, _ in world.client.seen[ID]] == list(range(1, 242))


def test_a_reader_that_keeps_up_with_many_tiny_events_never_runs_out_of_credit(world: World) -> None:
    world.connect()
    world.execute(ID, ALL)
    world.to_gateway()
    world.to_client()
    world.to_gateway()
    for _ in range(c.CREDIT_BYTES // 40):
        world.emit(ID, m.Stream("stdout"), b".")
    world.settle()
    assert len(world.client.seen[ID]) == len(world.truth[ID])


def test_a_reader_that_keeps_up_with_events_without_buffers_never_runs_out_of_credit(world: World) -> None:
    world.connect()
    world.execute(ID, ALL)
    world.to_gateway()
    world.to_client()
    world.to_gateway()
    for _ in range(c.CREDIT_BYTES // 40):
        world.emit(ID, m.ClearOutput(True))
    world.settle()
    assert len(world.client.seen[ID]) == len(world.truth[ID])


def test_a_body_whose_first_gateway_is_gone_never_runs_on_the_second_however_often_the_link_is_cut(
    world: World,
) -> None:
    world.connect()
    world.to_gateway()
    world.to_client()
    world.execute(ID, ALL)
    world.to_gateway()  # it runs, and its gateway dies before the first event
    world.cut()
    world.gateway = world.successor()
    for _ in range(3):
        world.connect()
        world.to_gateway()
        world.to_client()
        world.cut()
    world.settle()
    assert world.started == {ID: 1}
    assert world.client.problems == {ID: "not_found"}


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
    client.execute(execute(), b"1 + 1")
    client.hello()
    assert sent(client.opened(c.encode_handshake(welcome()))) == [execute()]


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


@pytest.mark.parametrize("buffers", [(), (b"1", b"2")])
def test_a_body_is_one_buffer(buffers: tuple[bytes, ...]) -> None:
    with pytest.raises(ProtocolError, match="one buffer"):
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
