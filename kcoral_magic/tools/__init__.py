"""Tools: programs that run where the GPUs are, as if they ran here. One file a tool; ``TOOLS`` is their table."""

from __future__ import annotations

from kcoral_magic.errors import UsageError
from kcoral_magic.tools import compute_sanitizer, iket, ncu, python, shell
from kcoral_magic.tools.base import Command, Tool

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (python.TOOL, shell.TOOL, compute_sanitizer.TOOL, ncu.TOOL, iket.TOOL)
}


def find(name: str) -> Tool:
    """The tool of this name, or of this other name.

    Raises:
        UsageError: There is none.
    """
    for tool in TOOLS.values():
        if name in (tool.name, *tool.aliases):
            return tool
    raise UsageError(f"there is no tool {name!r}: {', '.join(TOOLS)}")


__all__ = ["TOOLS", "Command", "Tool", "find"]
