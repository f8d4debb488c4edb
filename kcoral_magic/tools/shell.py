"""``run shell 'make && ./bench'`` or ``run shell PROGRAM ARGS``."""

from __future__ import annotations

from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import Command, Tool, application


def command(words: Sequence[str]) -> Command:
    """One word is a line for the shell; several are a program and its arguments, passed as they are."""
    if not words:
        raise UsageError("what should run? shell 'make && ./bench', or shell PROGRAM ARGS")
    argv = ("/bin/bash", "-c", words[0]) if len(words) == 1 else tuple(words)
    return Command(argv, sources=application(words))


TOOL = Tool("shell", "a shell's line, or a program with its arguments", "'LINE' | PROGRAM [ARGS]", command)
