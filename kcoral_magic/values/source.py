"""Functions and classes as source, for an interpreter of another minor version, which cannot run their bytecode."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from typing import Any

import msgspec

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values.pickled import main_globals


def of(value: type | types.FunctionType, name: str, versions: str) -> bytes:
    """The source of a function or class of the notebook.

    Raises:
        ValueRefused: Only bytecode could carry it; ``versions`` names both.
    """
    if isinstance(value, types.FunctionType) and (value.__closure__ or value.__name__ == "<lambda>"):
        raise ValueRefused(f"{name} is a closure or lambda: only bytecode could carry it ({versions}); use a plain def")
    text = _class_source(value) if isinstance(value, type) else _function_source(value)
    if text is None:
        raise ValueRefused(f"{name} has no source here: only bytecode could carry it ({versions})")
    return msgspec.msgpack.encode((value.__name__, f"<source of {name}>", text))


def _function_source(function: types.FunctionType) -> str | None:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None


def _class_source(cls: type) -> str | None:
    """A class of a notebook has no file, but its methods know their cell's."""
    for part in vars(cls).values():
        code = getattr(getattr(part, "__func__", getattr(part, "fget", part)), "__code__", None)
        if not isinstance(code, types.CodeType):
            continue
        text = "".join(linecache.getlines(code.co_filename))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # a cell with magics in it
            continue
        defined = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
        for node in defined:
            if _defines(node, code):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return textwrap.dedent("".join(text.splitlines(True)[first - 1 : node.end_lineno]))
    return None


def _defines(node: ast.ClassDef, code: types.CodeType) -> bool:
    return node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)


def read(head: memoryview) -> Any:
    """Run the source in the session's namespace, leaving no name behind there.

    Raises:
        ValueRefused: It is none.
    """
    try:
        name, file, text = msgspec.msgpack.decode(head, type=tuple[str, str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueRefused(f"a source cannot be read: {error}") from None
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope = main_globals()
    missing = object()
    former = scope.get(name, missing)
    exec(compile(text, file, "exec"), scope)  # the session's own client wrote it
    made = scope.pop(name)
    if former is not missing:
        scope[name] = former
    return made
