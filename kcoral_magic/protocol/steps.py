"""The messages that programs travel in: a body of instructions instead of a cell.

A program holds a GPU only while an instruction needs one: its worker asks for the *turn* before, and gives it back for
calls that said they need none.
"""

from __future__ import annotations

from typing import Literal

from kcoral_magic.protocol.wire import ExecutionId, Number, Short, Text, Wire

ErrorKind = Literal[
    "parse", "compile", "runtime", "gpu_access", "correctness", "serialization", "unavailable", "engine", "timeout"
]
Format = Literal["values", "kcoral"]  # of what is returned: parcels of ``values``, or ``protocol.outcome``


class Step(Wire, frozen=True):
    """An instruction that may run the program's own code begins. What happens next is attributed to it."""

    index: Number
    op: Short
    instruction_id: Short = ""


class Failed(Wire, frozen=True):
    """Instruction ``index`` failed, and nothing after it ran. ``Error`` tells what was raised."""

    kind: ErrorKind
    index: Number
    op: Short
    instruction_id: Short = ""
    message: Text = ""


class RunProgram(Wire, frozen=True):
    """Run a program in the worker. Buffers: its JSON.

    ``takes_turns``: its GPUs are shared with others, ask before each use. ``takes_pickles``: of what is returned.
    """

    execution_id: ExecutionId
    format: Format = "values"
    takes_turns: bool = False
    takes_pickles: bool = False
    python: Short = ""


class Turn(Wire, frozen=True):
    """Worker → host: the running program needs its GPUs from here on, or does not."""

    is_wanted: bool


class TurnAsked(Wire, frozen=True):
    """Host → gateway: what ``Turn`` said, of this execution."""

    execution_id: ExecutionId
    is_wanted: bool


class TurnGranted(Wire, frozen=True):
    """Gateway → host → worker: the GPUs are the program's."""

    execution_id: ExecutionId
