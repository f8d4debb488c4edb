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
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, imports: dict[str, None], walker: Callable[[], Walker]
) -> set[str]:
    """The globals that a function's body reads."""
    body = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
    arguments = node.args
    own = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    own |= {argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None}
    declared: set[str] = set()
    reads: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        part = stack.pop()
        match part:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                own.add(part.name)
                reads |= function_reads(part, imports, walker)
                stack += [*part.decorator_list, *part.args.defaults, *(d for d in part.args.kw_defaults if d)]
                continue
            case ast.Lambda():
                reads |= function_reads(part, imports, walker)
                stack += [*part.args.defaults, *(d for d in part.args.kw_defaults if d)]
                continue
            case ast.ClassDef():
                own.add(part.name)
                inner = walker()
                inner.imports = imports
                inner.block(part.body)
                reads |= set(inner.reads) | {name for s in inner.deferred.values() for names in s for name in names}
                stack += [*part.decorator_list, *part.bases, *(keyword.value for keyword in part.keywords)]
                continue
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = walker()
                inner.imports = imports
                inner.comprehension(part)
                reads |= set(inner.reads)
                own |= inner.ever
                continue
            case ast.Global(names=names):
                declared |= set(names)
            case ast.AugAssign(target=ast.Name(id=name)):
                reads.add(name)
            case ast.Name(id=name, ctx=ast.Load()):
                reads.add(name)
            case ast.Name(id=name):
                own.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                own.add(name)
            case ast.MatchMapping(rest=str(name)):
                own.add(name)
            case ast.Import(names=aliases):
                for alias in aliases:
                    imports[alias.name] = None
                    own.add(alias.asname or alias.name.partition(".")[0])
            case ast.ImportFrom(module=module, names=aliases, level=level):
                for alias in aliases:
                    if module and not level:
                        imports[module] = None
                        imports[f"{module}.{alias.name}"] = None
                    own.add(alias.asname or alias.name)
            case ast.Call() if (text := magic_text(part)) is not None:
                inner = walker()
                inner.shell(text)
                reads |= set(inner.reads)
                continue
        stack.extend(ast.iter_child_nodes(part))
    return (reads - own) | (reads & declared)


def global_writes(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}
