"""``%%kcoral`` and ``%kcoral``: parse a line, call the client, show what comes back."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from IPython.core.error import UsageError as IPythonUsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from traitlets import Bool, Float, Int, Unicode

from kcoral_magic import config
from kcoral_magic.client.sync import Client
from kcoral_magic.display import html
from kcoral_magic.errors import KCoralError, NotFoundError, UsageError
from kcoral_magic.kernel import views
from kcoral_magic.kernel.completion import Completer
from kcoral_magic.kernel.proxy import Proxy
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import surface_for
from kcoral_magic.protocol import messages as m

_NAME = "kcoral"


class _Parser(argparse.ArgumentParser):
    """argparse that raises IPython's UsageError and never exits."""

    def error(self, message: str) -> NoReturn:
        raise IPythonUsageError(f"{self.prog}: {message}\n{self.format_usage().strip()}")


def _gpus(text: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if "," in text:
        raise argparse.ArgumentTypeError(f"a count or 'all', got {text!r}: the gateway chooses which GPUs")
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a count or 'all', got {text!r}")
    return int(text)


def _session(text: str) -> str:
    if not m.is_session_name(text):
        raise argparse.ArgumentTypeError(f"1–64 letters, digits, '.', '_' or '-', got {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds above 0, got {text!r}")
    return value


def _cell_parser() -> _Parser:
    parser = _Parser("%%kcoral", add_help=False)
    add = parser.add_argument
    add("--gpus", type=_gpus, metavar="N|all", help="GPUs of the session, fixed by its first cell (default 1, or 0)")
    add("--session", type=_session, metavar="NAME", help="a named session; it outlives the notebook")
    add("--fresh", action="store_true", help="run in a new worker on the session's GPUs and throw it away")
    add("--timeout", type=_seconds, metavar="S", help="interrupt after S seconds of running, kill 5 s later")
    add("--queue-timeout", type=_seconds, metavar="S", help="give up after S seconds without GPUs")
    add("--quiet", action="store_true", help="no waiting line")
    return parser


def _parsers() -> dict[str, _Parser]:
    made: dict[str, _Parser] = {}

    def parser(name: str, text: str) -> _Parser:
        made[name] = _Parser(f"%kcoral {name}", description=text, add_help=False)
        return made[name]

    parser("status", "the gateway, its isolation, your sessions")
    parser("gpus", "the gateway's GPUs")
    parser("sessions", "your sessions")
    output = parser("output", "the whole output of a cell, also of one that was cut or left")
    output.add_argument("execution", nargs="?", default="", help="an execution's id; the last one by default")
    interrupt = parser("interrupt", "stop what a session runs")
    restart = parser("restart", "a new, empty worker")
    restart.add_argument("--gpus", type=_gpus, metavar="N|all", help="on that many GPUs")
    close = parser("close", "end a session")
    for sub in (interrupt, restart, close):
        sub.add_argument("session", nargs="?", type=_session, help="the notebook's own by default")
    connect = parser("connect", "use the gateway at URL; without one, your own on this machine")
    connect.add_argument("url", nargs="?", default="", help="wss://host:port")
    connect.add_argument("--ca", metavar="FILE", help="certificate authority, PEM")
    connect.add_argument("--token-file", metavar="FILE", help="a file with the token on one line")
    connect.add_argument("--trust", action="store_true", help="let its HTML and JavaScript run here; remembered")
    parser("disconnect", "leave; sessions stay")
    return made


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
    tail_bytes = Int(256 * 1024, help="Text shown of a flood from its end, in bytes.").tag(config=True)

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.shell: Any = shell
        self.proxy = Proxy()
        self._target: config.Target | None = None
        self._cell_parser = _cell_parser()
        self._parsers = _parsers()
        self._session_names: tuple[str, ...] = ()
        self.completer = Completer(
            _options(self._cell_parser),
            {name: _options(parser) for name, parser in self._parsers.items()},
            lambda: self._session_names,
        )

    @line_cell_magic(_NAME)  # type: ignore[arg-type]  # IPython annotates its decorators for plain functions
    def kcoral(self, line: str, cell: str | None = None) -> Any:
        # The docstring is made from the parsers, below.
        try:
            if cell is None:
                return self._command(line)
            self._run(self._cell_parser.parse_args(_split(line)), cell)
        except UsageError as error:
            raise IPythonUsageError(str(error)) from None
        return None

    # ── cells ──

    def _run(self, options: argparse.Namespace, cell: str) -> None:
        if not cell.strip():
            raise UsageError("the cell is empty: write the code to run below the %%kcoral line")
        name = options.session or ""
        session = self.proxy.client(self.target).session(name, gpus=options.gpus)
        surface = surface_for(self.shell)
        relay = Relay(
            surface,
            prefix=f"kcoral-{self.proxy.id_of(name)}-",
            is_trusted=self.target().is_trusted,
            is_quiet=options.quiet or self.is_quiet,
            quiet_s=self.quiet_s,
        )
        execution = session.execute(
            cell,
            # The hook knows the count in IPython 8 and 9 alike: 9 counts up before a cell runs, 8 after.
            place=m.Place(self.shell.displayhook.prompt_count, self._first_line(cell)),
            view=m.View(self.head_bytes, self.tail_bytes),
            timeout_s=options.timeout,
            queue_timeout_s=options.queue_timeout,
            is_fresh=options.fresh,
        )
        if name and name not in self._session_names:
            self._session_names = (*self._session_names, name)
        self.proxy.run(execution, relay, surface)

    def _first_line(self, cell: str) -> int:
        """The line of the notebook's cell that the body's first line is; 1 for a body from elsewhere."""
        history = self.shell.history_manager.input_hist_raw
        lines = str(history[-1] if history else "").split("\n")
        for number, text in enumerate(lines, 1):
            if text.lstrip().startswith(f"%%{_NAME}"):
                rest = "\n".join(lines[number:])
                return number + 1 if rest.strip() == cell.strip() else 1
        return 1

    # ── lines ──

    def _command(self, line: str) -> Any:
        words = _split(line) or ["status"]
        parser = self._parsers.get(words[0])
        if parser is None:
            raise UsageError(f"%kcoral knows {', '.join(self._parsers)}; got {words[0]!r}")
        options = parser.parse_args(words[1:])
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
        if not self.proxy.is_connected:
            return html.Table(f"kcoral: not connected; the first cell uses {self.target().shown}", (), ())
        client = self._client()
        welcome = client.connect()
        return views.status(self.target().shown, welcome, client.gpus(), self._sessions(client))

    def _do_gpus(self, options: argparse.Namespace) -> html.Table:
        return views.gpus(self._client().gpus())

    def _do_sessions(self, options: argparse.Namespace) -> html.Table:
        return views.sessions(self._sessions(self._client()), time.time())

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

    def _do_interrupt(self, options: argparse.Namespace) -> None:
        client = self._client()
        name = options.session or ""
        running = [info for info in client.executions(name) if info.state == "running"]
        if not running:
            raise NotFoundError(f"{f'session {name!r}' if name else 'this notebook'} runs nothing")
        for info in running:
            client.interrupt(info.execution_id)

    def _do_restart(self, options: argparse.Namespace) -> None:
        self._client().restart(options.session or "", options.gpus)

    def _do_close(self, options: argparse.Namespace) -> None:
        self._client().close_session(options.session or "")

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

    def _do_disconnect(self, options: argparse.Namespace) -> None:
        self.proxy.leave()


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the line cannot be read: {error}") from None


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _documentation() -> str:
    lines = [
        "Run a cell on a GPU machine as if it ran here.",
        "",
        "    %%kcoral [options]",
        "    code, magics, !commands, top-level await",
        "",
        "Options of a cell:",
        "",
    ]
    for action in _cell_parser()._actions:
        name = " ".join((*action.option_strings, *([str(action.metavar)] if action.metavar else [])))
        lines.append(f"    {name:<20} {action.help}")
    lines += ["", "Lines (%kcoral alone shows the status):", ""]
    for parser in _parsers().values():
        usage = " ".join(parser.format_usage().split()[2:])
        lines.append(f"    {'%kcoral ' + usage:<54} {parser.description}")
    lines += ["", "Settings: %config KCoral. A token never stands on a line: store it with `kcoral-magic connect URL`."]
    return "\n".join(lines)


vars(KCoral)["kcoral"].__doc__ = _documentation()

_loaded: dict[int, KCoral] = {}


def load(shell: Any) -> None:
    """Register the magics; a second time does nothing."""
    if id(shell) in _loaded:
        return
    magics = KCoral(shell)
    shell.register_magics(magics)
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
    vars(shell).pop("showsyntaxerror", None)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(_NAME, None)
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    if magics in shell.configurables:
        shell.configurables.remove(magics)
    if magics.completer.match in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(magics.completer.match)
