"""What a value leads to: the globals that its functions read, its classes and their methods included."""

from __future__ import annotations

import collections
import dis
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ITEMS = 256  # of a container that are looked at: a list of a million numbers holds no functions
_DEPTH = 4
_GLOBAL_READS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_known: dict[types.CodeType, tuple[frozenset[str], frozenset[str]]] = {}
_KNOWN = 4096


def code_names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a code object and those inside it read, and the modules that they import."""
    found = _known.get(code)
    if found is None:
        reads, imports = set(), set()
        for instruction in dis.get_instructions(code):
            if instruction.opname in _GLOBAL_READS:
                reads.add(str(instruction.argval))
            elif instruction.opname == "IMPORT_NAME":
                imports.add(str(instruction.argval))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = code_names(constant)
                reads |= inner[0]
                imports |= inner[1]
        if len(_known) >= _KNOWN:
            _known.clear()
        found = _known[code] = (frozenset(reads), frozenset(imports))
    return found


def reached(names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """``names`` that are in ``namespace``, and all that their functions and classes lead to, with their values."""
    found: dict[str, Any] = {}
    waiting = list(names)[::-1]
    while waiting:
        name = waiting.pop()
        if name in found or name not in namespace:
            continue
        found[name] = namespace[name]
        further: set[str] = set()
        for code in codes_of(namespace[name], namespace):
            further |= code_names(code)[0]
        waiting += sorted(further - found.keys(), reverse=True)
    return found


def imported(values: Iterable[Any], namespace: Mapping[str, Any]) -> set[str]:
    """The modules that the functions in ``values`` import when they are called."""
    found: set[str] = set()
    for value in values:
        for code in codes_of(value, namespace):
            found |= code_names(code)[1]
    return found


def codes_of(value: Any, namespace: Mapping[str, Any]) -> Iterator[types.CodeType]:
    """The code of the namespace's own functions that ``value`` is made of."""
    yield from _codes(value, namespace, set(), _DEPTH)


def _codes(value: Any, namespace: Mapping[str, Any], seen: set[int], depth: int) -> Iterator[types.CodeType]:
    if depth < 0 or id(value) in seen:
        return
    kind = type(value)
    if kind in (int, float, str, bytes, bool, type(None)):
        return
    seen.add(id(value))
    if kind is types.FunctionType:
        if value.__globals__ is namespace:
            yield value.__code__
            parts = list(_captured(value))
        else:  # a library's decorator around one of ours
            parts = [vars(value).get("__wrapped__"), *_cells(value)]
    elif isinstance(value, type):
        if value.__module__ != "__main__":
            return
        parts = [*vars(value).values(), *value.__bases__, type(value)]
    elif kind in (staticmethod, classmethod):
        parts = [value.__func__]
    elif kind is types.MethodType:
        parts = [value.__func__, value.__self__]
    elif kind is property:
        parts = [value.fget, value.fset, value.fdel]
    elif kind is functools.partial:
        parts = [value.func, *value.args, *value.keywords.values()]
    else:
        depth -= 1
        parts = [kind, *_items(value), *_attributes(value)]
    for part in parts:
        yield from _codes(part, namespace, seen, depth)


def _items(value: Any) -> Iterator[Any]:
    """What a container holds; a subclass's own methods are not asked."""
    if isinstance(value, dict) and dict.__len__(value) <= _ITEMS:
        yield from dict.keys(value)
        yield from dict.values(value)
        if isinstance(value, collections.defaultdict):
            yield value.default_factory
    elif type(value) in (list, tuple, set, frozenset, collections.deque) and len(value) <= _ITEMS:
        yield from value


def _attributes(value: Any) -> Iterator[Any]:
    """What an object's own dictionary and slots hold, without running any code of its class."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    if isinstance(own, dict):
        yield from list(own.values())[:_ITEMS]
    for base in kind.__mro__:
        for descriptor in vars(base).values():
            if type(descriptor) is types.MemberDescriptorType and base.__module__ == "__main__":
                try:
                    yield descriptor.__get__(value)
                except AttributeError:  # not assigned yet
                    continue


def _captured(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    yield from _cells(function)


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
