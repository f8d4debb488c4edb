"""KCoral's programs: a valid one is read as it was meant, a spoilt one is refused with what was expected."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kcoral_magic.errors import ProgramInvalid
from kcoral_magic.protocol import program as p

Object = dict[str, Any]
some = settings(max_examples=40)  # a program takes its time to be made
DIGEST = "0123456789abcdef" * 4

# ── valid programs ──

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = text.filter(bool)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
parts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), min_size=1, max_size=6)
paths = st.lists(parts.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map("/".join)
options = st.fixed_dictionaries(
    {},
    optional={
        "timeout_seconds": st.floats(min_value=0.001, max_value=1e300) | st.integers(1, 10**6),
        "output_limit_bytes": st.integers(0, 2**70),
        "gpu_count": st.integers(1, p.MAX_GPUS),
    },
)


def ref(name: str) -> Object:
    return {"$ref": name}


@st.composite
def uploads(draw: st.DrawFn, name: str, index: int) -> Object:
    kind = draw(st.sampled_from(["module", "tensor", "bytes", "library", "file"]))
    made: Object = {"op": "upload", "id": name, "kind": kind}
    if kind == "module":
        return made | {"source": draw(text)}
    made["blob"] = draw(digests)
    if kind == "tensor":
        made["dtype"] = draw(st.sampled_from(sorted(p.ITEM_BYTES)))
        made["shape"] = draw(st.lists(st.integers(0, 2**40), max_size=4))
    if kind == "file":
        made["path"] = f"folder-{index}/{draw(paths)}"  # no two collide
    return made


@st.composite
def programs(draw: st.DrawFn) -> Object:
    """A program as a client would write it; every reference points backwards."""
    ids = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    instructions: list[Object] = []
    for index, name in enumerate(ids):
        before = st.sampled_from(ids[:index]).map(ref) if index else st.nothing()
        get = st.fixed_dictionaries(
            {"op": st.just("get_function"), "id": st.just(name), "module": before, "name": names},
            optional={"cpu_only": st.booleans()},
        )
        run = st.fixed_dictionaries(
            {"op": st.just("run"), "id": st.just(name), "fn": before},
            optional={"args": st.lists(data | before, max_size=3)},
        )
        instructions.append(draw(uploads(name, index) | get | run))
    for key in draw(st.lists(names, max_size=3, unique=True)):
        back = st.sampled_from(ids).map(ref)
        value = st.fixed_dictionaries({"op": st.just("return"), "key": st.just(key), "value": back})
        path = st.fixed_dictionaries(
            {
                "op": st.just("return"),
                "key": st.just(key),
                "kind": st.sampled_from(["file", "folder"]),
                "path": paths | back,
            }
        )
        instructions.append(draw(value | path))
    made: Object = {"instructions": instructions}
    return made | {"options": draw(options)} if draw(st.booleans()) else made


def encoded(program: Any) -> bytes:
    return json.dumps(program, ensure_ascii=False).encode()


def plain(instruction: p.Instruction) -> Object:
    """An instruction as JSON again, all of its fields told."""
    return {name: _plain(getattr(instruction, name)) for name in instruction.__struct_fields__}


def _plain(value: Any) -> Any:
    return ref(value.id) if isinstance(value, p.Ref) else list(value) if isinstance(value, tuple) else value


@some
@given(programs())
def test_a_valid_program_is_read_as_it_was_written(program: Object) -> None:
    made = p.parse(encoded(program))
    defaults = {"get_function": {"cpu_only": False}, "run": {"args": []}}
    expected = [defaults.get(item["op"], {}) | item for item in program["instructions"]]
    assert [plain(instruction) for instruction in made.instructions] == expected
    wanted = [item["blob"] for item in expected if "blob" in item]
    assert made.blobs == tuple(dict.fromkeys(wanted))
    given_options = program.get("options", {})
    for name in ("timeout_seconds", "output_limit_bytes", "gpu_count"):
        if name in given_options:
            assert getattr(made.options, name) == given_options[name]
    assert p.parse(encoded({"instructions": [plain(i) for i in made.instructions]})).instructions == made.instructions


@some
@given(programs())
def test_bytes_views_and_escapes_are_read_alike(program: Object) -> None:
    whole = p.parse(encoded(program))
    assert p.parse(bytearray(encoded(program))) == p.parse(memoryview(encoded(program))) == whole
    assert p.parse(json.dumps(program, ensure_ascii=True, indent=2).encode()) == whole


# ── spoilt ones ──


def refused(program: Any) -> str:
    """Why it is refused; nothing else is raised."""
    with pytest.raises(ProgramInvalid) as raised:
        p.parse(program if isinstance(program, bytes) else encoded(program))
    assert 10 < len(str(raised.value)) < 1000
    return str(raised.value)


@st.composite
def with_instruction(draw: st.DrawFn) -> tuple[Object, int]:
    program = draw(programs())
    return program, draw(st.integers(0, len(program["instructions"]) - 1))


OPTIONAL = {"cpu_only", "args"}


@some
@given(with_instruction(), st.data())
def test_a_field_left_out_is_named(chosen: tuple[Object, int], more: st.DataObject) -> None:
    program, index = chosen
    item = program["instructions"][index]
    field = more.draw(st.sampled_from(sorted(item.keys() - OPTIONAL)))
    del item[field]
    why = refused(program)
    assert f"instruction {index}" in why
    assert field in why or (item["op"], field) == ("return", "kind")  # then it is a value, which has no path


@some
@given(with_instruction(), names)
def test_a_field_too_many_is_refused(chosen: tuple[Object, int], field: str) -> None:
    program, index = chosen
    item = program["instructions"][index]
    assume(field not in item.keys() | OPTIONAL | {"kind"})
    item[field] = None
    assert f"instruction {index}" in refused(program)
    del item[field]
    assume(field not in ("instructions", "options"))
    assert "an object with instructions" in refused(program | {field: None})


def _wrong(field: str) -> list[Any]:
    """Values that no field of this name may have."""
    if field in ("module", "fn", "value"):
        return [None, 1, "m", [], {}, ref(""), {"$ref": 1}, {"$ref": "m", "x": 1}, {"id": "m"}]
    if field == "path":
        return [None, 1, True, [], {}, {"$ref": 1}]
    if field == "cpu_only":
        return [None, 0, 1, "true", []]
    if field == "args":
        return [None, 1, "a", {}]
    if field == "shape":
        return [None, 1, "1", {}, [-1], [True], [1.5], ["1"], [None]]
    wrong: list[Any] = [None, 1, True, 1.5, [], {}]
    return wrong if field == "source" else [*wrong, ""]


@some
@given(with_instruction(), st.data())
def test_a_field_of_another_type_is_refused_with_what_came(chosen: tuple[Object, int], more: st.DataObject) -> None:
    program, index = chosen
    item = program["instructions"][index]
    field = more.draw(st.sampled_from(sorted(item)))
    item[field] = wrong = more.draw(st.sampled_from(_wrong(field)))
    why = refused(program)
    assert f"instruction {index}" in why
    if field == "op":
        assert repr(wrong) in why


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("timeout_seconds", 0, "above 0, got 0"),
        ("timeout_seconds", -1.5, "above 0, got -1.5"),
        ("timeout_seconds", True, "got `bool`"),
        ("timeout_seconds", None, "got `null`"),
        ("timeout_seconds", "1", "got `str`"),
        ("timeout_seconds", 10**400, "out of range"),
        ("output_limit_bytes", -1, ">= 0"),
        ("output_limit_bytes", 1.0, "got `float`"),
        ("gpu_count", 0, ">= 1"),
        ("gpu_count", 9, "<= 8"),
        ("gpu_count", False, "got `bool`"),
        ("gpu_ids", [0], "unknown field `gpu_ids`"),
    ],
)
def test_an_option_out_of_range_is_named(field: str, value: Any, what: str) -> None:
    why = refused(
        {"instructions": [{"op": "upload", "id": "m", "kind": "module", "source": ""}], "options": {field: value}}
    )
    assert why.startswith("options")
    assert what in why


@some
@given(with_instruction(), st.data())
def test_a_reference_that_does_not_point_backwards_is_refused(chosen: tuple[Object, int], more: st.DataObject) -> None:
    program, index = chosen
    item = program["instructions"][index]
    fields = sorted(item.keys() & {"module", "fn", "value"})
    assume(fields or item["op"] == "run" or item.get("kind") in ("file", "folder"))
    later = [other["id"] for other in program["instructions"][index:] if "id" in other]
    known = {other["id"] for other in program["instructions"][:index] if "id" in other}
    name = more.draw(st.sampled_from(later) if later else names.filter(lambda name: name not in known))
    if fields:
        item[more.draw(st.sampled_from(fields))] = ref(name)
    else:
        assume(item["op"] == "return")
        item["path"] = ref(name)
    assert f"instruction {index}: {name!r} was not made" in refused(program)


@some
@given(programs(), st.data())
def test_an_id_or_key_twice_is_refused(program: Object, more: st.DataObject) -> None:
    instructions = program["instructions"]
    index = more.draw(st.integers(0, len(instructions) - 1))
    again = copy.deepcopy(instructions[index])
    if "path" in again:
        again["path"] = "elsewhere"
    instructions.append(again)
    assert f"instruction {len(instructions) - 1}" in (why := refused(program))
    assert "before" in why


@some
@given(programs(), st.data())
def test_a_key_twice_in_one_object_is_refused_wherever_it_is(program: Object, more: st.DataObject) -> None:
    keys: list[str] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            keys.extend(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            collect(item)

    collect(program)
    key = json.dumps(more.draw(st.sampled_from(keys))) + ": "
    written = json.dumps(program)
    assert "comes twice" in refused(written.replace(key, f"{key}1, {key}", 1).encode())


@some
@given(programs(), st.sampled_from(["NaN", "Infinity", "-Infinity", "1e999", "-1e999"]))
def test_no_number_is_beyond_numbers(program: Object, number: str) -> None:
    program["options"] = {"timeout_seconds": 424242}
    assert number.lstrip("-")[:3] in refused(encoded(program).replace(b"424242", number.encode()))


@some
@given(programs(), st.sampled_from(["\\ud800", "\\uDFFF", "\\ud83d\\u0041"]))
def test_half_a_character_is_refused(program: Object, half: str) -> None:
    program["instructions"].append({"op": "upload", "id": "half", "kind": "module", "source": "HALF"})
    assert "half a character" in refused(json.dumps(program).replace("HALF", half).encode())


@some
@given(programs())
def test_a_program_that_breaks_off_anywhere_is_refused(program: Object) -> None:
    written = encoded(program)
    for end in range(0, len(written), max(1, len(written) // 20)):
        refused(written[:end])


@given(st.binary() | data.map(encoded))
@example(b"[" * 200_000)
@example(b'{"instructions":[{"op":"run","id":"r","fn":{"$ref":"f"},"args":' + b'[{"a":' * 100_000)
@example(b'{"instructions":' + b"[" * 990 + b"]" * 990 + b"}")
@example(b'{"instructions":[' + b"9" * 5000 + b"]}")
@example(b"\xff")
@example(b'"\\ud800"')
def test_other_bytes_are_refused_and_raise_nothing_else(written: bytes) -> None:
    refused(written)


@pytest.mark.parametrize("depth", [50, 500, 900, 5000, 100_000])
def test_depth_is_read_or_refused(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for escaped in (b"", b"\\ud83d\\ude00"):  # the second way is looked at for half characters too
        written = (
            b'{"instructions":[{"op":"upload","id":"m","kind":"module","source":"' + escaped + b'"},'
            b'{"op":"run","id":"r","fn":{"$ref":"m"},"args":[' + nested + b"]}]}"
        )
        if depth > 1000:
            assert "too deeply" in refused(written)
        elif depth < 100:
            assert len(p.parse(written).instructions) == 2
        else:  # how deep the reader gets depends on where it stands
            with contextlib.suppress(ProgramInvalid):
                p.parse(written)


def test_a_flood_of_instructions_is_read_in_time() -> None:
    many = [{"op": "upload", "id": str(n), "kind": "file", "blob": DIGEST, "path": f"a/{n}/b"} for n in range(20_000)]
    made = p.parse(encoded({"instructions": many}))
    assert len(made.instructions) == 20_000
    assert made.needs_no_gpu


def test_a_shape_of_more_dimensions_than_tensors_have_is_refused_unmultiplied() -> None:
    tensor = {"op": "upload", "id": "t", "kind": "tensor", "blob": DIGEST, "dtype": "int8"}
    assert "length <= 64" in refused({"instructions": [tensor | {"shape": [2**62] * 100_000}]})
    assert p.parse(encoded({"instructions": [tensor | {"shape": [1] * 64}]})).instructions[0] is not None


# ── paths, references, GPUs ──


@given(st.text(st.characters(), max_size=12) | st.text("./\\\0a", max_size=12))
def test_a_path_is_normal_and_below_the_workspace_or_refused(path: str) -> None:
    try:
        normal = p.normalised(path)
    except ProgramInvalid:
        return
    pure = PurePosixPath(normal)
    assert not pure.is_absolute()
    assert not {"", ".", ".."} & set(normal.split("/"))
    assert str(pure) == str(PurePosixPath(path)) == normal
    assert p.normalised(normal) == normal


@pytest.mark.parametrize(
    "path", ["", "/", ".", "..", "a/..", "../a", "/a", "a\\b", "\0", "\ud800", "x" * 256, "x/" * 2100]
)
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ProgramInvalid, match="a path is relative"):
        p.normalised(path)


@given(data)
def test_only_an_object_with_the_one_key_and_an_id_is_a_reference(value: Any) -> None:
    assert p.as_ref(value) is None or (set(value) == {"$ref"} and value["$ref"] != "")
    assert p.as_ref({"$ref": "x"}) == p.Ref("x")
    assert p.as_ref({"$ref": "x", "y": value}) is None
    assert p.as_ref([{"$ref": "x"}]) is None


@pytest.mark.parametrize(("one", "two"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b"), ("./a", "a//")])
def test_uploads_that_want_one_place_are_refused_and_leave_nothing_behind(one: str, two: str) -> None:
    rules = p.Rules()
    rules.add(p.UploadFile("upload", "one", "file", DIGEST, one))
    with pytest.raises(ProgramInvalid, match=r"instruction 1: .* collides"):
        rules.add(p.UploadFile("upload", "two", "file", DIGEST, two))
    rules.add(p.UploadFile("upload", "two", "file", DIGEST, "elsewhere"))


@pytest.mark.parametrize(
    ("instruction", "is_used"),
    [
        ({"op": "upload", "id": "x", "kind": "bytes", "blob": DIGEST}, False),
        ({"op": "upload", "id": "x", "kind": "file", "blob": DIGEST, "path": "x"}, False),
        ({"op": "upload", "id": "x", "kind": "library", "blob": DIGEST}, True),
        ({"op": "upload", "id": "x", "kind": "tensor", "blob": DIGEST, "dtype": "int8", "shape": []}, True),
        ({"op": "run", "id": "x", "fn": ref("cpu")}, False),
        ({"op": "run", "id": "x", "fn": ref("gpu")}, True),
        ({"op": "run", "id": "x", "fn": ref("made")}, True),
        ({"op": "return", "key": "x", "kind": "file", "path": "x"}, False),
        ({"op": "return", "key": "x", "value": ref("made")}, True),
    ],
)
def test_what_may_touch_a_gpu_is_known_beforehand(instruction: Object, is_used: bool) -> None:
    module = {"op": "upload", "id": "m", "kind": "module", "source": ""}
    get: Object = {"op": "get_function", "module": ref("m"), "name": "f"}
    before = [
        module,
        get | {"id": "gpu"},
        get | {"id": "cpu", "cpu_only": True},
        {"op": "run", "id": "made", "fn": ref("gpu")},
    ]
    made = p.parse(encoded({"instructions": [*before, instruction]}))
    assert made.uses_gpu(len(before)) is is_used
    assert made.uses_gpu(1) is made.uses_gpu(2) is False
    alone = p.parse(encoded({"instructions": [{"op": "upload", "id": "b", "kind": "bytes", "blob": DIGEST}]}))
    assert alone.needs_no_gpu
    assert not made.needs_no_gpu


@given(st.lists(st.integers(0, 2**60), max_size=4), st.sampled_from(sorted(p.ITEM_BYTES)))
def test_a_tensor_s_size_is_its_elements_times_their_bytes(shape: list[int], dtype: str) -> None:
    tensor = p.UploadTensor("upload", "t", "tensor", DIGEST, dtype, tuple(shape))
    assert tensor.size == math.prod(shape) * p.ITEM_BYTES[dtype]


def test_a_long_program_is_looked_through_once_not_once_for_each_instruction() -> None:
    count = 20_000  # looked up one by one, this took minutes
    first = [{"op": "upload", "id": f"a{n}", "kind": "bytes", "blob": "0" * 64} for n in range(count)]
    then = [{"op": "return", "key": f"k{n}", "value": {"$ref": f"a{count - 1}"}} for n in range(count)]
    assert p.parse(json.dumps({"instructions": first + then}).encode()).needs_no_gpu
