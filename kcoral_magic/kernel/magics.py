"""``%%kcoral`` and ``%kcoral``: parse a line, call the client, show what comes back."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from traitlets import Bool, Float, Int, Unicode

from kcoral_magic import config
from kcoral_magic.client.sync import Client
from kcoral_magic.display import html, listings
from kcoral_magic.errors import KCoralError, NotFoundError, UsageError
from kcoral_magic.kernel import running, views
from kcoral_magic.kernel.cells import Cells
from kcoral_magic.kernel.completion import Completer
from kcoral_magic.kernel.filing import Filing
from kcoral_magic.kernel.mode import Mode, with_defaults
from kcoral_magic.kernel.options import NAME, cell_parser, documentation, line_parsers, options_of, split
from kcoral_magic.kernel.profiling import Profiling
from kcoral_magic.kernel.proxy import Proxy
from kcoral_magic.protocol import messages as m
from kcoral_magic.tools import family

_NEEDS_GATEWAY = frozenset(
    "gpus sessions output interrupt restart close put get ls rm df sync run jobs records".split()
)


@magics_class
class KCoral(Magics):
    """Settings of the magics: ``%config KCoral.quiet_s = 5``."""

    url = Unicode("", help="Address of the gateway; empty: environment, config file, or your own gateway.").tag(
        config=True
    )
    ca = Unicode("", help="Certificate authority file for the gateway.").tag(config=True)
    token_file = Unicode("", help="File that holds the token on one line.").tag(config=True)
    gateway_options = Unicode("", help="Options for your own gateway when it is started from here.").tag(config=True)
    quiet_s = Float(2.0, help="Seconds before a waiting line appears.").tag(config=True)
    is_quiet = Bool(False, help="Never show a waiting line.").tag(config=True)
    head_bytes = Int(1024 * 1024, help="Text shown of a flood from its beginning, in bytes.").tag(config=True)
    capture_bytes = Int(64 * 1024 * 1024, help="Most that a cell sends unasked, in bytes.").tag(config=True)
    is_capturing = Bool(True, help="Send what a cell reads of the notebook's names.").tag(config=True)
    is_syncing = Bool(True, help="Send the code that a cell imports.").tag(config=True)
    sync_bytes = Int(100 * 1000 * 1000, help="Larger code is sent only when asked, in bytes.").tag(config=True)
    tail_bytes = Int(256 * 1024, help="Text shown of a flood from its end, in bytes.").tag(config=True)

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.shell: Any = shell
        self.proxy = Proxy()
        self.defaults: dict[str, Any] = {}
        self._target: config.Target | None = None
        self._cell_parser = cell_parser()
        self._parsers = line_parsers()
        self.mode = Mode(self._cell_parser.parse_args)
        self.cells = Cells(self)
        self.filing = Filing(self)
        self.profiling = Profiling(self)
        self._session_names: tuple[str, ...] = ()
        self.completer = Completer(
            options_of(self._cell_parser),
            {name: options_of(parser) for name, parser in self._parsers.items()},
            lambda: self._session_names,
            here=self._names_here,
            there=self._names_there,
            tools={name: partial(self._options_of, name) for name in family.TOOLS},
        )

    def _options_of(self, tool: str) -> list[str]:
        return options_of(self.profiling.parser(tool, is_cell=True))

    def _names_here(self) -> list[str]:
        hidden = self.shell.user_ns_hidden
        return [name for name in self.shell.user_ns if not name.startswith("_") and name not in hidden]

    def _names_there(self, session: str) -> list[str]:
        client = self.proxy.current
        return [] if client is None else list(client.aio.belief(session).names)

    @line_cell_magic(NAME)  # type: ignore[arg-type]  # IPython annotates its decorators for plain functions
    def kcoral(self, line: str, cell: str | None = None) -> Any:
        # The docstring is made from the parsers, below.
        try:
            words = split(line)
            if words and words[0] in family.TOOLS:
                return self._under(words[0], words[1:], cell)
            if cell is None:
                return self._command(words)
            options = self.with_defaults(self._cell_parser.parse_args(words))
            if self.mode.is_local:
                self._run_here(cell)
                return None
            self.cells.run(options, cell)
            if options.session and options.session not in self._session_names:
                self._session_names = (*self._session_names, options.session)
        except UsageError as error:
            raise IPythonUsageError(str(error)) from None
        return None

    def with_defaults(self, options: argparse.Namespace) -> argparse.Namespace:
        """The options of a cell, with those of ``%kcoral use`` where a line has none."""
        return with_defaults(options, self.defaults)

    def _under(self, name: str, words: list[str], cell: str | None) -> Any:
        """A cell or a program under a tool, or a report."""
        if cell is None:
            return self.profiling.line(name, words)
        if self.mode.is_local:
            print(f"kcoral: cells run here (local mode), this one without {name}")
            self._run_here(cell)
            return None
        return self.profiling.cell(name, words, cell)

    def _run_here(self, cell: str) -> None:
        """A cell magic that was called by code: as a cell it would have been transformed."""
        with self.mode.suspended():
            self.shell.run_cell(cell).raise_error()

    # ── lines ──

    def _command(self, words: list[str]) -> Any:
        words = words or ["status"]
        parser = self._parsers.get(words[0])
        if parser is None:
            raise UsageError(f"%kcoral knows {', '.join((*self._parsers, *family.TOOLS))}; got {words[0]!r}")
        options = parser.parse_args(words[1:])
        if self.mode.is_local and words[0] in _NEEDS_GATEWAY:
            print(f"kcoral: cells run here (local mode), so %kcoral {words[0]} has nothing to do")
            return None
        command: Callable[[argparse.Namespace], Any] = getattr(self, f"_do_{words[0]}")
        return command(options)

    def target(self) -> config.Target:
        """The gateway to use, by line, settings, environment and files."""
        if self._target is None:
            self._target = config.resolve(
                self.url or None,
                ca=self.ca or None,
                token_file=self.token_file or None,
                gateway_options=tuple(self.gateway_options.split()) or None,
            )
        return self._target

    def _client(self) -> Client:
        client = self.proxy.client(self.target)
        client.connect()
        return client

    def _do_status(self, options: argparse.Namespace) -> html.Table:
        if self.mode.is_local:
            return html.Table("kcoral: cells run here, without a gateway (local mode)", (), ())
        if not self.proxy.is_connected:
            return html.Table(f"kcoral: not connected; the first cell uses {self.target().shown}", (), ())
        client = self._client()
        welcome = client.connect()
        return listings.status(self.target().shown, welcome, client.gpus(), self._sessions(client))

    def _do_gpus(self, options: argparse.Namespace) -> html.Table:
        return listings.gpus(self._client().gpus())

    def _do_sessions(self, options: argparse.Namespace) -> html.Table:
        return listings.sessions(self._sessions(self._client()), time.time())

    def _sessions(self, client: Client) -> tuple[m.SessionInfo, ...]:
        infos = client.sessions()
        self._session_names = tuple(info.name for info in infos if info.name)
        return infos

    def _do_output(self, options: argparse.Namespace) -> views.CellOutput:
        execution_id = options.execution or self.proxy.last_execution_id
        if not execution_id:
            raise UsageError("no cell has run yet; %kcoral output ID fetches one by its id")
        execution = self._client().attach(execution_id)
        for _ in execution:
            pass
        if isinstance(error := execution.exception(), NotFoundError):
            raise error
        return views.CellOutput(execution.collected())

    def _do_jobs(self, options: argparse.Namespace) -> html.Table:
        return listings.jobs(self._client().jobs(), time.time())

    def _do_records(self, options: argparse.Namespace) -> html.Table:
        return listings.records(self._client().records(session=options.session, limit=options.limit))

    def _do_run(self, options: argparse.Namespace) -> None:
        running.run(self, options)

    def _do_interrupt(self, options: argparse.Namespace) -> None:
        client = self._client()
        name = options.session or ""
        running = [info for info in client.executions(name) if info.state == "running"]
        if not running:
            raise NotFoundError(f"{f'session {name!r}' if name else 'this notebook'} runs nothing")
        for info in running:
            client.interrupt(info.execution_id)

    def _do_restart(self, options: argparse.Namespace) -> html.Badge:
        self._client().restart(options.session or "", options.gpus)
        return html.Badge(f"{_session_named(options.session)} is empty now", "the next cell starts anew")

    def _do_close(self, options: argparse.Namespace) -> html.Badge:
        self._client().close_session(options.session or "")
        return html.Badge(f"{_session_named(options.session)} has ended", is_on=False)

    def _do_connect(self, options: argparse.Namespace) -> html.Table:
        if options.url and options.trust:
            config.store_credentials(config.normalise(options.url), trust=True)
        target = config.resolve(
            options.url or self.url or None,
            ca=os.path.abspath(options.ca) if options.ca else self.ca or None,
            token_file=options.token_file or self.token_file or None,
            gateway_options=tuple(self.gateway_options.split()) or None,
        )
        former = self._target
        if target != former:
            self.proxy.close()
        self._target = target
        try:
            self._client()
        except KCoralError:  # what worked before still does
            self.proxy.leave()
            self._target = former
            raise
        return self._do_status(options)

    def _do_disconnect(self, options: argparse.Namespace) -> html.Badge:
        self.proxy.leave()
        return html.Badge("not connected any more", "sessions stay; the next cell connects again", is_on=False)

    # ── files ──

    def _do_put(self, options: argparse.Namespace) -> html.Table:
        return self.filing.put(options.paths, options.to, self._session_of(options))

    def _do_get(self, options: argparse.Namespace) -> html.Table:
        return self.filing.get(options.paths, options.to, self._session_of(options))

    def _do_ls(self, options: argparse.Namespace) -> html.Table:
        return self.filing.ls(options.path, self._session_of(options))

    def _do_rm(self, options: argparse.Namespace) -> html.Table:
        return self.filing.rm(options.paths, self._session_of(options))

    def _do_df(self, options: argparse.Namespace) -> html.Table:
        return self.filing.df(self._session_of(options))

    def _do_sync(self, options: argparse.Namespace) -> html.Table:
        session = self._session_of(options)
        return self.filing.sync(Path(options.folder), session, is_watched=options.watch, is_large=options.yes)

    def _session_of(self, options: argparse.Namespace) -> str:
        return str(options.session or self.defaults.get("session") or "")

    # ── less typing ──

    def _do_use(self, options: argparse.Namespace) -> html.Table:
        if options.clear:
            self.defaults.clear()
        if options.local or options.remote:
            self.mode.is_local = options.local
        given = vars(options)
        for name in set(given) - {"clear", "local", "remote"}:
            if given[name] is not None and given[name] is not False:  # 0 is a count of GPUs
                self.defaults[name] = given[name]
        rows = tuple((f"--{name.replace('_', '-')}", str(value)) for name, value in sorted(self.defaults.items()))
        where = "here, without a gateway" if self.mode.is_local else f"on {self.target().shown}"
        return html.Table(f"kcoral: marked cells run {where}", ("option", "default") if rows else (), rows)

    def _do_on(self, options: argparse.Namespace) -> html.Badge:
        self.mode.is_on = True
        if self.mode.is_local:
            return html.Badge("cells run here, without a gateway", "%kcoral use --remote ends local mode", is_on=False)
        return html.Badge(f"cells run on {self.target().shown}", "%%local keeps one here, %kcoral off ends it")

    def _do_off(self, options: argparse.Namespace) -> html.Badge:
        self.mode.is_on = False
        return html.Badge("cells run here", "those marked %%kcoral do not", is_on=False)


def _session_named(name: str | None) -> str:
    return f"session {name!r}" if name else "this notebook's session"


vars(KCoral)["kcoral"].__doc__ = documentation()

_loaded: dict[int, KCoral] = {}


def load(shell: Any) -> None:
    """Register the magics; a second time does nothing."""
    if id(shell) in _loaded:
        return
    magics = KCoral(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.insert(0, magics.mode.transform)
    magics.cells.install()
    shell.Completer.custom_matchers.append(magics.completer.match)
    shell.showsyntaxerror = _syntax_error_shower(shell)
    _loaded[id(shell)] = magics


def _syntax_error_shower(shell: Any) -> Callable[..., None]:
    """IPython asks every exception but a SyntaxError for its own rendering; a remote one has its own all the same."""
    original = type(shell).showsyntaxerror

    def show(filename: str | None = None, running_compiled_code: bool = False) -> None:
        etype, value, _ = shell._get_exc_info()
        render = getattr(value, "_render_traceback_", None)
        if render is None:
            original(shell, filename, running_compiled_code)
        else:
            shell._showtraceback(etype, value, render())

    return show


def unload(shell: Any) -> None:
    """Take everything away again, the connection and the notebook's own session included."""
    magics = _loaded.pop(id(shell), None)
    if magics is None:
        return
    magics.proxy.close()
    magics.cells.uninstall()
    if magics.mode.transform in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(magics.mode.transform)
    vars(shell).pop("showsyntaxerror", None)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(NAME, None)
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    if magics in shell.configurables:
        shell.configurables.remove(magics)
    if magics.completer.match in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(magics.completer.match)
