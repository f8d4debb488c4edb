"""A program is strict JSON with exact fields and references that point backwards; all else is refused unrun."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.wire import (
    Endpoint,
    Instruction,
    body_of,
    call,
    digest,
    function,
    module,
    program_text,
    ref,
    returned,
    returned_path,
    upload,
)

SOURCE = "def main(*args):\n    return list(args)\n"
M, F, R, OUT = body_of(SOURCE, 1)
TEXT = json.dumps({"instructions": [M, F, R, OUT]})
DATA = b"data"


def without(instruction: Instruction, field: str) -> Instruction:
    return {name: value for name, value in instruction.items() if name != field}


def test_the_program_that_the_tables_spoil_runs_as_it_is(endpoint: Endpoint) -> None:
    assert endpoint.post(program_text(TEXT)).result() == [1]
    assert endpoint.post(program_text(f" {TEXT} \r\n")).result() == [1]


def spoilt(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="half an object"),
        pytest.param(TEXT + "{}", id="two objects"),
        pytest.param(TEXT + "// end", id="a comment"),
        pytest.param(TEXT.replace('"', "'"), id="single quotes"),
        pytest.param(b"\xef\xbb\xbf" + TEXT.encode(), id="a byte order mark"),
        pytest.param(TEXT.encode("utf-16"), id="UTF-16"),
        pytest.param(spoilt("[1]", '["\xff"]').encode("latin-1"), id="Latin-1"),
        pytest.param(spoilt("{", '{"instructions": [], '), id="a key twice at the top"),
        pytest.param(spoilt('"id": "m"', '"id": "m", "id": "m"'), id="a key twice in an instruction"),
        pytest.param(spoilt("[1]", '[{"a": [{"b": 1, "b": 1}]}]'), id="a key twice in an argument"),
        pytest.param(spoilt("[1]", "[NaN]"), id="NaN"),
        pytest.param(spoilt("[1]", "[[Infinity]]"), id="infinity"),
        pytest.param(spoilt("[1]", "[-Infinity]"), id="minus infinity"),
        pytest.param(spoilt("[1]", "[1e999]"), id="a number beyond all numbers"),
        pytest.param("null", id="null"),
        pytest.param(json.dumps([M]), id="a list"),
        pytest.param("{}", id="no instructions"),
        pytest.param('{"instructions": null}', id="null for instructions"),
        pytest.param('{"instructions": []}', id="empty instructions"),
        pytest.param('{"instructions": {"0": {}}}', id="an object for instructions"),
        pytest.param('{"instructions": [[]]}', id="a list for an instruction"),
        pytest.param('{"instructions": [null]}', id="null for an instruction"),
        pytest.param(TEXT[:-1] + ', "version": 1}', id="an unknown field at the top"),
        pytest.param(TEXT[:-1] + ', "options": null}', id="null for options"),
        pytest.param(TEXT[:-1] + ', "options": []}', id="a list for options"),
    ],
)
def test_what_is_no_strict_json_or_no_program_is_refused(endpoint: Endpoint, text: str | bytes) -> None:
    assert endpoint.post(program_text(text)).refusal == (400, "parse")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(spoilt("[1]", "[" * 3000 + "]" * 3000), id="a deep argument"),
        pytest.param("[" * 100_000, id="depth alone"),
        pytest.param(spoilt("[1]", "[" + "1" * 5000 + "]"), id="a number of 5000 digits"),
        pytest.param(spoilt("[1]", '["\\ud800"]'), id="half a character"),
        pytest.param(spoilt('"m"', '"\\udfff"'), id="half a character as an id"),
        pytest.param(TEXT[:-1] + f', "options": {{"timeout_seconds": {10**400}}}}}', id="a number beyond all floats"),
    ],
)
def test_json_that_breaks_careless_readers_is_refused(ours: Endpoint, text: str) -> None:
    assert ours.post(program_text(text)).refusal == (400, "parse")


@pytest.mark.parametrize(
    "instructions",
    [
        # op and kind
        pytest.param([without(M, "op")], id="no op"),
        pytest.param([{**M, "op": "download"}], id="an unknown op"),
        pytest.param([{**M, "op": None}], id="null for op"),
        pytest.param([without(M, "kind")], id="no kind"),
        pytest.param([{**M, "kind": "zip"}], id="an unknown kind"),
        pytest.param([{**M, "kind": []}], id="a list for kind"),
        # ids
        pytest.param([without(M, "id")], id="no id"),
        pytest.param([{**M, "id": ""}], id="an empty id"),
        pytest.param([{**M, "id": 1}], id="a number for an id"),
        pytest.param([{**M, "id": None}], id="null for an id"),
        pytest.param([M, M], id="an id twice"),
        pytest.param([M, {**F, "id": "m"}], id="an id of another op twice"),
        # upload
        pytest.param([{**M, "extra": 1}], id="an unknown field of a module"),
        pytest.param([without(M, "source")], id="a module without source"),
        pytest.param([{**M, "source": None}], id="null for source"),
        pytest.param([{**M, "blob": digest(DATA)}], id="a module with a blob"),
        pytest.param([{**upload("bytes", DATA), "blob": "ab"}], id="a short digest"),
        pytest.param([{**upload("bytes", DATA), "blob": "A" * 64}], id="a digest in capitals"),
        pytest.param([{**upload("bytes", DATA), "blob": "a" * 64 + "\n"}], id="a digest and a line end"),
        pytest.param([{**upload("bytes", DATA), "blob": None}], id="null for a digest"),
        pytest.param([upload("bytes", DATA, path="x")], id="bytes with a path"),
        pytest.param([upload("library", DATA, path="x")], id="a library with a path"),
        pytest.param([upload("file", DATA)], id="a file without a path"),
        pytest.param([upload("file", DATA, path=1)], id="a number for a path"),
        pytest.param([upload("tensor", DATA, shape=[4])], id="a tensor without dtype"),
        pytest.param([upload("tensor", DATA, dtype="uint8")], id="a tensor without shape"),
        pytest.param([upload("tensor", DATA, dtype="complex64", shape=[4])], id="an unknown dtype"),
        pytest.param([upload("tensor", DATA, dtype="uint8", shape=[-4])], id="a negative length"),
        pytest.param([upload("tensor", DATA, dtype="uint8", shape=[True, 4])], id="a boolean length"),
        pytest.param([upload("tensor", DATA, dtype="uint8", shape=[4.0])], id="a float length"),
        pytest.param([upload("tensor", DATA, dtype="uint8", shape="4")], id="text for a shape"),
        # get_function
        pytest.param([M, without(F, "name")], id="no name"),
        pytest.param([M, {**F, "name": ""}], id="an empty name"),
        pytest.param([M, {**F, "name": None}], id="null for a name"),
        pytest.param([M, {**F, "cpu_only": None}], id="null for cpu_only"),
        pytest.param([M, {**F, "cpu_only": 1}], id="a number for cpu_only"),
        pytest.param([M, {**F, "args": []}], id="get_function with args"),
        pytest.param([M, {**F, "module": "m"}], id="a name for a reference"),
        pytest.param([M, {**F, "module": {"$ref": "m", "x": 1}}], id="a reference with more"),
        pytest.param([M, {**F, "module": {"$ref": 1}}], id="a reference to a number"),
        pytest.param([M, {**F, "module": {}}], id="an empty reference"),
        pytest.param([F, M], id="a reference forward"),
        pytest.param([M, {**F, "module": ref("f")}], id="a reference to itself"),
        pytest.param([M, {**F, "module": ref("n")}], id="a reference to nothing"),
        # run
        pytest.param([M, F, {**R, "args": None}], id="null for args"),
        pytest.param([M, F, {**R, "args": {"a": 1}}], id="an object for args"),
        pytest.param([M, F, {**R, "kwargs": {}}], id="kwargs"),
        pytest.param([M, F, without(R, "fn")], id="no fn"),
        pytest.param([M, F, call(fn="n")], id="a call of nothing"),
        pytest.param([M, F, call(fn="r")], id="a call of itself"),
        pytest.param([M, F, call(ref("r"))], id="a call with itself"),
        pytest.param([M, F, call(1, ref("n"))], id="a call with nothing"),
        pytest.param([M, F, call(ref("later")), call(name="later")], id="a call with a later value"),
        # return
        pytest.param([M, F, R, {**OUT, "id": "o"}], id="a return with an id"),
        pytest.param([M, F, R, without(OUT, "key")], id="no key"),
        pytest.param([M, F, R, returned(key="")], id="an empty key"),
        pytest.param([M, F, R, {**OUT, "key": 1}], id="a number for a key"),
        pytest.param([M, F, R, OUT, OUT], id="a key twice"),
        pytest.param([M, F, R, OUT, returned_path("file", "x")], id="a key twice, of a file"),
        pytest.param([M, F, R, {**OUT, "value": 1}], id="data for a value"),
        pytest.param([M, F, R, returned("n")], id="a return of nothing"),
        pytest.param([M, F, OUT, R], id="a return of a later value"),
        pytest.param([M, F, R, {**OUT, "kind": "value"}], id="an unknown kind of return"),
        pytest.param([M, F, R, {**OUT, "kind": None}], id="null for a kind of return"),
        pytest.param([M, F, R, {**OUT, "kind": "file"}], id="a file that is a value"),
        pytest.param([{"op": "return", "key": "out", "kind": "file"}], id="a file return without a path"),
        pytest.param([{"op": "return", "key": "out", "path": "x"}], id="a path without a kind"),
        pytest.param([returned_path("file", 1)], id="a number for a returned path"),
        pytest.param([returned_path("folder", ref("n"))], id="a path from nothing"),
    ],
)
def test_an_instruction_that_breaks_a_rule_is_refused_and_nothing_runs(
    endpoint: Endpoint, instructions: list[Instruction]
) -> None:
    before = module("raise RuntimeError('this ran')", "before")
    blobs = [DATA] if any(i.get("blob") == digest(DATA) for i in instructions) else []
    assert endpoint.run([before, *instructions], *blobs).refusal == (400, "parse")


@pytest.mark.parametrize(
    ("argument", "arrives"),
    [
        pytest.param([ref("nothing")], [{"$ref": "nothing"}], id="inside a list"),
        pytest.param({"a": ref("m")}, {"a": {"$ref": "m"}}, id="inside an object"),
        pytest.param({"$ref": "m", "x": 1}, {"$ref": "m", "x": 1}, id="with more keys"),
        pytest.param({"$ref": 1}, {"$ref": 1}, id="a number"),
        pytest.param({"$ref": None}, {"$ref": None}, id="null"),
        pytest.param({"$ref": ""}, {"$ref": ""}, id="empty"),
        pytest.param({"type": "bytes", "op": "run"}, {"type": "bytes", "op": "run"}, id="our own words"),
        pytest.param(10**30, 10**30, id="a long number"),
        pytest.param("\U0001f600\0", "\U0001f600\0", id="any text"),
        pytest.param({"": [None, True, 1.5, -0.0]}, {"": [None, True, 1.5, -0.0]}, id="all kinds"),
    ],
)
def test_an_argument_that_is_no_reference_arrives_as_it_is(endpoint: Endpoint, argument: Any, arrives: Any) -> None:
    assert endpoint.run([M, F, call(argument), OUT]).result() == [arrives]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("timeout_seconds", value) for value in (0, -1, -0.5, True, "1", None, [1])),
        *(("output_limit_bytes", value) for value in (-1, 1.0, True, "1", None)),
        *(("gpu_count", value) for value in (0, -1, 9, 1.0, True, "1", None)),
        ("gpu_ids", [0]),
        ("Timeout_seconds", 1),
    ],
)
def test_an_option_out_of_its_range_is_refused(endpoint: Endpoint, option: str, value: Any) -> None:
    assert endpoint.run([M, F, R, OUT], **{option: value}).refusal == (400, "parse")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_seconds", 5),
        ("timeout_seconds", 1e9),
        ("timeout_seconds", 10**30),
        ("output_limit_bytes", 0),
        ("output_limit_bytes", 10**30),
    ],
)
def test_an_option_beyond_the_server_s_most_is_taken_as_its_most(endpoint: Endpoint, option: str, value: Any) -> None:
    assert endpoint.run([M, F, R, OUT], **{option: value}).result() == [1]


def test_more_gpus_than_the_server_has_are_refused(endpoint: Endpoint) -> None:
    there_are: int = endpoint.health()["gpu_count"]
    if there_are < 8:
        assert endpoint.run([M, F, R, OUT], gpu_count=there_are + 1).refusal == (400, "parse")
    if there_are:
        answer = endpoint.run([M, F, R, OUT], gpu_count=there_are)
        assert answer.result() == [1]
        assert (answer.body["gpu_ids"], answer.body["gpu_count"]) == (list(range(there_are)), there_are)


def test_a_program_without_options_and_one_with_empty_options_run(endpoint: Endpoint) -> None:
    assert endpoint.post(program_text(TEXT[:-1] + ', "options": {}}')).result() == [1]
    assert endpoint.run([M, function(), {"op": "run", "id": "r", "fn": ref("f")}, OUT]).result() == []
