"""What a tool is: from the words a person writes to the command that runs there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OUTPUTS = "kcoral-outputs"  # the folder of the workspace that tools write their files to


@dataclass(frozen=True)
class Command:
    """What runs there.

    Attributes:
        argv: The program and its arguments.
        env: Variables over the worker's.
        sources: Files here that it needs: programs, whose imports come along.
        code: Python that it runs, if that is no file.
        modules: Those that it runs by name.
        folder: Made there before, for what it writes; its files come back.
        hint: What to do where there is no such program.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    code: str = ""
    modules: tuple[str, ...] = ()
    folder: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Tool:
    """A line in the table. ``command`` raises ``UsageError`` for words that make no command."""

    name: str
    help: str
    usage: str
    command: Callable[[Sequence[str]], Command]
    aliases: tuple[str, ...] = ()


def application(words: Sequence[str]) -> tuple[str, ...]:
    """The files here that a command line names: those come along.

    Only names below the folder we are in: another path means a file of the machine there.
    """
    return tuple(word for word in words if is_below(word) and os.path.isfile(word))


def is_below(path: str) -> bool:
    """Whether a path leads to a place below the folder we are in."""
    return not os.path.isabs(path) and ".." not in path.split("/")


def without_separator(words: Sequence[str]) -> tuple[str, ...]:
    """``--set full -- python a.py`` as NVIDIA's tools take it, which know no ``--`` before the program."""
    words = tuple(words)
    if "--" not in words:
        return words
    place = words.index("--")
    return words[:place] + words[place + 1 :]
