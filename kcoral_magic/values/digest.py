"""Whether a value is still the same, and how it is shown in one line.

A digest's first letter says what it compares: ``v`` the value itself, on any two sides; ``f`` a function's code,
defaults and closure, between interpreters of one minor version; ``m`` a module's name; ``p`` the pickle, within the
process that made it only (pickles of equal objects may differ elsewhere).
"""

from __future__ import annotations

import types
from collections import OrderedDict
from typing import Any

import xxhash

from kcoral_magic.values import arrays, pickled, tables, tensors, tree
from kcoral_magic.values.buffers import NotSafe, Writer

_SHOWN = 40


def digest(value: Any, name: str = "the value") -> tuple[str, int]:
    """The digest of ``value`` and how many bytes it would travel with.

    Raises:
        ValueRefused: It cannot travel at all; the message names the part that cannot.
    """
    if isinstance(value, types.ModuleType):
        return f"m{value.__name__}", 0
    if type(value) is types.FunctionType and value.__globals__ is pickled.main_globals():
        hasher = xxhash.xxh3_128()
        _feed_function(hasher, value, name, set())
        return f"f{hasher.hexdigest()}", len(value.__code__.co_code)
    writer = Writer()
    try:
        return _hashed("v", tree.write(value, writer), writer)
    except NotSafe:
        writer = Writer()
    try:
        head = pickled.Pickler(writer).pickled(value)
    except Exception as error:  # noqa: BLE001 - any __reduce__ may raise anything
        raise pickled.explain(value, name, error) from None
    return _hashed("p", head, writer)


def _hashed(kind: str, head: bytes, writer: Writer) -> tuple[str, int]:
    hasher = xxhash.xxh3_128(head)
    for buffer in writer.buffers:
        hasher.update(buffer)
    return f"{kind}{hasher.hexdigest()}", len(head) + sum(buffer.nbytes for buffer in writer.buffers)


def _feed_function(hasher: Any, function: types.FunctionType, name: str, seen: set[int]) -> None:
    """Not the file name and line: running a cell again makes no other function."""
    if id(function) in seen:
        return
    seen.add(id(function))
    hasher.update(f"{function.__qualname__}\0{function.__doc__}\0".encode("utf-8", "backslashreplace"))
    _feed_code(hasher, function.__code__)
    parts: list[tuple[str, Any]] = [("'s default", default) for default in function.__defaults__ or ()]
    parts += sorted((f"'s default {key}", item) for key, item in (function.__kwdefaults__ or {}).items())
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if pickled.is_full(cell):
            parts.append((f"'s {variable}", cell.cell_contents))
    parts += [(f".{key}", item) for key, item in vars(function).items()]
    parts += [(f"'s annotation {key}", item) for key, item in _annotations(function).items()]
    for step, part in parts:
        hasher.update(step.encode())
        if type(part) is types.FunctionType and part.__globals__ is function.__globals__:
            _feed_function(hasher, part, name + step, seen)
        else:
            hasher.update(digest(part, name + step)[0].encode())


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    """Decorators like jit read them. Lazy ones (Python 3.14) may not be evaluable yet: then their code has to do."""
    try:
        return dict(function.__annotations__)
    except Exception:  # noqa: BLE001 - an annotation is user code
        return {}


def _feed_code(hasher: Any, code: types.CodeType) -> None:
    hasher.update(code.co_code)
    hasher.update(code.co_exceptiontable)
    named = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount)
    hasher.update(repr((*named, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _feed_code(hasher, constant)
        else:
            hasher.update(_constant(constant).encode("utf-8", "backslashreplace"))


def _constant(constant: Any) -> str:
    if isinstance(constant, frozenset):  # of a literal ``in {…}``: its order is the hash seed's
        return f"frozenset{sorted(map(_constant, constant))}"
    if type(constant) is int:  # repr() refuses very long ones
        return f"int{constant:x}"
    if type(constant) is tuple:
        return f"tuple{[_constant(item) for item in constant]}"
    return f"{type(constant).__name__}{constant!r}"


def shown(value: Any) -> str:
    """A value in a few words: what it is, or itself if it is short. Runs no ``__repr__`` of anybody's."""
    if type(value) is int and value.bit_length() > 256:
        return f"int of {value.bit_length():,} bits"
    if value is None or type(value) in (int, float, bool, complex):
        return repr(value)
    if type(value) in (str, bytes):
        text = repr(value[:_SHOWN])
        return text if len(value) <= _SHOWN else f"{text[:-1]}…{text[-1]} ({len(value):,} long)"
    if arrays.is_array(value):
        return f"{value.dtype} {list(value.shape)}" if value.ndim else f"{value!s:.40}"
    if tensors.is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if tables.kind_of(value) is not None:
        return f"{type(value).__name__} {list(getattr(value, 'shape', (len(value),)))}"
    if isinstance(value, types.FunctionType):
        return "function"
    if isinstance(value, type):
        return "class"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if type(value) in (list, tuple, dict, set, frozenset, OrderedDict):
        if type(value) in (list, tuple) and len(value) <= 4 and all(map(_is_short, value)):
            return repr(value)[:_SHOWN]
        return f"{type(value).__name__} of {len(value):,}"
    return type(value).__qualname__


def _is_short(value: Any) -> bool:
    return type(value) in (float, bool) or (type(value) is int and value.bit_length() <= 64)
