"""Every message against the vectors of ``tests/vectors/messages.json``, and the decoders' strictness.

A vector holds the message as the array it is on the wire, its buffers and its frame in hex. To add one, write the
first two; the failing test shows the frame.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import connection, framing, wire
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "messages.json").read_text("utf-8"))
UNIONS = {
    "ToGateway": m.ToGateway,
    "ToClient": m.ToClient,
    "ToHost": m.ToHost,
    "FromHost": m.FromHost,
    "ToWorker": m.ToWorker,
    "FromWorker": m.FromWorker,
}
MESSAGES: list[dict[str, Any]] = VECTORS["messages"]
MANIFESTS: list[dict[str, Any]] = VECTORS["manifests"]
HANDSHAKES: list[dict[str, Any]] = VECTORS["handshake"]
WIRE_ID = "3f9a0c77e1d24b6a8c05d1ee"

every_message = pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: f"{v['direction']}-{v['name']}")
every_handshake = pytest.mark.parametrize("vector", HANDSHAKES, ids=lambda v: f"{v['name']} {v['case']}")


def decoder(direction: str) -> framing.Decoder[Any]:
    return framing.Decoder[Any](UNIONS[direction])


def decodes(direction: str, message: object) -> object:
    """The body of an array on the wire; buffers are checked by whoever takes the message."""
    decoded = decoder(direction).decode(*framing.encode(message))
    assert decoded is not None
    return decoded.body


def structs_in(value: object) -> set[type]:
    """The types of a message and of everything in it."""
    if isinstance(value, msgspec.Struct):
        return {type(value)}.union(*(structs_in(getattr(value, name)) for name in value.__struct_fields__))
    if isinstance(value, tuple):
        return set().union(*map(structs_in, value))
    return set()


# ── Vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_vectors_are_of_the_version_we_speak() -> None:
    assert VECTORS["version"] == m.VERSION


@every_message
def test_a_message_is_encoded_as_its_vector_says(vector: dict[str, Any]) -> None:
    body = msgspec.convert(vector["message"], UNIONS[vector["direction"]])
    buffers = [bytes.fromhex(buffer) for buffer in vector["buffers"]]
    assert [frame.hex() for frame in framing.encode(body, buffers)] == [vector["frame"]]


@every_message
def test_a_frame_is_decoded_as_its_vector_says(vector: dict[str, Any]) -> None:
    decoded = decoder(vector["direction"]).decode(bytes.fromhex(vector["frame"]))
    assert decoded is not None
    assert decoded.body == msgspec.convert(vector["message"], UNIONS[vector["direction"]])
    assert [bytes(buffer).hex() for buffer in decoded.buffers] == vector["buffers"]


@pytest.mark.parametrize("direction", UNIONS)
def test_every_message_of_a_direction_has_a_vector(direction: str) -> None:
    has = {vector["message"][0] for vector in MESSAGES if vector["direction"] == direction}
    assert has == {struct.__name__ for struct in get_args(UNIONS[direction])}


@pytest.mark.parametrize("carrier", ["Event", "Emit"])
def test_every_event_body_has_a_vector(carrier: str) -> None:
    has = {
        part[0]
        for vector in MESSAGES
        if vector["message"][0] == carrier
        for part in vector["message"][1:]
        if type(part) is list
    }
    assert has == {struct.__name__ for struct in get_args(m.EventBody)}


def test_every_struct_is_in_some_vector() -> None:
    every = {**vars(m), **vars(t)}.values()
    declared = {value for value in every if isinstance(value, type) and issubclass(value, msgspec.Struct)}
    seen = {getattr(m, vector["name"]) for vector in HANDSHAKES}
    for vector in MESSAGES:
        seen |= structs_in(msgspec.convert(vector["message"], UNIONS[vector["direction"]]))
    for vector in MANIFESTS:
        seen |= structs_in(msgspec.convert(vector["message"], t.Manifest))
    assert {struct.__name__ for struct in declared - seen} == {"Wire"}


@pytest.mark.parametrize("vector", MANIFESTS, ids=lambda v: v["name"])
def test_a_manifest_is_read_as_its_vector_says(vector: dict[str, Any]) -> None:
    assert t.read_manifest(bytes.fromhex(vector["buffer"])) == msgspec.convert(vector["message"], t.Manifest)
    assert msgspec.msgpack.encode(msgspec.convert(vector["message"], t.Manifest)).hex() == vector["buffer"]


def test_a_manifest_that_is_none_is_refused_and_an_empty_buffer_is_an_empty_one() -> None:
    assert t.read_manifest(b"") == t.Manifest()
    for buffer in (b"\xff", b"\x90", msgspec.msgpack.encode(["Manifest", [], [], [], "", None, 1])):
        with pytest.raises(ProtocolError, match="manifest"):
            t.read_manifest(buffer)


# ── Strictness ──────────────────────────────────────────────────────────────────────────────────────────────────────


@every_message
def test_an_unknown_field_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        decodes(vector["direction"], [*vector["message"], None])


@every_message
def test_a_field_of_another_type_is_refused(vector: dict[str, Any]) -> None:
    for place in range(len(vector["message"])):
        for wrong in (b"bytes", {"a": 1}, msgspec.msgpack.Ext(1, b"")):
            message = [*vector["message"]]
            message[place] = wrong
            with pytest.raises(ProtocolError):
                decodes(vector["direction"], message)


@every_message
def test_a_message_without_its_required_fields_is_refused(vector: dict[str, Any]) -> None:
    tag, *fields = vector["message"]
    struct = getattr(m, tag)
    required = len(struct.__struct_fields__) - len(struct.__struct_defaults__)
    for count in range(required):
        with pytest.raises(ProtocolError):
            decodes(vector["direction"], [tag, *fields[:count]])


@every_message
def test_a_message_is_refused_in_a_direction_that_is_not_its_own(vector: dict[str, Any]) -> None:
    for direction, union in UNIONS.items():
        if vector["message"][0] not in {struct.__name__ for struct in get_args(union)}:
            with pytest.raises(ProtocolError):
                decodes(direction, vector["message"])


def test_an_unknown_field_of_a_part_is_refused() -> None:
    for part in (["SessionAsk", "a", None, 1], ["Place", 1, 1, 1], ["View", None, 0, 1]):
        fields = {"SessionAsk": ["SessionAsk", ""], "Place": ["Place"], "View": ["View"], part[0]: part}
        with pytest.raises(ProtocolError):
            decodes("ToGateway", ["Execute", WIRE_ID, *fields.values()])


REFUSED: dict[str, list[object]] = {
    "an id that is too short": ["Detach", "short"],
    "an id that is too long": ["Detach", "x" * 65],
    "an id that leaves its folder": ["Detach", "../../etc/passwd"],
    "an id with a space": ["Detach", "12345678 "],
    "an id with a line end": ["Detach", "12345678\n"],
    "an id of letters that are not ASCII": ["Detach", "ä" * 8],
    "a session name with a slash": ["ListExecutions", 1, "a/b"],
    "a session name of another client": ["ListExecutions", 1, "~notebook-1"],
    "a session name with a line end": ["ListExecutions", 1, "train\n"],
    "a session name that is too long": ["ListExecutions", 1, "x" * 65],
    "a negative number": ["Attach", WIRE_ID, -1],
    "a number that is a fraction": ["Attach", WIRE_ID, 1.0],
    "a number that is a statement": ["Attach", WIRE_ID, True],
    "GPUs by number": ["Execute", WIRE_ID, ["SessionAsk", "", "0,1"]],
    "a negative count of GPUs": ["Execute", WIRE_ID, ["SessionAsk", "", -1]],
    "more GPUs than anybody has": ["Execute", WIRE_ID, ["SessionAsk", "", 1025]],
    "a view of less than nothing": ["Attach", WIRE_ID, 0, ["View", -1, 0]],
    "a line before the first": ["Execute", WIRE_ID, ["SessionAsk", ""], ["Place", 1, 0]],
    "no time at all": ["Execute", WIRE_ID, ["SessionAsk", ""], ["Place"], ["View"], 0.0],
    "a negative time": ["Execute", WIRE_ID, ["SessionAsk", ""], ["Place"], ["View"], -1.0],
    "a time that is no number": ["Execute", WIRE_ID, ["SessionAsk", ""], ["Place"], ["View"], float("nan")],
    "a waiting time that is no number": [
        "Execute",
        WIRE_ID,
        ["SessionAsk", ""],
        ["Place"],
        ["View"],
        None,
        float("nan"),
    ],
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED)
def test_a_value_outside_its_range_is_refused(message: list[object]) -> None:
    with pytest.raises(ProtocolError):
        decodes("ToGateway", message)


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        ("ToClient", ["Event", WIRE_ID, 0, ["Starting"]]),
        ("ToClient", ["Event", WIRE_ID, 1, ["Stream", "stdin", False]]),
        ("ToClient", ["Event", WIRE_ID, 1, ["Finished", "fine", 0.0, "", ""]]),
        ("ToClient", ["Event", WIRE_ID, 1, ["Ping"]]),
        ("ToClient", ["Problem", "usage", "x" * (16 * 1024 + 1)]),
        ("FromWorker", ["Ended", "failed", 1.0]),
        ("FromWorker", ["Display", ["x" * 513]]),
    ],
)
def test_an_event_outside_its_range_is_refused(direction: str, message: list[object]) -> None:
    with pytest.raises(ProtocolError):
        decodes(direction, message)


@pytest.mark.parametrize(
    "message",
    [
        ["Detach", "x" * 64],
        ["Detach", "Az09_-xx"],
        ["ListExecutions", 1, ""],
        ["Execute", WIRE_ID, ["SessionAsk", "a.b_c-d", "all"]],
        ["Execute", WIRE_ID, ["SessionAsk", "", 0], ["Place", 0, 1], ["View", 0, 0], 0.001, 1e9],
    ],
)
def test_values_at_the_edge_of_their_range_are_taken(message: list[object]) -> None:
    decodes("ToGateway", message)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("train", True),
        ("a", True),
        ("0.b_c-d", True),
        ("x" * 64, True),
        ("", False),
        ("x" * 65, False),
        (".hidden", False),
        ("-option", False),
        ("~own", False),
        ("a b", False),
        ("a/b", False),
        ("train\n", False),
        ("trän", False),
    ],
)
def test_what_a_person_may_call_a_session(name: str, is_one: bool) -> None:
    assert wire.is_session_name(name) is is_one


# ── The handshake ───────────────────────────────────────────────────────────────────────────────────────────────────

DECODE = {"Hello": connection.decode_hello, "Welcome": connection.decode_welcome}


@every_handshake
def test_a_handshake_is_decoded_as_its_vector_says_and_unknown_fields_are_left_out(vector: dict[str, Any]) -> None:
    expected = msgspec.convert(vector["message"], getattr(m, vector["name"]))
    assert DECODE[vector["name"]](bytes.fromhex(vector["frame"])) == expected


@every_handshake
def test_a_handshake_is_encoded_as_its_vector_says(vector: dict[str, Any]) -> None:
    if vector["is_canonical"]:
        message = msgspec.convert(vector["message"], getattr(m, vector["name"]))
        assert connection.encode_handshake(message).hex() == vector["frame"]


def test_both_sides_of_the_handshake_have_a_vector_with_a_field_we_do_not_know() -> None:
    assert {vector["name"] for vector in HANDSHAKES if vector["is_canonical"]} == set(DECODE)
    assert {vector["name"] for vector in HANDSHAKES if not vector["is_canonical"]} == set(DECODE)
