"""One run of a tool: its files there, its output here as it comes, its artifacts saved, its status told.

No terminal, no IPython: whoever runs it says where output goes and when to stop.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kcoral_magic.client.files import Digests, FileSet, LocalFile, place_for, to_send
from kcoral_magic.errors import ExecutionTimeout, UsageError, ValueRefused
from kcoral_magic.protocol import messages as m
from kcoral_magic.tools import Command, find
from kcoral_magic.tools import said as said_by
from kcoral_magic.tools.base import OUTPUTS

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution

NOT_FOUND, TIMED_OUT = 127, 124  # as shells and timeout(1) have it
_MOST_PROBLEMS, _PROBLEM = 100, 2000  # those that are told, and the characters of each
_NOT_FETCHED = 1  # the program went well, and what was to come back did not
_ORDER, _DONE = "__kcoral_order", "__kcoral_done"
_RUN = f"{_DONE} = __import__('kcoral_gateway.worker.tool', fromlist=['run']).run(**{_ORDER})"
MARGIN_S = 60.0  # the tool's own limit comes first, and what it wrote goes back; the session's is for what is stuck


@dataclass(frozen=True)
class Ask:
    """What a person asked for.

    Attributes:
        words: The tool's own.
        session: A named one, whose workspace and variables stay; without one it runs alone.
        send: Files, folders and globs that go there before.
        fetch: Those that come back after.
        out: The folder here that they come to, each at its path in the workspace.
        overwrites: Replace what is there and is another.
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
    overwrites: bool = False
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    reads_input: bool = False
    sends_code: bool = True

    @classmethod
    def of(cls, options: argparse.Namespace, *, session: str | None, reads_input: bool) -> Ask:
        """From the words of a command line; ``arguments.add_run_options`` says which there are."""
        return cls(
            tool=options.tool,
            words=options.words,
            gpus=options.gpus,
            session=session,
            python=options.python,
            send=options.send,
            env=dict(options.env),
            fetch=options.fetch,
            out=options.out,
            overwrites=options.overwrite,
            timeout_s=options.timeout,
            queue_timeout_s=options.queue_timeout,
            reads_input=reads_input,
            sends_code=not options.no_sync,
        )


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
    words = list(ask.words)
    return find(ask.tool).command(words[1:] if words[:1] == ["--"] else words)


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
    if ask.sends_code:
        beside, roots = _imported(command, digests)
        files = {**beside, **files}
        if roots:
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
        f"# run {shlex.join((ask.tool, *ask.words))[:200]!r}\n{_RUN}",  # by which lists know it
        send={_ORDER: order},
        wants=[("done", _DONE)],
        files=FileSet(files) if files else None,
        timeout_s=None if ask.timeout_s is None else ask.timeout_s + MARGIN_S,
        queue_timeout_s=ask.queue_timeout_s,
        is_alone=ask.session is None,
        allows_input=ask.reads_input,
        place=m.Place(1, 1),
    )


def _imported(command: Command, digests: Digests) -> tuple[dict[str, LocalFile], list[str]]:
    """What lies beside programs and is imported by them, by its path there; and folders for python to look in."""
    wanted: dict[str, set[str]] = {}  # top-level modules by the folder that python looks in first
    for name in command.sources:
        if name.endswith(".py"):
            wanted.setdefault(Path(name).parent.as_posix(), set()).update(_tops(Path(name).read_bytes()))
    wanted.setdefault(".", set()).update(_tops(command.code.encode()), command.modules)
    found: dict[str, LocalFile] = {}
    roots: set[str] = set()
    for there, tops in wanted.items():
        if not tops:
            continue
        from kcoral_magic.client.sources import ELSEWHERE  # not without modules

        for path, file in _of_modules(Path(there), tops, digests).items():
            if path.startswith(f"{ELSEWHERE}/"):
                roots.add("/".join(path.split("/")[:2]))
            found[path if there == "." or path.startswith(f"{ELSEWHERE}/") else f"{there}/{path}"] = file
    return found, sorted(roots)


def beside(source: str, folder: Path) -> FileSet | None:
    """The modules of ``folder`` that Python code imports, for the root of a workspace."""
    tops = _tops(source.encode())
    found = _of_modules(folder, tops, Digests()) if tops else {}
    return FileSet(found) if found else None


def _of_modules(folder: Path, tops: set[str], digests: Digests) -> dict[str, LocalFile]:
    from kcoral_magic.client.sources import Sources  # not without modules

    folder = folder.resolve()
    sys.path.insert(0, str(folder))
    try:
        return Sources(folder, digests).of_modules(tops)
    finally:
        sys.path.remove(str(folder))


def _tops(source: bytes) -> set[str]:
    """The top-level modules that Python code imports."""
    if not source:
        return set()
    import ast

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # python will say so there
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
    done = done_of(execution)
    saved, problems = [], list(done.problems)
    base = Path(ask.out)
    for path, mode, data in done.files:
        try:
            name = path.partition("/")[2] if path.startswith(f"{OUTPUTS}/") else path
            saved.append(_save(place_for(base, name), data, mode, overwrites=ask.overwrites))
        except (OSError, ValueRefused, UsageError) as error:
            problems.append(f"{said_by.text(path, 200)}: {error}")
    return Ended(done.status or (_NOT_FETCHED if problems else 0), tuple(saved), tuple(problems))


@dataclass(frozen=True)
class Done:
    """What the worker says of a tool's run, looked at.

    Attributes:
        files: ``(path in the workspace, mode, bytes)``.
        said: All of it, for tools that know more.
    """

    status: int
    files: tuple[tuple[str, int, Any], ...] = ()
    problems: tuple[str, ...] = ()
    said: Mapping[str, Any] = field(default_factory=dict)

    def file(self, name: str) -> bytes | None:
        """The bytes of one of the tool's own files."""
        return next((bytes(data) for path, _, data in self.files if path == f"{OUTPUTS}/{name}"), None)


def done_of(execution: Execution) -> Done:
    """Wait, and read what the worker says.

    Raises:
        ValueRefused: It says something else than a tool's end.
        Exception: It did not run, or was lost.
    """
    try:
        said = execution.result().values.get("done")
    except ExecutionTimeout as error:
        return Done(TIMED_OUT, problems=(str(error),))
    if not isinstance(said, dict) or not said_by.is_small(said.get("status")):
        raise ValueRefused("the worker did not say how the tool ended")
    files, problems = [], list(said_by.texts(said.get("problems"), _MOST_PROBLEMS, _PROBLEM))
    given = said.get("files")
    for entry in given if isinstance(given, list) else ():
        if _is_file(entry):
            files.append(entry)
        else:
            problems.append(f"the worker sent no file, but a {type(entry).__name__}")
    return Done(said["status"], tuple(files), tuple(problems[:_MOST_PROBLEMS]), said)


def _is_file(entry: Any) -> bool:
    kinds = (str, int, bytes | bytearray | memoryview)
    return isinstance(entry, tuple) and len(entry) == 3 and all(map(isinstance, entry, kinds))


def _save(place: Path, data: Any, mode: int, *, overwrites: bool) -> Path:
    """Write a file whole, in place of what is there: a link of that name is replaced, not followed."""
    if not overwrites and os.path.lexists(place):
        if place.is_file() and not place.is_symlink() and place.read_bytes() == data:
            return place
        raise UsageError("is there already: --overwrite replaces it, --out DIR names another folder")
    descriptor, name = tempfile.mkstemp(dir=place.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chmod(name, 0o644 | (mode & 0o111))
    os.replace(name, place)
    return place
