"""Tab on a ``%kcoral`` or ``%%kcoral`` line: subcommands, options, session names. Never the network: it must not stall.

An IPython matcher (API version 2): on our lines it suppresses the others, which would offer Python names there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher

_SENDS = ("-i", "--in")
_FETCHES = ("-o", "--out")
_TAKES_SESSION = ("interrupt", "restart", "close")


class Completer:
    """Completes from the option tables the magics themselves use."""

    def __init__(
        self,
        cell_options: Sequence[str],
        subcommands: Mapping[str, Sequence[str]],
        session_names: Callable[[], Sequence[str]],
        here: Callable[[], Sequence[str]] = list,
        there: Callable[[str], Sequence[str]] = lambda session: (),
        tools: Mapping[str, Callable[[], Sequence[str]]] | None = None,
    ) -> None:
        """``tools`` are words that a cell's line may begin with, with what gives their options."""
        self._tools = tools or {}
        self._here = here
        self._there = there
        self._cell_options = cell_options
        self._subcommands = subcommands
        self._session_names = session_names

    @context_matcher(identifier="kcoral_magic")  # type: ignore[untyped-decorator]  # IPython is partly annotated
    def match(self, context: Any) -> dict[str, Any]:
        """IPython's matcher, with its ``CompletionContext``."""
        line = context.text_until_cursor
        if not line.lstrip().startswith(("%kcoral ", "%%kcoral ")):
            return {"completions": []}
        found = [SimpleCompletion(text=text, type="param") for text in self.candidates(line)]
        return {"completions": found, "suppress": True, "ordered": True}

    def candidates(self, line: str) -> list[str]:
        """What the word at the end of ``line`` may become."""
        magic, *words = line.split()
        symbol = "" if line[-1:].isspace() or not words else words.pop()
        if words[-1:] and words[-1] in (*_SENDS, *_FETCHES):
            return self._names(words, symbol)
        return [text for text in self._offers(magic, words, symbol) if text.startswith(symbol)]

    def _names(self, words: Sequence[str], symbol: str) -> list[str]:
        """Names of the notebook after ``-i``, of the session after ``-o``; the word may hold several already."""
        done, comma, start = symbol.rpartition(",")
        session = words[words.index("--session") + 1] if "--session" in words[:-1] else ""
        names = self._here() if words[-1] in _SENDS else self._there(session)
        return [f"{done}{comma}{name}" for name in names if name.startswith(start)]

    def _offers(self, magic: str, done: list[str], symbol: str) -> Sequence[str]:
        if done[-1:] == ["--session"]:
            return self._session_names()
        if done[-1:] == ["--gpus"]:
            return ["1", "2", "4", "8", "all"]
        if done[:1] and done[0] in self._tools:
            own = self._tools[done[0]]()
            words = ("view", "diff", "log") if magic == "%kcoral" and len(done) == 1 else ()
            return [*words, *(option for option in own if option not in done)]
        if magic == "%%kcoral":
            tools = [] if done or symbol.startswith("-") else list(self._tools)
            repeatable = (*_SENDS, *_FETCHES)
            return tools + [option for option in self._cell_options if option not in done or option in repeatable]
        if not done:
            return [*self._subcommands, *self._tools]
        if done[0] in _TAKES_SESSION and not symbol.startswith("-"):
            return self._session_names()
        return [option for option in self._subcommands.get(done[0], ()) if option not in done]
