"""A notebook's cell under a tool: copied from its session into a fresh worker, run there, and what came of it.

Two executions: one in the session, which says what the cell needs of it, and one beside it on the same GPUs, where the
tool runs. What is copied passes through here as bytes and is not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcoral_magic.client.exchange import Outgoing
from kcoral_magic.client.files import FileSet
from kcoral_magic.client.results import exception_of
from kcoral_magic.errors import ExecutionLost, ExecutionTimeout, ValueRefused
from kcoral_magic.protocol import messages as m
from kcoral_magic.tools import job
from kcoral_magic.tools import said as said_by
from kcoral_magic.tools.base import OUTPUTS

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Execution, Session

_MOST_NAMES = 10_000
_COPYING = "__import__('kcoral_gateway.worker.copying', fromlist=['copied'])"
_REPLICA = "__import__('kcoral_gateway.worker.replica', fromlist=['run'])"
_ORDER, _DONE = "__kcoral_order", "__kcoral_done"
_TEXT, _LONG = 4000, 1_000_000  # characters of an error's names, and of its texts
_MOST_PROBLEMS = 50


@dataclass(frozen=True)
class Body:
    """A cell: its text, its place in the notebook, and the names it reads."""

    source: str
    reads: tuple[str, ...] = ()
    count: int = 1
    first_line: int = 1


@dataclass(frozen=True)
class Under:
    """The tool that a cell runs under.

    Attributes:
        prefix: Its command line, which the cell's process follows.
        late: Options for when it should begin with the cell and not before: the session has setup cells.
        hint: What to do where there is no such program.
    """

    prefix: tuple[str, ...]
    late: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""


@dataclass(frozen=True)
class Ran:
    """What came of it.

    Attributes:
        cell: How the cell ended: ok, error, timeout or setup; none if it did not begin or was killed.
        error: What the cell raised.
        done: What the tool left behind.
    """

    done: job.Done
    cell: str | None
    error: BaseException | None
    problems: tuple[str, ...]

    @property
    def lost(self) -> ExecutionLost | None:
        """That the cell was killed or left its process, if the tool has something to show all the same."""
        if self.cell is not None or self.done.status in (job.NOT_FOUND, job.TIMED_OUT):
            return None
        return ExecutionLost(f"the cell's process ended before the cell did (exit status {self.done.status})")


def remember(session: Session, body: Body) -> Execution:
    """Mark a cell that has run as one that rebuilds state."""
    return session.execute(
        f"{_COPYING}.remember(__kcoral_setup, {body.count}, {body.first_line})", send={"__kcoral_setup": body.source}
    )


def copy(session: Session, body: Body, out: Outgoing | None, files: FileSet | None, **options: Any) -> Execution:
    """Ask the session what the cell needs of it; what the cell reads of the notebook goes there on the way."""
    wants = [("copied", f"{_COPYING}.copied({list(body.reads)!r})")]
    return session.execute("", out=out, files=files, wants=wants, **options)


def run(
    session: Session, body: Body, copied: Mapping[str, Any], under: Under, *, timeout_s: float | None, **options: Any
) -> Execution:
    """Start the cell under the tool, beside the session."""
    is_late = bool(under.late) and bool(copied["setup"] or copied.get("has_cuda") is True)
    prefix = [*under.prefix, *(under.late if is_late else ())]
    order = {
        "pickles": copied["pickles"],
        "buffers": list(copied["buffers"]),
        "setup": list(copied["setup"]),
        "each": copied["each"],
        "files": copied["files"],
        "source": body.source,
        "count": body.count,
        "first_line": body.first_line,
        "is_late": is_late,
    }
    call = f"run({_ORDER}, prefix={prefix!r}, env={dict(under.env)!r}, folder={OUTPUTS!r}, hint={under.hint!r}"
    return session.execute(
        f"# {under.prefix[0]}: a cell under it\n{_DONE} = {_REPLICA}.{call}, timeout_s={timeout_s!r})",
        send={_ORDER: order},
        wants=[("done", _DONE)],
        is_fresh=True,
        timeout_s=None if timeout_s is None else timeout_s + 2 * job.MARGIN_S,
        **options,
    )


def checked(copied: Any) -> dict[str, Any]:
    """What a session says of its names, as far as it is that.

    Raises:
        ValueRefused: It is something else.
    """
    kinds: dict[str, Callable[[Any], bool]] = {
        "pickles": lambda one: isinstance(one, bytes | memoryview),
        "buffers": lambda one: isinstance(one, list) and all(isinstance(part, bytes | memoryview) for part in one),
        "setup": lambda one: isinstance(one, list) and all(map(_is_setup, one)),
        "each": lambda one: isinstance(one, dict) and len(one) <= _MOST_NAMES and all(map(_is_name, one.values())),
        "files": lambda one: isinstance(one, bytes | memoryview),
        "problems": lambda one: isinstance(one, list) and all(isinstance(part, str) for part in one),
    }
    if not isinstance(copied, dict) or not all(name in copied and kind(copied[name]) for name, kind in kinds.items()):
        raise ValueRefused("the session did not say what the cell needs of it")
    return {**copied, "problems": list(said_by.texts(copied["problems"], _MOST_PROBLEMS, 500))}


def _is_name(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("pickles"), bytes | memoryview)


def _is_setup(cell: Any) -> bool:
    return isinstance(cell, tuple) and len(cell) == 3 and all(map(isinstance, cell, (str, int, int)))


def ended(execution: Execution) -> Ran:
    """Wait, and read what came of it.

    Raises:
        Exception: It did not run, or was lost.
    """
    done = job.done_of(execution)
    said = done.said
    given = said.get("cell")
    cell = given if isinstance(given, str) and given in ("ok", "error", "timeout", "setup") else None
    error = _error(said.get("error"), execution.execution_id)
    if cell == "timeout":
        error = ExecutionTimeout("the cell ran longer than --timeout; what the tool had until then is kept")
    return Ran(done, cell, error, done.problems)


def _error(said: Any, execution_id: str) -> BaseException | None:
    """What the cell raised, as an exception of this process: the worker's word is a stranger's."""
    if not isinstance(said, dict):
        return None
    texts = said_by.texts(said.get("texts"), 3, _LONG)
    names = [said_by.text(said.get(key), _TEXT) for key in ("ename", "module", "qualname")]
    error = m.Error(names[0] or "Error", names[1], names[2], said.get("is_interrupt") is True)
    return exception_of(error, [text.encode() for text in texts], execution_id)
