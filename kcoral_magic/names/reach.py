"""What a value leads to: the globals that its functions read, its classes and their methods included."""

from __future__ import annotations

import dis
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
        if value.__globals__ is not namespace:
            return
        yield value.__code__
        for part in _captured(value):
            yield from _codes(part, namespace, seen, depth)
    elif isinstance(value, type):
        if value.__module__ == "__main__":
            for part in (*vars(value).values(), *value.__bases__):
                yield from _codes(part, namespace, seen, depth)
    elif kind in (staticmethod, classmethod) or kind is types.MethodType:
        yield from _codes(value.__func__, namespace, seen, depth)
    elif kind is property:
        for part in (value.fget, value.fset, value.fdel):
            yield from _codes(part, namespace, seen, depth)
    elif kind in (list, tuple, set, frozenset) or isinstance(value, dict):
        items = list(value.values() if isinstance(value, dict) else value) if len(value) <= _ITEMS else ()
        for part in items:
            yield from _codes(part, namespace, seen, depth - 1)
    else:
        yield from _codes(kind, namespace, seen, depth)
        if kind.__module__ != "builtins":
            for part in (getattr(value, "__wrapped__", None), getattr(value, "func", None), getattr(value, "fn", None)):
                yield from _codes(part, namespace, seen, depth - 1)
            for part in list(getattr(value, "__dict__", {}).values())[:_ITEMS]:
                yield from _codes(part, namespace, seen, depth - 1)


def _captured(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
