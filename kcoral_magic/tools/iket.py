"""``run iket profile [OPTIONS] -- PROGRAM ARGS``: events inside kernels (CUTLASS's run-iket); its folder comes back."""

from __future__ import annotations

from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import OUTPUTS, Command, Tool, application

HINT = "run-iket comes with the package nvidia-cutlass-dsl, in the worker's environment"
_OURS = ("--output-dir", "--working-dir", "--clobber")


def command(words: Sequence[str]) -> Command:
    """``words`` begin with run-iket's own command, profile or postprocess."""
    if not words:
        raise UsageError("what should be traced? iket profile --postprocess json -- python script.py")
    if taken := [word for word in words if word.partition("=")[0] in _OURS]:
        raise UsageError(f"{taken[0]} is set by kcoral: what run-iket writes comes back, --out says where to")
    argv = ("run-iket", "--output-dir", OUTPUTS, "--clobber", *words)
    return Command(argv, {"PYTHONUNBUFFERED": "1"}, application(words), folder=OUTPUTS, hint=HINT)


_HELP = "events inside kernels, by run-iket; its files come back"
TOOL = Tool("iket", _HELP, "profile [OPTIONS] -- PROGRAM", command, ("run-iket",))
