"""What an execution gives back, and how a remote error becomes an exception here without running anything."""

from __future__ import annotations

import builtins
import errno
import json
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.client.results import Collector, Output, exception_of, skipped_text
from kcoral_magic.errors import ExecutionLost, KCoralError, RemoteError, UsageError
from kcoral_magic.protocol import messages as m

ID = "execution-1"
TRACEBACK = "\x1b[31mKeyError\x1b[0m  Traceback\nCell In[3], line 1"
ran: list[str] = []  # user code that ran although it must not


class Plain(Exception):
    """A user's exception without code of its own."""


class Coded(Exception):
    """One that would notice being made."""

    def __init__(self, *args: object) -> None:
        ran.append("__init__")
        super().__init__(*args)

    def __new__(cls, *args: object) -> Coded:
        ran.append("__new__")
        return super().__new__(cls, *args)


class OfOsError(OSError):
    def __init__(self, *args: object) -> None:
        ran.append("__init__")
        super().__init__(*args)

    def __new__(cls, *args: object) -> OfOsError:
        ran.append("__new__")
        return super().__new__(cls, *args)


class Watched(Exception):
    """One that would notice being subclassed or changed."""

    def __init_subclass__(cls) -> None:
        ran.append("__init_subclass__")

    def __setattr__(self, name: str, value: object) -> None:
        ran.append("__setattr__")
        super().__setattr__(name, value)


class Disguised(Exception):
    """One that says it is built in, as a class made by ``exec`` in a bare namespace does."""

    def __new__(cls, *args: object) -> Disguised:
        ran.append("__new__")
        return super().__new__(cls, *args)


Disguised.__module__ = "builtins"


class Outer:
    class Inner(ValueError):
        pass


@dataclass(frozen=True)
class Frozen(Exception):
    number: int


class Shown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not today")


class Quitting(SystemExit):
    pass


NOT_AN_EXCEPTION = "just a name of this module"


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


def remote(
    error: BaseException | None = None,
    *,
    module: str | None = None,
    qualname: str | None = None,
    text: str | None = None,
    args: object = "as they are",
    is_interrupt: bool = False,
) -> BaseException:
    """What comes of ``error`` raised by a worker, as the worker describes it."""
    cls = type(error)
    module = cls.__module__ if module is None else module
    qualname = cls.__qualname__ if qualname is None else qualname
    simple = error is not None and all(isinstance(arg, str | int | float | bool | None) for arg in error.args)
    if args == "as they are":
        args = list(error.args) if simple and error is not None else None
    body = m.Error(qualname.rpartition(".")[2], module, qualname, is_interrupt)
    buffers = (str(error) if text is None else text, TRACEBACK, "" if args is None else json.dumps(args))
    return exception_of(body, [buffer.encode() for buffer in buffers], ID)


# ── Its own type, if that is loaded here ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        ValueError("bad", 3),
        KeyError("missing"),
        KeyError(3),
        IndexError(),
        Plain("mine"),
        Plain("two", 2.5),
        Outer.Inner("inside"),
        json.JSONDecodeError,
        AssertionError(None),
        StopIteration(7),
        RuntimeError("ümläut\nline"),
    ],
    ids=repr,
)
def test_an_error_of_a_type_that_is_loaded_here_is_of_that_type(error: Exception | type) -> None:
    if isinstance(error, type):
        error = json.JSONDecodeError("Expecting value", "doc", 0)
    made = remote(error)
    assert isinstance(made, type(error))
    assert type(made).__name__ == type(error).__name__
    assert str(made) == str(error)
    assert made.args == (error.args if not isinstance(error, json.JSONDecodeError) else (str(error),))


def test_arguments_that_are_no_plain_values_become_the_text() -> None:
    made = remote(KeyError((1, 2)))
    assert isinstance(made, KeyError)
    assert str(made) == "(1, 2)"
    assert made.args == ("(1, 2)",)


@pytest.mark.parametrize("args", [{"a": 1}, [[1]], [{"a": 1}], "text", 3])
def test_arguments_that_are_no_list_of_plain_values_are_left_out(args: object) -> None:
    assert remote(ValueError("why"), args=args).args == ("why",)


@pytest.mark.parametrize("args_json", [b"{", b"\xff", b"[" * 100_000, b"[1,"])
def test_arguments_that_are_no_json_are_left_out(args_json: bytes) -> None:
    made = exception_of(m.Error("ValueError", "builtins", "ValueError"), [b"why", b"", args_json], ID)
    assert type(made) is ValueError
    assert made.args == ("why",)


def test_an_oserror_knows_its_number_and_says_its_file() -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/x")
    made = remote(error)
    assert isinstance(made, FileNotFoundError)
    assert (made.errno, made.strerror) == (errno.ENOENT, "No such file or directory")
    assert str(made) == "[Errno 2] No such file or directory: '/data/x'"


def test_an_oserror_by_its_general_name_is_the_special_one() -> None:
    made = remote(OSError(errno.EPIPE, "Broken pipe"), module="builtins", qualname="OSError")
    assert isinstance(made, BrokenPipeError)


def test_an_oserror_of_a_user_is_made_without_its_code() -> None:
    made = remote(module=__name__, qualname="OfOsError", text="[Errno 5] io", args=[5, "io"])
    assert isinstance(made, OfOsError)
    assert str(made) == "[Errno 5] io"
    assert made.args == (5, "io")


def test_a_decoding_error_shows_what_it_says_although_its_bytes_stay_away() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    made = remote(error)
    assert isinstance(made, UnicodeDecodeError)
    assert str(made) == str(error)
    with pytest.raises(UnicodeError):
        raise made


def test_an_encoding_error_shows_what_it_says() -> None:
    error = UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range(128)")
    assert str(remote(error)) == str(error)
    assert remote(error).args == error.args


def test_a_syntax_error_shows_what_it_says() -> None:
    error = SyntaxError("invalid syntax", ("cell", 1, 2, "1 +", 1, 3))
    made = remote(error, text="invalid syntax (cell, line 1)")
    assert isinstance(made, SyntaxError)
    assert str(made) == "invalid syntax (cell, line 1)"


# ── A RemoteError otherwise ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("a.module.nobody.loaded", "Error"),
        ("", ""),
        ("builtins", ""),
        ("builtins", "NoSuchError"),
        ("builtins", "int"),
        ("builtins", "len"),
        ("builtins", "ValueError.__init__"),
        (__name__, "NOT_AN_EXCEPTION"),
        (__name__, "Outer"),
        (__name__, "test.<locals>.Error"),
        (__name__, "Frozen"),
        (__name__, "Shown"),
        ("kcoral_magic.errors", "UsageError"),
        ("kcoral_magic.errors", "RemoteError"),
        ("builtins", "ExceptionGroup"),
    ],
)
def test_anything_else_is_a_remote_error_with_its_name(module: str, qualname: str) -> None:
    made = remote(module=module, qualname=qualname, text="why", args=["why"])
    assert type(made) is RemoteError
    assert made.ename == qualname.rpartition(".")[2]
    assert made.evalue == "why"


@pytest.mark.parametrize(
    "name", ["SystemExit", "GeneratorExit", "KeyboardInterrupt", "BaseException", "BaseExceptionGroup"]
)
def test_what_would_end_the_notebook_is_never_raised_as_itself(name: str) -> None:
    made = remote(module="builtins", qualname=name, text="0", args=["0"])
    assert type(made) is RemoteError
    assert made.ename == name


def test_a_users_own_kind_of_exit_is_never_raised_as_itself() -> None:
    assert type(remote(Quitting("bye"))) is RemoteError
    assert type(remote(module="asyncio", qualname="CancelledError", text="")) is RemoteError


def test_an_interrupt_of_ours_is_a_keyboard_interrupt() -> None:
    made = remote(KeyboardInterrupt(), is_interrupt=True)
    assert type(made) is KeyboardInterrupt
    assert type(remote(SystemExit(1), is_interrupt=True)) is RemoteError


def test_naming_a_module_does_not_load_it() -> None:
    assert "this" not in sys.modules
    remote(module="this", qualname="Error", text="")
    assert "this" not in sys.modules


# ── Nothing runs ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("args", [["why"], [], ["a", 1], None])
@pytest.mark.parametrize("qualname", ["Coded", "OfOsError", "Disguised"])
def test_no_code_of_a_users_class_runs(qualname: str, args: object) -> None:
    made = remote(module=__name__, qualname=qualname, text="why", args=args)
    assert isinstance(made, globals()[qualname])
    assert str(made) == "why"


@pytest.mark.parametrize("args", [["why"], ["a", 1]])
def test_no_code_that_watches_a_users_class_runs(args: object) -> None:
    made = remote(module=__name__, qualname="Watched", text="why", args=args)
    assert isinstance(made, Watched | RemoteError)


def test_a_class_of_a_bare_namespace_is_a_users_class() -> None:
    namespace: dict[str, object] = {"ran": ran}
    exec(
        "class Bare(Exception):\n    def __new__(cls, *args):\n        ran.append('__new__')\n"
        "        return super().__new__(cls, *args)",
        namespace,
    )
    module = types.ModuleType("bare_namespace")
    vars(module).update(namespace)
    sys.modules["bare_namespace"] = module
    try:
        assert isinstance(remote(module="bare_namespace", qualname="Bare", text="x", args=["x"]), Exception)
    finally:
        del sys.modules["bare_namespace"]


names = st.sampled_from(["builtins", "os", "json", "asyncio", "kcoral_magic.errors", __name__, "sys", "unittest.mock"])
qualnames = st.sampled_from(sorted({*vars(builtins), *globals(), "mock", "modules", "JSONDecodeError"})) | st.text(
    max_size=20
)
every_exception = st.sampled_from([name for name, value in vars(builtins).items() if isinstance(value, type)])


@given(names, qualnames | every_exception, st.text(max_size=10), st.binary(max_size=20), st.booleans())
def test_whatever_a_stranger_names_an_exception_comes_of_it(
    module: str, qualname: str, text: str, args_json: bytes, is_interrupt: bool
) -> None:
    if qualname == "Watched" or qualname == "Disguised":
        return  # their own tests
    error = m.Error(qualname, module, qualname, is_interrupt)
    made = exception_of(error, [text.encode("utf-8", "surrogatepass"), b"", args_json], ID)
    assert isinstance(made, Exception | KeyboardInterrupt)
    assert not isinstance(made, KCoralError) or type(made) is RemoteError
    str(made)


# ── What it carries ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [ValueError("why"), Plain("why")])
def test_an_error_shows_the_remote_traceback_and_keeps_its_id(error: Exception) -> None:
    made = remote(error)
    assert made._render_traceback_() == TRACEBACK.split("\n")
    assert (made.execution_id, made.remote_traceback) == (ID, TRACEBACK)
    assert made.__notes__ == ["Remote traceback:\nKeyError  Traceback\nCell In[3], line 1"]


def test_a_remote_error_carries_the_same() -> None:
    made = remote(module="nobody", qualname="Error", text="why")
    assert made._render_traceback_() == TRACEBACK.split("\n")
    assert made.execution_id == ID


@pytest.mark.parametrize("buffers", [[], [b"why"], [b"why", b"trace"], [b"why", b"trace", b"", b"more"]])
def test_an_error_with_another_number_of_buffers_is_an_error_all_the_same(buffers: list[bytes]) -> None:
    assert isinstance(
        exception_of(m.Error("ValueError", "builtins", "ValueError"), buffers, ID), ValueError | KCoralError
    )


# ── Collecting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def collected(*outputs: Output) -> Collector:
    collector = Collector(ID)
    for output in outputs:
        collector.take(output)
    return collector


def stream(text: str, name: str = "stdout") -> Output:
    return Output(1, m.Stream(name), (text.encode(),))  # type: ignore[arg-type]  # one of the two


FINISHED = Output(9, m.Finished("ok", 12.5))


def test_a_result_holds_text_values_displays_and_notices() -> None:
    collector = collected(
        Output(1, m.Notice("state_lost", "gone")),
        stream("a\n"),
        stream("warn", "stderr"),
        stream("b\n"),
        Output(4, m.Display(("text/plain",)), (b"shown", b"{}")),
        Output(5, m.Result(("text/plain", "application/json"), 3), (b"42", b"[1]", b"{}")),
        FINISHED,
    )
    result = collector.collected()
    assert (result.stdout, result.stderr, result.notices) == ("a\nb\n", "warn", ["gone"])
    assert (result.text, result.displays) == ("42", [{"text/plain": "shown"}])
    assert result.value == {"text/plain": "42", "application/json": [1]}
    assert (result.elapsed_ms, result.execution_id, collector.exception()) == (12.5, ID, None)


def test_what_a_view_left_out_is_counted_once_where_it_was() -> None:
    gaps = [Output(2, m.Skip(ID, 5, 1000, 10)), Output(6, m.Skip(ID, 8, 234, 2))]
    result = collected(stream("head\n"), *gaps, stream("tail\n"), FINISHED).collected()
    assert result.skipped_bytes == 1234
    assert result.stdout == f"head\n\n{skipped_text(1234, 12)}\ntail\n"
    assert "1,234 bytes in 12 lines" in skipped_text(1234, 12)


def test_text_that_comes_late_is_in_a_result_that_is_collected_after_it() -> None:
    collector = collected(stream("a\n"), FINISHED, stream("late\n"))
    assert collector.collected().stdout == "a\nlate\n"


def test_an_unfinished_execution_raises_nothing_yet() -> None:
    assert collected(stream("a")).exception() is None


def test_what_the_user_code_raised_is_raised() -> None:
    error = Output(1, m.Error("KeyError", "builtins", "KeyError"), (b"'a'", b"", b'["a"]'))
    made = collected(error, Output(2, m.Finished("error"))).exception()
    assert isinstance(made, KeyError)
    assert made.args == ("a",)


def test_a_fault_of_the_system_is_raised_by_its_code_with_its_id() -> None:
    made = collected(Output(1, m.Finished("failed", 0.0, "lost", "the worker died"))).exception()
    assert type(made) is ExecutionLost
    assert (str(made), made.execution_id) == ("the worker died", ID)
    assert type(collected(Output(1, m.Finished("failed", 0.0, "usage", "no"))).exception()) is UsageError
    assert type(collected(Output(1, m.Finished("failed", 0.0, "of tomorrow", "no"))).exception()) is KCoralError


def test_an_execution_that_was_interrupted_before_it_began_is_a_keyboard_interrupt() -> None:
    assert type(collected(Output(1, m.Finished("interrupted"))).exception()) is KeyboardInterrupt


def test_an_execution_that_fails_without_saying_why_is_a_remote_error() -> None:
    assert type(collected(Output(1, m.Finished("error"))).exception()) is RemoteError


def test_an_output_counts_its_bytes_and_shows_broken_text_as_far_as_it_goes() -> None:
    output = Output(1, m.Stream("stdout"), (b"a\xffb",))
    assert (output.size, output.text) == (3, "a\ufffdb")
    assert Output(1, m.ClearOutput(True)).text == ""
