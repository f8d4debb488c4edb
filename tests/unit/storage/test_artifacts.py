"""Blobs: they grow from their beginning, are what their digest says, stay within a limit, and are one principal's own."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcoral_gateway.storage.artifacts import PART, TRANSIT_S, Artifacts
from kcoral_magic.errors import CapacityExceeded, KCoralError, NotFoundError, ValueRefused
from kcoral_magic.protocol import transfers as t

ME = "me@example.org/../..\0"  # a principal's name may hold what a file name may not
LIMIT = 1000


def sha(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()}"


def xxh(data: bytes) -> str:
    return f"xxh3-{xxhash.xxh3_128(data).hexdigest()}"


@pytest.fixture
def store(tmp_path: Path) -> Artifacts:
    return Artifacts(tmp_path / "blobs", limit_bytes=LIMIT)


def put(store: Artifacts, data: bytes, digest: str = "", *, used_s: float | None = None, principal: str = ME) -> str:
    digest = digest or sha(data)
    assert store.append(principal, digest, len(data), 0, memoryview(data)) == len(data)
    if used_s is not None:
        os.utime(store.path(principal, digest), (used_s, used_s))
    return digest


def read(store: Artifacts, digest: str, offset: int, length: int) -> bytes:
    into = bytearray(length)
    assert store.read(ME, digest, offset, memoryview(into))
    return bytes(into)


def is_exact(store: Artifacts, principal: str = ME) -> bool:
    """Whether what is counted is what is there: else the limit drifts until the gateway starts anew."""
    return store.usage(principal)[0] == sum(path.stat().st_size for path in store.folder(principal).iterdir())


# ── growing ──


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans()), max_size=25))
def test_whatever_order_pieces_come_in_a_blob_grows_only_from_its_beginning(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, pieces: list[tuple[int, int, bool]]
) -> None:
    """Repeats, gaps, overlaps and restarts of the gateway; at the end the rest comes, and the blob is whole."""
    root = tmp_path_factory.mktemp("blobs")
    store, here, digest = Artifacts(root, limit_bytes=LIMIT), 0, sha(data)
    for offset, length, is_restarted in pieces:
        if is_restarted:
            store = Artifacts(root, limit_bytes=LIMIT)
        piece = memoryview(data)[offset : offset + length]
        if not piece and here == len(data) > 0:  # see the test below
            continue
        try:
            now = store.append(ME, digest, len(data), offset, piece)
        except ValueRefused:
            assert offset != here
        else:
            assert now == max(here, offset + len(piece)) if offset <= here else now == here
            here = now
        assert store.held(ME, digest, len(data)) == here
        assert is_exact(store)
    if here < len(data) or not data:
        store.append(ME, digest, len(data), here, memoryview(data)[here:])
    assert store.path(ME, digest).read_bytes() == data
    assert is_exact(store)


def test_no_bytes_after_a_whole_blob_change_nothing(store: Artifacts) -> None:
    digest = put(store, b"abc")
    assert store.append(ME, digest, 3, 3, memoryview(b"")) == 3


def test_a_repeat_changes_nothing_and_a_gap_or_an_oversize_is_refused(store: Artifacts) -> None:
    data = b"0123456789"
    digest = sha(data)
    assert store.append(ME, digest, 10, 0, memoryview(data[:4])) == 4
    assert store.append(ME, digest, 10, 0, memoryview(data[:4])) == 4
    assert store.append(ME, digest, 10, 1, memoryview(data[1:3])) == 4
    for offset, piece in ((5, data[5:]), (2, data[2:6]), (4, data[4:] + b"x"), (11, b"")):
        with pytest.raises(ValueRefused, match="byte 4 of 10"):
            store.append(ME, digest, 10, offset, memoryview(piece))
    assert store.append(ME, digest, 10, 4, memoryview(data[4:])) == 10
    assert store.append(ME, digest, 10, 4, memoryview(data[4:])) == 10
    assert is_exact(store)


@pytest.mark.parametrize("make", [sha, xxh])
def test_bytes_that_are_not_those_of_their_digest_are_thrown_away(store: Artifacts, make: object) -> None:
    digest = make(b"right")  # type: ignore[operator]
    store.append(ME, digest, 5, 0, memoryview(b"wr"))
    with pytest.raises(ValueRefused, match="damaged"):
        store.append(ME, digest, 5, 2, memoryview(b"ong"))
    assert store.held(ME, digest, 5) == 0
    assert store.usage(ME) == (0, LIMIT)
    put(store, b"right", digest)


def test_a_part_that_a_former_gateway_began_goes_on(store: Artifacts, tmp_path: Path) -> None:
    data = os.urandom(500)
    store.append(ME, sha(data), 500, 0, memoryview(data[:200]))
    again = Artifacts(tmp_path / "blobs", limit_bytes=LIMIT)
    assert again.held(ME, sha(data), 500) == 200
    assert again.usage(ME)[0] == 200
    assert again.append(ME, sha(data), 500, 200, memoryview(data[200:])) == 500
    assert again.path(ME, sha(data)).read_bytes() == data


def test_a_damaged_part_of_a_former_gateway_is_found_out(store: Artifacts, tmp_path: Path) -> None:
    data = os.urandom(100)
    store.append(ME, sha(data), 100, 0, memoryview(data[:50]))
    (store.folder(ME) / (sha(data) + PART)).write_bytes(bytes(50))
    with pytest.raises(ValueRefused):
        Artifacts(tmp_path / "blobs", limit_bytes=LIMIT).append(ME, sha(data), 100, 50, memoryview(data[50:]))


def test_a_blob_whose_size_is_told_otherwise_meanwhile_is_still_what_its_digest_says(store: Artifacts) -> None:
    data = b"x" * 60
    digest = sha(data[:50])
    store.append(ME, digest, 61, 0, memoryview(data))
    try:
        store.append(ME, digest, 50, 50, memoryview(b""))
    except KCoralError:
        return
    assert sha(store.path(ME, digest).read_bytes()) == digest


def test_an_empty_blob_is_a_blob(store: Artifacts) -> None:
    put(store, b"")
    put(store, b"")
    assert store.path(ME, sha(b"")).read_bytes() == b""


# ── reading ──


def test_any_range_of_a_whole_blob_is_read_and_nothing_beyond(store: Artifacts) -> None:
    digest = put(store, b"0123456789")
    assert (read(store, digest, 0, 10), read(store, digest, 3, 2), read(store, digest, 10, 0)) == (
        b"0123456789",
        b"34",
        b"",
    )
    for offset, length in ((8, 3), (11, 1), (0, 11)):
        with pytest.raises(NotFoundError):
            read(store, digest, offset, length)
    with pytest.raises(NotFoundError):
        read(store, sha(b"other"), 0, 1)


def test_of_a_blob_that_is_still_written_what_is_there_can_be_read_and_the_rest_is_waited_for(store: Artifacts) -> None:
    digest = xxh(b"0123456789")
    store.take_in(ME, digest, 10)
    part = store.folder(ME) / (digest + PART)
    part.write_bytes(b"01234")
    assert read(store, digest, 1, 4) == b"1234"
    assert store.read(ME, digest, 4, memoryview(bytearray(2))) is False
    with pytest.raises(NotFoundError):
        store.path(ME, digest)
    os.rename(part, part.with_name(digest))
    with pytest.raises(NotFoundError, match="shorter"):
        store.read(ME, digest, 4, memoryview(bytearray(2)))


def test_a_link_in_the_folder_is_not_read(store: Artifacts, tmp_path: Path) -> None:
    """A worker host writes into the folder; what it leaves there is not trusted to be a file."""
    (tmp_path / "secret").write_bytes(b"secret")
    (store.folder(ME) / sha(b"x")).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        store.read(ME, sha(b"x"), 0, memoryview(bytearray(6)))


# ── the limit ──


def test_the_least_recently_used_files_make_room_and_parcels_stay(store: Artifacts) -> None:
    old, older, parcel = (
        put(store, b"a" * 300, used_s=2000),
        put(store, b"b" * 300, used_s=1000),
        put(store, b"c" * 300, xxh(b"c" * 300), used_s=1),
    )
    put(store, b"d" * 200)
    assert [path.name in (old, parcel, sha(b"d" * 200)) for path in store.folder(ME).iterdir()] == [True] * 3
    with pytest.raises(NotFoundError):
        store.path(ME, older)
    assert is_exact(store)


def test_asking_for_a_file_counts_as_using_it(store: Artifacts) -> None:
    one, other = put(store, b"a" * 400, used_s=1000), put(store, b"b" * 400, used_s=2000)
    assert store.held(ME, one, 400) == 400
    put(store, b"c" * 400)
    assert store.held(ME, one, 400) == 400
    assert store.held(ME, other, 400) == 0


def test_a_blob_that_is_being_written_makes_room_for_itself_and_is_not_the_room(store: Artifacts) -> None:
    put(store, b"a" * 600, used_s=1000)
    data = os.urandom(900)
    for offset in range(0, 900, 100):
        store.append(ME, sha(data), 900, offset, memoryview(data[offset : offset + 100]))
    assert store.path(ME, sha(data)).read_bytes() == data
    assert is_exact(store)


def test_a_blob_that_finds_no_room_for_its_next_piece_keeps_what_it_has(store: Artifacts) -> None:
    put(store, b"p" * 300, xxh(b"p" * 300))
    data = os.urandom(800)
    store.append(ME, sha(data), 800, 0, memoryview(data[:650]))
    with pytest.raises(CapacityExceeded):
        store.append(ME, sha(data), 800, 650, memoryview(data[650:]))
    assert store.held(ME, sha(data), 800) == 650
    store.drop(ME, xxh(b"p" * 300))
    assert store.append(ME, sha(data), 800, 650, memoryview(data[650:])) == 800


def test_beyond_the_limit_nothing_is_taken_and_what_is_there_stays_whole(store: Artifacts) -> None:
    data = os.urandom(LIMIT + 1)
    with pytest.raises(CapacityExceeded, match="may take"):
        store.append(ME, sha(data), len(data), 0, memoryview(data))
    parcel = put(store, b"p" * 900, xxh(b"p" * 900))
    with pytest.raises(CapacityExceeded):
        put(store, b"x" * 101)
    with pytest.raises(CapacityExceeded):
        store.take_in(ME, xxh(b"y"), 101)
    assert read(store, parcel, 0, 900) == b"p" * 900
    assert is_exact(store)
    store.drop(ME, parcel)
    put(store, b"x" * 101)


def test_a_delivered_parcel_goes_and_a_file_stays(store: Artifacts) -> None:
    file, parcel = put(store, b"a"), put(store, b"b", xxh(b"b"))
    for digest in (file, parcel, xxh(b"never there")):
        store.drop(ME, digest)
    assert [path.name for path in store.folder(ME).iterdir()] == [file]
    assert is_exact(store)


# ── results of a worker host ──


def test_a_result_counts_from_when_it_is_announced_until_it_is_dropped(store: Artifacts) -> None:
    digest = xxh(b"r" * 300)
    (store.folder(ME) / (digest + PART)).touch()  # its host has begun it
    store.take_in(ME, digest, 300)
    assert store.usage(ME)[0] == 300
    (store.folder(ME) / (digest + PART)).unlink()
    (store.folder(ME) / digest).write_bytes(b"r" * 300)
    assert is_exact(store)
    store.drop(ME, digest)
    assert store.usage(ME)[0] == 0


def test_a_result_that_finds_no_room_is_gone(store: Artifacts) -> None:
    folder, digest = store.folder(ME), xxh(b"r")
    for name in (digest, digest + PART):
        (folder / name).write_bytes(bytes(2000))
    with pytest.raises(CapacityExceeded):
        store.take_in(ME, digest, 2000)
    assert list(folder.iterdir()) == []
    assert store.usage(ME)[0] == 0


def test_a_result_that_is_dropped_while_it_is_written_is_subtracted_once(store: Artifacts) -> None:
    digest = xxh(b"r" * 300)
    store.take_in(ME, digest, 300)
    (store.folder(ME) / (digest + PART)).write_bytes(b"r" * 100)
    store.drop(ME, digest)
    assert store.usage(ME)[0] == 0


def test_a_result_whose_worker_was_lost_does_not_count_for_ever(store: Artifacts) -> None:
    digest = xxh(b"r" * 300)
    store.take_in(ME, digest, 300)
    part = store.folder(ME) / (digest + PART)
    part.write_bytes(b"r" * 100)
    os.utime(part, (0, 0))
    store.prune(TRANSIT_S + 1)
    assert store.usage(ME)[0] == 0


def test_the_same_result_twice_counts_once(store: Artifacts) -> None:
    digest = xxh(b"r" * 300)
    for _ in range(2):
        store.take_in(ME, digest, 300)
        (store.folder(ME) / digest).write_bytes(b"r" * 300)
    store.drop(ME, digest)
    assert store.usage(ME)[0] == 0


# ── principals ──


def test_two_principals_never_meet(store: Artifacts, tmp_path: Path) -> None:
    data = b"mine"
    digest = put(store, data)
    for other in ("", "you", ME + " ", "..", "/", "ü" * 500):
        assert store.folder(other) != store.folder(ME)
        assert store.folder(other).parent == tmp_path / "blobs"
        assert store.held(other, digest, len(data)) == 0
        assert store.usage(other)[0] == 0
        with pytest.raises(NotFoundError):
            store.path(other, digest)
        with pytest.raises(NotFoundError):
            store.read(other, digest, 0, memoryview(bytearray(1)))
        store.drop(other, digest)
        assert store.folder(other).stat().st_mode & 0o066 == 0  # who is let to it, a worker, opens what it can name
        assert store.folder(other).parent.stat().st_mode & 0o077 == 0
    assert store.path(ME, digest).read_bytes() == data
    put(store, bytes(LIMIT), principal="you")
    assert store.path(ME, digest).read_bytes() == data  # one's limit is not another's room


# ── age ──


@pytest.mark.parametrize(("now", "left"), [(TRANSIT_S, 5), (TRANSIT_S + 50, 5), (TRANSIT_S + 101, 2)])
def test_parcels_and_halves_that_nobody_asks_for_go_after_a_while(tmp_path: Path, now: float, left: int) -> None:
    store = Artifacts(tmp_path / "blobs", limit_bytes=LIMIT)
    file, parcel, live = put(store, b"f"), put(store, b"p", xxh(b"p")), put(store, b"l", xxh(b"l"))
    store.append(ME, sha(b"half"), 4, 0, memoryview(b"ha"))
    store.append(ME, xxh(b"half"), 4, 0, memoryview(b"ha"))
    for path in store.folder(ME).iterdir():
        os.utime(path, (100, 100))
    again = Artifacts(tmp_path / "blobs", limit_bytes=LIMIT)  # a gateway that has not met this principal yet
    again.prune(now, {live})
    names = {path.name for path in again.folder(ME).iterdir()}
    assert len(names) == left
    assert {file, live} <= names
    assert (parcel in names) is (left == 5)
    assert is_exact(again)


# ── names of blobs ──


@pytest.mark.parametrize(
    ("text", "is_digest"),
    [
        (sha(b""), True),
        (xxh(b""), True),
        *((bad, False) for bad in ("", "sha256-", "../../etc/passwd", "sha256-../../../etc/passwd", "xxh3-" + "g" * 32, "xxh3-" + "A" * 32)),
        *((sha(b"") + bad, False) for bad in ("\n", "/", "\0", "/../x", ".part", "0")),
        *((bad + sha(b""), False) for bad in ("/", "../", " ", "\n")),
        *(("md5-" + "0" * 32, False), ("xxh3-" + "0" * 31, False), ("sha256_" + "0" * 64, False)),
    ],
)  # fmt: skip
def test_what_is_no_digest_never_comes_as_far_as_a_path(text: str, is_digest: bool) -> None:
    try:
        msgspec.convert(text, t.Digest)
    except msgspec.ValidationError:
        assert not is_digest
    else:
        assert is_digest
    for message in (
        t.Chunk(1, text, 1, 0),
        t.Fetch(1, text, 0, 1),
        t.Drop(text),
        t.Have(1, ((text, 1),)),
        t.Returned(text, 1),
        t.FileIn("a", text),
    ):
        wire = msgspec.msgpack.encode(message)
        if is_digest:
            assert msgspec.msgpack.decode(wire, type=type(message)) == message
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.msgpack.decode(wire, type=type(message))


def test_what_is_pinned_stays_however_full_it_gets(store: Artifacts) -> None:
    old = put(store, b"a" * 400, used_s=1.0)
    unpin, again = store.pin(ME, [old]), store.pin(ME, [old])
    put(store, b"b" * 400, used_s=2.0)
    put(store, b"c" * 400, used_s=3.0)
    assert store.has(ME, old)
    unpin()
    os.utime(store.path(ME, old), (1.0, 1.0))
    put(store, b"d" * 400, used_s=4.0)
    assert store.has(ME, old)
    again()
    os.utime(store.path(ME, old), (1.0, 1.0))
    put(store, b"e" * 400, used_s=5.0)
    assert not store.has(ME, old)
