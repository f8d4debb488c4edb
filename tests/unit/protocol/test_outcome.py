"""What a program returns: a worker's heads are read as they were packed, a hostile worker's are refused."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from email import message_from_bytes
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import outcome

Value = dict[str, Any]
SHA = hashlib.sha256(b"").hexdigest()


def packed(key: Any, value: Any, sizes: Any, parts: bytes = b"") -> bytes:
    """A tail as any worker may write it: Python's JSON, NaN included."""
    text = json.dumps({"key": key, "value": value, "sizes": sizes}).encode()
    return parts + text + struct.pack("<I4s", len(text), b"KCO1")


def part(number: Any, **more: Any) -> Value:
    return {"type": "bytes", "part": number, "sha256": SHA} | more


# ── honest workers ──


@st.composite
def values(draw: st.DrawFn) -> tuple[Value, list[int]]:
    """A value and the sizes of its parts, numbered as they are met."""
    sizes: list[int] = []

    def taken(size: int) -> Value:
        sizes.append(size)
        return {"part": len(sizes) - 1, "sha256": hashlib.sha256(bytes(size)).hexdigest()}

    def make(depth: int) -> Value:
        kinds = [
            "null",
            "boolean",
            "integer",
            "number",
            "string",
            "bytes",
            "tensor",
            "file",
            "folder",
            "array",
            "object",
        ]
        kind = draw(st.sampled_from(kinds if depth < 3 else kinds[:9]))
        size = draw(st.integers(0, 9))
        few = range(draw(st.integers(0, 3)))
        match kind:
            case "null":
                return {"type": kind}
            case "bytes":
                return {"type": kind, **taken(size)}
            case "tensor":
                return {"type": kind, "dtype": "int16", "shape": [size, 1], **taken(2 * size)}
            case "file":
                return {"type": kind, "size": size, **taken(size)}
            case "folder":
                files = {str(n): {"type": "file", "size": n, **taken(n)} for n in few}
                return {"type": kind, "files": files, "directories": ["a"]}
            case "array":
                return {"type": kind, "value": [make(depth + 1) for _ in few]}
            case "object":
                return {"type": kind, "value": {str(n): make(depth + 1) for n in few}}
            case _:
                some = {"boolean": True, "integer": -(10**30), "number": 1.5, "string": "\ud800é"}
                return {"type": kind, "value": some[kind]}

    return make(0), sizes


def plain(value: Value, parts: list[bytes] | dict[str, bytes]) -> Any:
    """The value with its bytes in it, wherever they were."""
    match value["type"]:
        case "array":
            return [plain(item, parts) for item in value["value"]]
        case "object":
            return {key: plain(item, parts) for key, item in value["value"].items()}
        case "folder":
            return {key: plain(item, parts) for key, item in value["files"].items()}
        case _ if "part" in value:
            data: bytes = parts[value["part"]]
            return {**value, "part": None}, data
    return value


@given(st.lists(values(), max_size=4))
def test_values_come_out_of_one_response_as_they_were_packed(made: list[tuple[Value, list[int]]]) -> None:
    whole, expected = outcome.Outcome(), {}
    for number, (value, sizes) in enumerate(made):
        parts = [bytes([number]) * size for size in sizes]
        data = b"".join(parts) + outcome.tail(f"key {number}", value, sizes)
        whole.add(outcome.unpack(memoryview(data), len(data)), data)
        expected[f"key {number}"] = plain(value, parts)
    sizes = [size for _, _, size in whole.parts]
    pieces, length = outcome.multipart({"results": whole.results}, sizes, "b0undary")
    blobs = [holder[offset : offset + size] for holder, offset, size in whole.parts]
    body = b"".join(x for pair in zip(pieces, [*blobs, b""], strict=True) for x in pair)
    assert len(body) == length
    read = message_from_bytes(b"Content-Type: multipart/form-data; boundary=b0undary\r\n\r\n" + body)
    sections: list[Any] = read.get_payload()  # type: ignore[assignment]
    names = [section.get_param("name", header="content-disposition") for section in sections]
    assert names == ["result", *(f"return:{number}" for number in range(len(sizes)))]
    told = json.loads(sections[0].get_payload())["results"]
    found = {name: section.get_payload(decode=True) for name, section in zip(names, sections, strict=True)}
    assert {key: plain(value, found) for key, value in told.items()} == expected


def test_a_tail_s_length_is_known_from_its_end() -> None:
    data = outcome.tail("k", {"type": "null"}, [])
    assert outcome.tail_bytes(data[-outcome.FOOT_BYTES :]) == len(data)
    assert outcome.unpack(data, len(data)) == outcome.Returned("k", {"type": "null"}, ())


# ── hostile ones ──


def refused(data: bytes, total: int | None = None) -> None:
    with pytest.raises(ProtocolError) as raised:
        outcome.unpack(data, len(data) if total is None else total)
    assert 10 < len(str(raised.value)) < 500


NULL: Value = {"type": "null"}
FILE = {"type": "file", "size": 0, "part": 0, "sha256": SHA}
FOLDER: Value = {"type": "folder", "files": {}, "directories": []}
TENSOR = {"type": "tensor", "dtype": "uint8", "shape": [0], "part": 0, "sha256": SHA}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"KCO1\0\0\0", id="half a start"),
        pytest.param(b"{}\x02\0\0\0KCO2", id="another magic"),
        pytest.param(b"{}\xff\xff\xff\xffKCO1", id="4 GiB announced"),
        pytest.param(b"{}\x02\0\0\0KCO1", id="an empty object"),
        pytest.param(b"[]\x02\0\0\0KCO1", id="a list"),
        pytest.param(b"null\x04\0\0\0KCO1", id="null"),
        pytest.param(b"\"\xff\"\x03\0\0\0KCO1", id="no UTF-8"),
        pytest.param(b"[" * 200_000 + struct.pack("<I4s", 200_000, b"KCO1"), id="depth alone"),
        pytest.param(packed(None, NULL, []), id="no key"),
        pytest.param(packed(["k"], NULL, []), id="a list for a key"),
        pytest.param(packed("k", NULL, None), id="no sizes"),
        pytest.param(packed("k", NULL, {"0": 1}), id="an object for sizes"),
        pytest.param(packed("k", NULL, "1"), id="text for sizes"),
        pytest.param(packed("k", part(0), [-1]), id="a negative size"),
        pytest.param(packed("k", part(0), [True], b"x"), id="a boolean size"),
        pytest.param(packed("k", part(0), [1.0], b"x"), id="a float size"),
        pytest.param(packed("k", part(0), [math.nan]), id="a size that is no number"),
        pytest.param(packed("k", part(0), [2**70]), id="a size beyond all"),
        pytest.param(packed("k", NULL, [0]), id="a part too many"),
        pytest.param(packed("k", part(0), []), id="a part too few"),
        pytest.param(packed("k", part(1), [0, 0]), id="parts out of order"),
        pytest.param(packed("k", part(-1), [0]), id="a negative part"),
        pytest.param(packed("k", part(False), [0]), id="false for a part"),
        pytest.param(packed("k", part(0.0), [0]), id="a float for a part"),
        pytest.param(packed("k", part("return:0"), [0]), id="a part's name"),
        pytest.param(packed("k", part(0, sha256="0" * 63), [0]), id="a short digest"),
        pytest.param(packed("k", part(0, sha256="Z" * 64), [0]), id="a false digest"),
        pytest.param(packed("k", part(0, sha256=None), [0]), id="no digest"),
        pytest.param(packed("k", part(0, extra=1), [0]), id="a field too many"),
        pytest.param(packed("k", None, []), id="null for a value"),
        pytest.param(packed("k", [], []), id="a list for a value"),
        pytest.param(packed("k", {}, []), id="no type"),
        pytest.param(packed("k", {"type": "set", "value": []}, []), id="an unknown type"),
        pytest.param(packed("k", {"type": ["null"]}, []), id="a list for a type"),
        pytest.param(packed("k", {"type": "null", "value": None}, []), id="null with a value"),
        pytest.param(packed("k", {"type": "boolean", "value": 1}, []), id="1 for true"),
        pytest.param(packed("k", {"type": "integer", "value": True}, []), id="true for 1"),
        pytest.param(packed("k", {"type": "integer", "value": 1.5}, []), id="a float for an integer"),
        pytest.param(packed("k", {"type": "number", "value": math.nan}, []), id="NaN"),
        pytest.param(packed("k", {"type": "number", "value": -math.inf}, []), id="infinity"),
        pytest.param(packed("k", {"type": "number", "value": True}, []), id="true for a number"),
        pytest.param(packed("k", {"type": "string", "value": 1}, []), id="a number for text"),
        pytest.param(packed("k", {"type": "string"}, []), id="no text"),
        pytest.param(packed("k", {"type": "array", "value": {}}, []), id="an object for an array"),
        pytest.param(packed("k", {"type": "array", "value": [1]}, []), id="a bare number inside"),
        pytest.param(packed("k", {"type": "object", "value": []}, []), id="a list for an object"),
        pytest.param(packed("k", {"type": "object", "value": {"a": None}}, []), id="a bare null inside"),
        pytest.param(packed("k", TENSOR | {"shape": [1]}, [0]), id="a tensor too small"),
        pytest.param(packed("k", TENSOR | {"shape": [2**62] * 10**6}, [0]), id="a million dimensions"),
        pytest.param(packed("k", TENSOR | {"shape": None}, [0]), id="a tensor without shape"),
        pytest.param(packed("k", TENSOR | {"shape": [-1, 0]}, [0]), id="a negative length"),
        pytest.param(packed("k", TENSOR | {"shape": [False]}, [0]), id="a boolean length"),
        pytest.param(packed("k", TENSOR | {"dtype": "object"}, [0]), id="an unknown dtype"),
        pytest.param(packed("k", TENSOR | {"dtype": None}, [0]), id="no dtype"),
        pytest.param(packed("k", TENSOR | {"dtype": ["uint8"]}, [0]), id="a list for a dtype"),
        pytest.param(packed("k", FILE | {"size": 1}, [0]), id="a file of another size"),
        pytest.param(packed("k", FILE | {"size": None}, [0]), id="a file without a size"),
        pytest.param(packed("k", FILE | {"size": False}, [0]), id="a boolean for a file's size"),
        pytest.param(packed("k", FOLDER | {"files": []}, []), id="a list of files"),
        pytest.param(packed("k", FOLDER | {"directories": {}}, []), id="an object of folders"),
        pytest.param(packed("k", FOLDER | {"directories": [1]}, []), id="a number for a folder"),
        pytest.param(packed("k", FOLDER | {"files": {"a": NULL}}, []), id="null for a file"),
        pytest.param(packed("k", FOLDER | {"files": {"a": part(0)}}, [0]), id="bytes for a file"),
        pytest.param(packed("k", FOLDER | {"files": {"a": None}}, []), id="no file"),
    ],
)  # fmt: skip
def test_a_head_that_the_format_does_not_know_is_refused(data: bytes) -> None:
    refused(data)


def test_the_head_s_neighbours_of_these_are_taken() -> None:
    folder = {"type": "folder", "files": {"a": FILE}, "directories": ["b"]}
    for value, sizes in ((NULL, []), (part(0), [0]), (FILE, [0]), (TENSOR, [0]), (folder, [0])):
        data = packed("k", value, sizes)
        assert outcome.unpack(data, len(data)).value == value


@pytest.mark.parametrize("nested", ["array", "object"])
def test_depth_is_refused_before_it_harms(nested: str) -> None:
    for depth in (10, 300, 5000):
        opening = '{"type":"array","value":[' if nested == "array" else '{"type":"object","value":{"a":'
        closing = "]}" if nested == "array" else "}}"
        text = '{"key":"k","sizes":[],"value":' + opening * depth + '{"type":"null"}' + closing * depth + "}"
        data = text.encode() + struct.pack("<I4s", len(text), b"KCO1")
        if depth == 10:
            assert outcome.unpack(data, len(data)).key == "k"
        else:
            refused(data)


@pytest.mark.parametrize("by", [-1, 1, 2**40])
def test_sizes_that_do_not_add_up_are_refused(by: int) -> None:
    data = packed("k", part(0), [4], b"four")
    refused(data, len(data) + by)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.sampled_from(["null", "bytes", "file", SHA, ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "value", "part", "sha256", "size", "shape", "dtype", "files"]), inner
        )
    ),
    max_leaves=8,
)


@given(json_values, st.lists(st.integers(-1, 3), max_size=2))
def test_any_json_is_a_value_or_refused_and_what_passes_can_be_sent(value: Any, sizes: list[int]) -> None:
    data = packed("k", value, sizes, bytes(sum(sizes)) if min(sizes, default=0) >= 0 else b"")
    try:
        returned = outcome.unpack(data, len(data))
    except ProtocolError:
        return
    whole = outcome.Outcome()
    whole.add(returned, data)
    assert json.loads(json.dumps(whole.results, allow_nan=False)) == whole.results
    assert len(whole.parts) == len(sizes)


@given(values(), st.data())
def test_a_head_with_one_thing_changed_is_a_value_or_refused(
    made: tuple[Value, list[int]], more: st.DataObject
) -> None:
    value, sizes = made
    data = bytearray(bytes(sum(sizes)) + outcome.tail("k", value, sizes))
    at = more.draw(st.integers(0, len(data) - 1))
    data[at] = more.draw(st.integers(0, 255))
    try:
        outcome.unpack(bytes(data), len(data))
    except ProtocolError:
        return
    assert data[-4:] == b"KCO1"


@given(st.binary(max_size=200))
@example(b"KCO1")
def test_random_bytes_are_refused(data: bytes) -> None:
    refused(data)
    refused(data + struct.pack("<I4s", len(data), b"KCO1"))
