"""What a tool shows: HTML for people, and beside it the same as data, for programs and agents.

The data goes under a type of its own: JupyterLab prefers ``application/json`` to HTML and would show a tree of it.
``--json`` asks for ``application/json`` instead of a page.
"""

from __future__ import annotations

import json
from typing import Any

MOST_JSON = 64 * 1024  # bytes of what agents get unasked


class Twin:
    """Gives a notebook text, HTML and data. ``KIND`` is the word in its type: ``application/vnd.kcoral.KIND+json``."""

    KIND = ""

    def html(self) -> str:
        """A page of it."""
        raise NotImplementedError

    def json(self) -> dict[str, Any]:
        """It as plain data."""
        raise NotImplementedError

    def compact(self) -> dict[str, Any]:
        """As much of the data as an agent should get unasked."""
        return fitting(self.json())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        twin = f"application/vnd.kcoral.{self.KIND}+json"
        return {"text/plain": repr(self), "text/html": self.html(), twin: self.json()}


class AsJson:
    """A result as ``--json`` shows it: data, and one line of text."""

    def __init__(self, value: Twin) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value).partition("\n")[0]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "application/json": self.value.compact()}


def fitting(made: dict[str, Any], most: int = MOST_JSON) -> dict[str, Any]:
    """The data with its longest lists shortened until it fits; ``cut`` says which were how long."""
    cut: dict[str, int] = {}
    while len(json.dumps(made)) > most:
        lists = {name: value for name, value in made.items() if isinstance(value, list) and len(value) > 1}
        if not lists:
            break
        name = max(lists, key=lambda key: len(json.dumps(lists[key])))
        cut.setdefault(name, len(lists[name]))
        made = {**made, name: lists[name][: len(lists[name]) // 2], "cut": cut}
    return made
