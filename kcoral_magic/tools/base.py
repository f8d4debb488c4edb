"""What a tool is: from the words a person writes to the command that runs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OUTPUTS = "kcoral-outputs"  # the folder of the workspace that tools write their files to


@dataclass(frozen=True)
class Command:
    """What runs there.

    Attributes:
        argv: The program and its arguments.
        env: Variables over the worker's.
        sources: Files here that it needs: programs and what they import.
        folder: Made there before, for what it writes; its files come back.
        hint: What to do where there is no such program.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    folder: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Tool:
    """A line in the table. ``command`` raises ``UsageError`` for words that make no command."""

    name: str
    help: str
    usage: str
    command: Callable[[Sequence[str]], Command]


def application(words: Sequence[str]) -> tuple[str, ...]:
    """The files here that a command line names: those come along.

    Only names below the folder we are in: another path means a file of the machine there.
    """
    import os

    found = []
    for word in words:
        if not os.path.isabs(word) and ".." not in word.split("/") and os.path.isfile(word):
            found.append(word)
    return tuple(found)
