"""Modules whose files have changed since a body imported them: reloaded, and what was taken from them taken again.

``importlib.reload`` runs a module anew in its old namespace, so ``foo.f`` is new everywhere. What ``from foo import f``
has bound elsewhere is rebound by identity: a name that holds exactly the old object gets the new one. An instance keeps
its class (its state may not fit the new one): that is said.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_NAMED = 8  # holders of old objects that are named in a line


class Modules:
    """The workspace's modules."""

    def __init__(self, root: Path, namespace: dict[str, Any]) -> None:
        self._root = root
        self._namespace = namespace
        self._taken: dict[str, tuple[str, str]] = {}  # names of the session, and what they were taken from

    def note(self, source: str) -> None:
        """Remember what a body has taken from modules by name: a number has no trace of where it came from."""
        try:
            tree = ast.parse(source)
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
        ):  # a cell with magics in it
            return
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._taken[alias.asname or alias.name] = (node.module, alias.name)

    def update(self, changed: Sequence[str]) -> list[str]:
        """Act on changed files; lines for people."""
        if not changed:
            return []
        importlib.invalidate_caches()
        paths = {os.path.normpath(self._root / path) for path in changed}
        stale = [module for module in self._ours() if os.path.normpath(str(module.__file__)) in paths]
        if not stale:
            return []
        stale = self._with_importers(stale)
        before = {module.__name__: dict(vars(module)) for module in stale}
        lines = []
        for module in stale:
            try:
                importlib.reload(module)
            except Exception as error:  # noqa: BLE001 - a module's code may raise anything
                lines.append(f"kcoral: {module.__name__} could not be reloaded: {type(error).__name__}: {error}")
        lines += self._rebind(stale, before)
        return lines

    def _ours(self) -> Iterator[types.ModuleType]:
        root = str(self._root)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(module, types.ModuleType) and isinstance(file, str):
                if os.path.normpath(os.path.abspath(file)).startswith(root + os.sep):
                    yield module

    def _with_importers(self, stale: list[types.ModuleType]) -> list[types.ModuleType]:
        """The changed modules, and behind each those of the workspace that took something from it."""
        found = list(stale)
        for module in found:
            found += [other for other in self._ours() if other not in found and _takes_from(other, module)]
        return _in_order(found)

    def _rebind(self, stale: list[types.ModuleType], before: dict[str, dict[str, Any]]) -> list[str]:
        renewed: dict[int, Any] = {}
        old_classes: dict[type, str] = {}
        keep: list[Any] = []  # ids must stay taken while they are compared
        for module in stale:
            for name, old in before[module.__name__].items():
                new = vars(module).get(name, old)
                if new is not old and _is_own(module, name, old):
                    renewed[id(old)] = new
                    keep.append(old)
                    if isinstance(old, type):
                        old_classes[old] = f"{module.__name__}.{name}"
        holders = []
        for name, value in list(self._namespace.items()):
            origin, attribute = self._taken.get(name, ("", ""))
            if id(value) in renewed:
                self._namespace[name] = renewed[id(value)]
            elif origin in before and before[origin].get(attribute, self) is value:
                self._namespace[name] = vars(sys.modules[origin]).get(attribute, value)
            elif (of := old_classes.get(type(value))) is not None:
                holders.append(f"{name} (a {of})")
        if not holders:
            return []
        more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
        return [f"kcoral: still of the code before the change: {', '.join(holders[:_NAMED])}{more}"]


def _takes_from(one: types.ModuleType, other: types.ModuleType) -> bool:
    """Whether a module imports another, holds it, or holds something that it defines."""
    if other.__name__ in _imports(one):
        return True
    theirs = {id(value) for name, value in vars(other).items() if _is_own(other, name, value)} | {id(other)}
    return one is not other and any(id(value) in theirs for value in vars(one).values())


def _imports(module: types.ModuleType) -> set[str]:
    """The modules that a module's source names in its imports: a constant that was taken has no trace of its origin."""
    try:
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = str(module.__package__ or "").split(".")
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def _in_order(modules: list[types.ModuleType]) -> list[types.ModuleType]:
    """Each after those that it takes from; within a circle, as they come."""
    ordered: list[types.ModuleType] = []
    begun: set[str] = set()

    def visit(module: types.ModuleType) -> None:
        if module.__name__ in begun:
            return
        begun.add(module.__name__)
        for other in modules:
            if _takes_from(module, other):
                visit(other)
        ordered.append(module)

    for module in modules:
        visit(module)
    return ordered


def _is_own(module: types.ModuleType, name: str, value: Any) -> bool:
    """Whether a module's attribute is a function or class that it defines itself."""
    return not name.startswith("__") and getattr(value, "__module__", None) == module.__name__
