"""One run of a tool: its files there, its output here as it comes, its artifacts saved, its status told.

No terminal, no IPython: whoever runs it says where output goes and when to stop.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kcoral_magic.client.files import Digests, FileSet, LocalFile, place_for, to_send
from kcoral_magic.errors import ExecutionTimeout, UsageError, ValueRefused
from kcoral_magic.protocol import messages as m
from kcoral_magic.tools import TOOLS, Command

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution

TIMED_OUT = 124  # timeout(1)'s
_ORDER, _DONE = "__kcoral_order", "__kcoral_done"
_RUN = f"{_DONE} = __import__('kcoral_gateway.worker.tool', fromlist=['run']).run(**{_ORDER})"
_MARGIN_S = 60.0  # the tool's own limit comes first, and what it wrote goes back; the session's is for what is stuck


@dataclass(frozen=True)
class Ask:
    """What a person asked for.

    Attributes:
        words: The tool's own.
        session: A named one, whose workspace and variables stay; without one it runs alone.
        send: Files, folders and globs that go there before.
        fetch: Those that come back after.
        out: The folder here that they come to.
    """

    tool: str
    words: Sequence[str]
    gpus: int | Literal["all"] | None = None
    session: str | None = None
    python: str | None = None
    send: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    out: str = "."
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    reads_input: bool = False
    sends_code: bool = True


@dataclass(frozen=True)
class Ended:
    """How it ended: its exit status, what was saved here, and why something was not."""

    status: int
    saved: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def command_of(ask: Ask) -> Command:
    """The command of a tool.

    Raises:
        UsageError: There is no such tool, or the words make no command.
    """
    tool = TOOLS.get(ask.tool)
    if tool is None:
        raise UsageError(f"there is no tool {ask.tool!r}: {', '.join(TOOLS)}")
    words = list(ask.words)
    return tool.command(words[1:] if words[:1] == ["--"] else words)


def start(client: Client, ask: Ask) -> Execution:
    """Send the files and start it.

    Raises:
        UsageError: A file to be sent is not there.
        KCoralError: It cannot be sent.
    """
    command = command_of(ask)
    digests = Digests()
    files = to_send(ask.send, "", digests)
    for name in command.sources:
        files.setdefault(Path(name).as_posix(), digests.look(Path(name)))
    env = {**command.env, **ask.env}
    if ask.sends_code and any(name.endswith(".py") for name in command.sources):
        from kcoral_magic.client.sources import ELSEWHERE  # not without a script

        files = {**_imported(command.sources, digests), **files}
        if roots := sorted({"/".join(path.split("/")[:2]) for path in files if path.startswith(f"{ELSEWHERE}/")}):
            env["PYTHONPATH"] = ":".join([*roots, *([env["PYTHONPATH"]] if "PYTHONPATH" in env else [])])
    order: dict[str, Any] = {
        "argv": list(command.argv),
        "env": env,
        "reads_input": ask.reads_input,
        "timeout_s": ask.timeout_s,
        "fetch": [*([command.folder] if command.folder else []), *ask.fetch],
        "folder": command.folder,
        "hint": command.hint,
    }
    return client.session(ask.session or "", gpus=ask.gpus, python=ask.python).execute(
        f"# run {shlex.join((ask.tool, *command.argv[1:]))[:200]!r}\n{_RUN}",  # by which lists know it
        send={_ORDER: order},
        wants=[("done", _DONE)],
        files=FileSet(files) if files else None,
        timeout_s=None if ask.timeout_s is None else ask.timeout_s + _MARGIN_S,
        queue_timeout_s=ask.queue_timeout_s,
        is_alone=ask.session is None,
        allows_input=ask.reads_input,
        place=m.Place(1, 1),
    )


def _imported(sources: Sequence[str], digests: Digests) -> dict[str, LocalFile]:
    """What lies beside programs and is imported by them, by its path there."""
    from kcoral_magic.client.sources import ELSEWHERE, Sources

    found: dict[str, LocalFile] = {}
    for name in sources:
        if not name.endswith(".py") or not (tops := _tops(Path(name))):
            continue
        folder = Path(name).resolve().parent
        sys.path.insert(0, str(folder))  # as python does with a script's folder
        try:
            beside = Sources(folder, digests).of_modules(tops)
        finally:
            sys.path.remove(str(folder))
        there = Path(name).parent.as_posix()
        for path, file in beside.items():
            found[path if there == "." or path.startswith(f"{ELSEWHERE}/") else f"{there}/{path}"] = file
    return found


def _tops(script: Path) -> set[str]:
    """The top-level modules that a script imports."""
    import ast

    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError, OSError):  # python will say so there
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def ended(execution: Execution, ask: Ask) -> Ended:
    """Save what came back.

    Raises:
        Exception: It did not run, or was lost.
    """
    try:
        done = execution.result().values.get("done")
    except ExecutionTimeout as error:
        return Ended(TIMED_OUT, problems=(str(error),))
    if not isinstance(done, dict) or not isinstance(done.get("status"), int):
        raise ValueRefused("the worker did not say how the tool ended")
    saved, problems = [], [str(text) for text in done.get("problems", ())]
    base = Path(ask.out)
    for path, mode, data in done.get("files", ()):
        try:
            place = place_for(base, path.partition("/")[2] if path.startswith("kcoral-outputs/") else path)
            place.write_bytes(data)
            place.chmod(0o644 | (mode & 0o111))
            saved.append(place)
        except (OSError, ValueRefused, AttributeError, TypeError, UsageError) as error:
            problems.append(f"{path!s:.200}: {error}")
    return Ended(done["status"], tuple(saved), tuple(problems))
