"""Every decoder against mutated and random bytes: a message or a ``ProtocolError``, nothing else, in bounded memory.

Seeded, so that a failure repeats; ``KCORAL_FUZZ_SEED`` and ``KCORAL_FUZZ_S`` run other and longer ones.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import bundle, connection, framing
from kcoral_magic.protocol import messages as m

SEED = int(os.environ.get("KCORAL_FUZZ_SEED", "20240229"))
SECONDS = float(os.environ.get("KCORAL_FUZZ_S", "0.4"))  # for each test

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "messages.json").read_text("utf-8"))
UNIONS = {
    "ToGateway": m.ToGateway,
    "ToClient": m.ToClient,
    "ToHost": m.ToHost,
    "FromHost": m.FromHost,
    "ToWorker": m.ToWorker,
    "FromWorker": m.FromWorker,
}
FRAMES = [bytes.fromhex(vector["frame"]) for vector in VECTORS["messages"]]
HANDSHAKES = [bytes.fromhex(vector["frame"]) for vector in VECTORS["handshake"]]
# What msgpack announces lengths, types and nesting with, and the edges of our own u32.
TELLING = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC4, 0xC6, 0xC7, 0xC9, 0xCB, 0xCF, 0xD3]
TELLING += [0xD4, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xE0, 0xFF]


def turns() -> Iterator[random.Random]:
    """The same random numbers each time, until the time is up."""
    chance, end = random.Random(SEED), time.monotonic() + SECONDS
    count = 0
    while time.monotonic() < end:
        yield chance
        count += 1
    assert count > 100, "too slow to find anything"


def mutated(chance: random.Random, data: bytes) -> bytes:
    """A valid piece with a few things wrong."""
    piece = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(piece) + 1)
        match chance.randrange(7):
            case 0 if at < len(piece):
                piece[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(piece):
                piece[at] = chance.choice(TELLING)
            case 2:
                piece[at:at] = bytes([chance.choice(TELLING)]) * chance.choice((1, 1, 2, 60, 3000))
            case 3:
                del piece[at : at + chance.choice((1, 1, 2, 4, 30))]
            case 4:
                other = chance.choice(FRAMES)
                piece[at:] = other[chance.randrange(len(other)) :]
            case 5 if len(piece) >= 4:  # the head again fits what it says
                piece[:4] = struct.pack("<I", max(0, len(piece) - 4 - chance.choice((0, 0, 0, 1, 20))))
            case _:
                piece[at : at + 4] = struct.pack(chance.choice("<>") + "I", chance.choice((0, 1, 2**31, 2**32 - 1)))
    return bytes(piece)


def is_refused(decode: Callable[[bytes], Any], data: bytes) -> bool:
    """Whether it was refused; anything but a message or a ``ProtocolError`` shows the bytes."""
    try:
        decode(data)
    except ProtocolError:
        return True
    except BaseException as error:
        pytest.fail(f"{type(error).__name__}: {error}\nseed {SEED}, {len(data)} bytes: {data[:400].hex()}")
    return False


@pytest.mark.parametrize("direction", UNIONS)
def test_a_mutated_frame_is_a_message_or_a_protocol_error(direction: str) -> None:
    valid = [bytes.fromhex(vector["frame"]) for vector in VECTORS["messages"] if vector["direction"] == direction]
    outcomes = {True: 0, False: 0}
    for chance in turns():
        decoder = framing.Decoder[Any](UNIONS[direction])
        for _ in range(3):  # also with a message of several parts open
            outcomes[is_refused(decoder.decode, mutated(chance, chance.choice(valid)))] += 1
    assert min(outcomes.values()) > 10, f"the mutations are all alike: {outcomes}"


def test_random_bytes_are_a_message_or_a_protocol_error() -> None:
    for chance in turns():
        data = chance.randbytes(chance.choice((0, 3, 4, 5, 20, 200)))
        if chance.random() < 0.7:
            data = struct.pack("<I", len(data)) + data
        for union in UNIONS.values():
            is_refused(framing.Decoder[Any](union).decode, data)


@pytest.mark.parametrize("decode", [connection.decode_hello, connection.decode_welcome])
def test_a_mutated_handshake_is_one_or_a_protocol_error(decode: Callable[[bytes], Any]) -> None:
    for chance in turns():
        is_refused(decode, mutated(chance, chance.choice(HANDSHAKES)))


def test_a_mutated_bundle_is_one_or_a_protocol_error() -> None:
    vectors = [vector for vector in VECTORS["messages"] if vector["message"][0] in ("Display", "Result")]
    for chance in turns():
        vector = chance.choice(vectors)
        buffers = [mutated(chance, bytes.fromhex(buffer)) for buffer in vector["buffers"]]
        mimes = [chance.choice(("text/plain", "image/png", "application/json")) for _ in vector["message"][1]]
        is_refused(lambda data, mimes=mimes, buffers=buffers: bundle.unpack(mimes, [*buffers[:-1], data]), buffers[-1])


def test_a_client_s_connection_gives_messages_or_a_protocol_error() -> None:
    welcome = HANDSHAKES[-1]
    for chance in turns():
        client = connection.ClientConnection(m.Hello((m.VERSION,), "notebook-1", "kernel-01"))
        client.hello()
        if is_refused(client.opened, welcome if chance.random() < 0.8 else mutated(chance, welcome)):
            continue
        client.execute(m.Execute("3f9a0c77e1d24b6a8c05d1ee", m.SessionAsk("")), b"1")
        for _ in range(5):
            frame = chance.choice(FRAMES)
            if is_refused(client.receive, frame if chance.random() < 0.5 else mutated(chance, frame)):
                break


def test_a_gateway_s_connection_gives_messages_or_a_protocol_error() -> None:
    valid = [bytes.fromhex(vector["frame"]) for vector in VECTORS["messages"] if vector["direction"] == "ToGateway"]
    for chance in turns():
        gateway = connection.GatewayConnection()
        if is_refused(gateway.opened, HANDSHAKES[0] if chance.random() < 0.8 else mutated(chance, HANDSHAKES[0])):
            continue
        for _ in range(5):
            frame = chance.choice(valid)
            if is_refused(gateway.receive, frame if chance.random() < 0.7 else mutated(chance, frame)):
                break


def test_a_mutated_stream_is_frames_or_a_protocol_error_however_it_is_cut() -> None:
    for chance in turns():
        data = mutated(chance, framing.pack(chance.choices(FRAMES, k=chance.randrange(1, 5))))
        splitter, whole = framing.StreamSplitter(), framing.StreamSplitter()
        frames: list[bytes] = []

        def feed(piece: bytes, splitter: framing.StreamSplitter = splitter, frames: list[bytes] = frames) -> None:
            frames.extend(splitter.feed(piece))

        start = 0
        is_broken = False
        while start < len(data) and not is_broken:
            step = chance.choice((1, 2, 3, 4, 5, 50))
            is_broken = is_refused(feed, data[start : start + step])
            start += step
        assert is_refused(whole.feed, data) == is_broken
        if not is_broken:
            assert framing.pack(frames) == data[: len(framing.pack(frames))]


ANNOUNCED: dict[str, bytes] = {
    "a head": struct.pack("<I", 2**32 - 1),
    "an array": b"\x91\xdd\xff\xff\xff\xff",
    "a list of sizes": b"\x92\x91\xa4Ping\xdd\x7f\xff\xff\xff",
    "a map": b"\x91\xdf\xff\xff\xff\xff",
    "text": b"\x91\x92\xa6Detach\xdb\xff\xff\xff\xff",
    "bytes": b"\x91\x92\xa6Detach\xc6\xff\xff\xff\xff",
    "an extension": b"\x91\x92\xa6Detach\xc9\xff\xff\xff\xff\x01",
    "a payload": b"\x92\x91\xa4Ping\x91\xce\x04\x00\x00\x00",
    "payloads": b"\x92\x91\xa4Ping\x92\xce\x7f\xff\xff\xff\xce\x7f\xff\xff\xff",
    "a payload beyond 64 bits": b"\x92\x91\xa4Ping\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
}


@pytest.mark.parametrize("head", ANNOUNCED.values(), ids=ANNOUNCED)
def test_memory_does_not_grow_with_what_is_announced(head: bytes) -> None:
    frame = struct.pack("<I", len(head)) + head
    handshake = b"\x81\xa8versions" + head[1:]
    tracemalloc.start()
    try:
        for union in UNIONS.values():
            is_refused(framing.Decoder[Any](union).decode, frame)
            is_refused(framing.Decoder[Any](union).decode, head)
        for decode in (connection.decode_hello, connection.decode_welcome):
            is_refused(decode, handshake)
        splitter = framing.StreamSplitter()
        is_refused(splitter.feed, struct.pack("<I", framing.MAX_FRAME_BYTES))
        is_refused(splitter.feed, frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < framing.MAX_FRAME_BYTES + 128 * 1024  # one frame that has begun has its memory, and no more


def test_memory_does_not_grow_with_refused_frames() -> None:
    tracemalloc.start()
    try:
        decoder = framing.Decoder[Any](m.ToGateway)
        for size in (10, 1000, 60_000):
            for _ in range(20):
                is_refused(decoder.decode, struct.pack("<I", size) + bytes([0x91]) * size)
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 200_000
