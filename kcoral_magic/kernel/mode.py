"""Where a cell runs: ``%kcoral on`` makes plain cells remote, local mode makes marked cells plain.

An input transformer of IPython's, before all others: it puts a ``%%kcoral`` line above a plain cell, or turns one (and
``%%local``) into a comment, so that what then runs here runs as any cell does, with its own line numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from kcoral_magic.kernel.options import NAME, split

LOCAL_ENV = "KCORAL_MAGIC_LOCAL"
# Magics that speak to the notebook itself, not to the code: a cell of these alone stays here.
_FRONT_END = frozenset(
    "kcoral load_ext reload_ext unload_ext config history hist notebook autosave connect_info qtconsole gui macro edit "
    "recall rerun save pastebin alias_magic lsmagic magic quickref subshell".split()
)


class Mode:
    """Whether plain cells are remote, and whether marked ones are local."""

    def __init__(self, parse: Callable[[list[str]], argparse.Namespace]) -> None:
        self._parse = parse
        self._is_suspended = False
        self.is_on = False
        self.is_local = os.environ.get(LOCAL_ENV, "").lower() in ("1", "true", "yes", "on")

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, cells are transformed as without us."""
        before, self._is_suspended = self._is_suspended, True
        try:
            yield
        finally:
            self._is_suspended = before

    def transform(self, lines: list[str]) -> list[str]:
        """IPython's hook: the lines of a cell, each with its end."""
        first = next((number for number, line in enumerate(lines) if line.strip()), None)
        if first is None or self._is_suspended:
            return lines
        word = lines[first].split()[0]
        if word == "%%local":
            return [*lines[:first], "#" + lines[first], *lines[first + 1 :]]
        if word == f"%%{NAME}":
            return self._here(lines, first) if self.is_local else lines
        if self.is_on and not self.is_local and not _is_for_front_end(lines):
            return [f"%%{NAME}\n", *lines]
        return lines

    def _here(self, lines: list[str], first: int) -> list[str]:
        try:
            options = self._parse(split(lines[first].strip())[1:])
        except Exception:  # noqa: BLE001 - the magic itself says what is wrong with its line
            return lines
        body = [*lines[:first], "#" + lines[first], *lines[first + 1 :]]
        results = [want for want in options.outputs or () if "=" in want]
        if results and body[-1:] and not body[-1].endswith("\n"):
            body[-1] += "\n"
        return [*body, *(f"{want}\n" for want in results)]


def _is_for_front_end(lines: list[str]) -> bool:
    code = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return bool(code) and all(_is_front_end(line) for line in code)


def _is_front_end(line: str) -> bool:
    if line.startswith("%"):
        return line.lstrip("%").split(maxsplit=1)[0] in _FRONT_END if line.lstrip("%").strip() else False
    return line.startswith("?") or (line.endswith("?") and not line.startswith("!"))


def with_defaults(options: argparse.Namespace, defaults: dict[str, Any]) -> argparse.Namespace:
    """``options`` with ``%kcoral use``'s where the line says nothing."""
    for name, value in defaults.items():
        given = getattr(options, name, None)
        if given is None or given is False:  # 0 is a count of GPUs
            setattr(options, name, value)
    return options
