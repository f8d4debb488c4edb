"""In front of every path: foreign names and foreign pages are refused, over HTTP and over websockets."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from kcoral_gateway.endpoints.guard import Guard, without_port

PASSED = "the application was asked"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": PASSED})


async def ask(
    *headers: tuple[str, str], kind: str = "http", allowed: tuple[str, ...] = ("gpu.example",), path: str = "/"
) -> list[Message]:
    """What is sent back for a request with these headers."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{kind}.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": kind,
        "method": "GET",
        "path": path,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "extensions": {"websocket.http.response": {}},
    }
    await Guard(application, allowed)(scope, receive, send)
    return sent


def status(sent: list[Message]) -> int | str:
    """The status of a refusal, or that there was none."""
    return PASSED if sent == [{"type": PASSED}] else int(sent[0]["status"])


both = pytest.mark.parametrize("kind", ["http", "websocket"])


@both
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:7878",
        "127.0.0.1:7878",
        "[::1]",
        "[::1]:7878",
        "gpu.example",
        "GPU.Example:443",
        " localhost ",
    ],
)
async def test_our_own_names_pass(kind: str, host: str) -> None:
    assert status(await ask(("Host", host), kind=kind)) == PASSED


@both
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7878",
        "gpu.example.evil.example",
        "evil.gpu.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "[::2]",
        "::1",
        "localhost.",
        "user@localhost",
        "",
    ],
)
async def test_a_foreign_name_is_refused_as_misdirected(kind: str, host: str) -> None:
    assert status(await ask(("Host", host), kind=kind)) == 421


@both
async def test_a_request_without_a_name_or_with_two_is_refused(kind: str) -> None:
    assert status(await ask(kind=kind)) == 421
    assert status(await ask(("Host", "localhost"), ("Host", "localhost"), kind=kind)) == 421
    assert status(await ask(("Host", "localhost"), ("Host", "evil.example"), kind=kind)) == 421


@both
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:7878", "http://localhost:7878"),
        ("localhost:7878", "HTTP://LOCALHOST:7878"),
        ("gpu.example", "https://gpu.example"),
        ("[::1]:7878", "http://[::1]:7878"),
    ],
)
async def test_our_own_pages_pass(kind: str, host: str, origin: str) -> None:
    assert status(await ask(("Host", host), ("Origin", origin), kind=kind)) == PASSED


@both
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost",
        "http://localhost:8888",
        "http://127.0.0.1:7878",
        "http://localhost:7878.evil.example",
        "http://evil.example/localhost:7878",
        "http://localhost:7878/",
        "localhost:7878",
        "file://",
        "null",
        "",
    ],
)
async def test_a_foreign_page_is_refused(kind: str, origin: str) -> None:
    assert status(await ask(("Host", "localhost:7878"), ("Origin", origin), kind=kind)) == 403


@both
async def test_one_foreign_page_of_two_is_enough(kind: str) -> None:
    own, foreign = ("Origin", "http://localhost"), ("Origin", "http://evil.example")
    assert status(await ask(("Host", "localhost"), own, foreign, kind=kind)) == 403
    assert status(await ask(("Host", "localhost"), foreign, own, kind=kind)) == 403


@both
@pytest.mark.parametrize("path", ["/", "/health", "/ws", "/nothing"])
async def test_every_path_is_guarded(kind: str, path: str) -> None:
    assert status(await ask(("Host", "evil.example"), kind=kind, path=path)) == 421


async def test_a_refusal_says_why_and_a_websocket_is_refused_before_it_opens() -> None:
    start, body = await ask(("Host", "evil.example"))
    assert start["type"] == "http.response.start"
    assert b"--allow-host" in body["body"]
    start, body = await ask(("Host", "localhost"), ("Origin", "http://evil.example"), kind="websocket")
    assert start["type"] == "websocket.http.response.start"
    assert body["type"] == "websocket.http.response.body"
    assert b"other origins" in body["body"]


async def test_the_server_s_own_events_pass() -> None:
    assert await ask(kind="lifespan") == [{"type": PASSED}]


async def test_a_guard_without_names_allows_the_loopback_only() -> None:
    assert status(await ask(("Host", "localhost"), allowed=())) == PASSED
    assert status(await ask(("Host", "gpu.example"), allowed=())) == 421


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Example:80", "example"),
        ("example", "example"),
        ("[::1]:80", "[::1]"),
        ("[FE80::1]", "[fe80::1]"),
        (" a:1 ", "a"),
    ],
)
def test_a_name_without_its_port(host: str, name: str) -> None:
    assert without_port(host) == name
