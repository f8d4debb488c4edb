"""An execution's events on disk: whole for who wants all, cut and counted for who does not, the same after a reload."""

from __future__ import annotations

import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kcoral_gateway.execution.journal import Gap, Journal, Piece, prune
from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol.connection import Reader

ID = "execution-1"
ALL = m.View()
Shown = tuple[m.EventBody, tuple[bytes, ...]]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Journal]:
    def made(stream_bytes: int = 1 << 30, tail_bytes: int = 1 << 20) -> Journal:
        return Journal(tmp_path / "a.events", ID, stream_bytes=stream_bytes, tail_bytes=tail_bytes)

    return made


@contextmanager
def temporary(stream_bytes: int = 1 << 30, tail_bytes: int = 1 << 20) -> Iterator[Journal]:
    """A journal for one example of a property."""
    with tempfile.TemporaryDirectory(prefix="kcoral-test-") as folder:
        yield Journal(Path(folder) / "a.events", ID, stream_bytes=stream_bytes, tail_bytes=tail_bytes)


def reloaded(journal: Journal, path: Path, stream_bytes: int = 1 << 30, tail_bytes: int = 1 << 20) -> Journal:
    journal.flush()
    return Journal.load(path, ID, stream_bytes=stream_bytes, tail_bytes=tail_bytes)


def text(data: bytes) -> Shown:
    return m.Stream("stdout"), (data,)


def picture(number: int, size: int = 5) -> Shown:
    return m.Display(("image/png",), f"display-{number}"), (bytes(size), b"{}")


FINISHED: Shown = (m.Finished("ok"), ())


def fill(journal: Journal, events: list[Shown]) -> None:
    for body, buffers in events:
        journal.append(body, buffers)


def read(journal: Journal, view: m.View = ALL, start: int = 1) -> list[Piece | Gap]:
    """What a reader with credit gets now."""
    return read_on(journal, Reader(view, start))


def read_on(journal: Journal, reader: Reader) -> list[Piece | Gap]:
    got: list[Piece | Gap] = []
    while (one := journal.next(reader)) is not None:
        got.append(one)
        reader.sent(one.to if isinstance(one, Gap) else one.number, 0)
        assert len(got) < 10_000, "the journal never ends"
    return got


def event(piece: Piece) -> tuple[int, Shown]:
    decoder = framing.Decoder[m.ToClient](m.ToClient)
    (message,) = [message for frame in piece.frames if (message := decoder.decode(frame)) is not None]
    assert isinstance(message.body, m.Event)
    assert message.body.execution_id == ID
    return message.body.number, (message.body.body, tuple(bytes(buffer) for buffer in message.buffers))


def events(got: list[Piece | Gap]) -> list[tuple[int, Shown]]:
    """The events of a reading that left nothing out."""
    return [event(piece) for piece in got if isinstance(piece, Piece)]


def gaps(got: list[Piece | Gap]) -> list[Gap]:
    return [one for one in got if isinstance(one, Gap)]


def joined(got: list[Piece | Gap]) -> list[Piece | Gap]:
    """The same with neighbouring gaps as one."""
    out: list[Piece | Gap] = []
    for one in got:
        if isinstance(one, Gap) and out and isinstance(before := out[-1], Gap):
            out[-1] = Gap(one.to, before.stream_bytes + one.stream_bytes, before.lines + one.lines)
        else:
            out.append(one)
    return out


def check_cover(got: list[Piece | Gap], all_events: list[Shown], start: int = 1) -> None:
    """Shown and skipped together are everything from ``start``, in order, each once, with exact counts."""
    due = start
    for one in got:
        if isinstance(one, Piece):
            assert event(one) == (due, all_events[due - 1])
            assert one.number == due
            due += 1
            continue
        left_out = all_events[due - 1 : one.to]
        assert left_out, "a gap of nothing"
        assert all(isinstance(body, m.Stream) for body, _ in left_out), "something that is no text was left out"
        assert one.stream_bytes == sum(len(buffers[0]) for _, buffers in left_out)
        assert one.lines == sum(buffers[0].count(b"\n") for _, buffers in left_out)
        due = one.to + 1


texts = st.builds(lambda size, lines: text((b"\n" * lines + b"x" * size)[:size]), st.integers(0, 40), st.integers(0, 9))
pictures = st.builds(picture, st.integers(0, 9))
cells = st.lists(st.one_of(texts, texts, texts, pictures), max_size=25)
views = st.builds(m.View, st.none() | st.integers(0, 200), st.integers(0, 200))


# ── All of it ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(cells, st.integers(1, 30), st.booleans())
def test_a_reader_may_start_at_any_number(cell: list[Shown], start: int, is_flushed: bool) -> None:
    with temporary() as journal:
        fill(journal, cell)
        if is_flushed:
            journal.flush()
        assert events(read(journal, start=start)) == list(enumerate(cell, 1))[start - 1 :]


def test_events_are_numbered_from_one_and_counted(make: Callable[..., Journal]) -> None:
    journal = make()
    assert (journal.last, journal.stream_bytes, journal.is_finished, journal.is_dirty) == (0, 0, False, False)
    assert read(journal) == []
    assert [journal.append(*one) for one in (text(b"ab\n"), picture(1), text(b"c"))] == [1, 2, 3]
    assert (journal.last, journal.stream_bytes, journal.is_finished, journal.is_dirty) == (3, 4, False, True)
    journal.append(*FINISHED)
    assert journal.is_finished


def test_readers_do_not_disturb_each_other_nor_the_writer(make: Callable[..., Journal]) -> None:
    journal, slow, fast = make(), Reader(ALL), Reader(ALL)
    cell = [text(b"%d" % number) for number in range(20)]
    seen: list[tuple[int, Shown]] = []
    for one in cell:
        fill(journal, [one])
        if journal.last % 7 == 0:
            journal.flush()
        seen += events(read_on(journal, fast))
    assert seen == events(read_on(journal, slow)) == list(enumerate(cell, 1))
    assert read_on(journal, fast) == []


def test_a_large_result_is_one_piece_of_several_frames(make: Callable[..., Journal]) -> None:
    journal = make()
    fill(journal, [picture(1, 3 * framing.MAX_CHUNK_BYTES), text(b"after")])
    large, after = read(journal)
    assert isinstance(large, Piece)
    assert len(large.frames) == 4
    assert event(large) == (1, picture(1, 3 * framing.MAX_CHUNK_BYTES))
    assert isinstance(after, Piece)
    assert len(after.frames) == 1


@pytest.mark.parametrize(
    "one", [text(b""), text(b"12345"), picture(1, 10), picture(1, framing.MAX_CHUNK_BYTES), FINISHED]
)
def test_a_piece_counts_its_buffer_bytes_as_the_client_does(make: Callable[..., Journal], one: Shown) -> None:
    journal = make()
    fill(journal, [one])
    (piece,) = read(journal)
    assert isinstance(piece, Piece)
    assert piece.size == sum(len(buffer) for buffer in one[1])


def test_an_event_that_is_too_large_changes_nothing(make: Callable[..., Journal]) -> None:
    journal = make()
    fill(journal, [text(b"before")])
    with pytest.raises(ProtocolError):
        journal.append(*picture(1, framing.MAX_MESSAGE_BYTES + 1))
    fill(journal, [text(b"after")])
    assert events(read(journal)) == [(1, text(b"before")), (2, text(b"after"))]


# ── Views ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(cells, views, st.lists(st.integers(0, 25), max_size=3), cells)
def test_what_a_view_shows_and_what_it_skips_is_everything(
    cell: list[Shown], view: m.View, read_at: list[int], late: list[Shown]
) -> None:
    everything = [*cell, FINISHED, *late]
    with temporary() as journal:
        reader = Reader(view)
        got: list[Piece | Gap] = []
        for place, one in enumerate(everything):
            fill(journal, [one])
            if place in read_at:
                got += read_on(journal, reader)
        got += read_on(journal, reader)
        check_cover(got, everything)
        assert reader.next == journal.last + 1
        shown = {piece.number for piece in got if isinstance(piece, Piece)}
        starts = [0]
        for body, buffers in cell:
            starts.append(starts[-1] + (len(buffers[0]) if isinstance(body, m.Stream) else 0))
        last_other = max((n for n, (body, _) in enumerate(cell, 1) if not isinstance(body, m.Stream)), default=0)
        for number, (body, _) in enumerate(everything, 1):
            is_text = isinstance(body, m.Stream) and number <= len(cell)
            in_head = is_text and (view.head_bytes is None or starts[number - 1] < view.head_bytes)
            in_tail = is_text and number > last_other and starts[number - 1] >= starts[-1] - view.tail_bytes
            if not is_text or in_head or in_tail:
                assert number in shown


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 200), st.integers(0, 200))
def test_a_flood_shows_its_head_and_its_tail_and_no_more(sizes: list[int], head: int, tail: int) -> None:
    everything = [*(text(b"x" * size) for size in sizes), FINISHED]
    with temporary() as journal:
        fill(journal, everything)
        got = read(journal, m.View(head, tail))
        check_cover(got, everything)
        assert len(gaps(got)) <= 1
        shown = sum(len(shown[1][0]) for _, shown in events(got) if isinstance(shown[0], m.Stream))
        assert shown < head + tail + max(sizes, default=1)


def test_the_tail_of_an_unfinished_flood_waits_since_more_may_follow(make: Callable[..., Journal]) -> None:
    journal, reader = make(), Reader(m.View(10, 10))
    fill(journal, [text(b"0123456789") for _ in range(5)])
    assert [number for number, _ in events(read_on(journal, reader))] == [1]
    fill(journal, [FINISHED])
    got = read_on(journal, reader)
    assert got[0] == Gap(4, 30, 0)
    assert events(got) == [(5, text(b"0123456789")), (6, FINISHED)]


def test_text_between_the_head_and_a_picture_is_skipped_when_the_picture_comes(make: Callable[..., Journal]) -> None:
    journal, reader = make(), Reader(m.View(10, 10))
    fill(journal, [text(b"0123456789"), text(b"ab\ncd\n")])
    assert [number for number, _ in events(read_on(journal, reader))] == [1]
    fill(journal, [picture(1)])
    got = read_on(journal, reader)
    assert got[0] == Gap(2, 6, 2)
    assert events(got) == [(3, picture(1))]


def test_an_unfinished_flood_is_told_of_in_steps(make: Callable[..., Journal]) -> None:
    journal, reader = make(), Reader(m.View(0, 1000))
    chunk = b"%099d\n" * 100 % tuple(range(100))
    told = []
    for _ in range(250):
        fill(journal, [text(chunk)])
        told += read_on(journal, reader)
    assert len(told) == 2
    assert all(isinstance(one, Gap) and one.stream_bytes >= 1024 * 1024 - len(chunk) for one in told)
    fill(journal, [FINISHED])
    check_cover([*told, *read_on(journal, reader)], [text(chunk)] * 250 + [FINISHED])


def test_late_text_is_never_cut(make: Callable[..., Journal]) -> None:
    journal = make()
    fill(journal, [text(b"x" * 100), FINISHED, text(b"late"), text(b"later")])
    got = read(journal, m.View(0, 0))
    assert got[0] == Gap(1, 100, 0)
    assert [number for number, _ in events(got)] == [2, 3, 4]


# ── The ring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_text_beyond_the_limit_is_kept_at_its_newest_end_only(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make(stream_bytes=1000, tail_bytes=2000)
    cell = [text(b"%099d\n" % number) for number in range(200)]
    fill(journal, cell)
    got = read(journal)
    check_cover(got, cell)
    (gap,) = gaps(got)
    shown = [number for number, _ in events(got)]
    assert shown[:10] == list(range(1, 11))
    assert shown[-1] == 200
    assert gap.to == 200 - (len(shown) - 10)
    assert 5 <= len(shown) - 10 <= 20
    journal.flush()
    assert (tmp_path / "a.events").stat().st_size < 2500


@given(
    st.lists(st.one_of(texts, texts, pictures), max_size=40),
    st.integers(0, 200),
    st.integers(0, 600),
    views,
    st.booleans(),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_beyond_the_limit_shown_and_skipped_still_are_everything(
    cell: list[Shown], stream_bytes: int, tail_bytes: int, view: m.View, is_finished: bool, read_at: list[int]
) -> None:
    everything = [*cell, FINISHED] if is_finished else cell
    with temporary(stream_bytes, tail_bytes) as journal:
        reader = Reader(view)
        got: list[Piece | Gap] = []
        for place, one in enumerate(everything):
            fill(journal, [one])
            if place in read_at:
                got += read_on(journal, reader)
        got += read_on(journal, reader)
        check_cover(got, everything)
        whole = read(journal)
        check_cover(whole, everything)
        kept = 0
        for number, (body, buffers) in enumerate(cell, 1):
            kept += len(buffers[0]) if isinstance(body, m.Stream) else 0
            if kept <= stream_bytes:
                assert number in [n for n, _ in events(whole)]
        if is_finished:
            assert reader.next == journal.last + 1


def test_the_newest_text_is_kept_whatever_its_size(make: Callable[..., Journal]) -> None:
    journal = make(stream_bytes=0, tail_bytes=0)
    for number in range(5):
        fill(journal, [text(b"%d" % number * 100)])
        assert events(read(journal)) == [(number + 1, text(b"%d" % number * 100))]
    fill(journal, [FINISHED])
    assert [number for number, _ in events(read(journal))] == [5, 6]


def test_the_tail_of_a_finished_flood_is_on_disk(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make(stream_bytes=100, tail_bytes=500)
    cell = [*(text(b"%09d\n" % number) for number in range(50)), picture(1), text(b"end"), FINISHED]
    fill(journal, cell)
    whole = events(read(journal))
    assert whole[-3:] == [(51, picture(1)), (52, text(b"end")), (53, FINISHED)]
    assert events(read(reloaded(journal, tmp_path / "a.events", 100, 500))) == whole


def test_what_threads_print_late_cannot_fill_the_disk(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make(stream_bytes=1000, tail_bytes=1000)
    fill(journal, [text(b"x" * 1000), FINISHED, *(text(b"late\n" * 100) for _ in range(100))])
    journal.flush()
    assert (tmp_path / "a.events").stat().st_size < 5000


# ── Reloading ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(cells, st.booleans(), cells, views)
def test_a_reloaded_journal_is_the_same(cell: list[Shown], is_finished: bool, late: list[Shown], view: m.View) -> None:
    everything = [*cell, FINISHED, *late] if is_finished else cell
    with temporary() as journal:
        fill(journal, everything)
        if not everything:
            return
        again = reloaded(journal, journal._path)
        assert (again.last, again.stream_bytes, again.is_finished, again.is_dirty) == (
            journal.last,
            journal.stream_bytes,
            journal.is_finished,
            False,
        )
        assert read(again) == read(journal)
        assert read(again, view) == read(journal, view)
        fill(journal, [text(b"more")])
        fill(again, [text(b"more")])
        assert read(again) == read(journal)


@given(cells, st.integers(0, 100), st.integers(0, 400), views)
@example([text(b"0123456789")] * 30, 50, 300, ALL)
def test_a_reloaded_journal_of_a_flood_skips_and_counts_the_same(
    cell: list[Shown], stream_bytes: int, tail_bytes: int, view: m.View
) -> None:
    with temporary(stream_bytes, tail_bytes) as journal:
        fill(journal, [*cell, FINISHED])
        again = reloaded(journal, journal._path, stream_bytes, tail_bytes)
        assert (again.last, again.stream_bytes) == (journal.last, journal.stream_bytes)
        assert joined(read(again)) == joined(read(journal))
        assert joined(read(again, view)) == joined(read(journal, view))


@settings(max_examples=30)
@given(st.lists(st.one_of(texts, pictures), min_size=1, max_size=6), st.data())
def test_a_half_written_last_record_is_dropped_and_writing_goes_on(cell: list[Shown], data: st.DataObject) -> None:
    with temporary() as journal:
        fill(journal, cell[:-1])
        journal.flush()
        before = journal._path.stat().st_size if journal._path.exists() else 0
        fill(journal, cell[-1:])
        journal.flush()
        os.truncate(journal._path, data.draw(st.integers(before, journal._path.stat().st_size - 1)))
        again = Journal.load(journal._path, ID, stream_bytes=1 << 30, tail_bytes=1 << 20)
        assert events(read(again)) == list(enumerate(cell[:-1], 1))
        assert journal._path.stat().st_size == before
        fill(again, [FINISHED])
        assert events(read(reloaded(again, journal._path))) == list(enumerate([*cell[:-1], FINISHED], 1))


def test_a_large_record_whose_last_frame_is_missing_is_dropped(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal, path = make(), tmp_path / "a.events"
    fill(journal, [text(b"kept"), picture(1, 2 * framing.MAX_CHUNK_BYTES)])
    journal.flush()
    os.truncate(path, path.stat().st_size - 5)
    again = Journal.load(path, ID, stream_bytes=1 << 30, tail_bytes=1 << 20)
    assert events(read(again)) == [(1, text(b"kept"))]


@pytest.mark.parametrize(
    "rubbish", [bytes(4096), b"\xff" * 4096, framing.pack([b"rubbish"]), framing.pack(framing.encode(m.Pong()))]
)
def test_rubbish_at_the_end_costs_no_event_before_it(
    make: Callable[..., Journal], tmp_path: Path, rubbish: bytes
) -> None:
    journal, path = make(), tmp_path / "a.events"
    cell = [text(b"%d\n" % number) for number in range(10)]
    fill(journal, cell)
    journal.flush()
    with path.open("ab") as file:
        file.write(rubbish)
    assert events(read(Journal.load(path, ID, stream_bytes=1 << 30, tail_bytes=1 << 20))) == list(enumerate(cell, 1))


def test_a_flood_whose_gateway_died_ends_where_its_file_does(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make(stream_bytes=30, tail_bytes=300)
    cell = [*(text(b"0123456789") for _ in range(20)), picture(1)]
    fill(journal, cell)
    again = reloaded(journal, tmp_path / "a.events", 30, 300)
    fill(again, [FINISHED])
    got = read(again)
    assert [number for number, _ in events(got)] == [1, 2, 3, 21, 22]
    assert [gap.to for gap in gaps(got)] == [20]


# ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_are_written_when_asked_or_when_many_wait(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal, path = make(), tmp_path / "a.events"
    fill(journal, [text(b"x")])
    assert not path.exists()
    journal.flush()
    written = path.stat().st_size
    assert not journal.is_dirty
    journal.flush()
    assert path.stat().st_size == written
    fill(journal, [text(bytes(300_000))])
    assert path.stat().st_size > written + 300_000


def test_a_journal_is_read_by_its_owner_only(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make()
    fill(journal, [text(b"secret")])
    journal.flush()
    assert stat.S_IMODE((tmp_path / "a.events").stat().st_mode) == 0o600


def test_a_full_disk_loses_and_misplaces_nothing(make: Callable[..., Journal], tmp_path: Path) -> None:
    journal = make()
    cell = [text(b"%099d\n" % number) for number in range(50)]
    fill(journal, cell[:10])
    journal.flush()
    fill(journal, cell[10:])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, ((tmp_path / "a.events").stat().st_size + 333, hard)
    )  # the disk ends here
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                journal.flush()
        assert events(read(journal)) == list(enumerate(cell, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert events(read(reloaded(journal, tmp_path / "a.events"))) == list(enumerate(cell, 1))
    assert events(read(journal)) == list(enumerate(cell, 1))


# ── Pruning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def journal_file(folder: Path, name: str, *, size: int, age_s: float) -> None:
    path = folder / f"{name}.events"
    path.write_bytes(bytes(size))
    os.utime(path, (1e9 - age_s, 1e9 - age_s))


def left(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.iterdir())


def test_journals_that_are_too_old_are_removed(tmp_path: Path) -> None:
    day = 86400
    for name, age_s in (("new", day), ("edge", 14 * day), ("old", 14 * day + 1), ("kept", 30 * day)):
        journal_file(tmp_path, name, size=10, age_s=age_s)
    (tmp_path / "other.txt").write_text("not ours")
    assert prune(tmp_path, now=1e9, days=14, total_bytes=1000, keep={"kept"}) == ["old"]
    assert left(tmp_path) == ["edge", "kept", "new", "other"]


def test_the_oldest_journals_are_removed_until_the_rest_fits(tmp_path: Path) -> None:
    for age_s, name in enumerate(["e", "d", "c", "b", "a"]):
        journal_file(tmp_path, name, size=100, age_s=age_s)
    assert prune(tmp_path, now=1e9, days=14, total_bytes=300, keep={"b"}) == ["a", "c"]
    assert left(tmp_path) == ["b", "d", "e"]
    assert prune(tmp_path, now=1e9, days=14, total_bytes=300, keep=()) == []
