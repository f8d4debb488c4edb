"""Failures: their kinds, the instruction they name, and what was done before them stays."""

from __future__ import annotations

import pytest

from tests.conformance.wire import Endpoint, body_of, call, function, module, returned


@pytest.mark.parametrize(
    ("source", "kind", "index"),
    [
        pytest.param("def main(:", "parse", 0, id="bad syntax"),
        pytest.param("\0", "parse", 0, id="a zero byte"),
        pytest.param("import no_such_module_anywhere", "parse", 0, id="a missing module"),
        pytest.param("1 / 0", "parse", 0, id="an exception while loading"),
        pytest.param("raise SystemExit(3)", "runtime", 0, id="an exit while loading"),
        pytest.param("import os\nos._exit(3)", "runtime", 0, id="an end while loading"),
        pytest.param("other = 1", "parse", 1, id="a missing name"),
        pytest.param("main = 3", "runtime", 2, id="a call of a number"),
        pytest.param("def main(needed): pass", "engine", 2, id="a missing argument"),
        pytest.param("def main():\n    raise ValueError('boom')", "engine", 2, id="an exception"),
        pytest.param("def main():\n    assert 1 == 2", "engine", 2, id="an assertion"),
        pytest.param("def main():\n    return main()", "engine", 2, id="endless recursion"),
        pytest.param("def main():\n    raise MemoryError", "engine", 2, id="no memory"),
        pytest.param("def main():\n    raise SystemExit", "runtime", 2, id="an exit"),
        pytest.param("def main():\n    raise BaseException('x')", "runtime", 2, id="no ordinary exception"),
        pytest.param("def main():\n    raise KeyboardInterrupt", "runtime", 2, id="an interrupt"),
        pytest.param("import os\ndef main():\n    os._exit(0)", "runtime", 2, id="the end of the process"),
        pytest.param("import os\ndef main():\n    os.kill(os.getpid(), 11)", "runtime", 2, id="a fault"),
        pytest.param("import os\ndef main():\n    os.kill(os.getpid(), 9)", "runtime", 2, id="a kill"),
    ],
)
def test_a_failure_names_its_kind_and_its_instruction(endpoint: Endpoint, source: str, kind: str, index: int) -> None:
    op, name = [("upload", "m"), ("get_function", "f"), ("run", "r")][index]
    answer = endpoint.run(body_of(source))
    assert answer.failure == (kind, index, op, name)
    assert answer.body["results"] == {}


def test_a_function_of_what_is_no_module_is_unavailable(endpoint: Endpoint) -> None:
    program = [module("main = 1"), function(), function("real", "g", of="f")]
    assert endpoint.run(program).failure == ("unavailable", 2, "get_function", "g")


def test_an_exception_has_its_text_and_the_program_s_own_lines(endpoint: Endpoint) -> None:
    source = "def inner():\n    raise LookupError('no such thing')\ndef main():\n    inner()"
    error = endpoint.run(body_of(source)).error
    assert error["message"] == "LookupError: no such thing"
    assert "raise LookupError('no such thing')" in error["traceback"]
    assert "line 4, in main" in error["traceback"]
    assert error["traceback"].rstrip().endswith("LookupError: no such thing")


def test_only_the_program_s_own_frames_are_shown(ours: Endpoint) -> None:
    traceback = ours.run(body_of("def main():\n    1 / 0")).error["traceback"]
    assert [line for line in traceback.splitlines() if line.startswith("  File") and "<uploaded:" not in line] == []


def test_a_long_traceback_is_cut(endpoint: Endpoint) -> None:
    source = "def main(n=60):\n    raise ValueError('x' * 20000) if not n else main(n - 1)"
    assert 1000 < len(endpoint.run(body_of(source)).error["traceback"]) <= 8192 + 100


@pytest.mark.parametrize("text", ["chr(0xd800)", "'x' * 10**6", "''", "'\\0\\n'"])
def test_an_exception_of_any_text_is_told(ours: Endpoint, text: str) -> None:
    assert ours.run(body_of(f"def main():\n    raise ValueError({text})")).failure == ("engine", 2, "run", "r")


def test_an_exception_that_cannot_be_shown_is_told(ours: Endpoint) -> None:
    source = "class E(Exception):\n    def __str__(self):\n        raise self\ndef main():\n    raise E"
    assert ours.run(body_of(source)).failure == ("engine", 2, "run", "r")


# ── what was before a failure stays ──

BEFORE = [module("def main():\n    print('before', flush=True)\n    return b'kept'"), function(), call(), returned()]


def test_values_returned_before_a_failure_come_back_and_nothing_after_it_runs(endpoint: Endpoint) -> None:
    later = [module("1 / 0", "bad"), module("print('after')", "later"), returned(key="late")]
    answer = endpoint.run([*BEFORE, *later])
    assert answer.failure == ("parse", 4, "upload", "bad")
    assert (answer.body["stdout"], list(answer.body["results"])) == ("before\n", ["out"])
    assert answer.plain(answer.body["results"]["out"]) == b"kept"


def test_values_and_output_before_a_crash_come_back(ours: Endpoint) -> None:
    crash = module("import os\nos.write(2, b'almost')\nos._exit(4)", "crash")
    answer = ours.run([*BEFORE, crash])
    assert answer.failure == ("runtime", 4, "upload", "crash")
    assert (answer.body["stdout"], answer.body["stderr"]) == ("before\n", "almost")
    assert answer.plain(answer.body["results"]["out"]) == b"kept"


@pytest.mark.parametrize("where", ["module", "call"])
def test_a_program_that_runs_too_long_is_ended(endpoint: Endpoint, where: str) -> None:
    sleep = "import time\nprint('waits', flush=True)\ntime.sleep(100)"
    source = sleep if where == "module" else "def main():\n    " + sleep.replace("\n", "\n    ")
    answer = endpoint.run(body_of(source), timeout_seconds=0.7)
    assert answer.refusal == (504, "timeout")
    if endpoint.is_ours:
        assert answer.body["stdout"] == "waits\n"


def test_a_server_answers_on_after_crashes_and_timeouts(endpoint: Endpoint) -> None:
    endpoint.run(body_of("import os\nos._exit(1)"))
    assert endpoint.run(body_of("def main():\n    return 1")).result() == 1


# ── limits of output ──

WRITES = "import sys\ndef main(n):\n    sys.stdout.write('o' * n)\n    sys.stderr.write('é')"


@pytest.mark.parametrize(
    ("written", "limit", "kept", "is_cut"),
    [(5, 5, 5, False), (6, 5, 5, True), (2**20, None, 2**20, False), (2**20 + 1, None, 2**20, True),
     (2**24 + 1, 2**40, 2**24, True), (100, 0, 0, False)],
)  # fmt: skip
def test_text_beyond_the_limit_is_cut_and_said_to_be(
    endpoint: Endpoint, written: int, limit: int | None, kept: int, is_cut: bool
) -> None:
    options = {} if limit is None else {"output_limit_bytes": limit}
    body = endpoint.run([module(WRITES), function(), call(written)], **options).body
    assert (body["stdout"], body["stdout_truncated"]) == ("o" * kept, is_cut)
    assert (body["stderr"], body["stderr_truncated"]) == ("" if limit == 0 else "é", False)


def test_a_character_that_is_cut_in_half_is_replaced(endpoint: Endpoint) -> None:
    body = endpoint.run([module(WRITES), function(), call(0)], output_limit_bytes=1).body
    assert (body["stderr"], body["stderr_truncated"]) == ("\N{REPLACEMENT CHARACTER}", True)
