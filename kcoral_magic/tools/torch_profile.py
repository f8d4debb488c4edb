"""``%%kcoral profile``: torch.profiler around a cell in its session; the way where counters are forbidden."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kcoral_magic.display.trace import TorchReport
from kcoral_magic.errors import RemoteError, ToolFailed, UsageError, ValueRefused
from kcoral_magic.tools import kept
from kcoral_magic.tools import said as said_by
from kcoral_magic.tools.family import Shown

if TYPE_CHECKING:
    from kcoral_magic.client.exchange import Outgoing
    from kcoral_magic.client.files import FileSet
    from kcoral_magic.client.sync import Execution, Session

WHERE = "inside"
USAGE = "%%kcoral profile [options] over a cell"
_ASK = "__import__('kcoral_gateway.worker.torch_profile', fromlist=['run']).run"
_NUMBERS = ("count", "self_cpu_us", "cpu_us", "self_device_us", "memory_bytes")
_ROWS = 1000
_OTHER = "--python NAME chooses another environment"


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell takes."""
    to.add_argument("--save", metavar="FILE", help="where the trace is written (.kcoral/reports)")


def reads(options: argparse.Namespace) -> str:
    """Nothing beside the cell's own names."""
    return ""


def start(
    session: Session,
    cell: str,
    options: argparse.Namespace,
    out: Outgoing | None = None,
    files: FileSet | None = None,
) -> Execution:
    """Run it there."""
    count, first_line = options.place
    return session.execute(
        f"# profile\n__kcoral_profiled = {_ASK}({cell!r}, {count}, {first_line})",
        wants=[("profiled", "__kcoral_profiled")],
        out=out,
        files=files,
        timeout_s=options.timeout,
        queue_timeout_s=options.queue_timeout,
    )


def ended(execution: Execution, cell: str, options: argparse.Namespace) -> Shown:
    """What it says.

    Raises:
        ToolFailed: torch is not there.
        Exception: What the cell raised.
    """
    try:
        said = execution.result().values.get("profiled")
    except (RemoteError, ModuleNotFoundError) as error:
        if "No module named 'torch'" in str(error):
            raise ToolFailed(f"torch is not installed where the session runs: {_OTHER}", "missing") from None
        raise
    if not isinstance(said, dict):
        raise ValueRefused("the worker sent no profile")
    trace = said.get("trace")
    saved, unkept = None, None
    if isinstance(trace, bytes | memoryview) and len(trace):
        try:
            saved = kept.save(bytes(trace), options.save, "torch", ".json.gz")
        except UsageError as error:  # it was profiled, and is shown all the same
            unkept = error
    memory = said.get("memory")
    peaks = memory.items() if isinstance(memory, dict) else ()
    made = TorchReport(
        _rows(said.get("operators")),
        _rows(said.get("kernels")),
        elapsed_s=said_by.number(said.get("elapsed_s")) or 0.0,
        memory={said_by.text(name, 20): size for name, size in list(peaks)[:_ROWS] if said_by.is_small(size)},
        saved=saved,
    )
    return Shown(made, unkept)


def _rows(said: Any) -> list[Mapping[str, Any]]:
    """A worker's rows, as far as they are that."""
    made: list[Mapping[str, Any]] = []
    for row in said[:_ROWS] if isinstance(said, list) else ():
        if not isinstance(row, dict) or any(said_by.number(row.get(name)) is None for name in _NUMBERS):
            raise ValueRefused("the worker sent no profile: a row without its numbers")
        made.append({"name": said_by.text(row.get("name"), 300), **{name: row[name] for name in _NUMBERS}})
    return made


def offline(given: list[str]) -> None:
    """There is none.

    Raises:
        UsageError: Always: it is a cell's.
    """
    raise UsageError(USAGE)
