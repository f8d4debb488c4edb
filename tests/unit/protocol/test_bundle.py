"""MIME bundles: what Jupyter holds goes over the wire as bytes and comes back the same."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol.bundle import pack, unpack

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PNG_TEXT = base64.b64encode(PNG).decode()

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
bundles = st.fixed_dictionaries(
    {},
    optional={
        "text/plain": text,
        "text/html": text,
        "image/svg+xml": text,
        "image/png": st.binary(max_size=50).map(lambda data: base64.b64encode(data).decode()),
        "application/pdf": st.binary(max_size=50).map(lambda data: base64.b64encode(data).decode()),
        "application/json": jsons,
        "application/vnd.plotly.v1+json": jsons,
    },
)


@given(bundles, st.dictionaries(text, jsons, max_size=3))
def test_a_bundle_comes_back_as_it_was(data: dict[str, object], metadata: dict[str, object]) -> None:
    mimes, buffers = pack(data, metadata)
    assert mimes == tuple(data)
    assert unpack(mimes, buffers) == (data, metadata)


def test_binary_types_travel_raw_and_are_base64_again_here() -> None:
    mimes, buffers = pack({"image/png": PNG_TEXT, "application/pdf": PNG}, {})
    assert buffers[:2] == [PNG, PNG]
    assert unpack(mimes, buffers)[0] == {"image/png": PNG_TEXT, "application/pdf": PNG_TEXT}


def test_json_travels_as_json_and_text_as_utf8() -> None:
    _, buffers = pack({"application/json": {"a": [1, "ö"]}, "text/plain": "größer"}, {"image/png": {"width": 5}})
    assert json.loads(buffers[0]) == {"a": [1, "ö"]}
    assert buffers[1:] == ["größer".encode(), b'{"image/png":{"width":5}}']


@pytest.mark.parametrize(
    ("mime", "value"),
    [
        ("text/plain", 3.5),
        ("text/html", ["<b>", "</b>"]),
        ("image/png", object),
        ("image/png", "no base64: ä"),
        ("text/plain", "half a pair: \ud800"),
        ("application/json", {1: {2, 3}}),
        ("application/json", object()),
        ("application/json", {(1, 2): 3}),
    ],
)
def test_a_value_that_fits_no_type_does_not_fail_a_display(mime: str, value: object) -> None:
    mimes, buffers = pack({mime: value}, {})
    assert list(unpack(mimes, buffers)[0]) == [mime]


def test_metadata_that_is_no_json_does_not_fail_a_display() -> None:
    mimes, buffers = pack({"text/plain": "1"}, {"text/plain": {(1, 2): object()}})
    assert unpack(mimes, buffers)[0] == {"text/plain": "1"}


def test_a_value_that_contains_itself_does_not_fail_a_display() -> None:
    value: list[object] = []
    value.append(value)
    mimes, buffers = pack({"application/json": value}, {})
    assert list(unpack(mimes, buffers)[0]) == ["application/json"]


def test_what_is_no_text_becomes_its_repr() -> None:
    mimes, buffers = pack({"text/plain": 3.5, "application/json": {"a": 1 + 2j}}, {})
    assert unpack(mimes, buffers)[0] == {"text/plain": "3.5", "application/json": {"a": "(1+2j)"}}


def test_text_that_is_no_utf8_is_shown_as_far_as_it_goes() -> None:
    assert unpack(["text/plain"], [b"a\xffb", b"{}"])[0] == {"text/plain": "a\ufffdb"}


@pytest.mark.parametrize(
    ("mimes", "buffers", "why"),
    [
        ([], [], "0 types has 1 buffers, got 0"),
        (["text/plain"], [b"a"], "1 types has 2 buffers, got 1"),
        (["text/plain"], [b"a", b"{}", b""], "got 3"),
        (["text/plain"], [b"a", b""], "malformed JSON"),
        (["text/plain"], [b"a", b"\xff"], "malformed JSON"),
        (["text/plain"], [b"a", b"[]"], "a JSON object, got list"),
        (["application/json"], [b"{", b"{}"], "malformed JSON"),
        (["application/x+json"], [b"[" * 100_000, b"{}"], "malformed JSON"),
        (["application/json"], [b"9" * 5000, b"{}"], "malformed JSON"),
    ],
)
def test_a_malformed_bundle_is_a_protocol_error(mimes: list[str], buffers: list[bytes], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        unpack(mimes, buffers)
