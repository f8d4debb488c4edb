"""Bodies of ``POST /execute`` that no client writes: a clear 4xx answer, in bounded memory and time, and nothing stays.

Seeded as ``test_framing_fuzz.py``: ``KCORAL_FUZZ_SEED`` and ``KCORAL_FUZZ_S`` run other and longer ones. The endpoint
is the real one over a real cache; only programs do not run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from kcoral_gateway.auth import Principal
from kcoral_gateway.endpoints.kcoral_http import KCoralHttp
from kcoral_gateway.endpoints.multipart import Reader
from kcoral_gateway.storage.artifacts import Artifacts
from kcoral_magic.errors import CapacityExceeded, ProgramInvalid
from tests.fuzz.test_framing_fuzz import SEED, turns

BOUNDARY = b"fuzz-boundary"
FORM = "multipart/form-data; boundary=fuzz-boundary"
LIMIT_BYTES = 4 * 1024 * 1024
MiB = 1024 * 1024


def part(name: str, data: bytes, kind: str = "application/octet-stream") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"\r\nContent-Type: {kind}\r\n\r\n'
    return b"--" + BOUNDARY + b"\r\n" + head.encode() + data + b"\r\n"


def blob(data: bytes) -> bytes:
    return part(f"blob:{hashlib.sha256(data).hexdigest()}", data)


def program(*blobs: bytes) -> bytes:
    uploads = [
        {"op": "upload", "id": str(number), "kind": "bytes", "blob": hashlib.sha256(data).hexdigest()}
        for number, data in enumerate(blobs)
    ]
    module = {"op": "upload", "id": "m", "kind": "module", "source": ""}
    return part("program", json.dumps({"instructions": [module, *uploads]}).encode(), "application/json")


END = b"--" + BOUNDARY + b"--\r\n"
DATA = [b"", b"\r\n--fuzz", bytes(range(256))]
VALID = program(*DATA) + b"".join(map(blob, DATA)) + END
TELLING = [b"\r\n", b"\n", b"\r", b"--", b"\r\n\r\n", b":", b";", b'"', b"=", b"\0", b"\xff", b"--" + BOUNDARY, END]
TELLING += [b'Content-Disposition: form-data; name="program"\r\n', b"Content-Type: multipart/mixed; boundary=x\r\n"]
TELLING += [b"Content-Transfer-Encoding: base64\r\n", b"\r\n--" + BOUNDARY + b"\r\n\r\n", b"name*=utf-8''a", b"program"]


def mutated(chance: random.Random) -> bytes:
    """A valid body with a few things wrong."""
    body = bytearray(VALID)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(body) + 1)
        match chance.randrange(5):
            case 0 if at < len(body):
                body[at] ^= 1 << chance.randrange(8)
            case 1:
                body[at:at] = chance.choice(TELLING) * chance.choice((1, 1, 2, 300))
            case 2:
                del body[at : at + chance.choice((1, 2, 10, 100))]
            case 3:
                other = chance.randrange(len(VALID))
                body[at:] = VALID[other:]
            case _:
                body[at : at + 4] = chance.randbytes(4)
    return bytes(body)


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """The same bytes as they may arrive."""
    pieces, start = [], 0
    while start < len(data):
        step = chance.choice((1, 2, 7, 100, 10_000))
        pieces.append(data[start : start + step])
        start += step
    return pieces


# ── the reader alone ──


@dataclass
class Taken:
    """A part, kept."""

    name: str
    kind: str
    data: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def write(self, data: memoryview) -> None:
        self.data += data

    def finish(self) -> None:
        self.is_whole = True


def parts_of(pieces: Iterable[bytes], content_type: str = FORM) -> list[Taken] | None:
    """All parts, or ``None`` if the body was refused; anything else that is raised shows the bytes."""
    taken: list[Taken] = []

    def opened(name: str, kind: str) -> Taken:
        taken.append(Taken(name, kind))
        return taken[-1]

    pieces = list(pieces)
    try:
        reader = Reader(content_type, opened)
        for piece in pieces:
            reader.feed(piece)
        reader.close()
    except ProgramInvalid:
        return None
    except BaseException as error:
        body = b"".join(pieces)
        pytest.fail(
            f"{type(error).__name__}: {error}\nseed {SEED}, {content_type!r}, {len(body)} bytes: {body[:600]!r}"
        )
    assert all(each.is_whole for each in taken)
    return taken


def test_a_valid_body_is_its_parts_however_it_is_cut() -> None:
    for chance in turns():
        taken = parts_of(cut(chance, VALID)) or []
        assert [bytes(each.data) for each in taken[1:]] == DATA
        assert [each.name[:8] for each in taken] == [
            "program",
            "blob:e3b",
            "blob:" + hashlib.sha256(DATA[1]).hexdigest()[:3],
            "blob:40a",
        ]


def test_a_mutated_body_is_parts_or_refused_and_however_it_is_cut_the_same() -> None:
    outcomes = {True: 0, False: 0}
    for chance in turns():
        body = mutated(chance)
        whole = parts_of([body])
        assert parts_of(cut(chance, body)) == whole, f"seed {SEED}: {body!r}"
        outcomes[whole is None] += 1
    assert min(outcomes.values()) > 10, f"the mutations are all alike: {outcomes}"


def test_random_bytes_are_refused() -> None:
    for chance in turns():
        data = chance.randbytes(chance.choice((0, 1, 40, 2000)))
        for body in (data, b"--" + BOUNDARY + b"\r\n" + data, b"".join(chance.choices(TELLING, k=20))):
            taken = parts_of(cut(chance, body))
            assert taken is None or body.rstrip().endswith(b"--") or END[:-2] in body


def test_a_random_content_type_is_one_or_refused() -> None:
    for chance in turns():
        pieces = [
            b"multipart/form-data",
            b"; boundary=",
            BOUNDARY,
            b'"',
            b";",
            b"=",
            b"*",
            b"''",
            b"\\",
            b" ",
            b"\xff",
            b"%00",
        ]
        kind = b"".join(chance.choices(pieces, k=chance.randrange(8))).decode("latin-1")
        parts_of([VALID], kind)
        parts_of(
            [VALID], f"multipart/form-data; boundary={chance.randbytes(chance.choice((1, 70, 300))).decode('latin-1')}"
        )


def test_a_body_that_breaks_off_anywhere_is_refused() -> None:
    for end in range(len(VALID) - 4):
        assert parts_of([VALID[:end]]) is None
    assert parts_of([VALID[:-2]]) is not None  # the last line's end may be left out


# ── the endpoint ──


@dataclass(frozen=True)
class Nothing:
    """A service that has a cache and runs nothing; also who may come in."""

    artifacts: Artifacts

    @property
    def service(self) -> Nothing:
        return self

    def principal_of(self, request: Request) -> Principal:
        return Principal("fuzz")

    def has_python(self, name: str) -> bool:
        return False

    def execute(self, *_: object, **__: object) -> Any:
        raise CapacityExceeded("nothing runs here")


@dataclass
class Answer:
    status: int = 0
    body: bytes = b""

    @property
    def told(self) -> Any:
        return json.loads(self.body)


@dataclass
class Fuzzed:
    """The endpoint, and what it has left behind."""

    http: KCoralHttp
    folder: Path

    async def ask(self, pieces: Iterable[bytes], content_type: str = FORM, *, hangs_up: bool = False) -> Answer:
        """The answer to a body that arrives in these pieces; it takes no longer than a second or two."""
        answer = Answer()
        source: Iterator[bytes] = iter(pieces)

        async def receive() -> Message:
            piece = next(source, None)
            if piece is None and hangs_up:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

        async def send(message: Message) -> None:
            answer.status = message.get("status", answer.status)
            answer.body += message.get("body", b"")

        headers = [(b"content-type", content_type.encode("latin-1"))]
        scope = {"type": "http", "method": "POST", "path": "/execute", "query_string": b"", "headers": headers}
        async with asyncio.timeout(10):
            response = await self.http.execute(Request(scope, receive))
            await response(scope, receive, send)
        if not hangs_up:
            self.check(answer)
        left = [path.name for path in self.folder.iterdir() if not path.name.startswith("sha256-")]
        assert left == []
        return answer

    @staticmethod
    def check(answer: Answer) -> None:
        if answer.status == 200:
            assert answer.told["status"] == "CACHE_MISS"
            return
        kind = {400: "parse", 413: "request_too_large"}[answer.status]
        assert answer.told["status"] == "ERROR"
        assert answer.told["error"]["kind"] == kind
        assert 10 < len(answer.told["error"]["message"]) < 500


@pytest.fixture
def fuzzed(tmp_path: Path) -> Fuzzed:
    artifacts = Artifacts(tmp_path / "blobs", limit_bytes=LIMIT_BYTES)
    nothing: Any = Nothing(artifacts)
    return Fuzzed(KCoralHttp(nothing), artifacts.folder("fuzz"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_valid_body_would_run(fuzzed: Fuzzed) -> None:
    answer = await fuzzed.ask([VALID])
    assert (answer.status, answer.told["error"]["message"]) == (413, "nothing runs here")
    assert {path.read_bytes() for path in fuzzed.folder.iterdir()} == set(DATA)


async def test_a_mutated_body_has_a_clear_answer_and_leaves_nothing_half(fuzzed: Fuzzed) -> None:
    before, statuses = descriptors(), set()
    for chance in turns():
        body = mutated(chance) if chance.random() < 0.9 else chance.randbytes(500)
        statuses.add((await fuzzed.ask(cut(chance, body))).status)
        for path in fuzzed.folder.iterdir():  # what is kept is what its name says
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name.removeprefix("sha256-")
            path.unlink()
        fuzzed.http._service.artifacts._recount(fuzzed.folder)
    assert statuses >= {400, 413}
    assert descriptors() == before


async def test_a_client_that_hangs_up_anywhere_leaves_nothing(fuzzed: Fuzzed) -> None:
    before = descriptors()
    for chance in turns():
        body = VALID[: chance.randrange(len(VALID))]
        assert (await fuzzed.ask(cut(chance, body), hangs_up=True)).status == 400
    assert descriptors() == before


def endless(start: bytes, piece: bytes, total: int = 32 * MiB) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield start
        for _ in range(total // len(piece)):
            yield piece

    return pieces


OPEN = b"--" + BOUNDARY + b"\r\n"
FLOODS = {
    "a preamble": endless(b"", b"x" * 65536),
    "line ends": endless(b"", b"\r\n" * 32768, MiB),
    "a header's name": endless(OPEN, b"x" * 65536),
    "a header's value": endless(OPEN + b"X-Long: ", b"x" * 65536),
    "a header in crumbs": endless(OPEN + b"X-Long: ", b"x", 100_000),
    "headers": endless(OPEN, b"X-Header: x\r\n" * 5000),
    "a disposition": endless(OPEN + b"Content-Disposition: form-data; ", b'name="a"; ' * 6000),
    "boundaries": endless(b"", OPEN * 4000),
    "empty parts": endless(OPEN, b"\r\n\r\n" + OPEN * 2000),
    "unknown parts": endless(b"", part("x", b"") * 500),
    "programs": endless(b"", program() * 300),
    "the same blob": endless(b"", blob(b"same") * 300),
    "a blob that is too large": endless(blob(b"")[:-2], b"x" * 65536),
    "half boundaries": endless(blob(b"")[:-2], b"\r\n--fuzz-boundar" * 4096),
    "an epilogue": endless(program() + END, b"x" * 65536),
}


@pytest.mark.parametrize("pieces", FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_refused_in_bounded_memory(fuzzed: Fuzzed, pieces: Callable[[], Iterator[bytes]]) -> None:
    before, began = descriptors(), time.monotonic()
    tracemalloc.start()
    try:
        answer = await fuzzed.ask(pieces())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status in (400, 413)
    assert peak < 2 * MiB
    assert time.monotonic() - began < 8
    assert descriptors() == before
    assert sum(path.stat().st_size for path in fuzzed.folder.iterdir()) <= LIMIT_BYTES


async def test_thousands_of_blobs_are_taken_one_after_the_other(fuzzed: Fuzzed) -> None:
    before, peak = descriptors(), 0
    many = [str(number).encode() for number in range(2000)]

    def pieces() -> Iterator[bytes]:
        nonlocal peak
        for data in many:
            yield blob(data)[:-3]
            peak = max(peak, descriptors())
            yield blob(data)[-3:]
        yield program(*many) + END

    answer = await fuzzed.ask(pieces())
    assert answer.told["error"]["message"] == "nothing runs here"
    assert peak <= before + 1
    assert len(list(fuzzed.folder.iterdir())) == len(many)


async def test_a_program_beyond_its_limit_is_refused_before_it_is_read_to_its_end(fuzzed: Fuzzed) -> None:
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        yield program()[:-20]
        while True:  # as long as somebody reads
            read += MiB
            assert read <= 100 * MiB
            yield b" " * MiB

    assert (await fuzzed.ask(pieces())).status == 413


async def test_what_was_refused_takes_no_room(fuzzed: Fuzzed) -> None:
    false = blob(b"right").replace(b"right", b"x" * (LIMIT_BYTES // 2))
    for _ in range(20):
        assert (await fuzzed.ask([program(b"right") + false + END])).status == 400
    assert fuzzed.http._service.artifacts.usage("fuzz") == (0, LIMIT_BYTES)


def test_a_part_s_headers_without_an_end_are_refused_early() -> None:
    reader = Reader(FORM, lambda name, kind: pytest.fail("no part has begun"))
    with pytest.raises(ProgramInvalid, match="header"):
        reader.feed(b"--" + BOUNDARY + b"\r\nX-A: " + b"a" * 10_000)
