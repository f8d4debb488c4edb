"""``kcoral-magic ncu | sanitize | iket | asm | bench``: the family at a terminal, with ``--json`` for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.errors import KCoralError, UsageError
from kcoral_magic.tools import arguments, family, job

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution

_FAILED = 1


def main(name: str, words: list[str]) -> int:
    """Run one; its exit status: 0, or 1 where a check, an expectation or a program failed.

    Raises:
        KCoralError: It could not run.
    """
    tool = family.find(name)
    parser = argparse.ArgumentParser(
        f"kcoral-magic {name}", description=family.TOOLS[name][1], allow_abbrev=False, epilog=_epilog(name)
    )
    parser.add_argument("--json", action="store_true", dest="is_json", help="the result as JSON")
    parser.add_argument("--html", metavar="FILE", help="and as a page")
    if words[:1] and words[0] in ("view", "diff", "log"):
        if {"-h", "--help"} & set(words):
            print(f"{_epilog(name)}; each with --json, and --html FILE")
            return 0
        flags = [word for word in words if word == "--json"]
        options = parser.parse_args(flags + _page(words))
        return _told(lambda: _offline(tool, words, options), options)
    arguments.add_run_options(parser, has_out=False)
    parser.add_argument("--url", metavar="URL", help="the gateway (KCORAL_MAGIC_URL; else your own on this machine)")
    tool.add_options(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar=_METAVARS.get(name, "PROGRAM [ARGS]"))
    options = parser.parse_args(arguments.separated(parser, words))
    options.own = {word for action in parser._actions for word in action.option_strings if word.startswith("--")}
    options.family = name
    options.words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not options.words:
        parser.error(f"{_METAVARS.get(name, 'a program')} was expected, got nothing")
    if tool.WHERE != "under" and len(options.words) > 1:
        parser.error(f"one FILE was expected, after the options; got {options.words[1]!r} too")
    return _told(lambda: _online(tool, options), options)


def _told(work: Callable[[], int], options: argparse.Namespace) -> int:
    """Do it; an error is JSON too where that was asked for: stdout is one document, however it ends."""
    try:
        return work()
    except KCoralError as error:
        _tell_error(error, options)
        raise
    except Exception as error:
        remote = getattr(error, "remote_traceback", None)
        if remote is None:
            raise
        print(remote, file=sys.stderr)  # the code's own error: our frames say nothing of it
        _tell_error(error, options)
        return _FAILED


def _tell_error(error: BaseException, options: argparse.Namespace) -> None:
    if options.is_json:
        print(json.dumps(_as_json(error), indent=1))


def _as_json(error: BaseException) -> dict[str, Any]:
    return {"error": {"code": getattr(error, "code", "error"), "message": str(error)}}


def _offline(tool: Any, words: list[str], options: argparse.Namespace) -> int:
    found = tool.offline(_files(words))
    if found is None:
        raise UsageError(tool.USAGE)
    return _tell(found, options, None)


def _online(tool: Any, options: argparse.Namespace) -> int:
    from kcoral_magic.client.sync import Client

    with Client(options.url) as client:
        return _program(client, tool, options) if tool.WHERE == "under" else _source(client, tool, options)


_METAVARS = {"asm": "FILE", "bench": "FILE"}


def _epilog(name: str) -> str:
    lines = {
        "ncu": "kcoral-magic ncu view FILE | diff BEFORE AFTER read reports that lie here",
        "sanitize": "kcoral-magic sanitize view FILE reads its XML or text",
        "iket": "kcoral-magic iket view FILE reads a trace's JSON",
        "bench": "kcoral-magic bench log NAME lists what was kept",
    }
    return lines.get(name, "")


def _page(words: list[str]) -> list[str]:
    return words[words.index("--html") : words.index("--html") + 2] if "--html" in words else []


def _files(words: list[str]) -> list[str]:
    """The words that are no options of ours."""
    page = _page(words)
    return [word for word in words if word != "--json" and word not in page]


def _program(client: Client, tool: Any, options: argparse.Namespace) -> int:
    """A program under the tool; its output goes to stderr where stdout is JSON."""
    program = options.words
    if late := sorted({word.partition("=")[0] for word in program[1:]} & options.own):
        print(
            f"kcoral-magic: {', '.join(late)} after the program goes to the program: ours stand before it",
            file=sys.stderr,
        )
    if program[0].endswith((".ncu-rep", ".csv", ".xml", ".log")):
        raise UsageError(
            f"{program[0]} is no program; a report is read by: kcoral-magic {options.family} view {program[0]}"
        )
    if program[0].endswith(".py") and not (options.session or options.send or Path(program[0]).is_file()):
        raise UsageError(f"there is no file {program[0]}")
    if program[0].endswith(".py"):
        program = ["python", *program]
    options.tool, options.words = tool.RUN, [*tool.words(options), *program]
    options.fetch, options.out, options.overwrite = [], ".", False
    ask = job.Ask.of(options, session=options.session, reads_input=False)
    execution = job.start(client, ask)
    _follow(execution, options.is_json)
    done = job.done_of(execution)
    for text in done.problems:
        print(f"kcoral-magic: {text}", file=sys.stderr)
    shown = tool.shown(done, options, None)
    if shown.beside is not None and not options.is_json:
        print(repr(shown.beside))
    return _tell(shown.value, options, shown.error) or (_FAILED if done.status else 0)


def _source(client: Client, tool: Any, options: argparse.Namespace) -> int:
    """A file's text as the cell: a kernel to compile, or code to time in a session of its own."""
    path = Path(options.words[0])
    try:
        source = sys.stdin.read() if options.words[0] == "-" else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    options.place = (1, 1)
    if tool.WHERE == "apart":
        execution = tool.start(client, source, options, path.parent)
    else:
        session = client.session(options.session or "", gpus=options.gpus, python=options.python)
        files = None if options.no_sync else job.beside(f"{source}\n{tool.reads(options)}", path.parent)
        execution = tool.start(session, source, options, files=files)
    _follow(execution, options.is_json)
    ended = tool.ended(execution, source, options)
    if isinstance(ended, family.Shown):
        return _tell(ended.value, options, ended.error)
    return _tell(ended, options, None)


def _follow(execution: Execution, is_json: bool) -> None:
    """Print what it prints; where stdout is JSON, on stderr."""
    for output in execution:
        if is_json and output.text:
            sys.stderr.write(output.text)
        elif not is_json:
            output.print()


def _tell(value: Any, options: argparse.Namespace, error: BaseException | None) -> int:
    """Show a result; an expectation that failed is the status."""
    if options.html and value is not None:
        page = value.html() if hasattr(value, "html") else value._repr_html_()
        head = '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        try:
            Path(options.html).write_text(f'{head}<body style="font-family:system-ui,sans-serif">{page}', "utf-8")
        except (OSError, ValueError) as failed:  # ValueError: a null byte in the name
            text = f"--html {options.html}: {getattr(failed, 'strerror', None) or failed}"
            error = error or UsageError(text)
    if options.is_json:
        made = value.json() if hasattr(value, "json") else {"rows": list(getattr(value, "data", ()))}
        print(json.dumps({**made, **(_as_json(error) if error else {})}, indent=1))
    elif value is not None:
        print(repr(value))
    if error is not None:
        print(f"kcoral-magic: {error}", file=sys.stderr)
        return _FAILED
    return 0
