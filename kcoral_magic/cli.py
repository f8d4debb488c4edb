"""``kcoral-magic run|status|sessions|jobs|records|cache|connect|ncu|asm|…``: parse, call, print.

What is loaded is what a command needs: most of the time that ``run`` takes on a near gateway is Python's own start.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from kcoral_magic.errors import KCoralError
from kcoral_magic.protocol import __version__

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client

_INTERRUPTED = 130
_FAMILY = {
    "ncu": "profile a program's kernels; ncu view FILE and ncu diff A B read reports here",
    "sanitize": "look for memory faults and races in a program's kernels",
    "iket": "events inside a program's kernels",
    "asm": "a kernel's source as PTX and machine code for any GPU, without one",
    "bench": "time a file's code: against a baseline, with a verdict",
}
_SCHEMA = 1  # of the JSON documents: a field's meaning never changes within a number


def parser() -> argparse.ArgumentParser:
    """The command line."""
    from kcoral_magic.tools import TOOLS

    top = argparse.ArgumentParser("kcoral-magic", description="Cells, programs and tools on GPU machines elsewhere.")
    top.add_argument("--version", action="version", version=f"kcoral-magic {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a program or a tool there, as if it ran here")
    tools = run.add_subparsers(dest="tool", required=True, metavar="TOOL")
    for tool in TOOLS.values():
        made = tools.add_parser(
            tool.name,
            aliases=tool.aliases,
            help=tool.help,
            description=f"{tool.help[0].upper()}{tool.help[1:]}. Options come before its own words.",
            usage=f"kcoral-magic run {tool.name} [OPTIONS] {tool.usage}",
            allow_abbrev=False,
        )
        _add_run(made)
        made.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)
    for name, text in _FAMILY.items():  # each has a parser of its own
        commands.add_parser(name, help=text, add_help=False)
    for name, text in (
        ("status", "the gateway, its GPUs, your sessions"),
        ("sessions", "your sessions"),
        ("jobs", "what of yours runs and waits"),
        ("records", "what of yours has run"),
        ("cache", "what your files and values take at the gateway"),
    ):
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", dest="is_json", help="one JSON document")
        _add_connection(made)
        if name == "records":
            made.add_argument("--session", metavar="NAME", help="of this session only")
            made.add_argument("--limit", type=int, default=20, metavar="N", help="the newest N, at most 1000 (20)")
    interrupt = commands.add_parser("interrupt", help="stop what runs or waits, by its id")
    interrupt.add_argument("id", nargs="+", help="as jobs lists it")
    interrupt.add_argument("--kill", action="store_true", help="end its worker, and its session's state")
    close = commands.add_parser("close", help="end a session: its state goes, its GPUs are free")
    close.add_argument("session", nargs="+", help="as sessions lists it")
    for made in (interrupt, close):
        _add_connection(made)
    connect = commands.add_parser("connect", help="try and store the credential of a gateway")
    connect.add_argument("url", help="wss://host:port")
    connect.add_argument("--ca", metavar="FILE", help="certificate authority, PEM")
    connect.add_argument("--trust", action="store_true", help="let its HTML and JavaScript run in your notebooks")
    return top


def _add_run(to: argparse.ArgumentParser) -> None:
    from kcoral_magic.tools import arguments

    arguments.add_run_options(to)
    _add_connection(to)


def _separated(words: list[str]) -> list[str]:
    """A command line on which a tool's own words are told from ours."""
    if words[:1] != ["run"] or len(words) < 3:
        return words
    from kcoral_magic.tools import arguments

    ours = argparse.ArgumentParser()
    _add_run(ours)
    return [*words[:2], *arguments.separated(ours, words[2:])]


def _add_connection(to: argparse.ArgumentParser) -> None:
    to.add_argument("--url", metavar="URL", help="the gateway (KCORAL_MAGIC_URL; else your own on this machine)")


def main(arguments: list[str] | None = None) -> None:
    """The ``kcoral-magic`` program; ``run`` exits with the status of what ran."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words[:1] and words[0] in _FAMILY:
            from kcoral_magic.tools import commands

            sys.exit(commands.main(words[0], words[1:]))
        options = parser().parse_args(_separated(words))
        match options.command:
            case "connect":
                _connect(options)
            case "run":
                _leave(_run(options))
            case "interrupt" | "close":
                with _client(options) as client:
                    _stop(client, options)
            case _:
                with _client(options) as client:
                    _list(client, options)
    except KCoralError as error:
        sys.exit(f"kcoral-magic: {error}")
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _client(options: argparse.Namespace) -> Client:
    from kcoral_magic.client.sync import Client

    return Client(options.url)


def _stop(client: Client, options: argparse.Namespace) -> None:
    from kcoral_magic.errors import NotFoundError

    if options.command == "close":
        for name in options.session:
            client.close_session(name)
        return
    there = {job.execution_id for job in client.jobs()}
    if unknown := [given for given in options.id if given not in there]:
        raise NotFoundError(f"{unknown[0]} does not run or wait: kcoral-magic jobs lists what does")
    for given in options.id:
        client.interrupt(given, kill=options.kill)


def _list(client: Client, options: argparse.Namespace) -> None:
    import json
    import time

    from kcoral_magic.display import listings

    made: Any
    match options.command:
        case "status":
            welcome, gpus, sessions = client.connect(), client.gpus(), client.sessions()
            made = {"gateway": client.aio.target.shown, "welcome": welcome, "gpus": gpus, "sessions": sessions}
            table = listings.status(client.aio.target.shown, welcome, gpus, sessions)
        case "sessions":
            made = {"sessions": client.sessions()}
            table = listings.sessions(made["sessions"], time.time())
        case "jobs":
            made = {"jobs": client.jobs()}
            table = listings.jobs(made["jobs"], time.time())
        case "records":
            made = {"records": client.records(session=options.session, limit=options.limit)}
            table = listings.records(made["records"])
        case _:
            made = {"cache": client.storage()}
            table = listings.cache(made["cache"])
    print(json.dumps({"schema": _SCHEMA, **_plain(made)}, indent=1) if options.is_json else repr(table))


def _plain(value: Any) -> Any:
    """Messages as objects by their fields' names; on the wire they are arrays."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__ if name != "request"}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _run(options: argparse.Namespace) -> int:
    gc.disable()  # what is loaded now stays: to look through it again and again takes a tenth of the start
    from kcoral_magic.tools import job, terminal

    reads_input = sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    ask = job.Ask.of(options, session=options.session, reads_input=reads_input)
    job.command_of(ask)  # a wrong one needs no gateway
    client = _client(options)
    gc.freeze()
    gc.enable()
    try:
        return terminal.run(client, ask)
    finally:
        client.disconnect()


def _leave(status: int) -> NoReturn:
    """Exit without taking the interpreter apart, which takes as long as the program there may."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _connect(options: argparse.Namespace) -> None:
    import getpass

    from kcoral_magic import config
    from kcoral_magic.client.sync import Client

    url = config.normalise(options.url)
    token = getpass.getpass(f"Token for {url}: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    ca = os.path.abspath(options.ca) if options.ca else None
    with Client(target=config.Target(url, token.strip(), ca)) as client:
        welcome = client.connect()
    path = config.store_credentials(url, token=token.strip(), ca=ca, trust=True if options.trust else None)
    print(f"connected to {url} as {welcome.principal} (isolation {welcome.sandbox}); stored in {path}")
    print(f"In a notebook: %kcoral connect {url}   or set KCORAL_MAGIC_URL")


if __name__ == "__main__":
    main()
