"""``run python script.py ARGS``, ``-c CODE`` or ``-m MODULE``: the session's interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import Command, Tool, application, is_below

_ENV = {"PYTHONUNBUFFERED": "1"}  # its output comes live
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def command(words: Sequence[str]) -> Command:
    """``words`` are python's own arguments.

    Raises:
        UsageError: There are none, or its script lies here where it cannot go along.
    """
    argv = ("python", *words)
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        if word in ("-c", "-m") and place + 1 < len(words):
            given, rest = words[place + 1], application(words[place + 2 :])
            if word == "-c":
                return Command(argv, _ENV, rest, code=given)
            return Command(argv, _ENV, rest, modules=(given.partition(".")[0],))
        place += 2 if word in _WITH_VALUE else 1
    if not words:
        raise UsageError("what should python run? python script.py, python -c CODE or python -m MODULE")
    if place < len(words) and os.path.isfile(words[place]) and not is_below(words[place]):
        text = f"{words[place]} lies outside of this folder, and what goes along lies below it"
        raise UsageError(f"{text}: run from the script's folder, or --send it and name it by its place there")
    return Command(argv, _ENV, application(words))


TOOL = Tool("python", "a script, -c CODE or -m MODULE, with the modules beside it", "script.py [ARGS]", command)
