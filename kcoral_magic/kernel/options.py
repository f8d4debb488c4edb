"""What ``%%kcoral`` and ``%kcoral`` take: options, subcommands, and the help made of them."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as IPythonUsageError

from kcoral_magic.errors import UsageError
from kcoral_magic.tools import TOOLS, arguments, family

NAME = "kcoral"
_USAGE = 46  # characters of a line in the help


class Parser(argparse.ArgumentParser):
    """argparse that raises IPython's UsageError, never exits, and takes no half a word for an option."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, add_help=False, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise IPythonUsageError(f"{self.prog}: {message}\n{self.format_usage().strip()}")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if bad := [name for name in names if not name.isidentifier()]:
        raise argparse.ArgumentTypeError(f"names as in a,b; got {bad[0]!r}")
    return names


def _wants(text: str) -> list[str]:
    if "=" not in text:
        return _names(text)
    name, _, expression = text.partition("=")
    if not name.strip().isidentifier() or not expression.strip():
        raise argparse.ArgumentTypeError(f"a name and an expression as in w=model.state_dict(), got {text!r}")
    return [text]


def cell_parser() -> Parser:
    """Of a cell's line."""
    parser = Parser("%%kcoral")
    _add_cell_options(parser)
    return parser


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Where a cell runs, and what goes along: of a plain cell and of one under a tool."""
    add = parser.add_argument
    add(
        "--gpus",
        type=arguments.gpus,
        metavar="N|all",
        help="GPUs of the session, fixed by its first cell (1, or 0)",
    )
    add("--session", type=arguments.session, metavar="NAME", help="a named session; it outlives the notebook")
    add("--python", metavar="NAME", help="one of the gateway's interpreter environments, fixed by the first cell")
    add("-i", "--in", dest="inputs", type=_names, action="extend", metavar="A,B", help="send these names in any case")
    add("--timeout", type=arguments.seconds, metavar="S", help="interrupt after S seconds of running, kill 5 s later")
    add("--queue-timeout", type=arguments.seconds, metavar="S", help="give up after S seconds without GPUs")
    add("--no-capture", action="store_true", help="do not send what the cell reads of the notebook")
    add("--no-sync", action="store_true", help="do not send the code that the cell imports")


def _add_cell_options(parser: argparse.ArgumentParser) -> None:
    add_session_options(parser)
    add = parser.add_argument
    add("-o", "--out", dest="outputs", type=_wants, action="extend", metavar="C,D", help="bring back; or w=EXPRESSION")
    add("--fresh", action="store_true", help="run in a new worker on the session's GPUs and throw it away")
    add("--cwd", metavar="DIR", help="run in this folder of the workspace")
    add("--setup", action="store_true", help="this cell rebuilds state: it runs again before a cell that is profiled")
    add("--quiet", action="store_true", help="no waiting line, no lines on what was sent")


def line_parsers() -> dict[str, Parser]:
    made: dict[str, Parser] = {}

    def parser(name: str, text: str) -> Parser:
        made[name] = Parser(f"%kcoral {name}", description=text)
        return made[name]

    parser("status", "the gateway, its isolation, your sessions")
    parser("gpus", "the gateway's GPUs")
    parser("sessions", "your sessions")
    parser("jobs", "what of yours runs and waits, also without a session")
    records = parser("records", "what of yours has run: waiting, times, sizes")
    records.add_argument("--session", type=arguments.session, default=None, metavar="NAME", help="of this session only")
    records.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N (20)")
    output = parser("output", "the whole output of a cell, also of one that was cut or left")
    output.add_argument("execution", nargs="?", default="", help="an execution's id; the last one by default")
    interrupt = parser("interrupt", "stop what a session runs")
    restart = parser("restart", "a new, empty worker")
    restart.add_argument("--gpus", type=arguments.gpus, metavar="N|all", help="on that many GPUs")
    close = parser("close", "end a session")
    for sub in (interrupt, restart, close):
        sub.add_argument("session", nargs="?", type=arguments.session, help="the notebook's own by default")
    connect = parser("connect", "use the gateway at URL; without one, your own on this machine")
    connect.add_argument("url", nargs="?", default="", help="wss://host:port")
    connect.add_argument("--ca", metavar="FILE", help="certificate authority, PEM")
    connect.add_argument("--token-file", metavar="FILE", help="a file with the token on one line")
    connect.add_argument("--trust", action="store_true", help="let its HTML and JavaScript run here; remembered")
    parser("disconnect", "leave; sessions stay")
    put = parser("put", "send files, folders and globs to the session's workspace")
    get = parser("get", "fetch files, folders and globs from it")
    for sub in (put, get):
        sub.add_argument("paths", nargs="+", metavar="PATH")
        sub.add_argument("--to", default="", metavar="DIR", help="the folder they go to")
    ls = parser("ls", "what is in the workspace")
    ls.add_argument("path", nargs="?", default="")
    rm = parser("rm", "remove files and folders from the workspace")
    rm.add_argument("paths", nargs="+", metavar="PATH")
    df = parser("df", "how full the workspace and the cache of your files are")
    sync = parser("sync", "send a folder's files now, less those of .gitignore and .kcoralignore")
    sync.add_argument("folder", nargs="?", default=".", metavar="DIR")
    sync.add_argument("--watch", action="store_true", help="and what changes in it, before every cell")
    sync.add_argument("--yes", action="store_true", help="also when it is large")
    for sub in (put, get, ls, rm, df, sync):
        sub.add_argument("--session", type=arguments.session, default=None, metavar="NAME")
    run = parser("run", "a program or a tool there: run python script.py ARGS, run shell 'make && ./bench'")
    arguments.add_run_options(run)
    run.add_argument("tool", choices=list(TOOLS), metavar="TOOL", help=", ".join(TOOLS))
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="...")
    use = parser("use", "defaults for the cells of this notebook; --clear forgets them")
    _add_cell_options(use)
    use.add_argument("--local", action="store_true", help="run marked cells here, without a gateway")
    use.add_argument("--remote", action="store_true", help="run them there again")
    use.add_argument("--clear", action="store_true")
    parser("on", "run plain cells there too; %%local exempts one")
    parser("off", "run plain cells here again")
    return made


def split(line: str) -> list[str]:
    """A line's words.

    Raises:
        UsageError: A quote is open.
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"the line cannot be read: {error}") from None


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The option strings that a parser knows."""
    return [option for action in parser._actions for option in action.option_strings]


def _word(action: argparse.Action) -> str:
    """What stands for a positional argument in a usage."""
    name = str(action.metavar or action.dest)
    return "" if action.option_strings else f"[{name}]" if action.nargs == "?" else name


def documentation() -> str:
    """What ``%%kcoral?`` shows."""
    lines = [
        "Run a cell on a GPU machine as if it ran here.",
        "",
        "    %%kcoral [options]",
        "    code, magics, !commands, top-level await",
        "",
        "Options of a cell:",
        "",
    ]
    for action in cell_parser()._actions:
        name = " ".join((*action.option_strings, *([str(action.metavar)] if action.metavar else [])))
        lines.append(f"    {name:<20} {action.help}")
    lines += ["", "Lines (%kcoral alone shows the status):", ""]
    for parser in line_parsers().values():
        usage = " ".join(parser.format_usage().split()[2:])
        if len(usage) > _USAGE:
            usage = " ".join(filter(None, (parser.prog.split()[1], "[options]", *map(_word, parser._actions))))
        lines.append(f"    {'%kcoral ' + usage:<54} {parser.description}")
    lines += ["", "A cell under a tool, a program, and reports that lie here (%kcoral ncu --help for its options):", ""]
    for name, (_, text) in family.TOOLS.items():
        lines.append(f"    {f'%%kcoral {name} [options]':<54} {text}")
    lines += [f"    {line:<54} {text}" for line, text in family.LINES]
    lines += ["", "Settings: %config KCoral. A token never stands on a line: store it with `kcoral-magic connect URL`."]
    return "\n".join(lines)
