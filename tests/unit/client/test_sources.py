"""The files an ``import`` needs: ours and not the installed ones, with what they import, without what is ignored."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoral_magic.client.files import Digests
from kcoral_magic.client.sources import MAX_FILES, Sources, walk
from kcoral_magic.errors import UsageError

Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes files; an import system that has looked before them looks again."""

    def write(*names: str, **contents: str) -> None:
        for name in names:
            name, _, text = name.partition("=")
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()

    return write


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def walked(root: Path) -> str:
    return " ".join(path.relative_to(root).as_posix() for path in walk(root))


# ── walking ──

IGNORES = [
    ("plain", ["a.py", "b/c.py"], "a.py b/c.py"),
    ("by name", [".gitignore=*.log\nout/", "a.log", "b/c.log", "out/x", "b/out/y", "d"], ".gitignore d"),
    ("anchored", [".gitignore=/x", "x", "a/x"], ".gitignore a/x"),
    ("negated", [".gitignore=*.log\n!keep.log", "a.log", "keep.log", "b/keep.log"], ".gitignore b/keep.log keep.log"),
    ("nested", ["a/.gitignore=x", "x", "a/x", "a/b/x"], "a/.gitignore x"),
    ("nested negated", [".gitignore=*.log", "a/.gitignore=!*.log", "x.log", "a/x.log", "a/b/x.log"], ".gitignore a/.gitignore a/b/x.log a/x.log"),
    ("a folder that is ignored is not looked into", [".gitignore=a/\n!a/x", "a/x", "a/.gitignore=!x"], ".gitignore"),
    ("our own file wins", [".gitignore=x", ".kcoralignore=!x\ny", "x", "y"], ".gitignore .kcoralignore x"),
    ("our own file alone", [".kcoralignore=data/", "data/x", "a"], ".kcoralignore a"),
    ("double star", [".gitignore=**/tmp/**", "a/tmp/x", "tmp/y", "a/b"], ".gitignore a/b"),
    ("never", [".git/x", "a/.git/x", ".venv/pyvenv.cfg", ".venv/lib/x.py", "env/pyvenv.cfg", "env/x", "__pycache__/x.pyc", "node_modules/x", ".kcoral/x", ".ipynb_checkpoints/x", ".hg/x", "b"], "b"),
    ("never, though negated", [".gitignore=!.git", ".git/x"], ".gitignore"),
    ("odd names", ["a b.py", "ü.py", "-x", "#y", ".gitignore=\\#y\na\\ b.py"], "-x .gitignore ü.py"),
    ("comments and blanks", [".gitignore=# a\n\n  \na ", "a", "b"], ".gitignore b"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "expected"), [case[1:] for case in IGNORES], ids=[case[0] for case in IGNORES])
def test_ignored_files_and_nobodys_sources_stay_here(
    tmp_path: Path, make: Make, names: list[str], expected: str
) -> None:
    make(*names)
    assert walked(tmp_path) == expected


@pytest.mark.parametrize(
    "names", [case[1] for case in IGNORES if "never" not in case[0] and "own" not in case[0]], ids=str
)
def test_git_itself_decides_the_same(tmp_path: Path, make: Make, names: list[str]) -> None:
    make(*names)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    git = ["git", "-C", str(tmp_path), "-c", "core.quotepath=off"]
    subprocess.run([*git, "init", "-q"], check=True, env=environment)
    listed = subprocess.run(
        [*git, "ls-files", "-co", "--exclude-standard", "-z"], check=True, env=environment, capture_output=True
    )
    assert sorted(walked(tmp_path).replace("a b.py", "a_b.py").split()) == sorted(
        listed.stdout.decode().replace("a b.py", "a_b.py").strip("\0").split("\0")
    )


def test_ignore_files_above_count_up_to_the_root_of_the_repository(tmp_path: Path, make: Make) -> None:
    make(".gitignore=outer", "repo/.git/x", "repo/.gitignore=*.log\n/pkg/gen", "repo/pkg/.gitignore=!keep.log")
    make("repo/pkg/outer", "repo/pkg/a.log", "repo/pkg/keep.log", "repo/pkg/gen/x", "repo/pkg/sub/gen/y")
    assert walked(tmp_path / "repo/pkg") == ".gitignore keep.log outer sub/gen/y"


def test_links_to_folders_are_not_followed(tmp_path: Path, make: Make) -> None:
    make("root/a", "outside/secret")
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/loop").symlink_to(tmp_path / "root")
    (tmp_path / "root/dangling").symlink_to(tmp_path / "none")
    assert walked(tmp_path / "root") == "a"


def test_links_to_files_outside_are_not_followed(tmp_path: Path, make: Make) -> None:
    make("root/a", "outside/secret")
    (tmp_path / "root/link").symlink_to(tmp_path / "outside/secret")
    assert walked(tmp_path / "root") == "a"


# ── modules ──


def of(base: Path, *modules: str) -> set[str]:
    return set(Sources(base, Digests()).of_modules(modules))


def test_a_module_comes_with_all_that_it_imports_itself(base: Path, make: Make) -> None:
    make(
        "project/top_a.py=import top_b\nimport json, numpy\n",
        "project/top_b.py=def f():\n    from top_c.deep import x\n",
        "project/top_c/__init__.py=",
        "project/top_c/deep.py=from . import other\ntry:\n    import top_d\nexcept ImportError:\n    pass\n",
        "project/top_c/other.py=import top_a",
        "project/top_d.py=",
        "project/unrelated.py=",
    )
    assert of(base, "top_a") == {
        "top_a.py",
        "top_b.py",
        "top_c/__init__.py",
        "top_c/deep.py",
        "top_c/other.py",
        "top_d.py",
    }
    assert of(base, "top_c.deep") == of(base, "top_a")


def test_sources_beside_a_module_that_are_no_python_come_too_and_data_does_not(base: Path, make: Make) -> None:
    make(
        "project/top_k.py=",
        "project/kernels/add.cu",
        "project/conf.yaml",
        "project/data.bin",
        "project/nb.ipynb",
        "project/.env",
    )
    assert of(base, "top_k") == {"top_k.py", "kernels/add.cu", "conf.yaml"}


def test_what_is_installed_built_in_ours_or_nowhere_is_not_brought(base: Path) -> None:
    assert (
        of(
            base,
            "os",
            "sys",
            "json",
            "numpy",
            "torch.nn",
            "kcoral_magic",
            "kcoral_gateway.app",
            "__main__",
            "no_such_module",
            "",
        )
        == set()
    )


def test_ignored_files_of_a_package_stay(base: Path, make: Make) -> None:
    make(
        "project/.kcoralignore=big.py",
        "project/pkg_i/__init__.py=",
        "project/pkg_i/big.py",
        "project/pkg_i/.gitignore=gen_*",
        "project/pkg_i/gen_x.py",
        "project/pkg_i/__pycache__/x.py",
    )
    assert of(base, "pkg_i") >= {"pkg_i/__init__.py"}
    assert "pkg_i/gen_x.py" not in of(base, "pkg_i")
    (base / ".git").mkdir()
    assert of(base, "pkg_i") == {"pkg_i/__init__.py"}


def test_an_ignore_file_beside_the_notebook_counts_without_a_repository_too(base: Path, make: Make) -> None:
    make("project/.kcoralignore=big.py", "project/pkg_j/__init__.py=", "project/pkg_j/big.py")
    assert of(base, "pkg_j") == {"pkg_j/__init__.py"}


def test_other_roots_on_the_path_go_to_a_folder_of_their_own(
    base: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable install: a package or module somewhere else that ``import`` finds."""
    make(
        "src/lib_e/__init__.py=import single_e",
        "src/lib_e/x.cu",
        "more/src/single_e.py=",
        "more/src/other.yaml",
        "project/top_e.py=import lib_e",
    )
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    monkeypatch.syspath_prepend(str(tmp_path / "more/src"))
    found = of(base, "top_e")
    assert {path.rpartition("/src-")[0] + "/" + path.split("/", 2)[-1] if "/src-" in path else path for path in found} == {
        "top_e.py", ".kcoral/lib_e/__init__.py", ".kcoral/lib_e/x.cu", ".kcoral/single_e.py",
    }  # fmt: skip
    assert (
        len({path.split("/")[1] for path in found if path.startswith(".kcoral/")}) == 2
    )  # two roots named src are two


def test_a_namespace_package_is_brought_from_all_its_folders(
    base: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("project/ns_n/one.py=", "elsewhere/ns_n/two.py=")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert {path.rpartition("/")[2] for path in of(base, "ns_n")} == {"one.py", "two.py"}


def test_a_module_that_is_no_python_text_is_brought_as_it_is(base: Path, make: Make) -> None:
    make("project/top_s.py=def broken(:")
    (base / "top_l.py").write_bytes(b"\xff\xfe")
    importlib.invalidate_caches()
    assert of(base, "top_s", "top_l") == {"top_s.py", "top_l.py"}


def test_an_edited_module_brings_what_it_imports_now(base: Path, make: Make) -> None:
    make("project/top_m.py=import json", "project/top_n.py=")
    sources = Sources(base, Digests())
    assert set(sources.of_modules(["top_m"])) == {"top_m.py"}
    make("project/top_m.py=import top_n")
    found = sources.of_modules(["top_m"])
    assert set(found) == {"top_m.py", "top_n.py"}
    assert found["top_m.py"].size == len("import top_n")


def test_a_module_that_is_loaded_but_has_no_spec_is_passed_over(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "odd_module", None)  # type: ignore[arg-type]
    assert of(base, "odd_module", "__main__") == set()


# ── folders ──


def test_a_folder_comes_whole_but_for_what_is_ignored(base: Path, make: Make) -> None:
    make("project/a.bin", "project/d/b", "project/.gitignore=c", "project/c")
    sources = Sources(base, Digests())
    assert set(sources.of_folder(base)) == {".gitignore", "a.bin", "d/b"}
    assert set(sources.of_folder(base / "d", "there")) == {"there/b"}
    with pytest.raises(UsageError, match="no folder"):
        sources.of_folder(base / "none")


def test_too_many_files_are_refused_with_what_to_do(base: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoral_magic.client.sources.MAX_FILES", 5)
    make(*(f"project/many_p/{n}.py" for n in range(6)), "project/many_p/__init__.py")
    for attempt in (lambda: Sources(base, Digests()).of_folder(base), lambda: of(base, "many_p")):
        with pytest.raises(UsageError, match="kcoralignore"):
            attempt()
    assert MAX_FILES >= 10_000
