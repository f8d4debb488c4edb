"""The words of the options that the command line and the magics share, and what each takes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Literal

from kcoral_magic.protocol.wire import is_session_name


def add_run_options(to: argparse.ArgumentParser, *, has_out: bool = True) -> None:
    """What ``run`` takes, here and in a notebook; without ``has_out`` nothing is said of files that come back."""
    add = to.add_argument
    add("--gpus", type=gpus, metavar="N|all", help="how many (default 1, or 0 where there are none)")
    add(
        "--session",
        type=session,
        metavar="NAME",
        help="in a named session; without one, alone in a new worker",
    )
    add("--python", metavar="NAME", help="one of the gateway's interpreter environments")
    add("--send", action="append", default=[], metavar="PATH", help="a file, folder or glob goes along; repeatable")
    add(
        "-e",
        "--env",
        action="append",
        default=[],
        type=environment,
        metavar="NAME[=VALUE]",
        help="a variable; repeatable",
    )
    if has_out:
        add(
            "--fetch",
            action="append",
            default=[],
            metavar="PATH",
            help="a file, folder or glob comes back; repeatable",
        )
        add("--out", default=".", metavar="DIR", help="the folder for what comes back (.)")
        add("--overwrite", action="store_true", help="what comes back may replace files here")
    add("--timeout", type=seconds, metavar="S", help="end it after S seconds of running; what there is comes back")
    add("--queue-timeout", type=seconds, metavar="S", help="give up after S seconds without GPUs")
    add("--no-sync", action="store_true", help="do not send the modules that the script imports")


def separated(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """``words`` with ``--`` before the first that is no option of ``parser``: from there on they are a tool's own."""
    takes = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
    place = 0
    while place < len(words):
        name, has_value, _ = words[place].partition("=")
        if words[place] == "--":
            return list(words)
        if name not in takes:
            break
        place += 2 if takes[name] and not has_value else 1
    return [*words[:place], "--", *words[place:]]


def gpus(text: str) -> int | Literal["all"]:
    """A count, or ``all``."""
    if text == "all":
        return "all"
    if "," in text:
        raise argparse.ArgumentTypeError(f"a count or 'all', got {text!r}: the gateway chooses which GPUs")
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a count or 'all', got {text!r}")
    return int(text)


def session(text: str) -> str:
    """A session's name."""
    if not is_session_name(text):
        raise argparse.ArgumentTypeError(f"1–64 letters, digits, '.', '_' or '-', got {text!r}")
    return text


def environment(text: str) -> tuple[str, str]:
    """``NAME=VALUE``, or ``NAME`` for its value here."""
    name, is_given, value = text.partition("=")
    if not name or "\0" in text:
        raise argparse.ArgumentTypeError(f"as in NAME=VALUE, or NAME for its value here; got {text!r}")
    if not is_given and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not set here: give it a value, as in {name}=VALUE")
    return name, value if is_given else os.environ[name]


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds above 0, got {text!r}")
    return value
