"""What comes back from an execution, and how a remote error becomes an exception here."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcoral_magic.errors import KCoralError, ProtocolError, RemoteError, ValueRefused, from_code
from kcoral_magic.protocol import bundle, framing, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, not by C code
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Reconnecting:
    """The connection is gone; the cell goes on. ``error`` is the last attempt's."""

    lost_s: float
    error: str = ""


@dataclass(frozen=True)
class Reconnected:
    """The connection is back after ``lost_s``; what was missed follows."""

    lost_s: float


@dataclass(frozen=True)
class Progress:
    """Values are on their way: ``done`` of ``size`` bytes."""

    what: str
    done: int
    size: int


@dataclass(frozen=True)
class Output:
    """One event of an execution as its reader gets it. ``number`` is 0 for what the client itself has to say."""

    number: int
    body: m.EventBody | m.Skip | m.CaughtUp | Reconnecting | Reconnected | Progress
    buffers: Sequence[framing.Buffer] = ()

    @property
    def text(self) -> str:
        """A stream's text."""
        return bytes(self.buffers[0]).decode("utf-8", "replace") if isinstance(self.body, m.Stream) else ""

    def print(self) -> None:
        """Print here what was printed there; nothing for other outputs."""
        if isinstance(self.body, m.Stream):
            stream = sys.stdout if self.body.name == "stdout" else sys.stderr
            stream.write(self.text)
            stream.flush()

    @property
    def size(self) -> int:
        """Buffer bytes, for the credit."""
        return sum(len(buffer) for buffer in self.buffers)


@dataclass
class Result:
    """A finished execution.

    Attributes:
        stdout, stderr: The text, with a line that counts what the view left out.
        value: The MIME bundle of the last expression, or ``None``.
        displays: The MIME bundles that were displayed, in order.
        skipped_bytes: Text that the view left out.
        elapsed_ms: Time in the worker.
        values: The values that were wanted, by name.
        problems: Why one of them is missing.
    """

    execution_id: str
    stdout: str = ""
    stderr: str = ""
    value: dict[str, object] | None = None
    displays: list[dict[str, object]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    skipped_bytes: int = 0
    elapsed_ms: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    value_notes: list[str] = field(default_factory=list)  # what arrived otherwise than it left
    digests: dict[str, str] = field(default_factory=dict)  # of the values, the session's

    @property
    def text(self) -> str | None:
        """The last expression's value as text."""
        return None if self.value is None else str(self.value.get("text/plain", ""))


class Collector:
    """Gathers outputs into a ``Result``, and knows which exception it ends with."""

    def __init__(self, execution_id: str, *, takes_pickles: bool = False, wants: Collection[str] = ()) -> None:
        self._takes_pickles = takes_pickles
        self._wants = wants
        self.result = Result(execution_id)
        self.finished: m.Finished | None = None
        self.failed: steps.Failed | None = None  # which instruction of a program did
        self.gpus: tuple[m.Gpu, ...] = ()
        self._error: tuple[m.Error, Sequence[framing.Buffer]] | None = None
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._gap = (0, 0)  # bytes and lines left out since the last text

    def take(self, output: Output) -> None:
        """The next output."""
        result, body = self.result, output.body
        match body:
            case m.Stream(name=name):
                self._end_gap()
                self._text[name].append(output.text)
            case m.Display(mimes=mimes):
                result.displays.append(_unpack(mimes, output.buffers))
            case m.Result(mimes=mimes):
                result.value = _unpack(mimes, output.buffers)
            case m.Notice(text=text):
                result.notices.append(text)
            case m.Skip(stream_bytes=stream_bytes, lines=lines):
                result.skipped_bytes += stream_bytes
                self._gap = (self._gap[0] + stream_bytes, self._gap[1] + lines)
            case t.Returned():
                self._unpack_values(body, output.buffers)
            case m.Error():
                self._error = (body, output.buffers)
            case steps.Failed():
                self.failed = body
            case m.Placed(gpus=gpus):
                self.gpus = gpus
            case m.Finished():
                self._end_gap()
                self.finished = body
                result.elapsed_ms = body.elapsed_ms
            case _:
                pass

    def _unpack_values(self, returned: t.Returned, buffers: Sequence[framing.Buffer]) -> None:
        result = self.result
        result.problems |= dict(returned.problems)
        if not buffers:
            return
        from kcoral_magic.values import codec  # not before a value travels

        try:
            check_parcel(returned, buffers[0])
            unpacked = codec.Unpacked(buffers[0], takes_pickles=self._takes_pickles)
        except ValueRefused as error:
            result.problems["results"] = str(error)
            return
        for entry, value in unpacked.values(self._wants):  # nothing else may come into the caller's namespace
            if isinstance(value, ValueRefused):
                result.problems[entry.name] = str(value)
            else:
                result.values[entry.name] = value
                result.digests[entry.name] = entry.digest
                result.value_notes += [f"{entry.name}: {note}" for note in entry.notes]

    @property
    def traceback(self) -> str:
        """Of the error, if one came; plain text."""
        buffers = self._error[1] if self._error is not None else ()
        return _ANSI.sub("", bytes(buffers[1]).decode("utf-8", "replace")) if len(buffers) > 1 else ""

    def collected(self) -> Result:
        """The result so far."""
        self.result.stdout, self.result.stderr = ("".join(self._text[name]) for name in ("stdout", "stderr"))
        return self.result

    def _end_gap(self) -> None:
        gap, self._gap = self._gap, (0, 0)
        if gap[0]:
            self._text["stdout"].append(f"\n{skipped_text(*gap)}\n")

    def exception(self) -> BaseException | None:
        """What the execution raises here; ``None`` if it went well."""
        finished = self.finished
        if finished is None or finished.status == "ok":
            problems = self.result.problems
            if finished is None or not problems:
                return None
            text = "; ".join(why if why.startswith(name) else f"{name}: {why}" for name, why in problems.items())
            return with_id(ValueRefused(f"not all values could come back: {text}"), self.result.execution_id)
        if finished.status == "failed":
            return with_id(from_code(finished.code, finished.message), self.result.execution_id)
        if self._error is None:
            if finished.status == "interrupted":
                return KeyboardInterrupt("the cell was interrupted before it began")
            return with_id(RemoteError("Error", "the cell failed and did not say why"), self.result.execution_id)
        return exception_of(*self._error, self.result.execution_id)


def _unpack(mimes: Sequence[str], buffers: Sequence[framing.Buffer]) -> dict[str, object]:
    try:
        return bundle.unpack(mimes, buffers)[0]
    except ProtocolError as error:  # what a worker calls JSON need not be any
        return {"text/plain": f"[a malformed display: {error}]"}


def check_parcel(returned: t.Returned, data: framing.Buffer) -> None:
    """Whether the bytes are those that were sent.

    Raises:
        ValueRefused: They were damaged on the way.
    """
    import xxhash

    if returned.digest != f"xxh3-{xxhash.xxh3_128(data).hexdigest()}":
        raise ValueRefused("the results were damaged on the way: run the cell again")


def skipped_text(stream_bytes: int, lines: int) -> str:
    """The line that stands for what a view left out."""
    return f"[… {stream_bytes:,} bytes in {lines:,} lines not shown: %kcoral output has them …]"


def with_id(error: KCoralError, execution_id: str) -> KCoralError:
    """``error`` with the id that the gateway's log knows it by."""
    error.__dict__["execution_id"] = execution_id
    return error


def exception_of(error: m.Error, buffers: Sequence[framing.Buffer], execution_id: str) -> BaseException:
    """A remote error as an exception of this process.

    Its own type only if that is loaded here already and is an ``Exception`` (or KeyboardInterrupt after an
    interrupt), made without running its ``__init__`` or ``__new__``: what a stranger names must not run code here. A
    class with its own rules for attributes or subclasses is shown by name.
    """
    texts = [bytes(buffer).decode("utf-8", "replace") for buffer in buffers[:3]]
    text, traceback, args_json = (*texts, "", "", "")[:3]
    made = _make(error, text, _args(args_json))
    for name, value in (
        ("execution_id", execution_id),
        ("remote_traceback", traceback),
        ("_render_traceback_", lambda: traceback.split("\n")),
        ("__notes__", ["Remote traceback:\n" + _ANSI.sub("", traceback)]),
    ):
        object.__setattr__(made, name, value)  # not the class's own, which may be anybody's code
    return made


def _args(args_json: str) -> tuple[Any, ...] | None:
    try:
        args = json.loads(args_json) if args_json else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(args, list) or not all(isinstance(arg, str | int | float | bool | None) for arg in args):
        return None
    return tuple(args)


def _make(error: m.Error, text: str, args: tuple[Any, ...] | None) -> BaseException:
    cls = _loaded_type(error)
    if cls is None:
        return RemoteError(error.ename, text)
    given = args if args is not None else (text,)
    own = {name for base in cls.__mro__ if base.__flags__ & _HEAP_TYPE for name in vars(base)}
    if "__setattr__" in own:
        return RemoteError(error.ename, text)
    # The nearest built-in ancestor's __new__ is C code that only allocates; a user's __new__ is never called.
    allocate = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE).__new__
    try:
        made: BaseException = allocate(cls, *given)
        object.__setattr__(made, "args", given)
        if str(made) != text:
            if "__init_subclass__" in own or type(cls) is not type:
                return RemoteError(error.ename, text)
            shown = type(cls.__name__, (cls,), {"__str__": lambda self: text, "__module__": cls.__module__})
            made = allocate(shown, *given)
            object.__setattr__(made, "args", given)
    except Exception:  # noqa: BLE001 - a type with its own rules for subclasses or attributes is shown by name
        return RemoteError(error.ename, text)
    return made


def _loaded_type(error: m.Error) -> type[BaseException] | None:
    found: Any = sys.modules.get(error.module)
    for part in error.qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not isinstance(found, type):
        return None
    if issubclass(found, Exception) and not issubclass(found, KCoralError):
        return found
    return KeyboardInterrupt if found is KeyboardInterrupt and error.is_interrupt else None
