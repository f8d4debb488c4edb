"""What the scripts share. They run in KCoral's environment: nothing of this repository can be imported but this folder.

A script's functions are its cases, each called with a client: ``python programs.py CASE [ARGUMENT…]``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kcoral import Client, Program, Register

E = TypeVar("E", bound=BaseException)


class Calls(Program):
    """A program of calls of functions of ``remote.py``, or of another source."""

    def __init__(self, source: str | None = None, *, cpu_only: bool = True) -> None:
        super().__init__()
        self._cpu_only = cpu_only
        text = Path(__file__).with_name("remote.py").read_text() if source is None else source
        self.module = self.upload(kind="module", source=text)

    def call(self, name: str, *args: Any, key: str = "", of: Register | None = None) -> Register:
        """Call ``name`` of the module, and return what it makes under ``key``, if there is one."""
        function = self.get_function(module=of or self.module, name=name, cpu_only=self._cpu_only)
        made = self.run(fn=function, args=list(args))
        if key:
            self.return_(key=key, value=made)
        return made


def raised(wanted: type[E], what: Callable[..., object], *args: Any, **options: Any) -> E:
    """The exception, of exactly this class, that a call raises."""
    try:
        what(*args, **options)
    except wanted as error:
        found = error
    else:
        raise AssertionError(f"{wanted.__name__} was expected")
    assert type(found) is wanted, type(found)
    return found


def main(cases: dict[str, Any]) -> None:
    """Run the case that the command line names, in a client of its own."""
    name, *arguments = sys.argv[1:]
    with Client(os.environ["KCORAL_URL"]) as client:
        cases[name](client, *arguments)
