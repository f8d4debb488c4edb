"""The names that a cell reads before it has assigned them, and the modules that it imports.

Statements are walked in the order Python runs them. A name counts as assigned only where every path has assigned it:
after both branches of an ``if``, never after a loop's body. A function's body counts where the function is first used,
since it reads what is there by then; a lambda's, which is mostly passed on at once, where it stands. Too many names
cost a look at a value; one too few would be a NameError far away.

The source is Python, as IPython's transformer makes it of a cell: magics and ``!commands`` are calls by then, and the
names in their lines count too.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kcoral_magic.names.bodies import function_reads, global_writes, type_parameters
from kcoral_magic.names.magics import MagicText, magic_text


@dataclass
class CellNames:
    """What a cell does with names.

    Attributes:
        reads: Read before assigned, in the order first met.
        assigns: Bound at the top level on some path.
        imports: Modules imported anywhere in the cell, dotted; relative ones are left out.
    """

    reads: list[str] = field(default_factory=list)
    assigns: set[str] = field(default_factory=set)
    imports: list[str] = field(default_factory=list)


def cell_names(source: str) -> CellNames:
    """The names of a cell; nothing at all for one that is no Python (the worker says what is wrong with it)."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CellNames()
    walker = _Walker()
    try:
        walker.block(tree.body)
        walker.end()
    except RecursionError:  # a body nested a thousand deep: what was found so far counts
        pass
    return CellNames(list(walker.reads), walker.ever | walker.written_inside, list(walker.imports))


class _Walker:
    """Walks the top level of a cell, or of a body that runs in it."""

    def __init__(self, outer: set[str] | None = None) -> None:
        self.reads: dict[str, None] = {}
        self.imports: dict[str, None] = {}
        self.ever: set[str] = set()
        self.bound: set[str] = set()  # on every path to here
        self.deferred: dict[str, list[set[str]]] = {}  # what using a function of this cell reads
        # In a class body: what is bound around it. Functions, lambdas and comprehensions see that, and not the class.
        self._outer = outer
        self.written_inside: set[str] = set()  # by functions, as globals

    # ── names ──

    def read(self, name: str) -> None:
        if name not in self.bound:
            self.reads[name] = None
        self._use(name)

    def _use(self, *names: str) -> None:
        """Running a function of this cell reads what its body reads, as things are bound by then."""
        waiting, seen = [name for name in names if name in self.deferred], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for inner in sorted({inner for names in self.deferred[name] for inner in names}):
                if inner not in self._seen_inside:
                    self.reads[inner] = None
                if inner in self.deferred:
                    waiting.append(inner)

    def _read_inside(self, name: str) -> None:
        if name not in self._seen_inside:
            self.reads[name] = None
        self._use(name)

    @property
    def _seen_inside(self) -> set[str]:
        return self.bound if self._outer is None else self._outer

    def bind(self, name: str) -> None:
        self.bound.add(name)
        self.ever.add(name)
        self.deferred.pop(name, None)

    def end(self) -> None:
        """Functions that the cell only defines are used later, when all of the cell is assigned."""
        for several in list(self.deferred.values()):
            for names in several:
                for name in sorted(names):
                    if name not in self.ever:
                        self.reads[name] = None

    def target(self, node: ast.expr) -> None:
        match node:
            case ast.Name(id=name):
                self.bind(name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.target(part)
            case ast.Starred(value=inner):
                self.target(inner)
            case _:  # x.a = …, x[i] = …: they read x
                self.expression(node)

    # ── statements ──

    def block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def branches(self, *bodies: Iterable[ast.stmt], is_complete: bool) -> None:
        """Bodies of which one runs (or none, unless ``is_complete``): bound after them is what all have bound."""
        before, functions = set(self.bound), self.deferred
        after: list[set[str]] = []
        ways = [] if is_complete and bodies else [functions]
        for body in bodies:
            self.bound, self.deferred = set(before), dict(functions)
            self.block(body)
            after.append(self.bound)
            ways.append(self.deferred)
        self.bound = set.intersection(*after) if is_complete and after else before
        self.deferred = _merged(ways)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node)
            case ast.ClassDef():
                self.class_(node)
            case ast.Assign(targets=targets, value=value):
                self.expression(value)
                for target in targets:
                    self.target(target)
            case ast.AugAssign(target=target, value=value):
                self.expression(_as_load(target))
                self.expression(value)
                self.target(target)
            case ast.AnnAssign(target=target, annotation=annotation, value=given):
                self.expression(annotation)
                self.expression(given)
                if given is not None:
                    self.target(target)
                elif not isinstance(target, ast.Name):
                    self.expression(target)
            case (
                ast.For(target=target, iter=source, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=source, body=body, orelse=orelse)
            ):
                self.expression(source)
                before, functions = set(self.bound), dict(self.deferred)
                self.target(target)
                self.block(body)
                self.bound, self.deferred = before, _merged([functions, self.deferred])
                self.branches(orelse, is_complete=False)
            case ast.While(test=test, body=body, orelse=orelse):
                self.expression(test)
                self.branches(body, is_complete=False)
                self.branches(orelse, is_complete=False)
            case ast.If(test=test, body=body, orelse=orelse):
                self.expression(test)
                self.branches(body, orelse, is_complete=True)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    self.expression(item.context_expr)
                    if item.optional_vars is not None:
                        self.target(item.optional_vars)
                before = set(self.bound)
                self.block(body)
                if any(_swallows(item.context_expr) for item in items):
                    self.bound = before
            case ast.Try() | ast.TryStar():
                self.try_(node)
            case ast.Match(subject=subject, cases=cases):
                self.match(subject, cases)
            case ast.Import(names=names):
                for alias in names:
                    self.imports[alias.name] = None
                    self.bind(alias.asname or alias.name.partition(".")[0])
            case ast.ImportFrom(module=module, names=names, level=level):
                if module and not level:
                    self.imports[module] = None
                for alias in names:
                    if module and not level and alias.name != "*":
                        self.imports[f"{module}.{alias.name}"] = None
                    self.bind(alias.asname or alias.name)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.delete(target)
            case ast.stmt() if type(node).__name__ == "TypeAlias":
                self.alias(node)
            case ast.Global() | ast.Nonlocal() | ast.Pass() | ast.Break() | ast.Continue():
                pass
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.expression(child)
                    elif isinstance(child, ast.stmt):
                        self.statement(child)

    def alias(self, node: Any) -> None:
        """``type A = …`` (Python 3.12): its value is looked at when it is used."""
        names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        self.bind(node.name.id)
        self.deferred[node.name.id] = [names - type_parameters(node)]

    def delete(self, target: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                if name not in self.bound:
                    self.reads[name] = None
                self.bound.discard(name)
                self.deferred.pop(name, None)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self.delete(part)
            case _:
                self.expression(target)

    def try_(self, node: ast.Try | ast.TryStar) -> None:
        before = set(self.bound)
        self.block([*node.body, *node.orelse])
        paths = [self.bound]
        for handler in node.handlers:
            self.bound = set(before)
            self.expression(handler.type)
            if handler.name:
                self.bind(handler.name)
            self.block(handler.body)
            self.bound.discard(handler.name or "")
            if not _leaves(handler.body):
                paths.append(self.bound)
        after = set.intersection(*paths)
        self.bound = set(before)  # the last block runs after any part of the others
        self.block(node.finalbody)
        self.bound |= after

    def match(self, subject: ast.expr, cases: list[ast.match_case]) -> None:
        self.expression(subject)
        before = set(self.bound)
        for case in cases:
            self.bound = set(before)
            for part in ast.walk(case.pattern):
                match part:
                    case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                        self.bind(name)
                    case ast.MatchMapping(keys=keys, rest=name):
                        for key in keys:
                            self.expression(key)
                        if name is not None:
                            self.bind(name)
                    case ast.MatchValue(value=value):
                        self.expression(value)
                    case ast.MatchClass(cls=value):
                        self.expression(value)
            self.expression(case.guard)
            self.block(case.body)
        self.bound = before

    # ── scopes ──

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.expression(decorator)
        types = type_parameters(node)
        with self.binding(types):
            self.arguments(node.args)
            self.expression(node.returns)
        self.written_inside |= global_writes(node)
        self.bind(node.name)
        self.deferred[node.name] = [function_reads(node, self.imports, _Walker) - types]
        if node.decorator_list:  # a decorator may run it at once
            self.read(node.name)

    @contextlib.contextmanager
    def binding(self, names: set[str]) -> Iterator[None]:
        """Inside, these names are bound: type parameters (Python 3.12) are seen by what they belong to."""
        new = names - self.bound
        self.bound |= new
        yield
        self.bound -= new

    def arguments(self, arguments: ast.arguments) -> None:
        """What a def or lambda evaluates where it stands: defaults and annotations."""
        for default in (*arguments.defaults, *arguments.kw_defaults):
            self.expression(default)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in every:
            if argument is not None:
                self.expression(argument.annotation)

    def class_(self, node: ast.ClassDef) -> None:
        types = type_parameters(node)
        for decorator in node.decorator_list:
            self.expression(decorator)
        with self.binding(types):
            for part in (*node.bases, *(keyword.value for keyword in node.keywords)):
                self.expression(part)
        inner = _Walker(outer=self._seen_inside)
        inner.bound = self.bound | types
        inner.imports = self.imports
        inner.deferred = dict(self.deferred)
        inner.block(node.body)
        for name in inner.reads:
            if name not in types:
                self.read(name)
        own = [several for name, several in inner.deferred.items() if several is not self.deferred.get(name)]
        methods = [names - types for several in own for names in several]
        methods += [function_reads(part, self.imports, _Walker) for part in node.body if isinstance(part, _FUNCTIONS)]
        self.bind(node.name)
        self.deferred[node.name] = methods
        if node.decorator_list:
            self.read(node.name)

    # ── expressions ──

    def expression(self, node: ast.expr | None) -> None:
        match node:
            case None | ast.Constant():
                pass
            case ast.Name(id=name):
                self.read(name)
            case ast.NamedExpr(target=target, value=value):
                self.expression(value)
                self.bind(target.id)
            case ast.Lambda(args=arguments):
                self.arguments(arguments)
                for name in sorted(function_reads(node, self.imports, _Walker)):
                    self._read_inside(name)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.comprehension(node)
            case ast.Call() if (text := magic_text(node)) is not None:
                self.shell(text)
            case ast.BoolOp(values=values):
                self.expression(values[0])
                before = set(self.bound)
                for value in values[1:]:
                    self.expression(value)
                self.bound = before
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.expression(test)
                before = set(self.bound)
                self.expression(body)
                self.bound = set(before)
                self.expression(orelse)
                self.bound = before
            case _:
                for child in ast.iter_child_nodes(node):
                    match child:
                        case ast.expr():
                            self.expression(child)
                        case ast.keyword(value=value):
                            self.expression(value)
                        case _:
                            pass

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        """The first iterable belongs outside, all else to a scope of its own; walruses bind outside."""
        self.expression(node.generators[0].iter)
        inner = _Walker()
        inner.bound = set(self._seen_inside)
        inner.imports = self.imports
        inner.deferred = dict(self.deferred)
        for number, generator in enumerate(node.generators):
            if number:
                inner.expression(generator.iter)
            inner.target(generator.target)
            for test in generator.ifs:
                inner.expression(test)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        for part in parts:
            inner.expression(part)
        for name in inner.reads:
            self._read_inside(name)
        self.ever |= {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}

    # ── magics and commands ──

    def shell(self, text: MagicText) -> None:
        """The names in a magic's line, its body, or a ``!command``."""
        for name in text.names:
            self.read(name)
        for code in text.codes:
            self.python(code)

    def python(self, source: str) -> None:
        """Code inside of a magic runs in this namespace too."""
        try:
            tree = ast.parse(source.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        self.block(tree.body)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _as_load(node: ast.expr) -> ast.expr:
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a handler ends by raising or returning: what comes after it then has the try's own bindings."""
    return bool(body) and isinstance(body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)


def _merged(ways: list[dict[str, list[set[str]]]]) -> dict[str, list[set[str]]]:
    """The functions that a name may stand for after one of several ways."""
    merged: dict[str, list[set[str]]] = {}
    for way in ways:
        for name, several in way.items():
            known = merged.setdefault(name, [])
            if known is not several:
                merged[name] = [*known, *(names for names in several if names not in known)]
    return merged


# Context managers that are there to swallow what their body raises; any may, most do not.
_SWALLOWING = frozenset(("suppress", "raises", "assertRaises", "ExitStack"))


def _swallows(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return getattr(called, "attr", getattr(called, "id", "")) in _SWALLOWING
