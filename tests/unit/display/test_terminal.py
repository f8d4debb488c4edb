"""Streams that move their cursor: the saved notebook shows what a terminal would have in the end."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

from kcoral_magic.display.terminal import Live, Plain, Screen


def notebook(pieces: Iterable[Plain | Live]) -> list[str]:
    """The lines a notebook shows in the end: text as it came, each block below it as it was last."""
    shown: list[str] = []
    is_block = True
    for piece in pieces:
        match piece:
            case Plain(text=text) if not is_block:
                shown[-1] += text
            case Live(text=text, is_new=False):
                shown[-1] = text
            case _:
                shown.append(piece.text)
        is_block = isinstance(piece, Live)
    lines = [overwritten(line) for text in shown for line in text.replace("\r\n", "\n").split("\n")]
    return [line for line in lines if line]


def overwritten(line: str) -> str:
    """What a front end shows of a line of plain text with carriage returns."""
    seen = ""
    for part in line.split("\r"):
        seen = part + seen[len(part) :]
    return seen.rstrip()


def feed(*texts: str) -> list[Plain | Live]:
    screen = Screen()
    return [piece for text in texts for piece in screen.feed(text)]


BAR = {"ncols": 40, "mininterval": 0, "ascii": False, "bar_format": "{desc} {n_fmt}/{total_fmt}|{bar}|"}


def bar_text(count: int = 5) -> str:
    out = io.StringIO()
    for _ in tqdm(range(count), file=out, **BAR):
        pass
    return out.getvalue()


def nested_bars_text() -> str:
    out = io.StringIO()
    for _ in tqdm(range(2), desc="outer", position=0, file=out, **BAR):
        for _ in tqdm(range(3), desc="inner", position=1, leave=False, file=out, **BAR):
            pass
    return out.getvalue()


# ── Plain text ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.text(st.characters(exclude_characters="\r\x1b\x08"), max_size=30), max_size=5))
def test_text_that_moves_no_cursor_passes_untouched(texts: list[str]) -> None:
    assert feed(*texts) == [Plain(text) for text in texts if text]


@pytest.mark.parametrize("text", ["\x1b[31mred\x1b[0m\n", "\x1b[1;38;5;200mpink\x1b[m", "tab\tbell\x07"])
def test_colours_alone_pass_untouched(text: str) -> None:
    assert feed(text) == [Plain(text)]


def test_line_ends_of_other_systems_are_line_ends() -> None:
    assert feed("one\r\ntwo\r\n") == [Plain("one\ntwo\n")]


def test_a_line_end_of_another_system_may_come_in_two_pieces() -> None:
    assert notebook(feed("one\r", "\ntwo\r", "\nthree\n")) == ["one", "two", "three"]


# ── Bars ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bar_is_one_block_that_shows_its_last_state() -> None:
    pieces = feed(bar_text())
    assert [type(piece) for piece in pieces] == [Live]
    assert notebook(pieces) == [f" 5/5|{'█' * 34}|"]


def test_each_update_of_a_bar_changes_the_same_block() -> None:
    updates = [f"\r{part}" for part in bar_text().split("\r") if part]
    pieces = feed(*updates)
    assert [piece.is_new for piece in pieces if isinstance(piece, Live)] == [True] + [False] * (len(updates) - 1)
    assert notebook(pieces) == notebook(feed(bar_text()))


def test_nested_bars_are_one_block_with_both_in_their_last_state() -> None:
    pieces = feed(nested_bars_text())
    assert [type(piece) for piece in pieces] == [Live]
    assert notebook(pieces) == ["outer 2/2|" + "█" * 29 + "|"]
    before_the_last_inner_ends = nested_bars_text().rpartition("inner 3/3")[0] + "inner 3/3|"
    assert [line.partition("|")[0] for line in notebook(feed(before_the_last_inner_ends))] == [
        "outer 1/2",
        "inner 3/3",
    ]


def test_text_before_a_bar_stays_text_and_text_after_it_is_text_again() -> None:
    pieces = feed("begin\n", "\r1/2", "\r2/2\n", "end\n", "\rnew bar")
    assert pieces == [Plain("begin\n"), Live("1/2", True), Live("2/2", False), Plain("end\n"), Live("new bar", True)]


def test_whole_lines_before_a_bar_in_one_piece_stay_text() -> None:
    assert feed("one\ntwo\nhalf\rbar") == [Plain("one\ntwo\n"), Live("barf", True)]


def test_a_block_goes_on_while_its_line_is_open() -> None:
    assert feed("\r50%", " done", "\n", "next") == [
        Live("50%", True),
        Live("50% done", False),
        Live("50% done", False),
        Plain("next"),
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\rabc\rX", ["Xbc"]),
        ("\rabc\x1b[2K\rX", ["X"]),
        ("\rabc\r\x1b[K", []),
        ("\rabc\x1b[2D\x1b[K!", ["a!"]),
        ("\ra\x1b[3Cb", ["a   b"]),
        ("\rone\ntwo\n\x1b[2AONE\x1b[2BX", ["ONE", "two", "   X"]),
        ("\rab\x08c", ["ac"]),
        ("\r\x08\x08a", ["a"]),
        ("\r\x1b[99A\x1b[99Da", ["a"]),
        ("\ra\x1b[?25lb\x1b[?25hc\x1b[5;1r", ["abc"]),
        ("\r\x1b[31mred\x1b[0m plain", ["\x1b[31mred\x1b[0m plain"]),
    ],
)
def test_a_cursor_moves_as_on_a_terminal(text: str, lines: list[str]) -> None:
    assert notebook(feed(text)) == lines


def test_a_block_keeps_its_newest_lines_only() -> None:
    pieces = feed("\r" + "".join(f"{number}\n" for number in range(1000)))
    lines = notebook(pieces)
    assert lines[-1] == "999"
    assert len(lines) <= 200


def test_a_few_bytes_cannot_make_a_block_of_megabytes() -> None:
    pieces = feed("\r" + "\x1b[1000C" * 5_000 + "x")
    assert len(pieces[-1].text) < 100_000


# ── Cutting ─────────────────────────────────────────────────────────────────────────────────────────────────────────

words = st.text(st.sampled_from("ab ö"), max_size=6)
bars = st.lists(words.map(lambda word: f"\r{word}"), min_size=1, max_size=4).map(lambda parts: "".join(parts) + "\n")
coloured = words.map(lambda word: f"\r\x1b[32m{word}\x1b[0m|\x1b[K\n")
bar_words = st.text(st.sampled_from("ab ö"), min_size=1, max_size=6)  # an empty one is no bar but a line end
nested = st.tuples(bar_words, bar_words).map(lambda pair: f"\r{pair[0]}\n\r{pair[1]}\x1b[A\r{pair[1]}\n\n")
lines = words.map(lambda word: f"{word}\n")
streams = st.lists(st.one_of(bars, coloured, nested, lines), max_size=6).map("".join)


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=5))
def test_the_notebook_shows_the_same_wherever_a_stream_is_cut(text: str, cuts: list[int]) -> None:
    assert notebook(feed(*pieces_of(text, cuts))) == notebook(feed(text))


@pytest.mark.parametrize(
    "text", [bar_text(), nested_bars_text(), "begin\n" + bar_text() + "end\n"], ids=["bar", "nested", "lines"]
)
def test_a_real_bar_may_be_cut_anywhere(text: str) -> None:
    whole = notebook(feed(text))
    assert notebook(feed(*text)) == whole
    for cut in range(len(text)):
        assert notebook(feed(text[:cut], text[cut:])) == whole


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_sequence_may_come_in_two_pieces(cut: int) -> None:
    text = "\rone\ntwo\x1b[1A\rONE"
    at = len("\rone\ntwo") + cut - 2
    assert notebook(feed(text[:at], text[at:])) == ["ONE", "two"]


@given(st.lists(words, max_size=4), st.lists(st.integers(0, 10_000), max_size=5))
def test_lines_of_other_systems_may_be_cut_anywhere(lines: list[str], cuts: list[int]) -> None:
    text = "".join(f"{line}\r\n" for line in lines)
    assert notebook(feed(*pieces_of(text, cuts))) == [line.rstrip() for line in lines if line.rstrip()]


def test_a_line_that_is_rewritten_later_is_shown_once() -> None:
    assert notebook(feed("loading 1", "\rloading 2", "\rloading 3\n")) == ["loading 3"]


@given(st.text(st.sampled_from("ab\r\n\x1b[0123;?ABCDKm\x08"), max_size=40), st.lists(st.integers(0, 100), max_size=4))
def test_any_text_can_be_shown(text: str, cuts: list[int]) -> None:
    for piece in feed(*pieces_of(text, cuts)):
        if isinstance(piece, Live):
            assert not re.search(r"[\r\x08]|\x1b\[[^m]*[A-DK]", piece.text)
