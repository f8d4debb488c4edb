"""Tab on a ``%kcoral`` or ``%%kcoral`` line: subcommands, options, session names. Never the network: it must not stall.

IPython asks ``complete_command`` hooks with the line so far; the first word is the magic's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Completer:
    """Completes from the option tables the magics themselves use."""

    def __init__(
        self,
        cell_options: Sequence[str],
        subcommands: dict[str, Sequence[str]],
        session_names: Callable[[], Sequence[str]],
    ) -> None:
        self._cell_options = cell_options
        self._subcommands = subcommands
        self._session_names = session_names

    def __call__(self, completer: Any, event: Any) -> list[str]:
        """IPython's hook: the candidates for ``event.symbol``."""
        words = event.line.split()
        is_cell = event.line.lstrip().startswith("%%")
        symbol = event.symbol
        done = words[1:] if not symbol else words[1:-1]
        if (done and done[-1] == "--session") or (
            not is_cell and done[:1] in (["restart"], ["close"], ["interrupt"]) and not symbol.startswith("-")
        ):
            candidates: Sequence[str] = self._session_names()
        elif done and done[-1] == "--gpus":
            candidates = ["1", "2", "4", "8", "all"]
        elif is_cell:
            candidates = [option for option in self._cell_options if option not in done]
        elif not done:
            candidates = list(self._subcommands)
        else:
            candidates = [option for option in self._subcommands.get(done[0], ()) if option not in done]
        return [candidate for candidate in candidates if candidate.startswith(symbol)]
