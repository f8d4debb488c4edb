"""Frames: what goes in comes out, limits hold on both sides, and a hostile peer gets a ``ProtocolError``."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from array import array
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol.framing import (
    MAX_BUFFERS,
    MAX_CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEAD_BYTES,
    MAX_MESSAGE_BYTES,
    Decoder,
    Message,
    StreamSplitter,
    encode,
    pack,
)


class Note(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """A message whose head can have any size; framing knows no message by name."""

    text: str = ""
    number: int = 0


class Other(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


def decoder(**options: int) -> Decoder[Note | Other]:
    return Decoder[Note | Other](Note | Other, **options)


def decode_all(frames: Sequence[bytes]) -> list[Message[Note | Other]]:
    one = decoder()
    return [message for frame in frames if (message := one.decode(frame)) is not None]


def filler(size: int) -> bytes:
    """Bytes whose place can be told, so that a part in the wrong place is seen."""
    return (b"%07d\n" * (size // 8 + 1))[:size] if size < 2048 else (bytes(range(251)) * (size // 251 + 1))[:size]


def frame_of(head: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<I", len(head)) + head + payload


def head_of(*parts: object) -> bytes:
    return msgspec.msgpack.encode(parts)


buffers = st.one_of(
    st.binary(max_size=40), st.binary(max_size=40).map(bytearray), st.binary(max_size=40).map(memoryview)
)


@given(
    st.lists(
        st.tuples(
            st.builds(Note, st.text(max_size=20), st.integers(-(2**63), 2**64 - 1)), st.lists(buffers, max_size=5)
        ),
        max_size=6,
    )
)
def test_messages_come_back_as_they_were_sent_and_in_order(sent: list[tuple[Note, list[framing.Buffer]]]) -> None:
    frames = [frame for body, parts in sent for frame in encode(body, parts)]
    got = [(message.body, [bytes(part) for part in message.buffers]) for message in decode_all(frames)]
    assert got == [(body, [bytes(part) for part in parts]) for body, parts in sent]


@pytest.mark.parametrize(
    "sizes",
    [
        (MAX_CHUNK_BYTES - 1,),
        (MAX_CHUNK_BYTES,),
        (MAX_CHUNK_BYTES + 1,),
        (2 * MAX_CHUNK_BYTES,),
        (1, 2 * MAX_CHUNK_BYTES, 0, 3),
        (MAX_CHUNK_BYTES - 2, 5, MAX_CHUNK_BYTES),
        (0, 0),
    ],
)
def test_a_message_of_any_size_comes_back_from_frames_within_the_limit(sizes: tuple[int, ...]) -> None:
    parts = [filler(size) for size in sizes]
    frames = encode(Note("big"), parts)
    assert len(frames) == max(1, -(-sum(sizes) // MAX_CHUNK_BYTES))
    assert max(map(len, frames)) <= MAX_FRAME_BYTES
    (message,) = decode_all(frames)
    assert message.body == Note("big")
    assert [bytes(part) for part in message.buffers] == parts


def test_the_largest_message_passes_and_one_byte_more_is_refused_before_it_is_sent() -> None:
    frames = encode(Note(), [bytes(MAX_MESSAGE_BYTES - 1), b"!"])
    (message,) = decode_all(frames)
    assert message.buffers[1] == b"!"
    with pytest.raises(ProtocolError, match="at most 64 MiB"):
        encode(Note(), [bytes(MAX_MESSAGE_BYTES), b"!"])


def test_the_most_buffers_pass_and_one_more_is_refused() -> None:
    (message,) = decode_all(encode(Note(), [b"x"] * MAX_BUFFERS))
    assert len(message.buffers) == MAX_BUFFERS
    with pytest.raises(ProtocolError, match="256 buffers"):
        encode(Note(), [b""] * (MAX_BUFFERS + 1))


def test_the_largest_head_passes_and_one_byte_more_is_refused() -> None:
    room = MAX_HEAD_BYTES - len(head_of(Note("x" * 60_000))) + 60_000
    (frame,) = encode(Note("x" * room))
    assert len(frame) == 4 + MAX_HEAD_BYTES
    assert decoder().decode(frame) == Message(Note("x" * room))
    with pytest.raises(ProtocolError, match="head must fit"):
        encode(Note("x" * (room + 1)))


def test_buffers_count_in_bytes_whatever_their_items_are() -> None:
    numbers = memoryview(array("I", [1, 2, 3]))
    (message,) = decode_all(encode(Note(), [numbers, b"end"]))
    assert [bytes(part) for part in message.buffers] == [numbers.tobytes(), b"end"]


def test_a_small_message_overtakes_a_large_one_between_any_two_of_its_parts() -> None:
    payload = filler(3 * MAX_CHUNK_BYTES + 7)
    large = encode(Note("large"), [payload])
    one, seen = decoder(), []
    for part in large:
        for frame in [part, *encode(Other()), *encode(Note("small"), [b"data"])]:
            message = one.decode(frame)
            if message is not None:
                seen.append(message)
    assert [message.body for message in seen] == [Other(), Note("small")] * 3 + [Note("large"), Other(), Note("small")]
    assert bytes(seen[6].buffers[0]) == payload


def test_a_decoder_takes_the_next_large_message_after_the_first_is_complete() -> None:
    first, second = filler(MAX_CHUNK_BYTES + 1), filler(MAX_CHUNK_BYTES + 2)
    got = decode_all([*encode(Note("1"), [first]), *encode(Note("2"), [second])])
    assert [(message.body, bytes(message.buffers[0])) for message in got] == [(Note("1"), first), (Note("2"), second)]


def test_a_decoder_may_allow_less_than_the_protocol() -> None:
    strict = decoder(max_message_bytes=10)
    assert strict.decode(*encode(Note(), [bytes(10)])) is not None
    with pytest.raises(ProtocolError, match="at most 10 bytes"):
        strict.decode(*encode(Note(), [bytes(11)]))


NOTE = ["Note", "", 0]
CHUNK = bytes(MAX_CHUNK_BYTES)
OPENING = frame_of(head_of(NOTE, [MAX_CHUNK_BYTES * 2]), CHUNK)

MALFORMED: dict[str, list[bytes]] = {
    "no bytes": [b""],
    "three bytes": [b"\0\0\0"],
    "larger than a frame": [frame_of(head_of(NOTE), bytes(MAX_FRAME_BYTES))],
    "a head longer than its frame": [struct.pack("<I", 9) + head_of(["Other"])],
    "a head longer than heads are": [frame_of(bytes(MAX_HEAD_BYTES + 1))],
    "the largest head length": [b"\xff\xff\xff\xff" + bytes(100)],
    "a head that is no msgpack": [frame_of(b"\xc1")],
    "a head that ends early": [frame_of(head_of(NOTE)[:-1])],
    "bytes after the head's end": [frame_of(head_of(NOTE) + b"\0")],
    "a head that is a map": [frame_of(msgspec.msgpack.encode({"message": NOTE}))],
    "an empty head": [frame_of(head_of())],
    "a third part of the head": [frame_of(head_of(NOTE, [], 1))],
    "no message": [frame_of(head_of(None))],
    "a message without a tag": [frame_of(head_of([]))],
    "an unknown message": [frame_of(head_of(["Nothing"]))],
    "a tag that is no text": [frame_of(head_of([7, "", 0]))],
    "a field too many": [frame_of(head_of(["Note", "", 0, 0]))],
    "a field of another type": [frame_of(head_of(["Note", "", "0"]))],
    "bytes for text": [frame_of(head_of(["Note", b"text", 0]))],
    "text that is no UTF-8": [frame_of(b"\x91\x92\xa4Note\xa1\xff")],
    "a lone surrogate": [frame_of(b"\x91\x92\xa4Note\xa3\xed\xa0\x80")],
    "an extension type": [frame_of(head_of(["Note", msgspec.msgpack.Ext(1, b"x")]))],
    "a nesting bomb": [frame_of(b"\x91" * 60_000 + b"\xc0")],
    "a nesting bomb for a field": [frame_of(b"\x91\x92\xa4Note" + b"\x91" * 60_000 + b"\xc0")],
    "an array of four thousand million": [frame_of(b"\x92" + msgspec.msgpack.encode(NOTE) + b"\xdd\xff\xff\xff\xff")],
    "text of four thousand million": [frame_of(b"\x91\x92\xa4Note\xdb\xff\xff\xff\xff")],
    "a negative size": [frame_of(head_of(NOTE, [-1]))],
    "a negative size that another makes up for": [frame_of(head_of(NOTE, [-4, 4]))],
    "a size that is no number": [frame_of(head_of(NOTE, ["1"]), b"x")],
    "a size beyond 64 bits": [frame_of(b"\x92" + msgspec.msgpack.encode(NOTE) + b"\x91\xcf" + b"\xff" * 8)],
    "more buffers than there may be": [frame_of(head_of(NOTE, [0] * (MAX_BUFFERS + 1)))],
    "more bytes than a message may have": [frame_of(head_of(NOTE, [MAX_MESSAGE_BYTES + 1]), CHUNK)],
    "more bytes in all than a message may have": [frame_of(head_of(NOTE, [MAX_MESSAGE_BYTES, 1]), CHUNK)],
    "a payload that nobody announced": [frame_of(head_of(NOTE), b"x")],
    "a payload longer than announced": [frame_of(head_of(NOTE, [2]), b"xyz")],
    "a payload shorter than announced": [frame_of(head_of(NOTE, [4]), b"xyz")],
    "a first part that is no whole chunk": [frame_of(head_of(NOTE, [MAX_CHUNK_BYTES * 2]), CHUNK[:-1])],
    "a continuation of nothing": [frame_of(b"", b"x")],
    "an empty continuation of nothing": [frame_of(b"")],
    "a continuation after the last": [*encode(Note(), [bytes(MAX_CHUNK_BYTES + 1)]), frame_of(b"", b"x")],
    "an empty continuation": [OPENING, frame_of(b"")],
    "a continuation that is too short": [OPENING, frame_of(b"", CHUNK[:-1])],
    "a continuation that is too long": [OPENING, frame_of(b"", CHUNK + b"x")],
    "a second large message inside the first": [OPENING, OPENING],
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_is_a_protocol_error(frames: list[bytes]) -> None:
    one = decoder()
    for frame in frames[:-1]:
        one.decode(frame)
    with pytest.raises(ProtocolError):
        one.decode(frames[-1])


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes, has_true_length: bool) -> None:
    one = decoder()
    try:
        one.decode(frame_of(data) if has_true_length else data)
    except ProtocolError:
        pass


def test_an_announced_size_allocates_nothing_before_its_bytes_come() -> None:
    opening = frame_of(head_of(NOTE, [MAX_MESSAGE_BYTES]), CHUNK)
    tracemalloc.start()
    try:
        assert decoder().decode(opening) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * MAX_CHUNK_BYTES


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def split_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


frames_of_any_size = st.lists(st.binary(max_size=20), max_size=8)


@given(frames_of_any_size, st.binary(max_size=6))
def test_a_stream_fed_byte_by_byte_gives_the_frames_of_one_fed_whole(frames: list[bytes], tail: bytes) -> None:
    data = pack(frames) + struct.pack("<I", 7) + tail
    whole, single = StreamSplitter(), StreamSplitter()
    assert whole.feed(data) == frames
    assert [frame for byte in data for frame in single.feed(bytes([byte]))] == frames
    assert whole.has_partial
    assert single.has_partial


@given(frames_of_any_size, st.lists(st.integers(0, 10_000), max_size=6))
def test_a_stream_may_be_cut_anywhere(frames: list[bytes], cuts: list[int]) -> None:
    one = StreamSplitter()
    assert [frame for piece in split_at(pack(frames), cuts) for frame in one.feed(piece)] == frames
    assert not one.has_partial


def test_a_stream_says_whether_a_frame_is_unfinished() -> None:
    one, data = StreamSplitter(), pack([b"frame"])
    assert not one.has_partial
    for byte in data[:-1]:
        assert one.feed(bytes([byte])) == []
        assert one.has_partial
    assert one.feed(data[-1:]) == [b"frame"]
    assert not one.has_partial


@pytest.mark.parametrize("feed", [lambda s, d: s.feed(d), lambda s, d: [s.feed(bytes([b])) for b in d]])
def test_a_stream_that_announces_too_much_is_a_protocol_error(feed: Callable[[StreamSplitter, bytes], object]) -> None:
    with pytest.raises(ProtocolError, match="were announced"):
        feed(StreamSplitter(), struct.pack("<I", MAX_FRAME_BYTES + 1))
    one = StreamSplitter()
    feed(one, struct.pack("<I", MAX_FRAME_BYTES))
    assert one.feed(bytes(MAX_FRAME_BYTES)) == [bytes(MAX_FRAME_BYTES)]


def test_a_message_comes_back_from_a_stream() -> None:
    payload = filler(2 * MAX_CHUNK_BYTES + 1)
    data = pack([*encode(Note("big"), [payload]), *encode(Other())])
    one = StreamSplitter()
    frames = [frame for start in range(0, len(data), 300_001) for frame in one.feed(data[start : start + 300_001])]
    large, small = decode_all(frames)
    assert (large.body, bytes(large.buffers[0]), small.body) == (Note("big"), payload, Other())
