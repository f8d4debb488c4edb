"""Files on their way to a session: which there are, what has changed, and getting the changes there.

A file's digest is remembered by its path, size and times, so an unchanged file is not read again. What the gateway has
of a principal's files it is asked first; what it lacks is sent, from where a cut left off.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from kcoral_magic.client.blobs import PIECE_BYTES, Blobs
from kcoral_magic.client.exchange import Belief
from kcoral_magic.errors import CapacityExceeded, UsageError, ValueRefused
from kcoral_magic.protocol import transfers as t

_DEEPEST, _LONGEST = 64, 4000  # folders and bytes of a path; beyond them file systems and Python's own tools give up
_Stamp = tuple[int, int, int, int]  # device, inode, size, and when it was last written, in ns


@dataclass(frozen=True)
class LocalFile:
    """A file here. ``digest`` is that of its content when it was looked at."""

    path: Path
    digest: str
    size: int
    mode: int


class Digests:
    """Digests of files, by what ``stat`` says of them. One for a client: what it has read it need not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Stamp, str]] = {}

    def look(self, path: Path) -> LocalFile:
        """A file with its digest.

        Raises:
            UsageError: It is no regular file, or cannot be read.
        """
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path} is no regular file")
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(str(path))
            if known is None or known[0] != stamp:
                with path.open("rb") as file:
                    digest = f"sha256-{hashlib.file_digest(file, 'sha256').hexdigest()}"
                self._known[str(path)] = known = (stamp, digest)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        return LocalFile(path, known[1], status.st_size, status.st_mode & 0o755)


@dataclass
class FileSet:
    """Files for a session, by their paths there.

    Attributes:
        files: What is to be there.
        is_sync: These are all that follow the files here: those that have gone here go there.
    """

    files: Mapping[str, LocalFile]
    is_sync: bool = False
    progress: Callable[[int, int], None] | None = field(default=None, repr=False)
    is_moving: bool = False

    def changes(self, belief: Belief) -> tuple[t.FileIn, ...]:
        """What the session lacks, and what it has to lose."""
        made = [
            t.FileIn(path, file.digest, file.size, file.mode)
            for path, file in self.files.items()
            if (known := belief.files.get(path)) is None or known.digest != file.digest or known.mode != file.mode
        ]
        if self.is_sync:
            made += [t.FileIn(path, None) for path in sorted(belief.synced - self.files.keys())]
        return tuple(made)

    async def bring(self, blobs: Blobs, belief: Belief) -> tuple[t.FileIn, ...]:
        """Have everything that has changed at the gateway; what the session is to be told.

        Raises:
            KCoralError: A file could not be sent.
        """
        changes = self.changes(belief)
        self.is_moving = True
        try:
            await self._upload(blobs, changes)
        finally:
            self.is_moving = False
        for change in changes:
            if change.digest is None:
                belief.files.pop(change.path, None)
                belief.local.pop(change.path, None)
            else:
                belief.files[change.path] = change
                belief.local[change.path] = self.files[change.path]
        if self.is_sync:
            belief.synced = set(self.files)
        return changes

    async def _upload(self, blobs: Blobs, changes: tuple[t.FileIn, ...]) -> None:
        new = {change.digest: change for change in changes if change.digest is not None}
        held = await blobs.held([(digest, change.size) for digest, change in new.items()]) if new else ()
        here = {file.digest: file for file in self.files.values()}
        lacking = [c for c, offset in zip(new.values(), held, strict=True) if offset < c.size or not c.size]
        total, before = sum(change.size for change in lacking), 0
        for change in lacking:
            assert change.digest is not None

            def told(done: int, before: int = before) -> None:
                if self.progress is not None:
                    self.progress(before + done, total)

            await _send(blobs, here[change.digest], told)
            before += change.size


async def restore(blobs: Blobs, belief: Belief) -> bytes:
    """All files of a session that has lost them, as a manifest; what left the gateway's cache is sent again.

    Raises:
        KCoralError: One is neither there nor unchanged here.
    """
    changes = list(belief.files.values())
    held = await blobs.held([(change.digest or "", change.size) for change in changes])
    digests = Digests()
    for change, offset in zip(changes, held, strict=True):
        if offset == change.size and change.size:
            continue
        file: LocalFile = belief.local[change.path]
        if digests.look(file.path).digest != change.digest:
            raise ValueRefused(
                f"{change.path} is lost with the session, and {file.path} is another by now: send it again"
            )
        await _send(blobs, file)
    return msgspec.msgpack.encode(t.Manifest(files=tuple(changes)))


async def _send(blobs: Blobs, file: LocalFile, told: Callable[[int], None] | None = None) -> None:
    try:
        await blobs.upload(file.digest, file.size, _reader(file), told)
    except (ValueRefused, CapacityExceeded) as error:
        text = str(error) if str(file.path) in str(error) else f"{file.path}: {error}"
        raise type(error)(text) from None


def _reader(file: LocalFile) -> Callable[[int], Iterable[list[memoryview]]]:
    def pieces(offset: int) -> Iterator[list[memoryview]]:
        try:
            with file.path.open("rb") as source:
                source.seek(offset)
                while data := source.read(PIECE_BYTES):
                    yield [memoryview(data)]
        except OSError as error:
            raise ValueRefused(f"{file.path} cannot be read any more: {error.strerror}") from None

    return pieces


def to_send(patterns: Iterable[str], to: str, digests: Digests) -> dict[str, LocalFile]:
    """Files that paths, folders and globs name, by the path each gets under ``to``.

    Raises:
        UsageError: A pattern names nothing, or something that is no file.
    """
    import glob

    found: dict[str, LocalFile] = {}
    for pattern in patterns:
        whole = os.path.expanduser(pattern)
        matches = [whole] if os.path.lexists(whole) else sorted(glob.glob(whole, recursive=True))
        if not matches:
            raise UsageError(f"there is no {pattern} here")
        for match in matches:
            path = Path(match)
            base = Path(os.path.abspath(match)).parent
            for file in _below(path):
                there = Path(os.path.abspath(file)).relative_to(base).as_posix()
                if ".." in PurePosixPath(to).parts:
                    raise UsageError(f"files go to folders of the workspace, got {to!r}")
                found[f"{to}/{there}" if to else there] = digests.look(file)
    return found


def place_for(base: Path, relative: str) -> Path:
    """Where a file of a session goes below ``base``; the folder for it is made.

    Raises:
        ValueRefused: The name, which a stranger gave, leads elsewhere.
    """
    pure = PurePosixPath(relative)
    is_odd = "\\" in relative or "\0" in relative or (":" in relative and os.name == "nt")
    is_odd = is_odd or len(pure.parts) > _DEEPEST or len(relative.encode("utf-8", "replace")) > _LONGEST
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or is_odd or not relative.strip():
        raise ValueRefused(f"the session names a file {relative!r:.80}, which leads out of {base}")
    target = base / pure
    try:
        base.mkdir(parents=True, exist_ok=True)
        root = base.resolve()
        folder = root
        for part in pure.parts[:-1]:  # one by one: a link in the way must not make folders elsewhere
            folder = folder / part
            if folder.is_symlink():
                raise ValueRefused(f"{folder} is a link: files of a session do not go through it")
            folder.mkdir(exist_ok=True)
        if target.is_dir() and not target.is_symlink():
            raise ValueRefused(f"{target} is a folder here, a file there")
    except (OSError, UnicodeError) as error:  # the latter: a name that no file system has
        why = error.strerror if isinstance(error, OSError) else "it is no name of a file"
        raise ValueRefused(f"{relative!r:.80} cannot be written below {base}: {why}") from None
    return target


def _below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                yield file
