"""From pipe bytes to stream messages: at once after a pause, batched in a flood, nothing lost, characters whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_gateway.host.output import BATCH_BYTES, INTERVAL_S, REWRITE_S, OutputBatcher, StreamName, collapse


def joined(parts: list[tuple[StreamName, bytes]], name: StreamName = "stdout") -> bytes:
    return b"".join(data for stream, data in parts if stream == name)


def terminal(text: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines: list[list[str]] = [[]]
    column = 0
    for character in text:
        line = lines[-1]
        if character == "\n":
            lines.append([])
            column = 0
        elif character == "\r":
            column = 0
        elif character == "\b":
            column = max(0, column - 1)
        else:
            line[column : column + 1] = [*[" "] * (column - len(line)), character]
            column += 1
    return ["".join(line).rstrip() for line in lines]


# ── When ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_due_while_nothing_waits() -> None:
    batcher = OutputBatcher()
    assert batcher.due_s is None
    assert batcher.take(1.0) == []
    batcher.feed("stdout", b"")
    assert batcher.due_s is None


def test_the_first_bytes_after_a_pause_leave_at_once() -> None:
    batcher = OutputBatcher()
    batcher.feed("stdout", b"first")
    assert batcher.due_s is not None
    assert batcher.due_s <= 100.0
    assert batcher.take(100.0) == [("stdout", b"first")]
    batcher.feed("stdout", b"much later")
    assert batcher.due_s == 100.0 + INTERVAL_S


def test_a_flood_leaves_in_batches_of_an_interval_and_none_of_it_is_lost() -> None:
    batcher, taken = OutputBatcher(), []
    for tick in range(2000):
        now = tick / 2000
        batcher.feed("stdout", b"%d\n" % tick)
        if batcher.due_s is not None and batcher.due_s <= now:
            taken.append((now, batcher.take(now)))
    taken.append((1.0, batcher.finish(1.0)))
    assert 1 / INTERVAL_S * 0.9 <= len(taken) <= 1 / INTERVAL_S + 2
    assert b"".join(joined(parts) for _, parts in taken) == b"".join(b"%d\n" % tick for tick in range(2000))


def test_a_full_batch_does_not_wait() -> None:
    batcher = OutputBatcher()
    batcher.take(100.0)
    batcher.feed("stdout", bytes(BATCH_BYTES - 1))
    assert batcher.due_s == 100.0 + INTERVAL_S
    batcher.feed("stderr", b"x")
    assert batcher.due_s == float("-inf")
    batcher.take(100.0)
    assert batcher.due_s is None


def test_a_bar_is_updated_ten_times_a_second_at_most_and_ends_in_its_last_state() -> None:
    batcher, taken = OutputBatcher(), []
    for tick in range(3000):
        now = tick / 1000
        batcher.feed("stderr", b"\r%4d/3000" % (tick + 1))
        if batcher.due_s is not None and batcher.due_s <= now:
            taken.append(batcher.take(now))
    taken.append(batcher.finish(3.0))
    assert len(taken) <= 3 / REWRITE_S + 2
    text = b"".join(joined(parts, "stderr") for parts in taken)
    assert len(text) < 1000
    assert terminal(text.decode()) == ["3000/3000"]


def test_the_first_output_of_a_new_cell_leaves_at_once() -> None:
    batcher = OutputBatcher()
    batcher.take(100.0)
    batcher.feed("stdout", b"of a thread of the last cell")
    assert batcher.restart() == [("stdout", b"of a thread of the last cell")]
    batcher.feed("stdout", b"new")
    assert batcher.due_s == float("-inf")


# ── What ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_order_of_both_streams_is_kept() -> None:
    batcher = OutputBatcher()
    for name, data in (("stdout", b"1"), ("stdout", b"2"), ("stderr", b"3"), ("stdout", b"4")):
        batcher.feed(name, data)  # type: ignore[arg-type]  # the literals above
    assert batcher.take(0.0) == [("stdout", b"12"), ("stderr", b"3"), ("stdout", b"4")]


chunks = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=8), st.booleans()), max_size=12)


@given(chunks)
def test_bytes_arrive_as_utf8_whatever_they_were_and_wherever_they_were_cut(
    read: list[tuple[StreamName, bytes, bool]],
) -> None:
    batcher, parts = OutputBatcher(), []
    for name, data, is_taken in read:
        batcher.feed(name, data.replace(b"\r", b""))
        if is_taken:
            parts += batcher.take(0.0)
    parts += batcher.finish(0.0)
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data, _ in read if stream == name).replace(b"\r", b"")
        assert joined(parts, name).decode() == whole.decode("utf-8", "replace")
    for _, data in parts:
        data.decode()  # characters are whole in each


@given(st.text(max_size=20), st.lists(st.integers(0, 80), max_size=5))
def test_characters_stay_whole(text: str, cuts: list[int]) -> None:
    data = text.replace("\r", "").encode()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    batcher, parts = OutputBatcher(), []
    for start, end in itertools.pairwise(edges):
        batcher.feed("stdout", data[start:end])
        parts += batcher.take(0.0)
    assert joined(parts) == data
    assert batcher.finish(0.0) == []


def test_half_a_character_waits_for_its_rest_and_is_given_up_at_the_end() -> None:
    batcher = OutputBatcher()
    batcher.feed("stdout", "ü".encode()[:1])
    assert batcher.due_s is None
    batcher.feed("stdout", "ü".encode()[1:])
    assert batcher.take(0.0) == [("stdout", "ü".encode())]
    batcher.feed("stderr", "€".encode()[:2])
    assert batcher.finish(0.0) == [("stderr", "\ufffd".encode())]
    batcher.feed("stderr", b"ok")
    assert batcher.finish(0.0) == [("stderr", b"ok")]


# ── What a terminal would no longer show ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"plain\n", b"plain\n"),
        (b"one\r\ntwo\r\n", b"one\r\ntwo\r\n"),
        (b"\rbar", b"\rbar"),
        (b"\r1/3\r2/3\r3/3", b"\r3/3"),
        (b"first\r1\r2\n", b"first\r2\n"),
        (b"\rlonger\rshort\n", b"\rshortr\n"),
        (b"\r1\r2\r\n", b"\r2\r\n"),
        (b"\r1\r2\nnext\r3\r4", b"\r2\nnext\r4"),
        (b"\r1\x1b[A\r2\r3\n\r4\r5", b"\r1\x1b[A\r2\r3\n\r5"),
        ("\rä\rö".encode(), "\rö".encode()),
    ],
)
def test_what_was_overwritten_is_left_out(data: bytes, kept: bytes) -> None:
    assert collapse(data) == kept


parts = st.lists(st.text(st.sampled_from("ab "), max_size=3), max_size=5)
lines = st.lists(parts.map("\r".join), max_size=3).map("\n".join)


@given(st.text(st.sampled_from("xyz\n"), max_size=6), lines)
def test_a_terminal_shows_the_same(before: str, text: str) -> None:
    assert terminal(before + collapse(text.encode()).decode()) == terminal(before + text)


@given(lines, st.text(st.sampled_from("xyz\r\n"), max_size=6))
def test_a_terminal_shows_the_same_when_more_follows(text: str, after: str) -> None:
    assert terminal(collapse(text.encode()).decode() + after) == terminal(text + after)


@given(st.text(st.sampled_from("ab\b\r\n"), max_size=25))
def test_a_terminal_shows_the_same_where_the_cursor_steps_back(text: str) -> None:
    assert terminal(collapse(text.encode()).decode()) == terminal(text)


def test_only_a_batch_with_rewritten_lines_is_looked_at() -> None:
    batcher = OutputBatcher()
    batcher.feed("stdout", b"\r1\r2")
    batcher.feed("stderr", b"x\n")
    assert batcher.take(0.0) == [("stdout", b"\r2"), ("stderr", b"x\n")]
    batcher.feed("stdout", b"y")
    assert batcher.due_s == INTERVAL_S
