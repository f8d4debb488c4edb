"""``run compute-sanitizer [OPTIONS] PROGRAM ARGS``: NVIDIA's checker for memory faults and races of kernels."""

from __future__ import annotations

from collections.abc import Sequence

from kcoral_magic.errors import UsageError
from kcoral_magic.tools.base import OUTPUTS, Command, Tool, application, without_separator

HINT = "compute-sanitizer comes with the CUDA toolkit (cuda-sanitizer), on the GPU host"


def command(words: Sequence[str]) -> Command:
    """``words`` are its options and the program it checks."""
    words = without_separator(words)
    if not words:
        raise UsageError("what should be checked? compute-sanitizer --tool memcheck python script.py")
    return Command(
        ("compute-sanitizer", *words), {"PYTHONUNBUFFERED": "1"}, application(words), folder=OUTPUTS, hint=HINT
    )


TOOL = Tool("compute-sanitizer", "NVIDIA's checker of memory and races", "[OPTIONS] PROGRAM [ARGS]", command)
