"""Tools: programs that run where the GPUs are, as if they ran here. One file a tool; ``TOOLS`` is their table."""

from __future__ import annotations

from kcoral_magic.tools import compute_sanitizer, iket, ncu, python, shell
from kcoral_magic.tools.base import Command, Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (python.TOOL, shell.TOOL, compute_sanitizer.TOOL, ncu.TOOL, iket.TOOL)
}

__all__ = ["TOOLS", "Command", "Tool"]
