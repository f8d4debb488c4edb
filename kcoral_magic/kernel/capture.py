"""Which values of the notebook go along with a cell: those it reads, and those that ``-i`` names."""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

from kcoral_magic.client.exchange import Belief, Outgoing, outgoing
from kcoral_magic.display.html import size
from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.names.free import CellNames, cell_names
from kcoral_magic.names.reach import imported, reached
from kcoral_magic.names.secrets import looks_secret
from kcoral_magic.protocol import transfers as t

_HISTORY = re.compile(r"_+|_i+|_i?\d+|_(ih|oh|dh)|In|Out|get_ipython|exit|quit|open|display")
_LISTED = 6


class Capture:
    """The values of one notebook as its cells need them."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._told: dict[str, str] = {}  # what was said of a name, so that it is said once
        self.notes: list[str] = []

    def is_told(self, name: str) -> bool:
        """Whether it was said why a name does not go."""
        return name in self._told

    def of_cell(
        self, cell: str, forced: Sequence[str], belief: Belief, *, limit_bytes: int, is_on: bool
    ) -> tuple[Outgoing | None, set[str]]:
        """The values for a cell, and the modules that it and its functions import. ``notes`` has lines for people.

        Raises:
            UsageError: ``-i`` names what is not there, or what the cell reads is too large to go unasked.
            ValueRefused: What ``-i`` names cannot travel.
        """
        self.notes = []
        namespace = self._shell.user_ns
        if unknown := [name for name in forced if name not in namespace]:
            raise UsageError(f"-i {', '.join(unknown)}: the notebook has no such name")
        names = self._names_of(cell)
        reads = [name for name in names.reads if self._is_users(name)] if is_on else []
        found = reached([*forced, *reads], namespace)
        modules = {*names.imports, *imported(found.values(), namespace), *map(_module_of, found.values())}
        found = {name: value for name, value in found.items() if name in forced or self._is_users(name)}
        if not is_on:
            found = {name: found[name] for name in forced}
        if not found:
            return None, modules
        sent = {name: found.pop(name) for name in forced}
        for name in [name for name, value in found.items() if looks_secret(name, value)]:
            del found[name]
            if name not in belief.names:
                self._once(name, "secret", f"{name} looks like a secret and was not sent: -i {name} sends it")
        out = outgoing(sent, found, cell_of=self._cell_of)
        self._check(out, belief, limit_bytes)
        return out, modules

    def reads(self, cell: str) -> tuple[str, ...]:
        """The names that a cell reads, the notebook's and those it does not know."""
        return tuple(name for name in self._names_of(cell).reads if not hasattr(builtins, name))

    def _names_of(self, cell: str) -> CellNames:
        try:
            return cell_names(self._shell.transform_cell(cell))
        except SyntaxError:  # the worker says so, with the line
            return CellNames()

    def _is_users(self, name: str) -> bool:
        namespace = self._shell.user_ns
        if name not in namespace or _HISTORY.fullmatch(name):
            return False
        hidden = self._shell.user_ns_hidden
        if name in hidden and namespace[name] is hidden[name]:
            return False
        return not (hasattr(builtins, name) and namespace[name] is getattr(builtins, name))

    def _cell_of(self, file: str) -> int | None:
        """The number of the cell that IPython compiled under this file name."""
        number = getattr(self._shell.compile, "_filename_map", {}).get(file)
        return number if isinstance(number, int) else None

    def _check(self, out: Outgoing, belief: Belief, limit_bytes: int) -> None:
        for name, problem in out.problems.items():
            if name in out.forced:
                continue
            if name not in belief.names:
                self._once(name, problem, f"not sent: {problem}")
        lacking = {
            name: out.sizes[name]
            for name, digest in out.digests.items()
            if name not in out.forced and not belief.has(name, digest)
            if name in belief.sent or name not in belief.names  # else the session has its own, and keeps it
        }
        if sum(lacking.values()) > limit_bytes:
            largest = max(lacking, key=lambda name: lacking[name])
            total = size(sum(lacking.values()))
            which = f"{largest} ({size(lacking[largest])})"
            if len(lacking) > 1:
                which += f" and {len(lacking) - 1} more, {total} in all"
            raise UsageError(
                f"the cell reads {which}, which the session does not have; more than {limit_bytes / 2**20:.4g} MiB go "
                f"only when asked: -i {largest} sends it, --no-capture runs without, %config KCoral.capture_bytes is "
                "the limit"
            )

    def _once(self, name: str, what: str, text: str) -> None:
        if self._told.get(name) != what:
            self._told[name] = what
            self.notes.append(text)


def _module_of(value: Any) -> str:
    """The module that a value is, or that its class or itself is found in by name."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    return str(getattr(named, "__module__", ""))


def refused(out: Outgoing) -> ValueRefused | None:
    """What to raise for values of ``-i`` that cannot travel."""
    problems = [text for name, text in out.problems.items() if name in out.forced]
    return ValueRefused("; ".join(problems)) if problems else None


def lines(out: Outgoing) -> Callable[[tuple[t.BoundName, ...]], list[str]]:
    """What to say of what a session took and kept."""
    from kcoral_magic.values.digest import shown

    def say(names: tuple[t.BoundName, ...]) -> list[str]:
        told = []
        # A module is only its name: that goes without saying.
        modules = {name for name, digest in out.digests.items() if digest.startswith("m")}
        new = [bound.name for bound in names if bound.what == "new" and bound.name not in modules]
        if new:
            told.append(f"sent {_listed([_described(name, out, shown) for name in new])}")
        changed = [bound for bound in names if bound.what == "changed"]
        if changed:
            told.append(f"sent again {_listed([_change(bound, out, shown) for bound in changed])}")
        for bound in names:
            here = shown(out.values[bound.name]) if bound.name in out.values else "another"
            if bound.what == "kept":
                other = f"the notebook's ({here})" if here != bound.was else "the notebook's"
                told.append(
                    f"{bound.name} is the session's own ({bound.was}); {other} was not sent, -i {bound.name} sends it"
                )
            elif bound.what == "missing":
                told.append(f"{bound.name} did not arrive: {bound.was}")
        return told

    return say


def _described(name: str, out: Outgoing, shown: Callable[[Any], str]) -> str:
    text = shown(out.values[name]) if name in out.values else ""
    large = out.sizes.get(name, 0)
    return f"{name} ({text}, {size(large)})" if large >= 1000 else f"{name} ({text})"


def _change(bound: t.BoundName, out: Outgoing, shown: Callable[[Any], str]) -> str:
    now = shown(out.values[bound.name]) if bound.name in out.values else ""
    return f"{bound.name} {bound.was} → {now}" if bound.was != now else f"{bound.name} ({now}, changed)"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more
