"""One marked cell: what goes along with it, its run, and what comes back into the notebook."""

from __future__ import annotations

import argparse
import builtins
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.client.exchange import Belief, Outgoing
from kcoral_magic.client.files import Digests, FileSet
from kcoral_magic.client.results import Result
from kcoral_magic.client.sources import Sources
from kcoral_magic.display.html import size
from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.kernel import capture
from kcoral_magic.kernel.options import NAME
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import Surface, surface_for
from kcoral_magic.protocol import messages as m
from kcoral_magic.tools import cell as under

if TYPE_CHECKING:
    from kcoral_magic.kernel.magics import KCoral

_LARGEST = 5
_LOOKED_AT = 100  # items of a container


class Cells:
    """Runs the cells of one notebook."""

    def __init__(self, magics: KCoral) -> None:
        self._magics = magics
        self._shell = magics.shell
        self._capture = capture.Capture(magics.shell)
        self.digests = Digests()
        self.sources = Sources(Path.cwd(), self.digests)
        self.watched: dict[str, list[Path]] = {}  # folders that are followed, by session
        self._told: set[str] = set()  # sessions that were told of their first files
        self._has_custom_exc = False

    # ── one cell ──

    def run(self, options: argparse.Namespace, cell: str) -> None:
        """Run a cell and show it.

        Raises:
            Exception: What the cell raised, or why it could not run.
        """
        if not cell.strip():
            raise UsageError("the cell is empty: write the code to run below the %%kcoral line")
        magics, name = self._magics, options.session or ""
        client = magics.proxy.client(magics.target)
        belief = Belief() if options.fresh else client.aio.belief(name)
        surface = surface_for(self._shell)
        out, files = self.gather(options, cell, belief, surface)
        if out is not None and (problem := capture.refused(out)) is not None:
            self._send_others(options, out, surface)
            raise problem
        options.files, options.wants = files, tuple(options.outputs or ())
        self._execute(options, cell, out, surface, belief)
        if options.setup:
            session = client.session(name, gpus=options.gpus, python=options.python)
            under.remember(session, under.Body(cell, (), *self.place(cell))).result()

    def gather(
        self, options: argparse.Namespace, cell: str, belief: Belief, surface: Surface
    ) -> tuple[Outgoing | None, FileSet | None]:
        """The values and the code that go along with a cell; what a person should know of them is shown.

        Raises:
            UsageError: ``-i`` names what is not there, or something is too large to go unasked.
        """
        magics = self._magics
        with magics.mode.suspended():
            out, modules = self._capture.of_cell(
                cell,
                options.inputs or (),
                belief,
                limit_bytes=magics.capture_bytes,
                is_on=magics.is_capturing and not options.no_capture,
            )
        notes = list(self._capture.notes)
        files = None if options.no_sync else self.files(options.session or "", belief, modules, notes)
        for note in notes:
            surface.note(note)
        return out, files

    def reads(self, cell: str) -> tuple[str, ...]:
        """The names that a cell reads, wherever they are."""
        with self._magics.mode.suspended():
            return self._capture.reads(cell)

    def place(self, cell: str) -> tuple[int, int]:
        """The cell's number, and the line of the notebook's cell that its first line is."""
        # The hook knows the count in IPython 8 and 9 alike: 9 counts up before a cell runs, 8 after.
        return self._shell.displayhook.prompt_count, self._first_line(cell)

    def _execute(
        self, options: argparse.Namespace, cell: str, out: Outgoing | None, surface: Surface, belief: Belief
    ) -> None:
        magics, name = self._magics, options.session or ""
        session = magics.proxy.client(magics.target).session(name, gpus=options.gpus, python=options.python)
        relay = Relay(
            surface,
            prefix=f"kcoral-{magics.proxy.id_of(name)}-",
            is_trusted=magics.target().is_trusted,
            is_quiet=options.quiet or magics.is_quiet,
            quiet_s=magics.quiet_s,
            says=None if out is None else capture.lines(out),
        )
        execution = session.execute(
            cell,
            place=m.Place(*self.place(cell)),
            view=m.View(magics.head_bytes, magics.tail_bytes),
            timeout_s=options.timeout,
            queue_timeout_s=options.queue_timeout,
            is_fresh=options.fresh,
            out=out,
            wants=options.wants,
            files=options.files,
            cwd=options.cwd,
            allows_input=surface.takes_input,
        )
        try:
            magics.proxy.run(execution, relay, surface)
        except NameError as error:
            self._hint(error)
            raise
        finally:  # also when one of several could not come
            self._take(execution.collected(), belief, surface)

    def _send_others(self, options: argparse.Namespace, out: Outgoing, surface: Surface) -> None:
        """What ``-i`` names and can travel goes, although the cell does not run: one bad name is not the others'."""
        if out.values:
            options.files, options.wants = None, ()
            others = dataclasses.replace(out, problems={}, forced=out.forced & out.values.keys())
            self._execute(options, "pass", others, surface, Belief())

    def _take(self, result: Result, belief: Belief, surface: Surface) -> None:
        """Bring values into the notebook."""
        if not result.values:
            return
        from kcoral_magic.values.codec import Opaque
        from kcoral_magic.values.digest import digest

        for note in result.value_notes:
            surface.note(note)
        if opaque := [name for name, value in result.values.items() if isinstance(value, Opaque)]:
            surface.note(
                f"{', '.join(opaque)} came as type and text only: other than plain values, arrays, tensors and tables "
                f"come from a gateway that is trusted, %kcoral connect {self._magics.target().url or ''} --trust"
            )
        if stale := [name for name, value in result.values.items() if self._is_of_old_class(value)]:
            surface.note(
                f"{', '.join(stale)}: of a class as it was before it was defined again here; isinstance() of the new "
                "one does not hold"
            )
        for name, value in result.values.items():
            self._shell.user_ns[name] = value
            belief.sent.pop(name, None)
            try:
                belief.received[name] = (digest(value, name)[0], result.digests.get(name, ""))
            except ValueRefused:
                belief.received.pop(name, None)

    def _is_of_old_class(self, value: Any) -> bool:
        """Whether a value, or what a list or dict holds first, is of a class that the notebook has defined anew."""
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        kinds = {type(one) for one in (value, *list(items)[:_LOOKED_AT])}
        own = [kind for kind in kinds if kind.__module__ == "__main__" and "<locals>" not in kind.__qualname__]
        return any(self._shell.user_ns.get(kind.__name__, kind) is not kind for kind in own)

    def _first_line(self, cell: str) -> int:
        """The line of the notebook's cell that the body's first line is; 1 for a body from elsewhere."""
        history = self._shell.history_manager.input_hist_raw
        lines = str(history[-1] if history else "").split("\n")
        for number, text in enumerate(lines, 1):
            if text.lstrip().startswith(f"%%{NAME}"):
                rest = "\n".join(lines[number:])
                return number + 1 if rest.strip() == cell.strip() else 1
        return 1

    # ── code ──

    def files(self, session: str, belief: Belief, modules: set[str], notes: list[str]) -> FileSet | None:
        """The code that a cell needs, if any.

        Raises:
            UsageError: It is large, and nobody has said that it may go.
        """
        watched = self.watched.get(session, [])
        if not self._magics.is_syncing and not watched:
            return None
        needed = belief.modules | modules if self._magics.is_syncing else set()
        found = self.sources.of_modules(needed)
        for folder in watched:
            found |= self.sources.of_folder(folder)
        if not found and not belief.synced:
            return None
        belief.modules |= modules
        made = FileSet(found, is_sync=True)
        changes = [change for change in made.changes(belief) if change.digest is not None]
        total = sum(change.size for change in changes)
        if total > self._magics.sync_bytes and not self._may_send(found, total):
            raise UsageError(self._too_large(found, total))
        if changes and session not in self._told:
            self._told.add(session)
            some = ", ".join(change.path for change in changes[:3]) + (" …" if len(changes) > 3 else "")
            notes.append(f"synced {len(changes)} file{'s' if len(changes) != 1 else ''} ({size(total)}): {some}")
        return made

    def _too_large(self, found: dict[str, Any], total: int) -> str:
        largest = sorted(found.items(), key=lambda item: -item[1].size)[:_LARGEST]
        listed = "; ".join(f"{path} {size(file.size)}" for path, file in largest)
        return (
            f"the code that the cell imports is {size(total)}, more than {size(self._magics.sync_bytes)}; the largest: "
            f"{listed}. Name what is not needed in .kcoralignore, raise %config KCoral.sync_bytes, or use --no-sync"
        )

    def _may_send(self, found: dict[str, Any], total: int) -> bool:
        surface = surface_for(self._shell)
        if not surface.takes_input:
            return False
        question = self._too_large(found, total).partition(". Name")[0]
        return surface.ask(f"kcoral: {question}. Send it? [y/N] ", is_password=False).strip().lower() in ("y", "yes")

    # ── names that are on the other side ──

    def _hint(self, error: NameError) -> None:
        name = getattr(error, "name", None) or _name_in(str(error))
        if name and name in self._shell.user_ns and not hasattr(builtins, name) and not self._capture.is_told(name):
            _add_note(error, f"kcoral: the notebook has {name}; -i {name} sends it")

    def install(self) -> None:
        """Have a local NameError say where the name is. A user's own handler of exceptions is left alone."""
        if not self._shell.custom_exceptions:
            self._shell.set_custom_exc((NameError,), self._explain)
            self._has_custom_exc = True

    def uninstall(self) -> None:
        """Take that away again."""
        if self._has_custom_exc:
            self._shell.set_custom_exc((), None)

    def _explain(self, shell: Any, etype: Any, value: BaseException, tb: Any, tb_offset: int | None = None) -> Any:
        name = getattr(value, "name", None)
        client = self._magics.proxy.current
        where = None if client is None or not name else client.aio.where_is(name)
        if where is not None and not hasattr(value, "remote_traceback"):
            session, flag = (f"session {where!r}", f"--session {where} ") if where else ("the remote session", "")
            value.add_note(f"kcoral: {name} lives in {session}: %%kcoral {flag}-o {name} brings it here")
        shell.showtraceback((etype, value, tb), tb_offset=tb_offset)


def _name_in(text: str) -> str:
    parts = text.split("'")
    return parts[1] if len(parts) > 2 else ""


def _add_note(error: BaseException, text: str) -> None:
    lines = list(getattr(error, "_render_traceback_", list)())
    object.__setattr__(error, "_render_traceback_", lambda: [*lines, text])
    error.add_note(text)
