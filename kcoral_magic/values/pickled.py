"""Pickles by cloudpickle, for what has no safe format: only towards a side that trusts the sender.

Differences from plain cloudpickle:

* A function of ``__main__`` gets the receiver's ``__main__`` as its globals, and takes none along: what it reads there
  is sent by name (``names.reach``), so that an edited helper is never stale and ``global`` writes where all can see.
* Arrays and tensors travel out of band, without a copy (facts: a tensor in band costs 117 ms and 105 MB for 100 MB).
* All values of one parcel share one memo: an optimiser's parameters stay its model's parameters.
* The text of the cells that functions come from goes along, for tracebacks and ``inspect.getsource``.
"""

from __future__ import annotations

import io
import linecache
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import tensors
from kcoral_magic.values.buffers import Writer

_PROBES = 3000  # objects looked at to name the one that cannot be pickled
_PROBE_DEPTH = 12
_THIS = __name__


def main_globals() -> dict[str, Any]:
    """The namespace of the notebook, or of the session on the worker's side."""
    return vars(sys.modules["__main__"])


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles values one after the other with one memo; buffers go to ``writer``."""

    def __init__(self, writer: Writer, cell_of: Callable[[str], int | None] | None = None, no_code: str = "") -> None:
        """``no_code``: why bytecode may not travel, if it may not."""
        self._no_code = no_code
        self._file = io.BytesIO()
        self._writer = writer
        self._main = main_globals()
        self._texts: dict[str, str] = {}
        self._cell_of = cell_of or (lambda name: None)
        super().__init__(self._file, protocol=5, buffer_callback=self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            self._writer.add(buffer.raw())
        except BufferError:  # not contiguous: in band then
            return True
        return False

    def pickled(self, value: Any) -> bytes:
        """The bytes of ``value``.

        Raises:
            Exception: Whatever its ``__reduce__`` raises.
        """
        start = self._file.tell()
        self.dump(value)
        return self._file.getvalue()[start:]

    def reducer_override(self, obj: Any) -> Any:
        """pickle's hook, before every other way."""
        if type(obj) is types.CodeType:
            return self._code(obj)
        if self._no_code and isinstance(obj, type) and obj.__module__ == "__main__":
            raise ValueRefused(f"the class {obj.__qualname__} cannot go in a pickle: {self._no_code}")
        if type(obj) is types.FunctionType and obj.__globals__ is self._main:
            return self._function(obj)
        if tensors.is_tensor(obj) and type(obj).__name__ == "Tensor":
            name = str(obj.dtype).removeprefix("torch.")
            if obj.layout.__repr__() == "torch.strided" and name in tensors.ITEM_BYTES and not obj.is_meta:
                data = pickle.PickleBuffer(tensors.bytes_of(obj))
                if obj.device.type != "cpu":
                    self._writer.notes.append(f"{name} tensor {list(obj.shape)} copied from {obj.device} to the CPU")
                return make_tensor, (name, tuple(obj.shape), bool(obj.requires_grad), data)
        return super().reducer_override(obj)

    def _code(self, code: types.CodeType) -> Any:
        if self._no_code:
            raise ValueRefused(f"the bytecode of {code.co_name} cannot go: {self._no_code}")
        make, arguments = cloudpickle.cloudpickle._code_reduce(code)
        # cloudpickle 3.1 leaves the file name out, so that pickles are the same everywhere; tracebacks need it.
        return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)

    def _function(self, function: types.FunctionType) -> Any:
        reduced = self._dynamic_function_reduce(function)
        _, (code, _, name, defaults, closure), (state, slots), *rest = reduced
        slots["__globals__"] = {}
        text = self._texts.setdefault(code.co_filename, "".join(linecache.getlines(code.co_filename)))
        cell = self._cell_of(code.co_filename)
        return (make_function, (code, name, defaults, closure, text, cell), (state, slots), *rest)


class Unpickler(pickle.Unpickler):
    """Reads what a ``Pickler`` wrote, in its order. It runs the writer's code: only for a writer one trusts."""

    def __init__(
        self,
        pickles: bytes,
        buffers: Iterable[memoryview],
        on_source: Callable[[str, int], None] | None = None,
    ) -> None:
        super().__init__(io.BytesIO(pickles), buffers=buffers)
        self._on_source = on_source or (lambda name, cell: None)

    def find_class(self, module: str, name: str) -> Any:
        """pickle's hook."""
        if module == _THIS and name == "make_function":
            return self._make_function
        return super().find_class(module, name)

    def _make_function(
        self, code: types.CodeType, name: Any, defaults: Any, closure: Any, text: str, cell: int | None
    ) -> types.FunctionType:
        if text and code.co_filename not in linecache.cache:
            linecache.cache[code.co_filename] = (len(text), None, text.splitlines(True), code.co_filename)
            if cell is not None:
                self._on_source(code.co_filename, cell)
        return types.FunctionType(code, main_globals(), name, defaults, closure)


def make_function(*arguments: Any) -> types.FunctionType:
    """Named in pickles; ``Unpickler`` puts its own method here.

    Raises:
        TypeError: Always: it is no function for a plain unpickler.
    """
    raise TypeError("this pickle is read by kcoral_magic.values.pickled.Unpickler")


def make_tensor(name: str, shape: tuple[int, ...], requires_grad: bool, data: Any) -> Any:
    """The tensor of a pickle; ``data`` is its raw elements."""
    tensor = tensors.from_bytes(memoryview(data).cast("B") if len(data) else memoryview(b""), name, shape)
    return tensor.requires_grad_() if requires_grad else tensor


def explain(value: Any, name: str, error: BaseException) -> ValueRefused:
    """Why ``value`` cannot be pickled, with the path of the part that cannot."""
    path, culprit = _culprit(value, name)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    return ValueRefused(f"{path} is a {kind}, which cannot be pickled ({str(error)[:160]})")


def _culprit(value: Any, name: str) -> tuple[str, Any]:
    seen: set[int] = set()
    path, budget = name, _PROBES
    for _ in range(_PROBE_DEPTH):
        seen.add(id(value))
        for step, child in _children(value):
            budget -= 1
            if budget < 0:
                return path, value
            if id(child) not in seen and not _is_picklable(child):
                path, value = path + step, child
                break
        else:
            return path, value
    return path, value


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r:.40}]", item) for key, item in value.items()] + [(" key", key) for key in value]
    if isinstance(value, list | tuple):
        return [(f"[{n}]", item) for n, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(" item", item) for item in value]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        found = [(f"'s {name}", cell.cell_contents) for name, cell in cells if is_full(cell)]
        return found + [("'s default", default) for default in value.__defaults__ or ()]
    if isinstance(value, type):
        return [(f".{name}", item) for name, item in vars(value).items() if not name.startswith("__")]
    found = [(f".{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                found.append((f".{slot}", getattr(value, slot)))
    return found


def is_full(cell: types.CellType) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        cell.cell_contents  # noqa: B018 - the attribute itself raises
    except ValueError:
        return False
    return True


def _is_picklable(value: Any) -> bool:
    try:
        Pickler(Writer()).dump(value)
    except Exception:  # noqa: BLE001 - any __reduce__ may raise anything; that is the question
        return False
    return True
