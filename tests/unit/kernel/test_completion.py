"""Tab on the magics' lines."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.completer import CompletionContext

from kcoral_magic.kernel.completion import Completer

CELL_OPTIONS = ("--gpus", "--session", "--fresh")
SUBCOMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "restart": ("--gpus",),
    "connect": ("--ca", "--trust"),
    "close": (),
}
SESSIONS = ("train", "eval")


COMPLETER = Completer(CELL_OPTIONS, SUBCOMMANDS, lambda: SESSIONS)


def complete(line: str) -> list[str]:
    return COMPLETER.candidates(line)


def asked(text: str, line: int = 0) -> dict[str, Any]:
    """What IPython gets with the cursor at the end of a line of ``text``."""
    end = len(text.split("\n")[line])
    return COMPLETER.match(CompletionContext("", text, cursor_position=end, cursor_line=line, limit=None))


def test_on_our_lines_nobody_else_completes_and_the_order_is_kept() -> None:
    found = asked("%kcoral ")
    assert [one.text for one in found["completions"]] == list(SUBCOMMANDS)
    assert (found["suppress"], found["ordered"]) == (True, True)


@pytest.mark.parametrize(
    ("text", "line"), [("", 0), ("%kcor", 0), ("%kcoralx ", 0), ("x = kcoral ", 0), ("%%kcoral --gpus 2\nimport ", 1)]
)
def test_on_other_lines_we_complete_nothing(text: str, line: int) -> None:
    assert asked(text, line) == {"completions": []}


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("%kcoral ", ["status", "restart", "connect", "close"]),
        ("%kcoral st", ["status"]),
        ("%kcoral nothing", []),
        ("%kcoral connect ", ["--ca", "--trust"]),
        ("%kcoral connect --t", ["--trust"]),
        ("%kcoral connect --ca x ", ["--trust"]),
        ("  %kcoral  con", ["connect"]),
        ("%kcoral unknown ", []),
    ],
)
def test_a_line_completes_its_subcommands_and_their_options(line: str, candidates: list[str]) -> None:
    assert complete(line) == candidates


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("%%kcoral ", ["--gpus", "--session", "--fresh"]),
        ("%%kcoral --f", ["--fresh"]),
        ("%%kcoral --gpus 2 ", ["--session", "--fresh"]),
        ("%%kcoral --fresh --gpus 2 --s", ["--session"]),
        ("%%kcoral st", []),
    ],
)
def test_a_cell_completes_the_options_that_are_not_there_yet(line: str, candidates: list[str]) -> None:
    assert complete(line) == candidates


@pytest.mark.parametrize("line", ["%%kcoral --session ", "%kcoral restart ", "%kcoral close ", "%kcoral interrupt "])
def test_a_session_is_completed_by_the_names_of_sessions(line: str) -> None:
    assert complete(line) == ["train", "eval"]
    assert complete(f"{line}tr") == ["train"]


@pytest.mark.parametrize("line", ["%%kcoral --gpus ", "%%kcoral --session train --gpus ", "%kcoral restart --gpus "])
def test_gpus_are_completed_by_counts(line: str) -> None:
    assert complete(line) == ["1", "2", "4", "8", "all"]
    assert complete(f"{line}a") == ["all"]


def test_a_subcommand_that_takes_a_session_still_completes_its_options() -> None:
    assert complete("%kcoral restart --") == ["--gpus"]
    assert complete("%kcoral restart train ") == ["train", "eval"]
