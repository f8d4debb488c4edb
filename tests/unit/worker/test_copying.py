"""What of a session is copied, whatever its objects do when one looks at them."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from kcoral_gateway.worker import copying


class Thing:
    pass


class Silent(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Mute(metaclass=Silent):
    pass


class Exits:
    def __reduce__(self) -> Any:
        sys.exit(3)


def test_names_are_reached_past_those_that_answer_nothing() -> None:
    thing = Thing()
    namespace = {"dead": weakref.proxy(thing), "mute": Mute, "n": 1}
    del thing
    assert set(copying._reached(["dead", "mute", "n"], namespace)) == {"dead", "mute", "n"}


def test_a_name_that_would_end_the_process_is_left_out_and_named() -> None:
    made, problems = copying._pickled({"exits": Exits(), "n": 1})
    assert made["pickles"]
    (problem,) = problems
    assert problem.startswith("exits cannot be copied")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (tmp_path / "closed").write_text("x")
    (tmp_path / "closed").chmod(0)
    data, left = copying._packed(tmp_path)
    assert data
    assert left == ["closed is not copied: Permission denied"]


def test_a_symbolic_link_is_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (tmp_path / "link").symlink_to("mine")
    data, left = copying._packed(tmp_path)
    assert data
    assert left == ["link is not copied: it is a symbolic link"]
