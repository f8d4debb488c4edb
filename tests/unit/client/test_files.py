"""Files on their way: what has changed is sent and nothing else, and no name of a stranger leads out of its folder."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcoral_gateway.storage.artifacts import Artifacts
from kcoral_magic.client.blobs import Blobs
from kcoral_magic.client.exchange import Belief
from kcoral_magic.client.files import Digests, FileSet, LocalFile, place_for, to_send
from kcoral_magic.errors import KCoralError, UsageError, ValueRefused
from kcoral_magic.protocol import transfers as t


def sha(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()}"


class Store:
    """A gateway's blobs without a gateway: a real store, asked directly."""

    def __init__(self, root: Path) -> None:
        self.artifacts = Artifacts(root, limit_bytes=1 << 30)
        self.sent: list[tuple[str, int, int]] = []  # digest, offset, bytes
        self.fails_at: int | None = None
        number = iter(range(10**6))
        self.dropped: list[str] = []
        self.blobs = Blobs(self._answer, lambda: next(number), self._drop)

    async def _drop(self, digest: str) -> None:
        self.dropped.append(digest)

    async def _answer(self, asked: Any, *buffers: Any) -> Any:
        if isinstance(asked, t.Have):
            offsets = tuple(self.artifacts.held("me", digest, size) for digest, size in asked.blobs)
        else:
            if self.fails_at is not None and len(self.sent) >= self.fails_at:
                raise KCoralError("cut")
            self.sent.append((asked.digest, asked.offset, len(buffers[0])))
            offsets = (self.artifacts.append("me", asked.digest, asked.size, asked.offset, memoryview(buffers[0])),)
        return SimpleNamespace(body=t.Held(asked.request, offsets), buffers=())


def files(folder: Path, **contents: bytes) -> dict[str, LocalFile]:
    digests = Digests()
    folder.mkdir(exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: digests.look(folder / name) for name in contents}


# ── digests ──


def test_an_edited_file_is_seen_and_an_untouched_one_is_not_read_again(tmp_path: Path) -> None:
    path, digests = tmp_path / "a", Digests()
    path.write_bytes(b"one")
    os.chmod(path, 0o4755)
    looked = digests.look(path)
    assert looked == LocalFile(path, sha(b"one"), 3, 0o755)
    status = path.stat()
    digests._known[str(path)] = (digests._known[str(path)][0], "what is remembered")
    assert digests.look(path).digest == "what is remembered"
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert digests.look(path).digest == sha(b"two")


def test_a_file_that_was_replaced_by_one_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    """As an editor saves: a new file is moved over the old one."""
    path, other, digests = tmp_path / "a", tmp_path / "b", Digests()
    path.write_bytes(b"one")
    digests.look(path)
    other.write_bytes(b"two")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)
    assert digests.look(path).digest == sha(b"two")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none", tmp_path / "none" / "below"):
        with pytest.raises(UsageError, match=str(path)):
            Digests().look(path)


# ── changes ──

names = st.sampled_from("abcd")
sets = st.dictionaries(names, st.tuples(st.sampled_from("123"), st.sampled_from((0o644, 0o755))), max_size=4)


def local(chosen: dict[str, tuple[str, int]]) -> dict[str, LocalFile]:
    return {name: LocalFile(Path(name), sha(text.encode()), 1, mode) for name, (text, mode) in chosen.items()}


def believed(made: Sequence[t.FileIn], before: dict[str, t.FileIn]) -> dict[str, t.FileIn]:
    after = dict(before)
    for change in made:
        if change.digest is None:
            after.pop(change.path, None)
        else:
            after[change.path] = change
    return after


@given(sets, sets, st.booleans())
def test_after_its_changes_a_session_has_what_is_here_and_only_differences_are_told(
    before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]], is_sync: bool
) -> None:
    belief = Belief()
    belief.files = believed(FileSet(local(before)).changes(belief), {})
    belief.synced = set(before)
    changes = FileSet(local(after), is_sync=is_sync).changes(belief)
    assert {c.path for c in changes if c.digest} == {n for n in after if before.get(n) != after[n]}
    assert {c.path for c in changes if not c.digest} == (before.keys() - after.keys() if is_sync else set())
    belief.files = believed(changes, belief.files)
    assert {n: (f.digest, f.mode) for n, f in belief.files.items() if n in after or is_sync} == {
        n: (f.digest, f.mode) for n, f in local(after).items()
    }
    belief.synced = set(after)
    assert FileSet(local(after), is_sync=is_sync).changes(belief) == ()


async def test_only_what_the_gateway_lacks_is_sent_and_twice_the_same_content_once(tmp_path: Path) -> None:
    store, belief = Store(tmp_path / "store"), Belief()
    seen: list[tuple[int, int]] = []
    chosen = FileSet(
        files(tmp_path / "f", a=b"one", b=b"one", c=b"", d=bytes(3 << 20)), progress=lambda *n: seen.append(n)
    )
    changes = await chosen.bring(store.blobs, belief)
    assert {change.path for change in changes} == set("abcd")
    assert sorted(digest for digest, offset, _ in store.sent if offset == 0) == sorted(
        {sha(b"one"), sha(b""), sha(bytes(3 << 20))}
    )
    assert seen[-1] == (3 + (3 << 20), 3 + (3 << 20))
    assert seen == sorted(seen)
    assert store.artifacts.path("me", sha(bytes(3 << 20))).read_bytes() == bytes(3 << 20)
    assert belief.files.keys() == set("abcd")
    assert await chosen.bring(store.blobs, belief) == ()
    store.sent.clear()
    await FileSet(files(tmp_path / "g", moved=b"one")).bring(store.blobs, belief)
    assert store.sent == []
    assert belief.files["moved"].digest == sha(b"one")


async def test_a_cut_upload_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    store, belief, data = Store(tmp_path / "store"), Belief(), os.urandom(5 << 20)
    chosen = FileSet(files(tmp_path / "f", a=data))
    store.fails_at = 3
    with pytest.raises(KCoralError, match="cut"):
        await chosen.bring(store.blobs, belief)
    assert belief.files == {}
    store.fails_at = None
    await chosen.bring(store.blobs, belief)
    assert sum(size for _, _, size in store.sent) == len(data)
    assert store.artifacts.path("me", sha(data)).read_bytes() == data


async def test_files_are_not_on_their_way_any_more_when_that_failed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.fails_at = 0
    chosen = FileSet(files(tmp_path / "f", a=b"one"))
    with pytest.raises(KCoralError):
        await chosen.bring(store.blobs, Belief())
    assert not chosen.is_moving


async def test_a_file_that_shrinks_while_it_is_sent_is_told(tmp_path: Path) -> None:
    chosen = FileSet(files(tmp_path / "f", a=bytes(2 << 20)))
    (tmp_path / "f" / "a").write_bytes(b"short")
    with pytest.raises(ValueRefused, match="changed meanwhile"):
        await chosen.bring(Store(tmp_path / "store").blobs, Belief())


async def test_what_has_gone_here_goes_there_if_it_followed_and_what_was_sent_by_hand_stays(tmp_path: Path) -> None:
    store, belief = Store(tmp_path / "store"), Belief()
    await FileSet(files(tmp_path / "f", by_hand=b"1")).bring(store.blobs, belief)
    await FileSet(files(tmp_path / "f", a=b"1", b=b"2"), is_sync=True).bring(store.blobs, belief)
    changes = await FileSet(files(tmp_path / "f", b=b"2"), is_sync=True).bring(store.blobs, belief)
    assert changes == (t.FileIn("a", None),)
    assert belief.files.keys() == {"by_hand", "b"}


# ── patterns ──


def test_files_folders_and_globs_are_named_from_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("d/a.txt", "d/e/b.txt", "c.py", "x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "d" / "link").symlink_to("/etc/passwd")
    monkeypatch.chdir(tmp_path)
    for patterns, to, expected in (
        (["d"], "", {"d/a.txt", "d/e/b.txt"}),
        (["d/e"], "", {"e/b.txt"}),
        (["*.py"], "", {"c.py", "x.py"}),
        (["d/**/*.txt"], "", {"a.txt", "b.txt"}),
        (["c.py"], "to/there", {"to/there/c.py"}),
        ([str(tmp_path / "d/a.txt")], "", {"a.txt"}),
        (["d/../c.py"], "", {"c.py"}),
    ):
        found = to_send(patterns, to, Digests())
        assert found.keys() == expected
        assert all(looked.path.read_text() for looked in found.values())
    with pytest.raises(UsageError, match="there is no none"):
        to_send(["c.py", "none"], "", Digests())


# ── places ──


@pytest.mark.parametrize("name", ["/etc/passwd", "..", "../a", "a/../../b", "a/..", "", " ", ".", "./", "a\\..\\b", "a\0b", "//a", "x" * 300, "x" * 300 + "/a"])  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "base").mkdir()
    with pytest.raises(ValueRefused):
        place_for(tmp_path / "base", name)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize(("name", "place"), [("a", "a"), ("./a", "a"), ("a//b", "a/b"), ("a/b/c", "a/b/c"), ("~/x", "~/x"), ("..a", "..a"), ("ü", "ü")])  # fmt: skip
def test_an_honest_name_has_its_place_with_the_folders_for_it(tmp_path: Path, name: str, place: str) -> None:
    target = place_for(tmp_path / "new", name)
    assert target == tmp_path / "new" / place
    target.write_text("x")


def test_links_and_files_in_the_way_are_not_followed(tmp_path: Path) -> None:
    base, outside = tmp_path / "base", tmp_path / "outside"
    base.mkdir()
    outside.mkdir()
    (base / "link").symlink_to(outside)
    (base / "dangling").symlink_to(outside / "none")
    (base / "file").write_text("")
    (base / "folder").mkdir()
    for name in ("link/a", "link/b/c", "dangling/a", "file/a", "folder"):
        with pytest.raises(ValueRefused):
            place_for(base, name)
    assert list(outside.iterdir()) == []


def test_a_base_that_is_a_link_itself_is_the_users_own_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "real")
    place_for(tmp_path / "base", "d/a").write_text("x")
    assert (tmp_path / "real/d/a").read_text() == "x"


@pytest.mark.parametrize(("name", "system", "is_refused"), [("c:evil", "nt", True), ("a:b", "posix", False)])
def test_a_colon_is_a_drive_on_windows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, system: str, is_refused: bool
) -> None:
    monkeypatch.setattr("kcoral_magic.client.files.os", SimpleNamespace(name=system))
    if is_refused:
        with pytest.raises(ValueRefused, match="leads out"):
            place_for(tmp_path, name)
    else:
        assert place_for(tmp_path, name) == tmp_path / name


def test_a_name_that_no_file_system_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueRefused):
        place_for(tmp_path, "\ud800/x")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["..", ".", "a", "/", "//", "\\", "b c", "\0", "~", "link"]), max_size=6).map("/".join))
def test_whatever_the_name_the_place_is_below_its_base(tmp_path: Path, name: str) -> None:
    base = tmp_path / "base"
    base.mkdir(exist_ok=True)
    if not (base / "link").is_symlink():
        (base / "link").symlink_to("/tmp")
    try:
        target = place_for(base, name)
    except ValueRefused:
        return
    assert target.parent.resolve().is_relative_to(base.resolve())
