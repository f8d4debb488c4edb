"""``%%kcoral ncu`` and its family: a cell under a tool, a program under a tool, and reports that lie here."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from kcoral_magic.display.twin import AsJson, Twin
from kcoral_magic.errors import ExitStatusError, RemoteError, UsageError, ValueRefused
from kcoral_magic.kernel import capture
from kcoral_magic.kernel.options import Parser, add_session_options
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import Surface, surface_for
from kcoral_magic.tools import arguments, family, job
from kcoral_magic.tools import cell as under
from kcoral_magic.tools.cell import Body, Ran

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Execution
    from kcoral_magic.kernel.magics import KCoral


class Profiling:
    """The family in one notebook."""

    def __init__(self, magics: KCoral) -> None:
        self._magics = magics

    def parser(self, name: str, *, is_cell: bool) -> Parser:
        """Of a cell's line, or of a program's."""
        tool = family.find(name)
        made = Parser(f"{'%' if is_cell else ''}%kcoral {name}", description=family.TOOLS[name][1])
        if is_cell:
            add_session_options(made)
        else:
            arguments.add_run_options(made, has_out=False)
        tool.add_options(made)
        made.add_argument("--json", action="store_true", dest="is_json", help="as data instead of a page")
        if not is_cell:
            made.add_argument("words", nargs=argparse.REMAINDER, metavar="PROGRAM [ARGS]")
        return made

    # ── a cell ──

    def cell(self, name: str, words: list[str], cell: str) -> Any:
        """Run a cell under a tool; what it returns is shown as the cell's value.

        Raises:
            Exception: What the cell raised, or why there is nothing to show.
        """
        tool = family.find(name)
        parser = self.parser(name, is_cell=True)
        if is_help(words):
            print(parser.format_help())
            return None
        if not cell.strip():
            raise UsageError(f"the cell is empty: write the code for {name} below the %%kcoral line")
        options = self._magics.with_defaults(parser.parse_args(words))
        surface = surface_for(self._magics.shell)
        if tool.WHERE == "apart":
            return self._apart(tool, options, cell, surface)
        if tool.WHERE == "inside":
            return self._inside(tool, options, cell, surface)
        ran = self._run(tool, options, cell, surface)
        shown = tool.shown(ran.done, options, ran)
        return self._show(shown, surface, ran.error or (None if shown.error else ran.lost), options)

    def _apart(self, tool: Any, options: argparse.Namespace, cell: str, surface: Surface) -> Any:
        """A tool that takes the cell's text, and needs no session."""
        magics = self._magics
        execution = tool.start(magics.proxy.client(magics.target), cell, options)
        self._relayed(execution, "", surface, is_failing=False)
        return self._show(family.Shown(tool.ended(execution, cell, options)), surface, None, options)

    def _inside(self, tool: Any, options: argparse.Namespace, cell: str, surface: Surface) -> Any:
        """A tool that runs the cell in its session as it is."""
        magics, name = self._magics, options.session or ""
        client = magics.proxy.client(magics.target)
        whole = f"{cell}\n{tool.reads(options)}"
        out, files = magics.cells.gather(options, whole, client.aio.belief(name), surface)
        if out is not None and (problem := capture.refused(out)) is not None:
            raise problem
        session = client.session(name, gpus=options.gpus, python=options.python)
        options.place = magics.cells.place(cell)
        execution = tool.start(session, cell, options, out, files)
        says = None if out is None else capture.lines(out)
        self._relayed(execution, name, surface, says, is_failing=False)
        shown = tool.ended(execution, cell, options)
        shown = shown if isinstance(shown, family.Shown) else family.Shown(shown)
        return self._show(shown, surface, None, options)

    def _run(self, tool: family.CellTool, options: argparse.Namespace, cell: str, surface: Surface) -> Ran:
        magics = self._magics
        client = magics.proxy.client(magics.target)
        name = options.session or ""
        out, files = magics.cells.gather(options, cell, client.aio.belief(name), surface)
        if out is not None and (problem := capture.refused(out)) is not None:
            raise problem
        body = Body(cell, magics.cells.reads(cell), *magics.cells.place(cell))
        session = client.session(name, gpus=options.gpus, python=options.python)
        asked = under.copy(session, body, out, files, queue_timeout_s=options.queue_timeout)
        told = self._relayed(asked, name, surface, None if out is None else capture.lines(out))
        copied = under.checked(told.values.get("copied"))
        for problem_text in copied["problems"]:
            surface.note(problem_text)
        execution = under.run(session, body, copied, tool.under(options), timeout_s=options.timeout)
        self._relayed(execution, name, surface)
        ran = under.ended(execution)
        for text in ran.problems:
            surface.note(text)
        return ran

    def _relayed(
        self, execution: Execution, session: str, surface: Surface, says: Any = None, *, is_failing: bool = True
    ) -> Any:
        magics = self._magics
        relay = Relay(
            surface,
            prefix=f"kcoral-{magics.proxy.id_of(session)}-",
            is_trusted=magics.target().is_trusted,
            is_quiet=magics.is_quiet,
            quiet_s=magics.quiet_s,
            says=says,
        )
        try:
            return magics.proxy.run(execution, relay, surface)
        except (ValueRefused, RemoteError):  # the tool says it in its own words
            if is_failing:
                raise
            return None

    def _show(
        self, shown: family.Shown, surface: Surface, error: BaseException | None, options: argparse.Namespace
    ) -> Any:
        """As the cell's value; before an error, as a display."""
        if options.is_json and isinstance(shown.value, Twin):
            shown = family.Shown(AsJson(shown.value), shown.error)
        if shown.beside is not None:
            self._display(shown.beside, surface)
        raised = error or shown.error
        if raised is None:
            return shown.value
        if shown.value is not None:
            self._display(shown.value, surface)
        raise raised

    def _display(self, value: Any, surface: Surface) -> None:
        data, metadata = self._magics.shell.display_formatter.format(value)
        surface.display(data, metadata, None, False)

    # ── lines ──

    def line(self, name: str, words: list[str]) -> Any:
        """``%kcoral ncu view FILE``, or a program under the tool.

        Raises:
            UsageError: There is no such file, or the words make no command.
            ReportInvalid: The file is no report.
        """
        if is_help(words):
            print(self.parser(name, is_cell=family.find(name).WHERE != "under").format_help())
            return None
        made = family.offline(name, words)
        return self.program(name, words) if made is None else made

    def program(self, name: str, words: list[str]) -> Any:
        """``%kcoral ncu script.py ARGS``: a program under a tool.

        Raises:
            Exception: It could not run, or there is nothing to show.
        """
        tool = family.find(name)
        if tool.WHERE != "under":
            raise UsageError(tool.USAGE)
        parser = self.parser(name, is_cell=False)
        options = parser.parse_args(arguments.separated(parser, words))
        program = options.words[1:] if options.words[:1] == ["--"] else options.words
        if not program:
            raise UsageError(f"{tool.USAGE}; got no program")
        if program[0].endswith(".py"):
            program = ["python", *program]
        options.tool, options.words = tool.RUN, [*tool.words(options), *program]
        options.fetch, options.out, options.overwrite = [], ".", False
        ask = job.Ask.of(options, session=options.session or "", reads_input=False)
        surface = surface_for(self._magics.shell)
        execution = job.start(self._magics.proxy.client(self._magics.target), ask)
        self._relayed(execution, ask.session or "", surface)
        done = job.done_of(execution)
        for text in done.problems:
            surface.note(text)
        shown = tool.shown(done, options, None)
        failed = ExitStatusError(f"exit status {done.status}: {shlex.join(program)[:200]}", done.status)
        return self._show(shown, surface, failed if done.status and not shown.error else None, options)


def is_help(words: list[str]) -> bool:
    """Whether a line asks what it takes."""
    return words[:1] in (["--help"], ["-h"])
