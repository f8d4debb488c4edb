"""What the four instructions do, every kind of upload, and how values, files and folders come back."""

from __future__ import annotations

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
    ref,
    returned,
    returned_path,
    upload,
)

DATA = b"the file's content\r\n\0"


def made(source: str) -> list[Instruction]:
    """Code that makes files."""
    return [module("import os\n" + source), function(), call()]


# ── modules and calls ──


def test_a_module_is_executed_once_and_its_names_live_on_between_calls(endpoint: Endpoint) -> None:
    source = "print('loaded')\nseen = []\ndef main(x):\n    seen.append(x)\n    return list(seen)"
    answer = endpoint.run([module(source), function(), call(1), call(2, name="s"), returned("s")])
    assert answer.result() == [1, 2]
    assert answer.body["stdout"] == "loaded\n"


def test_modules_do_not_see_each_other_nor_another_program(endpoint: Endpoint) -> None:
    hide = [module("hidden = 1\nimport builtins\nbuiltins.leak = globals()", "a")]
    look = [module("def main():\n    return 'hidden' in globals()", "b"), function(of="b"), call(), returned()]
    assert endpoint.run([*hide, *look]).result() is False
    fresh = body_of("import os\ndef main():\n    return os.listdir()")
    assert endpoint.run(made("def main():\n    open('left', 'w').close()")).body["status"] == "COMPLETED"
    assert endpoint.run(fresh).result() == []


def test_results_are_arguments_of_later_calls_without_being_sent(endpoint: Endpoint) -> None:
    source = "def make():\n    return {object(): lambda: 42}\ndef use(d, n):\n    return list(d.values())[0]() + n"
    functions = [module(source), function("make", "f"), function("use", "g")]
    assert endpoint.run([*functions, call(), call(ref("r"), 1, fn="g", name="s"), returned("s")]).result() == 43


def test_functions_can_be_arguments(endpoint: Endpoint) -> None:
    source = "def main(call, n):\n    return call(n)\ndef double(n):\n    return 2 * n"
    instructions = [module(source), function(), function("double", "g"), call(ref("g"), 3), returned()]
    assert endpoint.run(instructions).result() == 6


@pytest.mark.parametrize("is_cpu_only", [True, False])
def test_a_function_may_say_that_it_needs_no_gpu(endpoint: Endpoint, is_cpu_only: bool) -> None:
    program = [module("main = len"), function(cpu_only=is_cpu_only), call([1, 2]), returned()]
    assert endpoint.run(program).result() == 2


def test_only_uploading_is_a_program_too_and_returns_nothing(endpoint: Endpoint) -> None:
    answer = endpoint.run([module("x = 1")])
    assert (answer.body["status"], answer.body["results"]) == ("COMPLETED", {})


def test_both_streams_are_told_apart_and_kept_whole(endpoint: Endpoint) -> None:
    source = (
        "import os, sys\ndef main():\n    print('é')\n    print('err', file=sys.stderr, flush=True)\n"
        "    sys.stdout.flush()\n    os.write(1, b'raw\\xff\\n')\n    os.system('echo child; echo oops >&2')"
    )
    body = endpoint.run(body_of(source)).body
    assert (body["stdout"], body["stderr"]) == ("é\nraw\N{REPLACEMENT CHARACTER}\nchild\n", "err\noops\n")
    assert (body["stdout_truncated"], body["stderr_truncated"]) == (False, False)


# ── uploads ──


def test_bytes_arrive_as_bytes(endpoint: Endpoint) -> None:
    program = [
        upload("bytes", DATA),
        module("def main(b):\n    return [type(b).__name__, b]"),
        function(),
        call(ref("u")),
    ]
    assert endpoint.run([*program, returned()], DATA).result() == ["bytes", DATA]


@pytest.mark.parametrize(
    ("path", "normal"),
    [("a", "a"), ("./a", "a"), ("a//b/./c", "a/b/c"), ("a/", "a"), (" a b\n", " a b\n"), ("..a/...", "..a/..."),
     ("é" * 127, "é" * 127), ("/".join(["d" * 200] * 20), "/".join(["d" * 200] * 20))],
)  # fmt: skip
def test_a_file_lies_at_its_normalised_path(endpoint: Endpoint, path: str, normal: str) -> None:
    source = "def main(path):\n    return [path, open(path, 'rb').read()]"
    program = [upload("file", DATA, path=path), module(source), function(), call(ref("u")), returned()]
    assert endpoint.run(program, DATA).result() == [normal, DATA]


BAD_PATHS = ("", ".", "/", "/a", "../a", "a/../b", "a/..", "a\\b", "a\0b", "é" * 128, "/".join(["d" * 200] * 21))


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_is_none_below_the_workspace_is_refused(endpoint: Endpoint, path: str) -> None:
    assert endpoint.run([upload("file", DATA, path=path)], DATA).refusal == (400, "parse")
    for kind in ("file", "folder"):
        assert endpoint.run([returned_path(kind, path)]).refusal == (400, "parse")


@pytest.mark.parametrize(("one", "two"), [("x", "./x"), ("x/y", "x"), ("x", "x/y"), ("a/b", "a//b/c/d")])
def test_two_uploads_that_want_one_place_are_refused(endpoint: Endpoint, one: str, two: str) -> None:
    both = [upload("file", DATA, "a", path=one), upload("file", DATA, "b", path=two)]
    assert endpoint.run(both, DATA).refusal == (400, "parse")


def test_two_uploads_may_lie_in_one_folder(endpoint: Endpoint) -> None:
    both = [upload("file", DATA, "a", path="x/y"), upload("file", DATA, "b", path="x/z"), returned_path("folder", "x")]
    assert endpoint.run(both, DATA).result() == ({"y": DATA, "z": DATA}, [])


TENSORS = [
    ("float32", [2, 3], 24), ("float64", [], 8), ("int8", [0, 3], 0), ("bool", [3], 3), ("bfloat16", [1, 2, 1], 4),
    ("float16", [3], 6), ("uint8", [5], 5), ("int16", [2], 4), ("int32", [1], 4), ("int64", [2], 16),
    ("float8_e4m3fn", [2], 2), ("float8_e5m2", [2], 2),
]  # fmt: skip


def test_tensors_of_every_dtype_come_back_as_they_went(endpoint: Endpoint) -> None:
    program: list[Instruction] = []
    blobs, expected = dict[bytes, None](), {}
    for dtype, shape, size in TENSORS:
        data = bytes([0, 1] * size)[:size]
        program += [upload("tensor", data, dtype, dtype=dtype, shape=shape), returned(dtype, key=dtype)]
        blobs[data], expected[dtype] = None, (dtype, shape, data)
    answer = endpoint.run(program, *blobs)
    if not endpoint.is_ours and answer.body["status"] == "FAILED" and answer.error["kind"] == "unavailable":
        pytest.skip(f"this server takes no tensors: {answer.error['message']}")
    assert {dtype: answer.result(dtype) for dtype in expected} == expected


@pytest.mark.parametrize(("shape", "size"), [([3], 8), ([2], 12), ([], 8), ([0], 4), ([2**40, 2**40], 8)])
def test_a_tensor_of_another_size_than_its_blob_is_refused(endpoint: Endpoint, shape: list[int], size: int) -> None:
    data = bytes(size)
    answer = endpoint.run([upload("tensor", data, dtype="float32", shape=shape)], data)
    assert answer.refusal == (400, "parse")


def test_what_is_no_library_fails_where_it_is_uploaded(endpoint: Endpoint) -> None:
    assert endpoint.run([upload("library", DATA)], DATA).failure[1:] == (0, "upload", "u")


# ── values ──


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("None", {"type": "null"}),
        ("True", {"type": "boolean", "value": True}),
        ("1", {"type": "integer", "value": 1}),
        ("-10**30", {"type": "integer", "value": -(10**30)}),
        ("1.5", {"type": "number", "value": 1.5}),
        ("1e308", {"type": "number", "value": 1e308}),
        ("'\\0é\\U0001f600'", {"type": "string", "value": "\0é\U0001f600"}),
        ("[]", {"type": "array", "value": []}),
        ("(1, 'a')", {"type": "array", "value": [{"type": "integer", "value": 1}, {"type": "string", "value": "a"}]}),
        ("{}", {"type": "object", "value": {}}),
        ("{'type': None}", {"type": "object", "value": {"type": {"type": "null"}}}),
        ("bytearray(b'a')", {"type": "bytes", "part": "return:0", "sha256": digest(b"a")}),
        ("memoryview(b'abcd')[::2]", {"type": "bytes", "part": "return:0", "sha256": digest(b"ac")}),
    ],
)
def test_a_value_is_encoded_by_its_type(endpoint: Endpoint, expression: str, value: Any) -> None:
    assert endpoint.run(body_of(f"def main():\n    return {expression}")).body["results"]["out"] == value


def test_binary_parts_are_numbered_through_all_results(endpoint: Endpoint) -> None:
    source = "def main():\n    open('x', 'wb').write(b'5')\n    return {'b': [b'1', (b'2',)], 'a': {'c': b'3'}}"
    program = [
        module(source),
        function(),
        call(),
        returned(key="z"),
        returned("u", key="a"),
        returned_path("file", "x", "f"),
    ]
    answer = endpoint.run([upload("bytes", b"4"), *program], b"4")
    assert list(answer.parts.values()) == [b"1", b"2", b"3", b"4", b"5"]
    assert answer.result("z") == {"b": [b"1", [b"2"]], "a": {"c": b"3"}}
    assert (answer.result("a"), answer.result("f")) == (b"4", b"5")


@pytest.mark.parametrize(
    "expression",
    ["{1}", "{1: 2}", "1j", "object()", "float('nan')", "float('-inf')", "[1, {2}]", "range(3)", "main",
     "__import__('pathlib').Path('x')", "__import__('datetime').date(2024, 2, 29)"],
)  # fmt: skip
def test_a_value_of_another_type_fails_as_serialization(endpoint: Endpoint, expression: str) -> None:
    answer = endpoint.run([*body_of(f"def main():\n    return {expression}"), returned(key="second")])
    assert answer.failure == ("serialization", 3, "return", None)


@pytest.mark.parametrize(
    "expression",
    ["10**5000", "[a := [], a.append(a)][0]", "__import__('json').loads('[' * 300 + ']' * 300)"],
)
def test_a_value_that_breaks_careless_writers_fails_as_serialization(ours: Endpoint, expression: str) -> None:
    answer = ours.run(body_of(f"def main():\n    return {expression}"))
    assert answer.failure == ("serialization", 3, "return", None)


def test_half_a_character_comes_back(ours: Endpoint) -> None:
    assert ours.run(body_of("def main():\n    return {chr(0xd800): [chr(0xdfff)]}")).result() == {"\ud800": ["\udfff"]}


# ── files and folders ──


def test_a_file_comes_back_by_its_path_or_by_what_made_it(endpoint: Endpoint) -> None:
    by_path = [upload("file", DATA, path="d/x"), returned_path("file", "./d//x")]
    assert endpoint.run(by_path, DATA).body["results"]["out"] == {
        "type": "file", "size": len(DATA), "part": "return:0", "sha256": digest(DATA)
    }  # fmt: skip
    assert endpoint.run([upload("file", DATA, path="d/x"), returned_path("file", ref("u"))], DATA).result() == DATA
    told = made("def main():\n    open('x', 'w').close()\n    return './x'")
    assert endpoint.run([*told, returned_path("file", ref("r"))]).result() == b""


def test_a_folder_comes_back_with_all_it_holds(endpoint: Endpoint) -> None:
    source = (
        "def main():\n    os.makedirs('top/b/c/d')\n    os.mkdir('top/.h')\n"
        "    open('top/b/x', 'w').write('1')\n    open('top/a', 'w')"
    )
    answer = endpoint.run([*made(source), returned_path("folder", "top")])
    assert answer.result() == ({"a": b"", "b/x": b"1"}, [".h", "b", "b/c", "b/c/d"])


@pytest.mark.parametrize(
    ("source", "kind", "path"),
    [
        pytest.param("pass", "file", "nothing", id="nothing there"),
        pytest.param("os.mkdir('x')", "file", "x", id="a folder for a file"),
        pytest.param("open('x', 'w')", "folder", "x", id="a file for a folder"),
        pytest.param("os.symlink('/etc/passwd', 'x')", "file", "x", id="a link out"),
        pytest.param("open('y', 'w'); os.symlink('y', 'x')", "file", "x", id="a link inside"),
        pytest.param("os.mkdir('d'); open('d/x', 'w'); os.symlink('d', 'e')", "file", "e/x", id="through a link"),
        pytest.param("os.symlink('/etc', 'x')", "folder", "x", id="a link to a folder"),
        pytest.param("os.mkdir('x'); os.symlink('/etc/passwd', 'x/y')", "folder", "x", id="a link in a folder"),
        pytest.param("os.mkfifo('x')", "file", "x", id="a pipe"),
        pytest.param("os.mkdir('x'); os.mkfifo('x/y')", "folder", "x", id="a pipe in a folder"),
        pytest.param("os.mkdir('x'); open(b'x/\\xff', 'w')", "folder", "x", id="a name that is no text"),
        pytest.param("return os.path.abspath('x')", "file", ref("r"), id="an absolute path from code"),
        pytest.param("return '../x'", "file", ref("r"), id="a path upwards from code"),
        pytest.param("return 3", "file", ref("r"), id="a number from code"),
    ],
)
def test_what_is_no_plain_file_or_folder_does_not_come_back(
    endpoint: Endpoint, source: str, kind: str, path: Any
) -> None:
    answer = endpoint.run([*made(f"def main():\n    {source}"), returned_path(kind, path)])
    assert answer.failure == ("serialization", 3, "return", None)
