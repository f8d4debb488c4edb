"""Files in the workspace: those that a client places there, and what it asks of the others.

Everything here runs inside the sandbox with the session's own rights, so a path can lead nowhere that the session's
code could not go. Paths of placed files are relative and stay below the workspace all the same: a worker without a
sandbox is the user's own process.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import transfers as t

ROOT = os.getcwd()  # the workspace: this is loaded before any of the user's code runs
_LISTED = 10_000
ELSEWHERE = ".kcoral"  # as in ``client.sources``


class Workspace:
    """What a client has placed, and under which digest all of it is known."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self._placed: dict[str, str] = {}
        self._basis: str | None = None  # the digest before the files that came since the last body
        self._open: tuple[str, Any] | None = None
        self.changed: list[str] = []  # since the last body
        self.problems: list[str] = []

    @property
    def has_files(self) -> bool:
        """Whether a client has placed any."""
        return bool(self._placed)

    @property
    def basis(self) -> str:
        """The digest of the files before those that came for the next body."""
        return self.digest() if self._basis is None else self._basis

    def digest(self) -> str:
        """Of the paths and digests of everything placed; empty without any."""
        return t.tree_digest(self._placed)

    def take(self) -> tuple[list[str], list[str]]:
        """The paths that have changed since the last body, and what could not be placed; a new count begins."""
        changed, self.changed = self.changed, []
        problems, self.problems = self.problems, []
        self._basis = None
        return changed, problems

    def forget(self) -> None:
        """All files come anew."""
        self._placed.clear()
        self._basis = None

    def part(self, part: t.FilePart, data: framing.Buffer) -> None:
        """Write a piece of a file, or remove one."""
        if self._basis is None:
            self._basis = self.digest()
        try:
            target = self._target(part.path)
            if part.size is None:
                target.unlink(missing_ok=True)
                self._placed.pop(part.path, None)
                self.changed.append(part.path)
                return
            self._write(part, target, data)
        except OSError as error:
            self._close()
            self.problems.append(f"{part.path} could not be written: {error.strerror or error}")

    def _write(self, part: t.FilePart, target: Path, data: framing.Buffer) -> None:
        temporary = target.with_name(f".{target.name[:200]}.kcoral")
        if part.offset == 0:
            self._close()
            target.parent.mkdir(parents=True, exist_ok=True)
            self._open = (part.path, open(temporary, "wb"))
        if self._open is None or self._open[0] != part.path:
            return  # its beginning could not be written: that has been said
        file = self._open[1]
        file.write(data)
        if part.size is not None and part.offset + len(data) >= part.size:
            self._close()
            os.chmod(temporary, part.mode & 0o755)
            os.replace(temporary, target)
            if part.digest:
                self._placed[part.path] = part.digest
            self._add_root(part.path)
            self.changed.append(part.path)

    @contextlib.contextmanager
    def inside(self, folder: str | None) -> Iterator[None]:
        """Run in a folder below the workspace, which is made if need be.

        Raises:
            ValueRefused: It lies elsewhere, or cannot be made.
        """
        if folder is None:
            yield
            return
        before = os.getcwd()
        try:
            target = self._target(folder) if folder != "." else self.root
            target.mkdir(parents=True, exist_ok=True)
            os.chdir(target)
        except OSError as error:
            raise ValueRefused(f"--cwd {folder}: {error.strerror or error}") from None
        try:
            yield
        finally:
            try:
                is_there = os.getcwd() == str(target)  # else the cell has gone elsewhere itself
            except FileNotFoundError:  # it removed the folder
                is_there = True
            if is_there:
                os.chdir(before)

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _add_root(self, path: str) -> None:
        """Code of another root of the client's lies in a folder that ``import`` has to look in."""
        parts = PurePosixPath(path).parts
        if len(parts) > 2 and parts[0] == ELSEWHERE:
            root = str(self.root / parts[0] / parts[1])
            if root not in sys.path:
                sys.path.append(root)

    def _target(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
            raise OSError(f"it must lie below the workspace, got {path!r:.80}")
        return self.root / pure


# ── what a client asks, as expressions of a body's wants ────────────────────────────────────────────────────────────


def listing(pattern: str = "") -> list[tuple[str, int, float, bool]]:
    """``(path, bytes, modified, is a folder)`` of what a pattern or folder names, at most 10,000."""
    found = []
    for path in sorted(_matches(pattern or ".", is_listing=True)):
        status = os.lstat(path)
        found.append((_shown(path), status.st_size, status.st_mtime, stat.S_ISDIR(status.st_mode)))
        if len(found) >= _LISTED:
            break
    return found


def digests(patterns: Sequence[str]) -> list[tuple[str, str, int, int, str]]:
    """``(path, path from its match, bytes, mode, sha256)`` of every regular file that the patterns name."""
    return [(_shown(path), _shown(name), size, mode, _sha256(path)) for path, name, size, mode in _files(patterns)]


def contents(paths: Sequence[str]) -> list[tuple[str, memoryview]]:
    """The bytes of files, mapped: nothing is read before it is sent."""
    found = []
    for path in paths:
        with open(_inside(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
            found.append((path, memoryview(data)))
    return found


def remove(patterns: Sequence[str]) -> list[str]:
    """Remove what the patterns name; the paths that are gone now."""
    gone = []
    for pattern in patterns:
        for path in sorted(_matches(pattern, is_listing=False)):
            if not os.path.abspath(path).startswith(os.getcwd() + os.sep):
                raise ValueError(f"only what is in the workspace is removed, got {pattern!r}")
            if not os.path.lexists(path):
                continue  # it lay in a folder that has just gone
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
            gone.append(_shown(path))
    return gone


def usage() -> tuple[int, int, int]:
    """Bytes of the workspace: all, used, free."""
    found = shutil.disk_usage(".")
    return found.total, found.used, found.free


def _files(patterns: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    for pattern in patterns:
        for path in sorted(_matches(pattern, is_listing=False)):
            for file in _below(path):
                status = os.lstat(file)
                if stat.S_ISREG(status.st_mode):  # links, pipes and devices stay where they are
                    name = os.path.relpath(file, os.path.dirname(os.path.abspath(path)))
                    yield file, name, status.st_size, status.st_mode & 0o755


def _below(path: str) -> Iterator[str]:
    if not os.path.isdir(path) or os.path.islink(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            yield os.path.join(folder, name)


def _matches(pattern: str, *, is_listing: bool) -> list[str]:
    path = _inside(pattern)
    if os.path.lexists(path):
        if is_listing and os.path.isdir(path):
            return [os.path.join(path, name) for name in os.listdir(path) if not name.startswith(".kcoral")]
        return [path]
    found = glob.glob(path, recursive=True)
    if not found:
        raise FileNotFoundError(f"nothing in the workspace is called {pattern!r}")
    return found


def _inside(path: str) -> str:
    return os.path.normpath(os.path.expanduser(path))


def _shown(path: str) -> str:
    return PurePosixPath(path).as_posix()


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return f"sha256-{hashlib.file_digest(file, 'sha256').hexdigest()}"
