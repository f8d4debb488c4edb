"""Runs a KCoral program: its instructions one after the other, in this process, until one fails.

No IPython: a worker for programs starts with what is imported here. What a program returns is sent at once, so that
what was returned before a crash is not lost with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import linecache
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

from kcoral_gateway.worker import cuda, results
from kcoral_gateway.worker.inbox import Inbox
from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_gateway.worker.nvcc import CompileFailed
from kcoral_gateway.worker.output import Output
from kcoral_gateway.worker.returns import Encoder, file_of, folder_of, tensor_of
from kcoral_gateway.worker.warm import KEPT, Caches
from kcoral_magic.errors import ProgramInvalid, ValueRefused
from kcoral_magic.protocol import framing, outcome, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import program as p

_TRACEBACK_CHARS = 8192
_TEXT_BYTES = 256 * 1024
_MESSAGE_CHARS = 4000
_INLINE_BYTES = 16 * 1024 * 1024  # of small values that go beside the events: the gateway keeps them in memory
_OURS = str(Path(__file__).parent)
_KINDS = frozenset(get_args(steps.ErrorKind))


class InstructionFailed(Exception):
    """An instruction cannot do what it says; ``kind`` as KCoral's clients know it."""

    def __init__(self, kind: steps.ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def warm_up() -> None:
    """Load what programs need at their end, while nobody waits."""
    import kcoral_magic.values.codec  # noqa: F401


class Programs:
    """Runs programs in this worker; ``blobs`` is the folder where the principal's files can be read."""

    def __init__(self, output: Output, inbox: Inbox, interrupts: Interrupts, blobs: str) -> None:
        self._output = output
        self._inbox = inbox
        self._interrupts = interrupts
        self._blobs = Path(blobs)
        base = os.environ.get("XDG_CACHE_HOME")  # without a sandbox the user's own caches are warm already
        self._caches = Caches(Path(base), self._blobs / KEPT) if base else None
        if self._caches is not None:
            self._caches.install()

    def serve(self, message: framing.Message[m.ToWorker]) -> bool:
        """Act on the host's next message; whether there may be more."""
        match message.body:
            case steps.RunProgram():
                self._output.send(self._run(message.body, message.buffers[0]))
            case m.Shutdown():
                return False
            case _:  # for a program that has been interrupted meanwhile
                self._inbox.drop_descriptors()
        return True

    def _run(self, order: steps.RunProgram, source: framing.Buffer) -> m.Ended:
        """Run it; everything it produced has been sent when this returns."""
        self._output.is_running.set()
        began = time.perf_counter()
        status: Any = "ok"
        poison = "a program has run in it"
        interrupts = self._interrupts
        try:
            try:
                if interrupts.begin():
                    self._output.send(m.Unheard())
                execution = _Execution(order, p.parse(source), self._output, self._inbox, self._blobs)
                if not execution.run():
                    status = "error"
                self._keep_caches()
            finally:
                interrupts.is_running = False
        except KeyboardInterrupt:
            status = "interrupted"
        except ProgramInvalid as error:  # the gateway has looked at it: this cannot be
            self._output.send(m.Error("ProgramInvalid", "", ""), (str(error).encode(), b"", b""))
            status = "error"
        self._output.is_running.clear()
        return m.Ended(status, (time.perf_counter() - began) * 1000, poison)

    def _keep_caches(self) -> None:
        """Hand over what compilers have made, if it is new."""
        if self._caches is not None and (archive := self._caches.archive()) is not None:
            name, data = f"xxh3-{os.urandom(16).hex()}", memoryview(archive)
            with contextlib.suppress(ValueRefused):  # the disk is full: the next program compiles again
                results.send(self._output, self._inbox, name, data.nbytes, [data], is_cache=True)


class _Execution:
    """One program at work: what its instructions have made, by id."""

    def __init__(self, order: steps.RunProgram, program: p.Program, output: Output, inbox: Inbox, blobs: Path) -> None:
        self._order = order
        self._program = program
        self._output = output
        self._inbox = inbox
        self._blobs = blobs
        self._made: dict[str, Any] = {}
        self._has_turn = not order.takes_turns
        self._inline_left = _INLINE_BYTES

    def run(self) -> bool:
        """Run the instructions; whether all of them succeeded."""
        for index, instruction in enumerate(self._program.instructions):
            name = getattr(instruction, "id", "")
            try:
                self._take_turn(index)
                if isinstance(instruction, p.UploadModule | p.Run | p.UploadBlob):
                    self._output.send(steps.Step(index, instruction.op, name))
                self._perform(instruction, index)
                if self._program.uses_gpu(index) and not isinstance(instruction, p.ReturnValue):
                    cuda.synchronise()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit of the program's code too: this one ends here
                self._fail(error, index, instruction.op, name)
                return False
        return True

    def _take_turn(self, index: int) -> None:
        """Hold the GPUs from the first instruction that may use them on, but not during calls that say they do not."""
        if not self._order.takes_turns:
            return
        instruction = self._program.instructions[index]
        if self._program.uses_gpu(index) and not self._has_turn:
            self._output.send(steps.Turn(True))
            while not isinstance(self._inbox.next().body, steps.TurnGranted):
                self._inbox.drop_descriptors()
            self._has_turn = True
        elif isinstance(instruction, p.Run) and not self._program.uses_gpu(index) and self._has_turn:
            cuda.synchronise()
            self._output.send(steps.Turn(False))
            self._has_turn = False

    # ── instructions ──

    def _perform(self, instruction: p.Instruction, index: int) -> None:
        match instruction:
            case p.UploadModule():
                self._made[instruction.id] = _load_module(instruction.source)
            case p.UploadTensor():
                blob = self._blob(instruction.blob)
                try:
                    self._made[instruction.id] = tensor_of(blob, instruction.dtype, list(instruction.shape))
                except ImportError:
                    raise InstructionFailed("unavailable", "tensors need torch in the worker's environment") from None
            case p.UploadBlob(kind="bytes"):
                self._made[instruction.id] = self._blob(instruction.blob).read_bytes()
            case p.UploadBlob():
                self._made[instruction.id] = self._load_library(instruction.blob)
            case p.UploadFile():
                self._made[instruction.id] = self._place(instruction.blob, p.normalised(instruction.path))
            case p.GetFunction():
                self._made[instruction.id] = _function(self._made[instruction.module.id], instruction.name)
            case p.Run():
                function = self._made[instruction.fn.id]
                if not callable(function):
                    text = f"{instruction.fn.id!r:.80} was to be called and is a {type(function).__name__}"
                    raise InstructionFailed("runtime", text)
                self._made[instruction.id] = function(*map(self._argument, instruction.args))
            case p.ReturnValue():
                self._return(instruction.key, index, self._made[instruction.value.id])
            case p.ReturnPath():
                path = instruction.path
                if isinstance(path, p.Ref):
                    path = self._made[path.id]
                    if not isinstance(path, str):
                        raise InstructionFailed("serialization", f"a path was expected, got a {type(path).__name__}")
                find = file_of if instruction.kind == "file" else folder_of
                try:
                    self._return(instruction.key, index, find(p.normalised(path)))
                except (ProgramInvalid, OSError, ValueRefused) as error:
                    raise InstructionFailed("serialization", str(error)) from None

    def _argument(self, value: Any) -> Any:
        ref = p.as_ref(value)
        return value if ref is None else self._made[ref.id]

    def _blob(self, digest: str) -> Path:
        path = self._blobs / f"sha256-{digest}"
        if not path.exists():
            raise InstructionFailed("unavailable", f"blob {digest[:12]}… has left the cache: send the program again")
        return path

    def _place(self, digest: str, path: str) -> str:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._blob(digest).open("rb") as source, target.open("wb") as file:
            left = os.fstat(source.fileno()).st_size
            while left:  # inside the kernel
                left -= os.sendfile(file.fileno(), source.fileno(), None, left) or left
        return path

    def _load_library(self, digest: str) -> Any:
        """By tvm_ffi where it is installed, as KCoral does; else as a plain C library."""
        path = str(self._blob(digest))
        try:
            import tvm_ffi  # type: ignore[import-not-found]  # optional, in the worker's environment
        except ImportError:
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                raise InstructionFailed("parse", f"the library cannot be loaded: {error}") from None
        return tvm_ffi.load_module(path)

    # ── out ──

    def _return(self, key: str, index: int, value: Any) -> None:
        if self._order.format == "values":
            self._return_parcel(f"return:{index}", value)
            return
        encoder = Encoder()
        try:
            told = encoder.encode(value)
        except ValueRefused as error:
            raise InstructionFailed("serialization", str(error)) from None
        sizes = [part.nbytes for part in encoder.parts]
        size = sum(sizes) + len(outcome.tail(key, told, sizes))
        sealing = threading.Thread(target=encoder.seal)
        sealing.start()

        def segments() -> Iterator[memoryview]:
            yield from encoder.parts
            sealing.join()
            yield memoryview(outcome.tail(key, told, sizes))

        # A name: nobody checks it, since the parts have digests of their own.
        self._send(f"xxh3-{os.urandom(16).hex()}", size, segments())

    def _send(self, name: str, size: int, segments: Iterable[memoryview]) -> None:
        """Small values beside the events, until that is much together."""
        limit = min(results.INLINE_BYTES, self._inline_left)
        results.send(self._output, self._inbox, name, size, segments, inline_bytes=limit)
        self._inline_left -= size if size <= limit else 0

    def _return_parcel(self, name: str, value: Any) -> None:
        from kcoral_magic.values import codec

        peer = self._order.python or codec.VERSION
        if hasattr(value, "as_plain"):
            value = value.as_plain()
        packed = codec.pack({name: value}, may_pickle=self._order.takes_pickles, peer=peer, is_strict=True)
        if name in packed.problems:
            raise InstructionFailed("serialization", packed.problems[name].removeprefix(f"{name} "))
        self._send(packed.parcel.digest(), packed.parcel.size, packed.parcel.segments)

    def _fail(self, error: BaseException, index: int, op: str, name: str) -> None:
        kind, message = _told(error)
        self._output.send(steps.Failed(kind, index, op, name, message[:_MESSAGE_CHARS]))
        raised = error.__cause__ if isinstance(error, _Invalid) and error.__cause__ is not None else error
        cls, shown = type(raised), _traceback(raised)
        if isinstance(raised, InstructionFailed):
            cls, shown = (ValueRefused if kind == "serialization" else RuntimeError), ""
        text = (_text(raised).encode()[:_TEXT_BYTES], shown.encode("utf-8", "replace"))
        named = (cls.__name__, cls.__module__, cls.__qualname__)  # the program may have put anything there
        name, module, path = (one[:500] if isinstance(one, str) and one.isprintable() else "" for one in named)
        self._output.send(m.Error(name, module, path), (*text, _args(raised)))


class _Invalid(Exception):
    """The module's own code failed while it was loaded."""


def _load_module(source: str) -> types.ModuleType:
    """Execute source in a namespace of its own, whose lines tracebacks can show."""
    name = f"<uploaded:{hashlib.sha1(source.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()[:16]}>"
    module = types.ModuleType(name)
    module.__file__ = name
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    sys.modules[name] = module  # dataclasses and pickle look there; it is no name that import can say
    try:
        exec(compile(source, name, "exec"), vars(module))
    except Exception as error:
        raise _Invalid from error
    return module


def _function(module: Any, name: str) -> Any:
    """Whatever has the name: whether it can be called is asked when it is."""
    if isinstance(module, types.ModuleType):
        if name not in vars(module):
            raise InstructionFailed("parse", f"the module has no name {name!r:.80}")
        return vars(module)[name]
    find = getattr(module, "get_function", None) or (module.__getitem__ if isinstance(module, ctypes.CDLL) else None)
    if find is None:
        raise InstructionFailed("unavailable", f"a module or library was expected, got a {type(module).__name__}")
    try:
        return find(name)
    except AttributeError:
        raise InstructionFailed("parse", f"the library has no function {name!r:.80}") from None


def _told(error: BaseException) -> tuple[steps.ErrorKind, str]:
    """The kind and the message that KCoral's clients expect of an error."""
    match error:
        case InstructionFailed(kind=kind):
            return kind, _text(error)
        case _Invalid(__cause__=cause) if cause is not None:
            return "parse", _one_line(cause)
        case CompileFailed():
            return "compile", str(error)
        case SystemExit():
            return "runtime", f"the program ended its process: exit({error.code!r:.80})"
        case Exception():
            if type(error).__module__ == "kcoral.errors" and (claimed := vars(error).get("kind")) in _KINDS:
                return cast("steps.ErrorKind", claimed), _text(error)  # KCoral's own ExecutionError
            return "engine", _one_line(error)
        case _:
            return "runtime", _one_line(error)


def _text(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "replace").decode()  # half a character cannot be sent
    except Exception:  # noqa: BLE001 - the program's own __str__
        return "(its text cannot be made)"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {text}" if (text := _text(error)) else type(error).__name__


def _traceback(error: BaseException) -> str:
    """The program's own frames, at most 8192 characters of them: KCoral's limit."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_OURS):
        tb = tb.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, tb))[-_TRACEBACK_CHARS:]
    except Exception:  # noqa: BLE001 - an exception of the program's that cannot be shown
        return _one_line(error)


def _args(error: BaseException) -> bytes:
    """The exception's arguments as JSON, if they are plain."""
    if not all(isinstance(arg, str | int | float | bool | None) for arg in error.args):
        return b""
    with contextlib.suppress(ValueError):
        data = json.dumps(error.args, allow_nan=False).encode()
        return data if len(data) <= _TEXT_BYTES else b""
    return b""
