"""Runs one body as IPython runs a cell: brings in what it needs, runs it, sends back what was asked for."""

from __future__ import annotations

import mmap
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from IPython.core.interactiveshell import ExecutionResult
from traitlets.config import Config

from kcoral_gateway.worker import cuda, results, tool
from kcoral_gateway.worker.files import Workspace
from kcoral_gateway.worker.inbox import Inbox
from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_gateway.worker.names import SessionNames
from kcoral_gateway.worker.output import Output
from kcoral_gateway.worker.reload import Modules
from kcoral_gateway.worker.shell import Shell
from kcoral_gateway.worker.stdin import Stdin
from kcoral_magic.errors import ProtocolError, ValueRefused
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values import codec


class Executor:
    """The session's one shell, its namespace and its workspace."""

    def __init__(self, output: Output, inbox: Inbox, interrupts: Interrupts) -> None:
        config = Config()
        config.HistoryManager.enabled = False  # no database: nothing of a session outlives it
        config.InteractiveShell.colors = "linux"
        self._output = output
        self._inbox = inbox
        self._interrupts = interrupts
        Shell.output = output
        self._shell: Shell = Shell.instance(config=config)
        self._shell.output = output
        self._stdin = Stdin(output, inbox)
        self._stdin.install()
        warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # advice for a terminal
        sys.path.insert(0, "")
        shell = self._shell
        self._names = SessionNames(shell.user_ns, lambda: shell.user_ns_hidden, shell.compile.name_cell)
        self._workspace = Workspace(os.getcwd())
        self._modules = Modules(self._workspace.root, shell.user_ns)
        self._names.changed()  # what a fresh namespace holds is nobody's

    def serve(self, message: framing.Message[m.ToWorker]) -> bool:
        """Act on the host's next message; whether there may be more."""
        match message.body:
            case m.Run():
                self._output.send(self._run(message.body, message.buffers))
            case t.FilePart():
                self._workspace.part(message.body, message.buffers[0])
            case m.Shutdown():
                return False
            case _:  # for a body that has been interrupted meanwhile
                self._inbox.drop_descriptors()
        return True

    def _run(self, run: m.Run, buffers: Sequence[framing.Buffer]) -> m.Ended:
        """Run a body; everything it produced has been sent when this returns."""
        source = bytes(buffers[0]).decode("utf-8", "replace")
        shell = self._shell
        shell.execution_count = run.place.count
        shell.compile.first_line = run.place.first_line + _blank_lines(source)
        self._stdin.is_allowed = run.peer.allows_input
        self._output.is_running.set()
        began = time.perf_counter()
        error: BaseException | None = None
        interrupts = self._interrupts
        try:
            try:
                if interrupts.begin():
                    self._output.send(m.Unheard())
                manifest = t.read_manifest(buffers[1]) if len(buffers) > 1 else _EMPTY
                if manifest is not _EMPTY:
                    self._bring_in(run.execution_id, manifest, buffers[2])
                with self._workspace.inside(manifest.cwd):
                    result = shell.run_cell(source, store_history=True)  # type: ignore[no-untyped-call]  # IPython
                if self._workspace.has_files:
                    self._modules.note(source)
                error = _error_of(result)
                cuda.synchronise()
                if manifest.wants and error is None:
                    self._send_back(manifest.wants, run.peer)
                shell.user_ns.pop(f"_i{run.place.count - _INPUTS_KEPT}", None)
                if (names := self._names.changed()) is not None:
                    self._output.send(names)
            finally:
                interrupts.is_running = False
        except (cuda.CudaFault, KeyboardInterrupt, ProtocolError, ValueRefused) as late:
            # The fault was found, or the signal came, before IPython had opened the cell or after it had closed it.
            error = error or late
            if isinstance(late, ValueRefused):  # ours: no code of the user's has to do with it
                shell._showtraceback(type(late), late, [f"{type(late).__name__}: {late}"])
            else:
                shell.showtraceback((type(late), late, late.__traceback__), exception_only=True)
        poison = ""
        if cuda.is_sticky(error):
            poison = "a CUDA fault broke the process's context"
        elif shell.has_exited:
            poison = "the cell called exit()"
        self._output.is_running.clear()
        return m.Ended(_status(error), (time.perf_counter() - began) * 1000, poison, tool.take_status())

    # ── in ──

    def _bring_in(self, execution_id: str, manifest: t.Manifest, parcel: framing.Buffer) -> None:
        has_files = manifest.files_basis == self._workspace.basis
        if has_files:
            self._use_files()  # before values: they may be of classes of changed modules
        else:
            self._workspace.forget()
        needed, kept = self._names.sort(manifest.offers)
        done: list[t.BoundName] = []
        if needed and len(parcel) and has_files:
            done = self._names.bind(parcel, needed)
        got = {bound.name for bound in done}
        missing = [verdict for verdict in needed if verdict.name not in got]
        if missing or not has_files:
            done += self._wait(execution_id, missing[:_NAMED], is_for_files=not has_files)
        for start in range(_NAMED, len(missing), _NAMED):
            done += self._wait(execution_id, missing[start : start + _NAMED], is_for_files=False)
        told = [*done, *kept]
        for start in range(0, len(told), _NAMED):
            self._output.send(t.Bound(tuple(told[start : start + _NAMED])))
        forced = {offer.name for offer in manifest.offers if offer.is_forced}
        if lost := [bound.was for bound in done if bound.what == "missing" and bound.name in forced]:
            raise ValueRefused("; ".join(lost)[:8000])

    def _use_files(self) -> None:
        changed, problems = self._workspace.take()
        if problems:
            raise ValueRefused("; ".join(problems)[:8000])
        for line in self._modules.update(changed):
            print(line, file=sys.stderr)

    def _wait(self, execution_id: str, missing: list[t.BoundName], *, is_for_files: bool) -> list[t.BoundName]:
        """Ask for what is missing, and take it."""
        self._output.send(t.Want(tuple(verdict.name for verdict in missing), is_for_files, codec.VERSION))
        while True:
            message = self._inbox.next()
            match message.body:
                case t.FilePart():
                    self._workspace.part(message.body, message.buffers[0])
                case t.Supplied() if message.body.execution_id == execution_id:
                    return self._take(message.body, message.buffers[0], missing)
                case _:  # for a body that has been interrupted meanwhile
                    self._inbox.drop_descriptors()

    def _take(self, supplied: t.Supplied, inline: framing.Buffer, missing: list[t.BoundName]) -> list[t.BoundName]:
        if supplied.problem:
            raise ValueRefused(supplied.problem)
        self._use_files()
        descriptor = self._inbox.descriptor()
        if descriptor is None:
            return self._names.bind(inline, missing) if len(inline) else []
        try:
            # Private: the session may write to its arrays, the blob stays what it is.
            data = mmap.mmap(descriptor, supplied.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError) as error:
            raise ValueRefused(f"the values could not be mapped: {error}") from None
        finally:
            os.close(descriptor)
        return self._names.bind(memoryview(data), missing)

    # ── out ──

    def _send_back(self, wants: Sequence[t.Wanted], peer: m.Peer) -> None:
        shell = self._shell
        packed, problems = self._names.returned(wants, peer, lambda text: shell.ev(text))  # type: ignore[no-untyped-call]
        told = tuple((name, text) for name, text in problems.items())
        results.send(
            self._output, self._inbox, packed.parcel.digest(), packed.parcel.size, packed.parcel.segments, told
        )


_INPUTS_KEPT = 20  # cells whose source a session knows as _iN; ``In`` has all of them
_NAMED = 200  # names asked for or told of in one event: its head is bounded
_EMPTY = t.read_manifest(b"")


def _blank_lines(source: str) -> int:
    """How many lines IPython takes off the top before it compiles."""
    for count, line in enumerate(source.splitlines()):
        if line and not line.isspace():
            return count
    return 0


def _error_of(result: ExecutionResult) -> BaseException | None:
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error


def _status(error: BaseException | None) -> Any:
    if error is None:
        return "ok"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
