"""Files in the workspace: placed whole and below it, and what a client asks of the others."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcoral_gateway.worker import files as w
from kcoral_gateway.worker.files import Workspace
from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import transfers as t


def sha(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def space(root: Path) -> Workspace:
    return Workspace(str(root))


def place(space: Workspace, path: str, data: bytes, *, piece: int = 1 << 20, mode: int = 0o644) -> None:
    for offset in range(0, max(len(data), 1), piece):
        space.part(t.FilePart(path, len(data), offset, mode, sha(data)), data[offset : offset + piece])


def remove(space: Workspace, path: str) -> None:
    space.part(t.FilePart(path, None, 0), b"")


# ── placing ──


@pytest.mark.parametrize("piece", [1, 3, 4, 10, 100])
@pytest.mark.parametrize("data", [b"", b"x", b"0123456789"])
def test_a_file_comes_in_pieces_and_is_there_when_it_is_whole(
    space: Workspace, root: Path, data: bytes, piece: int
) -> None:
    place(space, "d/e/a.txt", data, piece=piece)
    assert (root / "d/e/a.txt").read_bytes() == data
    assert space.take() == (["d/e/a.txt"], [])
    assert sorted(path.name for path in (root / "d/e").iterdir()) == ["a.txt"]


def test_until_it_is_whole_the_old_file_is_there(space: Workspace, root: Path) -> None:
    place(space, "a", b"old")
    space.part(t.FilePart("a", 6, 0, 0o644, sha(b"newer!")), b"new")
    assert (root / "a").read_bytes() == b"old"
    space.part(t.FilePart("a", 6, 3, 0o644, sha(b"newer!")), b"er!")
    assert (root / "a").read_bytes() == b"newer!"


@pytest.mark.parametrize(
    ("mode", "is_there"), [(0o644, 0o644), (0o755, 0o755), (0o777, 0o755), (0o4755, 0o755), (0o600, 0o600)]
)
def test_modes_travel_without_the_dangerous_bits(space: Workspace, root: Path, mode: int, is_there: int) -> None:
    place(space, "a", b"x", mode=mode)
    assert (root / "a").stat().st_mode & 0o7777 == is_there


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a/..", "", ".", "a\0b", "//x", "./.."])
def test_a_path_that_leads_out_of_the_workspace_is_a_problem_and_nothing_is_written(
    space: Workspace, root: Path, path: str
) -> None:
    place(space, path, b"evil")
    remove(space, path)
    changed, problems = space.take()
    assert changed == []
    assert len(problems) == 2
    assert all("below the workspace" in problem for problem in problems)
    assert list(root.iterdir()) == []
    assert list(root.parent.iterdir()) == [root]


def test_what_cannot_be_written_is_told_once_and_the_next_file_still_comes(space: Workspace, root: Path) -> None:
    (root / "file").write_text("")
    (root / "folder").mkdir()
    place(space, "file/below", b"0123456789", piece=3)
    place(space, "folder", b"x")
    place(space, "good", b"y")
    remove(space, "folder")
    changed, problems = space.take()
    assert changed == ["good"]
    assert [problem.split(" could not be written")[0] for problem in problems] == ["file/below", "folder", "folder"]


def test_a_file_is_removed_and_one_that_is_not_there_too(space: Workspace, root: Path) -> None:
    place(space, "a", b"x")
    before = space.digest()
    remove(space, "a")
    remove(space, "never")
    assert not (root / "a").exists()
    assert space.take() == (["a", "a", "never"], [])
    assert space.digest() == "" != before


def test_the_digest_is_that_which_the_client_computes(space: Workspace) -> None:
    place(space, "b", b"2")
    place(space, "a", b"1")
    assert space.digest() == t.tree_digest({"a": sha(b"1"), "b": sha(b"2")})


def test_the_basis_is_the_state_before_the_files_of_the_next_body(space: Workspace) -> None:
    assert space.basis == ""
    place(space, "a", b"1")
    place(space, "b", b"2")
    assert space.basis == ""
    space.take()
    assert space.basis == space.digest() == t.tree_digest({"a": sha(b"1"), "b": sha(b"2")})
    before = space.digest()
    remove(space, "a")
    place(space, "c", b"3")
    assert space.basis == before != space.digest()
    space.forget()
    assert (space.basis, space.digest()) == ("", "")


def test_a_file_that_could_not_be_placed_is_not_in_the_digest(space: Workspace, root: Path) -> None:
    (root / "folder").mkdir()
    place(space, "folder", b"x")
    assert space.digest() == ""


def test_code_of_another_root_is_found_by_import(space: Workspace, root: Path) -> None:
    before = list(sys.path)
    try:
        place(space, ".kcoral/src-123456/lib_w.py", b"")
        place(space, ".kcoral/src-123456/pkg/x.py", b"")
        place(space, ".kcoral/alone.py", b"")
        place(space, "plain.py", b"")
        assert sys.path == [*before, str(root / ".kcoral/src-123456")]
    finally:
        sys.path[:] = before


names = st.lists(st.sampled_from(["..", ".", "a", "", "/", "\0", "~"]), min_size=1, max_size=5).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names)
def test_whatever_the_path_nothing_appears_beside_the_workspace(space: Workspace, root: Path, path: str) -> None:
    place(space, path, b"x")
    space.take()
    assert [entry.name for entry in root.parent.iterdir()] == ["workspace"]


# ── a folder to run in ──


def test_a_body_runs_in_a_folder_below_and_the_next_one_where_it_was(space: Workspace, root: Path) -> None:
    with space.inside("new/sub"):
        assert os.getcwd() == str(root / "new/sub")
    assert os.getcwd() == str(root)
    with space.inside(None):
        assert os.getcwd() == str(root)
    os.chdir(root / "new")
    with space.inside("."):
        assert os.getcwd() == str(root)
    assert os.getcwd() == str(root / "new")


def test_a_body_that_goes_elsewhere_itself_stays_there(space: Workspace, root: Path) -> None:
    (root / "other").mkdir()
    with space.inside("sub"):
        os.chdir(root / "other")
    assert os.getcwd() == str(root / "other")


def test_an_error_of_the_body_passes_and_the_folder_is_left(space: Workspace, root: Path) -> None:
    with pytest.raises(ZeroDivisionError), space.inside("sub"):
        raise ZeroDivisionError
    assert os.getcwd() == str(root)


@pytest.mark.parametrize("folder", ["..", "/tmp", "a/../..", "file"])
def test_a_folder_elsewhere_or_that_is_none_is_refused(space: Workspace, root: Path, folder: str) -> None:
    (root / "file").write_text("")
    with pytest.raises(ValueRefused, match="--cwd"), space.inside(folder):
        pass
    assert os.getcwd() == str(root)


def test_a_body_may_remove_the_folder_it_runs_in(space: Workspace, root: Path) -> None:
    try:
        with space.inside("sub"):
            os.rmdir(root / "sub")
        assert os.getcwd() == str(root)
    finally:
        os.chdir(root)


# ── what a client asks ──


@pytest.fixture
def tree(root: Path) -> Path:
    for name in ("a.txt", "d/b.txt", "d/e/c.txt", ".hidden"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "d/link").symlink_to("/etc/passwd")
    os.mkfifo(root / "d/pipe")
    return root


def test_a_listing_tells_size_and_kind(tree: Path) -> None:
    assert [(path, size, is_folder) for path, size, _, is_folder in w.listing() if not is_folder] == [
        (".hidden", 7, False),
        ("a.txt", 5, False),
    ]
    assert [(path, is_folder) for path, _, _, is_folder in w.listing("d")] == [
        ("d/b.txt", False),
        ("d/e", True),
        ("d/link", False),
        ("d/pipe", False),
    ]
    assert [row[0] for row in w.listing("d/*.txt")] == ["d/b.txt"]
    (tree / ".kcoral").mkdir()
    assert ".kcoral" not in [row[0] for row in w.listing()]
    with pytest.raises(FileNotFoundError, match="none"):
        w.listing("none")


def test_digests_are_of_regular_files_only_and_name_them_from_their_match(tree: Path) -> None:
    assert w.digests(["d", "a.txt"]) == [
        ("d/b.txt", "d/b.txt", 7, 0o644, sha(b"d/b.txt")),
        ("d/e/c.txt", "d/e/c.txt", 9, 0o644, sha(b"d/e/c.txt")),
        ("a.txt", "a.txt", 5, 0o644, sha(b"a.txt")),
    ]
    assert [row[:2] for row in w.digests(["d/e"])] == [("d/e/c.txt", "e/c.txt")]


def test_contents_are_mapped_and_an_empty_file_is_empty(tree: Path) -> None:
    (tree / "empty").touch()
    assert [(path, bytes(data)) for path, data in w.contents(["a.txt", "empty"])] == [
        ("a.txt", b"a.txt"),
        ("empty", b""),
    ]


def test_what_is_removed_is_told_and_a_link_goes_without_its_target(tree: Path) -> None:
    assert w.remove(["d/link", "d/*.txt", "d"]) == ["d/link", "d/b.txt", "d"]
    assert Path("/etc/passwd").exists()
    assert sorted(path.name for path in tree.iterdir()) == [".hidden", "a.txt"]
    with pytest.raises(FileNotFoundError):
        w.remove(["d"])


def test_a_pattern_may_name_a_folder_and_what_is_in_it(tree: Path) -> None:
    w.remove(["d/**"])
    assert not (tree / "d/e").exists()


def test_usage_is_that_of_the_file_system(root: Path) -> None:
    total, used, free = w.usage()
    assert 0 < used <= total
    assert 0 <= free <= total
