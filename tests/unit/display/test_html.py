"""Tables and quantities for people."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcoral_magic.display.html import Table, duration, size

TABLE = Table("2 sessions", ("name", "GPUs"), (("train", "2"), ("x", "1 <H200>")), "one waits", data=(1, 2))


def test_a_table_in_a_terminal_lines_its_columns_up() -> None:
    assert repr(TABLE).split("\n") == ["2 sessions", "  name   GPUs", "  train  2", "  x      1 <H200>", "one waits"]


def test_a_table_without_rows_is_its_title_and_note() -> None:
    empty = Table("no sessions", ("name",), (), "start one")
    assert repr(empty) == "no sessions\nstart one"
    assert "<table" not in empty._repr_html_()
    assert len(empty) == 0


def test_a_table_in_a_notebook_shows_every_cell() -> None:
    html = TABLE._repr_html_()
    for shown in ("<b>2 sessions</b>", ">name</th>", ">train</td>", "one waits"):
        assert shown in html
    assert html.count("<tr>") == 3
    assert len(TABLE) == 2


@given(st.text(max_size=30))
def test_no_text_of_a_table_is_html(text: str) -> None:
    evil = f"<script>{text}&"
    html = Table(evil, (evil,), ((evil,),), evil)._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (588_900, "588.9 kB"), (1.5e6, "1.5 MB"), (16e9, "16.0 GB")],
)
def test_bytes_as_people_write_them(count: float, shown: str) -> None:
    assert size(count) == shown


def test_more_bytes_than_units_are_terabytes() -> None:
    assert size(2.5e12) == "2.50 TB"
    assert size(5e15) == "5000.00 TB"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (7 * 3600 + 61, "7 h 1 min"),
    ],
)
def test_seconds_as_people_say_them(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@given(st.floats(0, 1e6))
@example(59.7)
@example(119.6)
@example(3599.9)
@example(7199.9)
def test_no_duration_has_sixty_seconds_or_sixty_minutes(seconds: float) -> None:
    assert not re.search(r"\b60 (s|min)$", duration(seconds))
