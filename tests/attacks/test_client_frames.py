"""Clients that do not keep to the protocol, or ask for what is another principal's."""

from __future__ import annotations

import contextlib
import http.client
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection as Websocket
from websockets.sync.client import connect

from kcoral_gateway.config import MiB
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from tests.attacks.cells import Cell, Running
from tests.attacks.layouts import BoxedGateway, one_layout
from tests.support import until

pytestmark = [pytest.mark.attack, one_layout]
HELLO = m.Hello((m.VERSION,), "attacking-client", "attacking-instance")


class Stranger:
    """A websocket without our client's manners."""

    def __init__(self, websocket: Websocket) -> None:
        self.websocket = websocket
        self._decoder = framing.Decoder[m.ToClient](m.ToClient)

    def send(self, body: Any, *buffers: bytes) -> None:
        for frame in framing.encode(body, buffers):
            self.websocket.send(frame)

    def receive(self, seconds: float = 3.0) -> framing.Message[m.ToClient]:
        end = time.monotonic() + seconds
        while True:
            frame = self.websocket.recv(timeout=max(0.0, end - time.monotonic()))
            assert isinstance(frame, bytes)
            message = self._decoder.decode(frame)
            if message is not None:
                return message

    def run(self, source: str, execution_id: str = "", session: str = "") -> list[framing.Message[m.ToClient]]:
        """An execution's messages to its end, or to the problem that answers it."""
        self.send(m.Execute(execution_id or secrets.token_hex(12), m.SessionAsk(session, 0)), source.encode())
        return self.to_end()

    def to_end(self, seconds: float = 10.0) -> list[framing.Message[m.ToClient]]:
        received = []
        while True:
            received.append(message := self.receive(seconds))
            if isinstance(message.body, m.Problem) or (
                isinstance(message.body, m.Event) and isinstance(message.body.body, m.Finished)
            ):
                return received

    def closed(self) -> tuple[int, str]:
        """Wait until the gateway hangs up: the close code (0 for none), and the problem it told before."""
        problem = ""
        try:
            while True:
                message = self.receive()
                if isinstance(message.body, m.Problem):
                    problem = message.body.message
        except ConnectionClosed as error:
            close = error.rcvd
        return (close.code, problem or close.reason) if close is not None else (0, problem)


def _shown(messages: list[framing.Message[m.ToClient]]) -> bytes:
    return b"".join(bytes(buffer) for message in messages for buffer in message.buffers)


@contextlib.contextmanager
def _open(gateway: BoxedGateway, token: str | None, path: str = "/ws", **options: Any) -> Iterator[Websocket]:
    headers = dict(options.pop("headers", {}))
    if token is not None:
        headers.setdefault("Authorization", f"Bearer {token}")
    settings: dict[str, Any] = {"subprotocols": [m.SUBPROTOCOL], "compression": None, "proxy": None}
    settings |= {"max_size": None, "close_timeout": 0.5}  # some of us do not read
    with connect(f"{gateway.url}{path}", additional_headers=headers, **(settings | options)) as websocket:
        yield websocket


@pytest.fixture
def stranger(gateway: BoxedGateway, token: str) -> Iterator[Stranger]:
    """A client after its handshake; its sessions end with the test."""
    with _open(gateway, token) as websocket:
        websocket.send(c.encode_handshake(HELLO))
        assert c.decode_welcome(websocket.recv(timeout=5)).principal == "mallory"
        yield Stranger(websocket)
    with _open(gateway, token) as websocket:
        websocket.send(c.encode_handshake(HELLO))
        websocket.recv(timeout=5)
        tidy = Stranger(websocket)
        tidy.send(m.ListSessions(1))
        listed = tidy.receive().body
        assert isinstance(listed, m.Sessions)
        for number, session in enumerate(listed.sessions):
            if session.name != "attackers":
                tidy.send(m.CloseSession(number, session.name))
                tidy.receive()


# ── the door ──


def _refused(gateway: BoxedGateway, token: str | None, path: str = "/ws", **options: Any) -> int:
    with pytest.raises(InvalidStatus) as caught, _open(gateway, token, path, **options):
        pass
    return int(caught.value.response.status_code)


def test_without_a_token_nobody_comes_in(gateway: BoxedGateway, token: str) -> None:
    for headers in (
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {token}"},
        {"Authorization": token},
        {"Authorization": f"Bearer {token}x"},
        {"Authorization": f"Bearer {token[:-1]}"},
        {"Authorization": f"Bearer {token.upper()}"},
        {"Authorization": "Bearer " + "x" * 4000},
        {"X-Token": token},
        {"Cookie": f"token={token}"},
    ):
        assert _refused(gateway, None, headers=headers) == 401


def test_a_token_in_the_address_does_not_count(gateway: BoxedGateway, token: str) -> None:
    for path in (f"/ws?token={token}", f"/ws?access_token={token}", f"/ws?Authorization=Bearer%20{token}"):
        assert _refused(gateway, None, path) == 401
    assert _refused(gateway, None, f"/ws/{token}") in (401, 403, 404)


def test_two_credentials_are_not_one_that_holds(gateway: BoxedGateway, token: str) -> None:
    status, _ = _raw(gateway, f"Authorization: Bearer wrong\r\nAuthorization: Bearer {token}\r\n")
    assert status == 401


def _raw(gateway: BoxedGateway, headers: str, path: str = "/ws", *, host: str | None = None) -> tuple[int, bytes]:
    """A websocket request by hand: its status."""
    address = urlsplit(gateway.url)
    host_line = f"Host: {address.netloc}\r\n" if host is None else host
    with socket.create_connection((str(address.hostname), int(address.port or 0)), 5) as plain:
        plain.sendall(
            f"GET {path} HTTP/1.1\r\n{host_line}Connection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {m.SUBPROTOCOL}\r\n{headers}\r\n".encode()
        )
        answer = plain.recv(65536)
    return int(answer.split(b" ")[1]), answer


def test_the_subprotocol_is_needed(gateway: BoxedGateway, token: str) -> None:
    for offered in (None, ["kcoral.v0"], ["v1.kernel.websocket.jupyter.org"], ["kcoral.v1.1", "graphql-ws"]):
        assert _refused(gateway, token, subprotocols=offered) == 400


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1", "http://localhost:1", "file://"]
)
def test_a_page_of_another_origin_is_refused_even_with_a_token(origin: str, gateway: BoxedGateway, token: str) -> None:
    assert _refused(gateway, token, origin=origin) == 403
    address = urlsplit(gateway.url)
    plain = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)
    with contextlib.closing(plain):
        plain.request("GET", "/health", headers={"Origin": origin, "Authorization": f"Bearer {token}"})
        assert plain.getresponse().status == 403


@pytest.mark.parametrize(
    "host",
    [
        "Host: evil.example\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: localhost.evil.example:80\r\n",
        "Host: 169.254.169.254\r\n",
        "Host: [::2]\r\n",
        "Host: \r\n",
        "",
        "Host: 127.0.0.1\r\nHost: evil.example\r\n",
    ],
)
def test_a_foreign_host_name_is_refused_even_with_a_token(host: str, gateway: BoxedGateway, token: str) -> None:
    # A page whose name was rebound to this machine sends its own name.
    status, _ = _raw(gateway, f"Authorization: Bearer {token}\r\n", host=host)
    assert status in (400, 421)
    status, _ = _raw(gateway, f"Authorization: Bearer {token}\r\n", "/health", host=host)
    assert status in (400, 421)


def test_health_tells_a_stranger_nothing(gateway: BoxedGateway, token: str) -> None:
    address = urlsplit(gateway.url)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with contextlib.closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)) as plain:
            plain.request("GET", f"/health?token={token}", headers=headers)
            assert plain.getresponse().read() == b'{"status":"ok"}'


def test_compression_is_never_agreed_to(gateway: BoxedGateway, token: str) -> None:
    # permessage-deflate turns 200 KB on the wire into 200 MB.
    with _open(gateway, token, compression="deflate") as websocket:
        assert websocket.response is not None
        assert "Sec-WebSocket-Extensions" not in websocket.response.headers


# ── frames ──


@pytest.mark.parametrize(
    "first", ["text", "garbage", "empty", "execute", "ping", "no-version", "other-version", "bad-id", "huge"]
)
def test_a_first_frame_that_is_no_hello_ends_the_connection(first: str, gateway: BoxedGateway, token: str) -> None:
    hello = msgspec.msgpack.encode(HELLO)
    frames: dict[str, bytes | str] = {
        "text": "hello",
        "garbage": bytes(range(256)),
        "empty": b"",
        "execute": framing.encode(m.Execute("forged-execution", m.SessionAsk("", 0)), (b"print(1)",))[0],
        "ping": framing.encode(m.Ping())[0],
        "no-version": msgspec.msgpack.encode(m.Hello((), "attacking-client", "attacking-instance")),
        "other-version": msgspec.msgpack.encode(m.Hello((99,), "attacking-client", "attacking-instance")),
        "bad-id": msgspec.msgpack.encode({"versions": [1], "client_id": "../../../etc", "instance": "instance-1"}),
        "huge": hello + b"x" * 70_000,
    }
    with _open(gateway, token) as websocket:
        websocket.send(frames[first])
        code, _ = Stranger(websocket).closed()
    assert code == c.CLOSE_PROTOCOL


MALFORMED: dict[str, bytes | str] = {
    "text": "run this",
    "garbage": bytes(range(255, 0, -1)),
    "empty": b"",
    "huge-head": b"\xff\xff\xff\x7f" + b"x" * 20,
    "depth-bomb": (60_000).to_bytes(4, "little") + b"\x91" * 60_000,
    "unknown": framing.encode(["Nonsense"])[0],
    "gateway-s-own": framing.encode(m.Done(1))[0],
    "host-s": framing.encode(m.Emit("forged-execution", m.ClearOutput(True)))[0],
    "second-hello": c.encode_handshake(HELLO),
    "no-source": framing.encode(m.Execute("forged-execution", m.SessionAsk("", 0)))[0],
    "two-sources": framing.encode(m.Execute("forged-execution", m.SessionAsk("", 0)), (b"1", b"2"))[0],
    "id-with-a-path": framing.encode(m.Execute("../../outside", m.SessionAsk("", 0)), (b"1",))[0],
    "id-with-a-newline": framing.encode(m.Execute("forged-execution\n", m.SessionAsk("", 0)), (b"1",))[0],
    "session-with-a-newline": framing.encode(m.Execute("forged-execution", m.SessionAsk("name\n", 0)), (b"1",))[0],
    "session-of-another-client": framing.encode(m.Execute("forged-execution", m.SessionAsk("~other", 0)), (b"1",))[0],
    "negative-gpus": framing.encode(m.Execute("forged-execution", m.SessionAsk("", -1)), (b"1",))[0],
    "gpus-by-number": framing.encode(["Execute", "forged-execution", ["SessionAsk", "", "0,1"]], (b"1",))[0],
    "time-limit-nan": framing.encode(
        m.Execute("forged-execution", m.SessionAsk("", 0), timeout_s=float("nan")), (b"1",)
    )[0],
    "negative-queue-timeout": framing.encode(
        m.Execute("forged-execution", m.SessionAsk("", 0), queue_timeout_s=-1.0), (b"1",)
    )[0],
    "negative-after": framing.encode(["Attach", "forged-execution", -1])[0],
    "continuation-of-nothing": b"\0\0\0\0more",
}


@pytest.mark.parametrize("way", MALFORMED)
def test_a_malformed_frame_ends_its_connection_only(way: str, stranger: Stranger, other: Cell) -> None:
    stranger.websocket.send(MALFORMED[way])
    code, problem = stranger.closed()
    assert code == c.CLOSE_PROTOCOL
    assert problem


def test_a_frame_over_the_limit_ends_its_connection_only(stranger: Stranger, other: Cell) -> None:
    with contextlib.suppress(ConnectionClosed):
        stranger.websocket.send(b"x" * (framing.MAX_FRAME_BYTES + 1))
    code, _ = stranger.closed()
    assert code in (1009, c.CLOSE_PROTOCOL, 0)  # RFC 6455 7.4.1: too big


def test_a_frame_over_the_limit_in_small_parts_ends_its_connection_only(
    stranger: Stranger, other: Cell, gateway: BoxedGateway
) -> None:
    before = gateway.rss_bytes()
    with contextlib.suppress(ConnectionClosed):
        stranger.websocket.send(b"x" * 65536 for _ in range(3000))
    code, _ = stranger.closed()
    assert code in (1009, c.CLOSE_PROTOCOL, 0)  # the close frame may be lost behind what we still send
    assert gateway.rss_bytes() - before < 64 * MiB


def test_acknowledging_what_was_never_sent_ends_the_connection(stranger: Stranger) -> None:
    execution_id = secrets.token_hex(12)
    stranger.run("print(1)", execution_id)
    stranger.send(m.Ack(execution_id, 1_000_000))
    code, problem = stranger.closed()
    assert code == c.CLOSE_PROTOCOL
    assert "acknowledged" in problem


def test_a_body_that_is_no_text_fails_alone_and_keeps_the_session(stranger: Stranger) -> None:
    stranger.run("kept = 1", session="of-text")
    stranger.send(m.Execute(secrets.token_hex(12), m.SessionAsk("of-text", 0)), b"x = '\xff\xfe'")
    try:
        stranger.to_end()
    except ConnectionClosed:  # refused with the connection: as good
        return
    assert _shown(stranger.run("print(kept)", session="of-text")) == b"1\n"


def test_a_body_sent_twice_runs_once(stranger: Stranger) -> None:
    stranger.run("count = 0", session="twice")
    execution_id = secrets.token_hex(12)
    body = "count += 1\nprint(count)"
    for _ in range(5):
        stranger.send(m.Execute(execution_id, m.SessionAsk("twice", 0)), body.encode())
    stranger.to_end()
    stranger.send(m.Execute(execution_id, m.SessionAsk("twice", 0)), body.encode())
    assert _shown(stranger.run("print(count)", session="twice")).endswith(b"1\n")


def test_an_id_is_not_used_for_another_body(stranger: Stranger) -> None:
    execution_id = secrets.token_hex(12)
    stranger.run("print(1)", execution_id, "twice")
    stranger.send(m.Execute(execution_id, m.SessionAsk("twice", 0)), b"print(2)")
    code, problem = stranger.closed()
    assert code == c.CLOSE_PROTOCOL
    assert "another body" in problem


@pytest.mark.parametrize("ask", [m.Ping(), m.ListExecutions(1, "asked")], ids=lambda ask: type(ask).__name__)
def test_one_who_asks_without_end_and_reads_nothing_costs_a_bounded_memory(
    ask: Any, stranger: Stranger, other: Cell, gateway: BoxedGateway
) -> None:
    for _ in range(20):
        stranger.run("#" + "x" * 100, session="asked")
    before = gateway.rss_bytes()
    (frame,) = framing.encode(ask)
    stranger.websocket.socket.settimeout(0.5)
    end = time.monotonic() + 2
    with contextlib.suppress(OSError, ConnectionClosed):  # it is no longer read, or shut out: as it should be
        header = bytes([0x82, 0x80 | len(frame), 0, 0, 0, 0])  # a masked binary frame, RFC 6455 5.2, by hand for speed
        while time.monotonic() < end:
            stranger.websocket.socket.sendall((header + frame) * 1000)
    assert other.latency_s(3) < 1.0
    assert gateway.rss_bytes() - before < 64 * MiB


# ── what is another principal's ──


@pytest.fixture
def victim(other: Cell) -> Iterator[Running]:
    """An execution of the other principal that runs until its owner interrupts it."""
    cell = Cell(other.client, "victims", gpus=0)
    running = cell.start(
        "secret = 'of-the-victim'\n"
        "print('first', flush=True)\n"
        "try:\n"
        "    while True: time.sleep(60)\n"
        "except KeyboardInterrupt: print('last')"
    )
    running.until_said("first")
    yield running
    cell.session.close()


def _goes_on(victim: Running) -> None:
    """It still runs, its owner can end it, and gets all of it."""
    assert victim.look() is None
    victim.execution.interrupt()
    assert victim.end(5) is None
    assert victim.text == "first\nlast\n"


def _problem(stranger: Stranger) -> m.Problem:
    body = stranger.receive().body
    assert isinstance(body, m.Problem)
    return body


def test_another_principal_s_execution_cannot_be_read(stranger: Stranger, victim: Running) -> None:
    for after in (0, 1, 1000):
        stranger.send(m.Attach(victim.execution.execution_id, after))
        assert _problem(stranger).code == "not_found"
    _goes_on(victim)
    stranger.send(m.Attach(victim.execution.execution_id, 0))
    assert _problem(stranger).code == "not_found"  # nor when it is over


def test_another_principal_s_execution_cannot_be_stopped(stranger: Stranger, victim: Running) -> None:
    for kill in (False, True):
        stranger.send(m.Interrupt(victim.execution.execution_id, kill))
        assert _problem(stranger).code == "not_found"
    stranger.send(m.Detach(victim.execution.execution_id))
    stranger.send(m.Ack(victim.execution.execution_id, 1))
    _goes_on(victim)


def test_another_principal_s_execution_id_cannot_be_taken_over(stranger: Stranger, victim: Running) -> None:
    stranger.send(m.Execute(victim.execution.execution_id, m.SessionAsk("taken", 0)), b"print('mine')")
    received = stranger.to_end()
    _goes_on(victim)
    with contextlib.suppress(TimeoutError, ConnectionClosed):
        while True:
            received.append(stranger.receive(0.3))
    assert b"last" not in _shown(received)
    assert b"first" not in _shown(received)


def test_another_principal_s_session_is_invisible(stranger: Stranger, victim: Running) -> None:
    stranger.send(m.ListSessions(1))
    listed = stranger.receive().body
    assert isinstance(listed, m.Sessions)
    assert {session.name for session in listed.sessions} <= {"attackers", ""}
    stranger.send(m.ListExecutions(2, "victims"))
    assert stranger.receive().body == m.Executions(2, ())
    stranger.send(m.Restart(3, m.SessionAsk("victims")))
    assert _problem(stranger).code == "not_found"
    stranger.send(m.CloseSession(4, "victims"))
    problem = _problem(stranger)
    assert problem.code == "not_found"
    assert "others" not in problem.message
    _goes_on(victim)


def test_a_session_of_the_same_name_is_another_one(stranger: Stranger, victim: Running) -> None:
    assert _shown(stranger.run("print('secret' in globals())", session="victims")) == b"False\n"
    _goes_on(victim)


def test_a_client_of_the_same_id_is_another_one(
    gateway: BoxedGateway, stranger: Stranger, other_token: str, other: Cell
) -> None:
    with gateway.client(other_token, client_id=HELLO.client_id) as client:
        twin = Cell(client, gpus=0)  # the client's own session, which its id names
        twin.session.run("secret = 1")
        assert _shown(stranger.run("print('secret' in globals())")) == b"False\n"
        stranger.send(m.CloseSession(1, ""))
        assert stranger.receive().body == m.Done(1)
        assert twin.session.run("secret").text == "1"


def test_a_reader_is_not_told_who_holds_a_gpu(stranger: Stranger, other: Cell) -> None:
    placed = Cell(other.client, "on-a-gpu", gpus=1)
    placed.session.run("1")
    stranger.send(m.ListGpus(1))
    gpus = stranger.receive().body
    assert isinstance(gpus, m.GpuList)
    assert [gpu.session for gpu in gpus.gpus] == ["", ""]
    assert gpus.free == 1
    placed.session.close()


# ── what is left behind ──


def test_a_revoked_token_ends_what_came_in_with_it(gateway: BoxedGateway) -> None:
    token = gateway.token("revoked")
    with _open(gateway, token) as websocket:
        websocket.send(c.encode_handshake(HELLO))
        websocket.recv(timeout=5)
        gateway.revoke("revoked")
        code, _ = Stranger(websocket).closed()
    assert code == c.CLOSE_POLICY
    assert _refused(gateway, token) == 401


def test_neither_log_nor_state_holds_a_token_or_a_cell(gateway: BoxedGateway, token: str, stranger: Stranger) -> None:
    body, wrong = f"hidden-{secrets.token_hex(8)}", f"kcoral_{secrets.token_urlsafe(32)}"
    assert _refused(gateway, wrong) == 401
    assert _refused(gateway, None, f"/ws?token={token}") == 401
    _raw(gateway, f"Authorization: Bearer {token}\r\n", "/health?" + wrong, host="Host: evil.example\r\n")
    stranger.run(f"# {body}\n1/0")
    stranger.websocket.send(f"text {token}")
    stranger.closed()
    until(lambda: "protocol error" in gateway.log.read_text(), 5, "the log has been written")
    log = gateway.log.read_text()
    for secret in (token, wrong, body, gateway.secrets.token):
        assert secret not in log
    for path in gateway.state.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert token.encode() not in content, path
            assert wrong.encode() not in content, path
            assert gateway.secrets.token.encode() not in content, path
