"""The network inside is the session's own loopback: nothing of the machine's, of others' or beyond is reached."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest

from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway

pytestmark = pytest.mark.attack
UNREACHABLE = ("ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT")


def _connect(host: str, port: int) -> str:
    return f"socket.create_connection(({host!r}, {port}), 2)"


def test_the_own_loopback_works(attacker: Cell) -> None:
    got = attacker.ask(
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    with socket.create_connection(server.getsockname()) as there, server.accept()[0] as here:\n"
        "        there.sendall(b'hello'); answer = here.recv(10).decode()"
    )
    assert got == "hello"


def test_there_is_no_interface_but_loopback(attacker: Cell) -> None:
    assert attacker.ask("answer = socket.if_nameindex()") == [[1, "lo"]]
    routes = attacker.ask("answer = open('/proc/net/route').read().splitlines()[1:]")
    assert routes == []


def test_the_gateway_s_port_is_out_of_reach(gateway: BoxedGateway, attacker: Cell) -> None:
    port = urlsplit(gateway.url).port
    assert port
    socket.create_connection(("127.0.0.1", port), 2).close()  # it is there
    assert attacker.refusal(_connect("127.0.0.1", port)) == "ECONNREFUSED"
    own = [a.address for nic in psutil.net_if_addrs().values() for a in nic if a.family == socket.AF_INET]
    for address in own:
        if not address.startswith("127."):
            assert attacker.refusal(_connect(address, port)) in UNREACHABLE


@pytest.mark.parametrize("name", ["gateway.sock", "hosts.sock"])
def test_the_gateway_s_unix_sockets_do_not_exist(name: str, gateway: BoxedGateway, attacker: Cell) -> None:
    path = str(gateway.state / name)
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
    assert attacker.refusal(f"socket.socket(socket.AF_UNIX).connect({path!r})") == "ENOENT"


@pytest.fixture
def abstract() -> Iterator[str]:
    """An abstract socket of the machine's: such names need no file, and belong to a network namespace."""
    name = f"kcoral-attack-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        yield name


def test_an_abstract_socket_of_the_machine_is_out_of_reach(abstract: str, attacker: Cell) -> None:
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(f"\0{abstract}")
    assert attacker.refusal(f"socket.socket(socket.AF_UNIX).connect('\\0{abstract}')") == "ECONNREFUSED"


def test_a_loopback_service_of_the_machine_is_out_of_reach(attacker: Cell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        socket.create_connection((host, port), 2).close()
        assert attacker.refusal(_connect(host, port)) == "ECONNREFUSED"


def test_another_worker_s_ports_are_out_of_reach(attacker: Cell, other: Cell) -> None:
    port = other.ask(
        "listening = socket.create_server(('0.0.0.0', 0))\n"
        "named = socket.socket(socket.AF_UNIX); named.bind('\\0of-another-worker'); named.listen()\n"
        "answer = listening.getsockname()[1]"
    )
    try:
        assert other.refusal(_connect("127.0.0.1", port)).startswith("done")
        assert attacker.refusal(_connect("127.0.0.1", port)) == "ECONNREFUSED"
        assert attacker.refusal("socket.socket(socket.AF_UNIX).connect('\\0of-another-worker')") == "ECONNREFUSED"
    finally:
        other.session.run("listening.close(); named.close()")


@pytest.mark.parametrize("address", ["169.254.169.254", "192.0.2.1", "10.0.0.1", "224.0.0.1", "255.255.255.255"])
def test_there_is_no_route_beyond(address: str, attacker: Cell) -> None:
    # Connecting a datagram socket asks for a route and sends nothing.
    attempt = "(s := socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).setsockopt(1, 6, 1) or s.connect"
    assert attacker.refusal(f"({attempt})(({address!r}, 80))") in UNREACHABLE


def test_there_is_no_route_beyond_by_ipv6(attacker: Cell) -> None:
    for address in ("fd00:ec2::254", "2001:db8::1", "fe80::1%lo"):
        attempt = f"socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(({address!r}, 80))"
        assert attacker.refusal(attempt) in (*UNREACHABLE, "EINVAL", "EHOSTUNREACH")


def test_names_are_not_resolved(attacker: Cell) -> None:
    assert attacker.refusal("socket.getaddrinfo('example.com', 80)").startswith("gaierror")


def test_the_loopback_cannot_be_reshaped(attacker: Cell) -> None:
    down = "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH', b'lo', 0) + bytes(22))"  # SIOCSIFFLAGS
    address = (
        "fcntl.ioctl(socket.socket(), 0x8916, struct.pack('16sHH4s', b'lo', 2, 0, bytes([10, 0, 0, 1])) + bytes(16))"
    )
    assert attacker.refusal(down) == "EPERM"
    assert attacker.refusal(address) == "EPERM"
