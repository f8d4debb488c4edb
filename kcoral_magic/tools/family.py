"""The tools that a cell runs under or with, by name: ``%%kcoral ncu``, ``%%kcoral sanitize`` and so on.

Modules are loaded when their tool is met: most notebooks meet none.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

from kcoral_magic.tools.cell import Ran, Under
from kcoral_magic.tools.job import Done


@dataclass(frozen=True)
class Shown:
    """What a tool has to show, and what the cell raises after it was shown."""

    value: Any
    error: BaseException | None = None
    beside: Any = None


class CellTool(Protocol):
    """A module of this table."""

    USAGE: str
    WHERE: Literal["under", "inside", "apart"]  # in a process under it, in the session as it is, or without one

    RUN: str  # of one that is ``under``: the tool that ``run`` knows, for programs

    # Of one that is not ``under``: ``start`` and ``ended``, and ``reads`` of one that is ``inside``.

    def add_options(self, to: argparse.ArgumentParser) -> None:
        """What it takes."""

    def under(self, options: argparse.Namespace) -> Under:
        """Its command line around a cell."""

    def words(self, options: argparse.Namespace) -> list[str]:
        """Its command line around a program, as ``run`` takes it."""

    def offline(self, words: list[str]) -> Any:
        """What a line shows of files that lie here; none if it is about a program."""

    def shown(self, done: Done, options: argparse.Namespace, ran: Ran | None) -> Shown:
        """What came of it; ``ran`` says how a cell ended.

        Raises:
            ToolFailed: There is nothing to show; the message says why and what to do.
        """


# name -> module, what it does
TOOLS = {
    "ncu": ("kcoral_magic.tools.ncu_report", "profile the kernels of this cell, and show the report"),
    "asm": ("kcoral_magic.tools.asm", "CUDA C++ or a Triton kernel: source, PTX, SASS and what it uses; no GPU needed"),
    "bench": ("kcoral_magic.tools.bench", "time it: correct first, against a baseline, with a verdict"),
    "iket": ("kcoral_magic.tools.iket_report", "events inside its kernels (CUTLASS's run-iket), as ranges and lanes"),
    "profile": ("kcoral_magic.tools.torch_profile", "torch.profiler around it, in the session as it is"),
    "sanitize": ("kcoral_magic.tools.sanitize", "look for memory faults and races in its kernels"),
}

# Lines of a notebook, for the help.
LINES = (
    ("%kcoral ncu [options] script.py ARGS", "the same of a program"),
    ("%kcoral ncu view FILE", "a report that lies here; no gateway is asked"),
    ("%kcoral ncu diff BEFORE AFTER", "what changed from one report to the other"),
    ("%kcoral sanitize [options] script.py ARGS", "the same of a program; sanitize view FILE reads its XML or text"),
    ("%kcoral bench log NAME", "every result that was kept as NAME"),
)


def offline(name: str, words: list[str]) -> Any:
    """What a line shows that needs no gateway, if it is one."""
    return find(name).offline(words)


def find(name: str) -> CellTool:
    """The tool of this name, which is in ``TOOLS``."""
    module: Any = import_module(TOOLS[name][0])
    return module  # type: ignore[no-any-return]  # a module is its own protocol
