"""``run python script.py ARGS``, ``-c CODE`` or ``-m MODULE``: the session's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import Command, Tool, application


def command(words: Sequence[str]) -> Command:
    """``words`` are python's own arguments. Its output is not buffered, so that it comes live."""
    if not words:
        raise UsageError("what should python run? python script.py, python -c CODE or python -m MODULE")
    return Command(("python", *words), {"PYTHONUNBUFFERED": "1"}, application(words))


TOOL = Tool("python", "a script, -c CODE or -m MODULE, with the modules beside it", "script.py [ARGS]", command)
