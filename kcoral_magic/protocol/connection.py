"""The two ends of a client's connection, without sockets, threads or clocks.

Each end takes frames and ``now`` (monotonic seconds) and gives frames to send and messages to act on. Rules
(PROTOCOL.md, sections 4–6):

* Events of an execution are numbered from 1 without gaps. A client drops what it has, and treats a gap as a broken
  connection: reconnecting and attaching after its last number heals any loss.
* A body is sent again only to the gateway instance that may have it, which drops the repeat by its id. Another
  instance is asked what it knows (``Attach``) and never told to run: nothing ever runs twice.
* The gateway keeps at most ``CREDIT_BYTES`` of an execution unacknowledged. A client acknowledges what its reader has
  consumed, so a slow reader slows only its own view; the rest waits in the journal.
* A side that has heard nothing for ``PING_AFTER_S`` asks; after ``DEAD_AFTER_S`` it gives the path up. Websocket
  pings would not do: they are answered by a library whose application may be stuck.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

CREDIT_BYTES = 2 * 1024 * 1024  # two of the largest frames: one on the wire, one being read
MAX_SOURCE_BYTES = 8 * 1024 * 1024  # of a body; values have their own messages
PING_AFTER_S = 5.0
DEAD_AFTER_S = 15.0

_SENT_KEPT = 64  # executions whose acknowledgements may still be on their way
CLOSE_PROTOCOL = 1002  # RFC 6455 7.4.1: protocol error
CLOSE_POLICY = 1008  # RFC 6455 7.4.1: policy violation; here: the credential was revoked
CLOSE_GOING_AWAY = 1001  # RFC 6455 7.4.1: the server is shutting down

_hello_decoder = msgspec.msgpack.Decoder(m.Hello)
_welcome_decoder = msgspec.msgpack.Decoder(m.Welcome)


def encode_handshake(message: m.Hello | m.Welcome) -> bytes:
    """The one frame of a handshake: a msgpack map, tolerant of fields that a later version adds."""
    return msgspec.msgpack.encode(message)


def decode_hello(frame: framing.Buffer) -> m.Hello:
    """A client's first frame.

    Raises:
        ProtocolError: It is no hello, or it speaks none of our versions.
    """
    hello = _decode(_hello_decoder, frame, "hello")
    if m.VERSION not in hello.versions:
        raise ProtocolError(
            f"this gateway speaks version {m.VERSION}, the client {', '.join(map(str, hello.versions)) or 'none'}: "
            "install the same kcoral-magic on both sides"
        )
    return hello


def decode_welcome(frame: framing.Buffer) -> m.Welcome:
    """The gateway's first frame.

    Raises:
        ProtocolError: It is no welcome.
    """
    return _decode(_welcome_decoder, frame, "welcome")


T = TypeVar("T")


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: framing.Buffer, what: str) -> T:
    if len(frame) > framing.MAX_HEAD_BYTES:
        raise ProtocolError(f"a {what} has at most {framing.MAX_HEAD_BYTES} bytes, got {len(frame)}")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the first frame is no {what}: {error}") from None


class Liveness:
    """When to ask whether the other side is there, and when to stop believing it."""

    def __init__(self, now: float, *, ping_after_s: float = PING_AFTER_S, dead_after_s: float = DEAD_AFTER_S) -> None:
        self._heard = now
        self._pinged = now
        self._ping_after_s = ping_after_s
        self._dead_after_s = dead_after_s

    def heard(self, now: float) -> None:
        """Something arrived."""
        self._heard = now

    def wants_ping(self, now: float) -> bool:
        """Whether to send a ``Ping`` now; says so once per silent interval."""
        if now - max(self._heard, self._pinged) < self._ping_after_s:
            return False
        self._pinged = now
        return True

    def is_dead(self, now: float) -> bool:
        """Whether the path has been silent too long."""
        return now - self._heard >= self._dead_after_s


@dataclass
class _Track:
    """What a client knows of one execution."""

    execute: tuple[m.Execute, tuple[framing.Buffer, ...]] | None  # kept until the first event proves it arrived
    view: m.View
    sent_to: str | None = None  # the gateway instance that may have it
    is_attached: bool = False  # it is read to its end, what came late included
    last: int = 0
    consumed_bytes: int = 0  # since the last Ack
    is_finished: bool = False

    @property
    def is_restarting(self) -> bool:
        """It was attached from the start: what is on its way from an earlier reading, further on, is not its own."""
        return self.is_attached and self.last == 0


Incoming = framing.Message[m.ToClient]


class ClientConnection:
    """A client's side, over any number of websockets one after the other."""

    def __init__(self, hello: m.Hello) -> None:
        self._hello = hello
        self._decoder: framing.Decoder[m.ToClient] | None = None
        self._tracks: dict[str, _Track] = {}
        self._instance: str | None = None  # while a websocket is open
        self.welcome: m.Welcome | None = None

    @property
    def unfinished(self) -> list[str]:
        """The executions whose last event has not come yet."""
        return [execution_id for execution_id, track in self._tracks.items() if not track.is_finished]

    def hello(self) -> bytes:
        """The first frame of a new websocket."""
        self.closed()
        return encode_handshake(self._hello)

    def closed(self) -> None:
        """The websocket has ended: what is asked from now on waits for the next one."""
        self._decoder = None
        self._instance = None

    def opened(self, frame: framing.Buffer) -> list[bytes]:
        """Take the gateway's ``Welcome``; the frames that resume everything unfinished."""
        self.welcome = decode_welcome(frame)
        self._decoder = framing.Decoder[m.ToClient](m.ToClient)
        self._instance = self.welcome.instance
        frames: list[bytes] = []
        for execution_id, track in self._tracks.items():
            if track.is_finished:
                continue
            track.consumed_bytes = 0
            if track.execute is not None and track.sent_to in (None, self._instance):
                track.sent_to = self._instance
                frames += framing.encode(*track.execute)
            else:
                frames += framing.encode(m.Attach(execution_id, track.last, track.view))
        return frames

    def execute(self, message: m.Execute, *buffers: bytes) -> list[bytes]:
        """The frames that ask for a new execution; kept for resending until its first event.

        Without an open websocket there are none: ``opened`` gives them to the next gateway, whichever it is.
        """
        frames = framing.encode(message, buffers)
        self._tracks[message.execution_id] = _Track((message, buffers), message.view, self._instance)
        return frames if self._instance is not None else []

    def attach(self, execution_id: str, view: m.View) -> list[bytes]:
        """The frames that read an execution from its start, whoever began it."""
        self._tracks[execution_id] = _Track(None, view, is_attached=True)
        return framing.encode(m.Attach(execution_id, 0, view))

    def forget(self, execution_id: str) -> list[bytes]:
        """Read no more of an execution."""
        if self._tracks.pop(execution_id, None) is None:
            return []
        return framing.encode(m.Detach(execution_id))

    def receive(self, frame: framing.Buffer) -> Incoming | None:
        """The message a frame completes, if it is news.

        Raises:
            ProtocolError: The frame is malformed or leaves a gap; reconnect and resume.
        """
        if self._decoder is None:
            raise ProtocolError("a message came before the welcome")
        message = self._decoder.decode(frame)
        if message is None:
            return None
        match message.body:
            case m.Event(execution_id=execution_id, number=number, body=body):
                track = self._tracks.get(execution_id)
                if track is None or number <= track.last or (track.is_restarting and number != 1):
                    return None
                if number != track.last + 1:
                    raise ProtocolError(f"event {track.last + 1} of {execution_id} was due, got {number}")
                track.last = number
                track.execute = None
                track.is_finished = track.is_finished or (isinstance(body, m.Finished) and not track.is_attached)
            case m.Skip(execution_id=execution_id, to=to):
                track = self._tracks.get(execution_id)
                if track is None or to <= track.last or (track.is_restarting and track.view.head_bytes != 0):
                    return None
                track.last = to
                track.execute = None
            case m.CaughtUp(execution_id=execution_id):
                track = self._tracks.get(execution_id)
                if track is None or track.is_restarting:
                    return None
                track.is_finished = True
            case m.Problem(execution_id=execution_id) if execution_id in self._tracks:
                self._tracks[execution_id].is_finished = True
            case _:
                pass
        return message

    def consumed(self, execution_id: str, number: int, size: int) -> list[bytes]:
        """A reader has taken event ``number`` of ``size`` buffer bytes; an ``Ack`` once enough has gathered."""
        track = self._tracks.get(execution_id)
        if track is None:
            return []
        track.consumed_bytes += size
        if track.consumed_bytes < CREDIT_BYTES // 4:
            return []
        track.consumed_bytes = 0
        return framing.encode(m.Ack(execution_id, number))


@dataclass
class Reader:
    """One execution as one connection reads it: where it stands, and what is in flight."""

    view: m.View
    next: int = 1
    sent_before: int = 0  # by the reading that this one replaced: its acknowledgements may still come
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    in_flight_bytes: int = 0

    @property
    def has_credit(self) -> bool:
        """Whether another event may be sent now. One event may overshoot, so that any size passes."""
        return self.in_flight_bytes < CREDIT_BYTES

    def sent(self, number: int, size: int) -> None:
        """Event ``number`` with ``size`` buffer bytes went out."""
        self.next = number + 1
        if size:
            self.in_flight.append((number, size))
            self.in_flight_bytes += size

    def acked(self, number: int) -> None:
        """The client has taken everything up to ``number``.

        Raises:
            ProtocolError: That number was never sent.
        """
        if number >= self.next and number > self.sent_before:
            raise ProtocolError(f"event {number} was acknowledged, {self.next - 1} was the last one sent")
        while self.in_flight and self.in_flight[0][0] <= number:
            self.in_flight_bytes -= self.in_flight.popleft()[1]


class GatewayConnection:
    """The gateway's side of one websocket: the handshake, the decoder and the readers."""

    def __init__(self) -> None:
        self._decoder = framing.Decoder[m.ToGateway](m.ToGateway, max_message_bytes=MAX_SOURCE_BYTES)
        self.hello: m.Hello | None = None
        self.readers: dict[str, Reader] = {}
        self._sent: dict[str, int] = {}  # newest numbers of readers that were dropped

    def drop(self, execution_id: str) -> None:
        """Read this execution no more."""
        reader = self.readers.pop(execution_id, None)
        if reader is not None:
            self._sent[execution_id] = max(reader.next - 1, reader.sent_before)
            if len(self._sent) > _SENT_KEPT:
                del self._sent[next(iter(self._sent))]

    def opened(self, frame: framing.Buffer) -> m.Hello:
        """Take the client's ``Hello``."""
        self.hello = decode_hello(frame)
        return self.hello

    def receive(self, frame: framing.Buffer) -> framing.Message[m.ToGateway] | None:
        """The message a frame completes; ``Attach``, ``Detach`` and ``Ack`` have been applied to the readers.

        Raises:
            ProtocolError: Answer with a ``Problem`` and close with ``CLOSE_PROTOCOL``.
        """
        if self.hello is None:
            raise ProtocolError("a hello was due")
        message = self._decoder.decode(frame)
        if message is None:
            return None
        match message.body:
            case m.Execute(execution_id=execution_id, view=view):
                if not 1 <= len(message.buffers) <= 3:
                    raise ProtocolError(f"an Execute has 1 to 3 buffers, got {len(message.buffers)}")
                self.readers.setdefault(execution_id, Reader(view))
            case m.Attach(execution_id=execution_id, after=after, view=view):
                self.drop(execution_id)
                self.readers[execution_id] = Reader(view, after + 1, self._sent.get(execution_id, 0))
            case m.Detach(execution_id=execution_id):
                self.drop(execution_id)
            case t.Supply() if len(message.buffers) != 2:
                raise ProtocolError(f"a Supply has 2 buffers, got {len(message.buffers)}")
            case t.InputReply() | t.Chunk() if len(message.buffers) != 1:
                raise ProtocolError(f"a {type(message.body).__name__} has 1 buffer, got {len(message.buffers)}")
            case m.Ack(execution_id=execution_id, number=number):
                reader = self.readers.get(execution_id)
                if reader is not None:  # an Ack may cross our own end of reading
                    reader.acked(number)
            case _:
                pass
        return message
