"""``run ncu [OPTIONS] PROGRAM ARGS``: NVIDIA's kernel profiler; its report comes back."""

from __future__ import annotations

from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import OUTPUTS, Command, Tool, application, without_separator

REPORT = "capture.ncu-rep"
HINT = "ncu comes with the CUDA toolkit or Nsight Compute, on the GPU host"
_OURS = ("--export", "-o", "--config-file")


def command(words: Sequence[str]) -> Command:
    """``words`` are its options and the program it profiles; where the report goes is ours to say."""
    words = without_separator(words)
    if not words:
        raise UsageError("what should be profiled? ncu --set full python script.py")
    if taken := [word for word in words if word.partition("=")[0] in _OURS]:
        raise UsageError(f"{taken[0]} is set by kcoral: the report comes back as {REPORT}, --out says where to")
    env = {"PYTHONUNBUFFERED": "1", "NCU_PROFILE": "1"}
    return Command((*beginning(), *words), env, application(words), folder=OUTPUTS, hint=HINT)


def beginning() -> tuple[str, ...]:
    """The beginning of its command line: what is ours to say."""
    return ("ncu", "--config-file", "off", "--force-overwrite", "--export", f"{OUTPUTS}/{REPORT}")


TOOL = Tool("ncu", "NVIDIA's kernel profiler; its report comes back", "[OPTIONS] PROGRAM [ARGS]", command)
