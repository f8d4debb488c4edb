"""The globals that a function's body reads: all that it reads and does not bind itself, nested scopes included."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Protocol

from kcoral_magic.names.magics import MagicText, magic_text


class Walker(Protocol):
    """What walks the code that runs at once: class bodies and comprehensions (``free``)."""

    reads: dict[str, None]
    imports: dict[str, None]
    ever: set[str]
    deferred: dict[str, list[set[str]]]

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Walk statements."""

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        """Walk a comprehension."""

    def shell(self, text: MagicText) -> None:
        """Take a magic's names."""


def type_parameters(node: ast.AST) -> set[str]:
    """``def f[T]``, ``class C[T]`` (Python 3.12)."""
    return {part.name for part in getattr(node, "type_params", ())}


def function_reads(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, imports: dict[str, None], walker: Callable[..., Walker]
) -> set[str]:
    """The globals that a function's body reads."""
    free, declared = _Body(imports, walker).reads_of(node)
    return free | declared


def global_writes(node: ast.AST) -> set[str]:
    """What a function declares global."""
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


class _Body:
    """Reads the bodies of functions."""

    def __init__(self, imports: dict[str, None], walker: Callable[..., Walker]) -> None:
        self._imports = imports
        self._walker = walker

    def reads_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> tuple[set[str], set[str]]:
        """Names that are free in a body, and those declared global in it or below: no scope around it binds these."""
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        arguments = node.args
        own = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        own |= {argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None}
        declared: set[str] = set()
        below: set[str] = set()
        reads: set[str] = set()
        stack = body
        while stack:
            part = stack.pop()
            match part:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    if not isinstance(part, ast.Lambda):
                        own.add(part.name)
                    inner, theirs = self.reads_of(part)
                    reads |= inner - type_parameters(part)
                    below |= theirs
                    stack += _evaluated_outside(part)
                case ast.ClassDef():
                    own.add(part.name)
                    reads |= self._class(part)
                    stack += [*part.decorator_list, *part.bases, *(keyword.value for keyword in part.keywords)]
                case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                    at_once = self._walker()
                    at_once.imports = self._imports
                    at_once.comprehension(part)
                    reads |= set(at_once.reads)
                    own |= at_once.ever
                case ast.Call() if (text := magic_text(part)) is not None:
                    at_once = self._walker()
                    at_once.shell(text)
                    reads |= set(at_once.reads)
                case _:
                    self._name(part, reads, own, declared)
                    stack.extend(ast.iter_child_nodes(part))
        return (reads - own) - declared, (reads & declared) | below

    def _name(self, part: ast.AST, reads: set[str], own: set[str], declared: set[str]) -> None:
        match part:
            case ast.Global(names=names):
                declared |= set(names)
            case ast.AugAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Load()):
                reads.add(name)
            case ast.Name(id=name):
                own.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                own.add(name)
            case ast.MatchMapping(rest=str(name)):
                own.add(name)
            case ast.Import(names=aliases):
                for alias in aliases:
                    self._imports[alias.name] = None
                    own.add(alias.asname or alias.name.partition(".")[0])
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for alias in aliases:
                    if module and not level:
                        self._imports[module] = None
                        self._imports[f"{module}.{alias.name}"] = None
                    own.add(alias.asname or alias.name)
            case _:
                pass

    def _class(self, node: ast.ClassDef) -> set[str]:
        inner = self._walker(set())
        inner.imports = self._imports
        inner.block(node.body)
        return set(inner.reads) | {name for several in inner.deferred.values() for names in several for name in names}


def _evaluated_outside(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.AST]:
    """What a nested def or lambda evaluates where it stands: decorators, defaults, annotations (until Python 3.14)."""
    arguments = node.args
    parts: list[ast.AST] = [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]
    if isinstance(node, ast.Lambda):
        return parts
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    parts += [argument.annotation for argument in every if argument is not None and argument.annotation is not None]
    return [*parts, *node.decorator_list, *([node.returns] if node.returns is not None else [])]
