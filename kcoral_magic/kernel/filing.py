"""``%kcoral put|get|ls|rm|df|sync``: files between here and a session's workspace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.client.files import FileSet, place_for, to_send
from kcoral_magic.display import html
from kcoral_magic.errors import NotFoundError, RemoteError, UsageError, ValueRefused
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import surface_for

if TYPE_CHECKING:
    from kcoral_magic.kernel.magics import KCoral

_ASK = "__import__('kcoral_gateway.worker.files', fromlist=['files'])"


class Filing:
    """The file commands of one notebook."""

    def __init__(self, magics: KCoral) -> None:
        self._magics = magics

    def put(self, patterns: Sequence[str], to: str, session: str) -> html.Table:
        """Send files."""
        files = to_send(patterns, to.strip("/"), self._magics.cells.digests)
        return self._place(FileSet(files), session, "put")

    def sync(self, folder: Path, session: str, *, is_watched: bool, is_large: bool) -> html.Table:
        """Send a folder, and follow it if asked."""
        cells = self._magics.cells
        files = cells.sources.of_folder(folder)
        total = sum(file.size for file in files.values())
        if total > self._magics.sync_bytes and not is_large:
            largest = sorted(files.items(), key=lambda item: -item[1].size)[:5]
            listed = "; ".join(f"{path} {html.size(file.size)}" for path, file in largest)
            raise UsageError(f"{folder} is {html.size(total)}; the largest: {listed}. --yes sends it all the same")
        followed = cells.watched.setdefault(session, [])
        if is_watched and folder.resolve() not in followed:
            followed.append(folder.resolve())
        return self._place(FileSet(files), session, "synced")

    def _place(self, files: FileSet, session: str, verb: str) -> html.Table:
        belief = self._magics.proxy.client(self._magics.target).aio.belief(session)
        changes = files.changes(belief)
        self._run(session, files=files)
        total = sum(change.size for change in changes)
        rows = tuple((path, html.size(file.size)) for path, file in list(files.files.items())[:50])
        same = len(files.files) - len(changes)
        note = f"{same} of them were there already" if same else ""
        return html.Table(
            f"{verb} {_count(len(files.files))}, {html.size(total)} of them new", ("path", "size"), rows, note
        )

    def get(self, patterns: Sequence[str], to: str, session: str) -> html.Table:
        """Fetch files. What is here already is not fetched again."""
        found = self._ask(session, f"{_ASK}.digests({list(patterns)!r})")
        base = Path(os.path.expanduser(to or "."))
        wanted: list[tuple[str, Path, int, str]] = []
        rows = []
        for path, relative, size, mode, digest in _checked(found):
            target = place_for(base, relative)
            rows.append((str(target), html.size(size)))
            if not self._is_same(target, size, digest):
                wanted.append((path, target, mode, digest))
        fetched = 0
        if wanted:
            contents = self._ask(session, f"{_ASK}.contents({[path for path, *_ in wanted]!r})")
            if not isinstance(contents, list) or len(contents) != len(wanted):
                raise ValueRefused("the session sent other files than were asked for")
            for (_, target, mode, digest), (_, data) in zip(wanted, contents, strict=True):
                _write(target, data, mode, digest)
                fetched += memoryview(data).nbytes
        same = len(rows) - len(wanted)
        note = f"{same} of them were here already" if same else ""
        return html.Table(
            f"got {_count(len(rows))}, {html.size(fetched)} fetched", ("path", "size"), tuple(rows[:50]), note
        )

    def ls(self, path: str, session: str) -> html.Table:
        """What is in the workspace."""
        found = self._ask(session, f"{_ASK}.listing({path!r})")
        now = time.time()
        rows = tuple(
            (
                f"{name}/" if is_folder else name,
                "" if is_folder else html.size(size),
                html.duration(max(0, now - modified)),
            )
            for name, size, modified, is_folder in found
        )
        return html.Table(
            f"{_count(len(rows), 'entry', 'entries')} in {path or 'the workspace'}", ("path", "size", "age"), rows
        )

    def rm(self, patterns: Sequence[str], session: str) -> html.Table:
        """Remove files there."""
        gone = self._ask(session, f"{_ASK}.remove({list(patterns)!r})")
        return html.Table(
            f"removed {_count(len(gone), 'path', 'paths')}", ("path",), tuple((name,) for name in gone[:50])
        )

    def df(self, session: str) -> html.Table:
        """How full it is."""
        total, used, free = self._ask(session, f"{_ASK}.usage()")
        cache = self._magics.proxy.client(self._magics.target).storage()
        left = max(0, cache.limit_bytes - cache.used_bytes)
        rows = (
            ("workspace", html.size(total), html.size(used), html.size(free)),
            ("your files at the gateway", html.size(cache.limit_bytes), html.size(cache.used_bytes), html.size(left)),
        )
        return html.Table("kcoral: disks", ("", "size", "used", "free"), rows)

    def _is_same(self, target: Path, size: int, digest: str) -> bool:
        try:
            if not target.is_file() or target.is_symlink() or target.stat().st_size != size:
                return False
        except OSError:
            return False
        return self._magics.cells.digests.look(target).digest == digest

    def _ask(self, session: str, expression: str) -> Any:
        client = self._magics.proxy.client(self._magics.target)
        if session and session not in {info.name for info in client.sessions()}:
            raise NotFoundError(f"there is no session {session!r}: %kcoral sessions lists yours")
        result = self._run(session, wants=[("found", expression)])
        return result.values["found"]

    def _run(self, session: str, **options: Any) -> Any:
        magics = self._magics
        surface = surface_for(magics.shell)
        relay = Relay(surface, prefix="kcoral-files-", is_trusted=False, quiet_s=magics.quiet_s)
        execution = magics.proxy.client(magics.target).session(session).execute("", **options)
        try:
            return magics.proxy.run(execution, relay, surface)
        except ValueRefused as error:
            if "FileNotFoundError: " in str(error):
                raise NotFoundError(str(error).partition("FileNotFoundError: ")[2]) from None
            raise ValueRefused(str(error).removeprefix("not all values could come back: found: ")) from None
        except RemoteError as error:
            raise ValueRefused(str(error)) from None


def _checked(found: Any) -> list[tuple[str, str, int, int, str]]:
    """What a session says of its files, as far as it is that."""
    kinds = (str, str, int, int, str)
    if isinstance(found, list) and all(
        isinstance(entry, tuple) and len(entry) == 5 and all(map(isinstance, entry, kinds)) for entry in found
    ):
        return found
    raise ValueRefused("the session sent no list of files")


def _write(target: Path, data: Any, mode: int, digest: str) -> None:
    import hashlib

    if f"sha256-{hashlib.sha256(data).hexdigest()}" != digest:
        raise ValueRefused(f"{target} changed while it was fetched, or was damaged on the way: get it again")
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chmod(name, (mode | 0o600) & 0o755)
    os.replace(name, target)  # a link of that name is replaced, not followed


def _count(number: int, one: str = "file", many: str = "files") -> str:
    return f"{number:,} {one if number == 1 else many}"
