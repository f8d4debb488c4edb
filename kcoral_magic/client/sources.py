"""The files that an ``import`` in a remote cell needs: code beside the notebook, of its roots, and editable installs.

A module is ours to bring when ``import`` would find it here outside of the standard library and of site-packages. With
it come the modules that it imports itself, and the sources beside it that are no Python. Ignored files stay.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kcoral_magic.client.files import Digests, LocalFile
from kcoral_magic.errors import UsageError
from kcoral_magic.names.free import cell_names

SUFFIXES = frozenset(
    ".py .pyi .cu .cuh .c .cc .cpp .cxx .h .hh .hpp .hxx .inl .inc .ptx .cl .metal .yaml .yml .toml .json .cfg .ini "
    ".sql .jinja .j2 .proto .mlir .ll".split()
)
# Never anybody's source: version control, environments, caches. An environment is also known by its pyvenv.cfg.
_NEVER = frozenset(
    ".git .hg .svn .jj __pycache__ node_modules .ipynb_checkpoints .mypy_cache .pytest_cache .ruff_cache .hypothesis "
    ".tox .nox .eggs .cache .idea .vscode .kcoral".split()
)
# Names of files that hold credentials: they lie beside code too, and no import needs them.
_SECRET = re.compile(
    r"token|secret|credential|passw|service.?account|private|^auth|^kaggle$|^netrc|^\.env", re.IGNORECASE
)
_OWN = frozenset(("kcoral_magic", "kcoral_gateway"))
ELSEWHERE = ".kcoral"  # where roots other than the notebook's folder go in a session; each is on its path there
MAX_FILES = 20_000


class Sources:
    """What the modules of one notebook are made of."""

    def __init__(self, base: Path, digests: Digests) -> None:
        self._base = base.resolve()
        self._digests = digests
        self._imports: dict[str, tuple[str, ...]] = {}  # of a file's digest

    def of_modules(self, modules: Iterable[str]) -> dict[str, LocalFile]:
        """The files of modules and of all that they import, by their paths in a session.

        Raises:
            UsageError: There are too many, or one cannot be read.
        """
        found: dict[str, LocalFile] = {}
        waiting = sorted({module.partition(".")[0] for module in modules})
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name in _OWN:
                continue
            seen.add(name)
            for root, path in _local(name):
                for file in self._files(path, root):
                    found[self._there(root, file)] = looked = self._digests.look(file)
                    if file.suffix == ".py":
                        waiting += self._imported(looked)
            if len(found) > MAX_FILES:
                raise UsageError(f"importing {name} means more than {MAX_FILES:,} files: name some in .kcoralignore")
        return found

    def of_folder(self, folder: Path, prefix: str = "") -> dict[str, LocalFile]:
        """Every file of a folder that is not ignored."""
        root = folder.resolve()
        if not root.is_dir():
            raise UsageError(f"there is no folder {folder}")
        found = {}
        for file in walk(root):
            there = file.relative_to(root).as_posix()
            found[f"{prefix}/{there}" if prefix else there] = self._digests.look(file)
            if len(found) > MAX_FILES:
                raise UsageError(f"{folder} has more than {MAX_FILES:,} files: name some in .kcoralignore")
        return found

    def _files(self, path: Path, root: Path) -> Iterator[Path]:
        if path.is_dir():
            yield from (file for file in walk(path, self._base) if file.suffix in SUFFIXES)
            return
        yield path
        if root == self._base:  # what lies beside the notebook is its project; another root may be anything
            yield from (file for file in walk(root, self._base) if _is_read_by_code(file))

    def _there(self, root: Path, file: Path) -> str:
        relative = file.relative_to(root).as_posix()
        if root == self._base:
            return relative
        mark = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:6]
        return f"{ELSEWHERE}/{root.name or 'root'}-{mark}/{relative}"

    def _imported(self, file: LocalFile) -> tuple[str, ...]:
        names = self._imports.get(file.digest)
        if names is None:
            try:
                text = file.path.read_text("utf-8")
            except (OSError, UnicodeDecodeError):  # Python will say so there
                text = ""
            # The tops only, of modules that are here: most imports are of installed packages.
            names = tuple({name.partition(".")[0] for name in cell_names(text).imports})
            self._imports[file.digest] = names
        return names


def _is_read_by_code(file: Path) -> bool:
    return file.suffix in SUFFIXES and file.suffix != ".py" and _SECRET.search(file.stem) is None


def _local(name: str) -> list[tuple[Path, Path]]:
    """``(root, path)`` of a top-level module that is ours to bring: the folder on the path, and the file or folder."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a module without a spec, say __main__
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        paths = [Path(location) for location in spec.submodule_search_locations]
    elif spec.origin is not None and spec.has_location:
        paths = [Path(spec.origin)]
    else:  # built in or frozen
        return []
    paths = [path.resolve() for path in paths]
    return [(path.parent, path) for path in paths if not _is_installed(path)]


@cache
def _installed() -> tuple[Path, ...]:
    paths = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()] if hasattr(site, "getsitepackages") else []
    return tuple({Path(path).resolve() for path in paths if path})


def _is_installed(path: Path) -> bool:
    if any(part in ("site-packages", "dist-packages") for part in path.parts):
        return True
    return any(path.is_relative_to(installed) for installed in _installed())


def walk(root: Path, stop: Path | None = None) -> Iterator[Path]:
    """The files below ``root`` that no ignore file names, in order; links are not followed out of it.

    Ignore files above count too, up to the root of the repository, or up to ``stop``.
    """
    yield from _walk(root, root.resolve(), _specs_above(root, stop))


def _walk(folder: Path, root: Path, specs: Sequence[tuple[Path, Any]]) -> Iterator[Path]:
    specs = [*specs, *_specs_of(folder)]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in _NEVER or _is_ignored(path, is_folder, specs):
            continue
        if is_folder:
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path, root, specs)
        elif entry.is_file(follow_symlinks=False) or (entry.is_file() and path.resolve().is_relative_to(root)):
            yield path


def _is_ignored(path: Path, is_folder: bool, specs: Sequence[tuple[Path, Any]]) -> bool:
    """As git decides: the nearest ignore file that has an opinion."""
    for folder, spec in reversed(specs):
        relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        decided = spec.check_file(relative).include
        if decided is not None:
            return bool(decided)
    return False


def _specs_above(folder: Path, stop: Path | None) -> list[tuple[Path, Any]]:
    if (folder / ".git").exists() or folder == stop:
        return []
    above = []
    for parent in folder.parents:
        above.append(parent)
        if (parent / ".git").exists() or parent == stop:
            return [spec for parent in reversed(above) for spec in _specs_of(parent)]
    return []


def _specs_of(folder: Path) -> list[tuple[Path, Any]]:
    specs = []
    for name in (".gitignore", ".kcoralignore"):
        file = folder / name
        if file.is_file():
            from pathspec import GitIgnoreSpec  # not before there is something to ignore

            specs.append((folder, GitIgnoreSpec.from_lines(file.read_text("utf-8", "replace").splitlines())))
    return specs
