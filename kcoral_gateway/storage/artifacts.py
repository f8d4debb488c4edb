"""Blobs: bytes under their digest, one folder for each principal, so that nobody ever meets another's.

Two kinds. ``sha256-…`` is a file: it stays in the cache until the principal's limit asks for room (least recently used
first). ``xxh3-…`` is a parcel of values on its way between a client and a worker: it goes when it has been delivered,
or after ``TRANSIT_S``. A blob grows from its beginning; what has arrived before a cut is not sent again. Its digest is
checked when it is whole, and one that does not match is thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import xxhash

from kcoral_magic.errors import CapacityExceeded, NotFoundError, ValueRefused

TRANSIT_S = 3600.0  # as long as a client may be away
CACHES = "compilers.tar"  # of each principal, beside the blobs
CACHE_BYTES = 65 * 1024 * 1024  # of them: what ``worker.warm`` packs, and a tar's own blocks
PART = ".part"
_READ_BYTES = 1024 * 1024
_RESERVED_BYTES = 4 * 1024 * 1024  # ahead of what has come: the limit is looked at in such steps


def hasher(digest: str) -> Any:
    """What computes a digest of this kind."""
    return hashlib.sha256() if digest.startswith("sha256-") else xxhash.xxh3_128()


class Artifacts:
    """All blobs of a gateway."""

    def __init__(self, root: Path, *, limit_bytes: int, block_bytes: int = 1) -> None:
        """``block_bytes``: what a file takes is whole blocks, and one for its name; 1 counts bytes alone."""
        self._root = root
        self._block_bytes = block_bytes
        self._limit_bytes = limit_bytes
        self._hashers: dict[Path, tuple[int, Any]] = {}  # of blobs that grow: how far, and the digest so far
        self._counted: dict[Path, dict[str, int]] = {}  # bytes of each blob of each folder, whole or not
        self._pinned: Counter[Path] = Counter()  # by those that wait or run

    def folder(self, principal: str) -> Path:
        """Where a principal's blobs are; a principal's name may hold what a file name may not."""
        folder = self._root / hashlib.sha256(principal.encode()).hexdigest()[:16]
        if folder not in self._counted:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)  # programs read files here, under a user id of their own
            self._count(folder)
        return folder

    def _count(self, folder: Path) -> None:
        """What a former gateway left."""
        if folder not in self._counted:
            files = [path for path in folder.iterdir() if path.is_file()]
            self._counted[folder] = {path.name.removesuffix(PART): self._on_disk(path.stat().st_size) for path in files}

    def held(self, principal: str, digest: str, size: int) -> int:
        """How many bytes of a blob are here, from its beginning on. Whole ones count as used now."""
        path = self.folder(principal) / digest
        try:
            found = path.stat().st_size
            if found == size:
                os.utime(path)
                return size
        except FileNotFoundError:
            pass
        try:
            here = path.with_name(digest + PART).stat().st_size
        except FileNotFoundError:
            return 0
        return here if here <= size else 0  # of another size than it is said to have now: begin anew

    def has(self, principal: str, digest: str) -> bool:
        """Whether a whole blob is here; it counts as used now."""
        try:
            os.utime(self.folder(principal) / digest)
        except FileNotFoundError:
            return False
        return True

    def append(self, principal: str, digest: str, size: int, offset: int, data: memoryview) -> int:
        """Add the bytes from ``offset`` on; how many are here then. A repeat changes nothing.

        Raises:
            CapacityExceeded: The principal's limit leaves no room; what there was of the blob is gone.
            ValueRefused: It leaves a gap or goes beyond the size (pieces behind a refused one do), or the blob is whole
                and its bytes are others than its digest says.
        """
        folder = self.folder(principal)
        here = self.held(principal, digest, size)
        is_whole = here == size and (folder / digest).exists()
        if is_whole or (len(data) and offset + len(data) <= here):
            return here
        if not here:
            (folder / (digest + PART)).unlink(missing_ok=True)
        if offset != here or offset + len(data) > size:
            raise ValueRefused(f"byte {here} of {size} of a blob was due, got {len(data)} bytes from {offset} on")
        part = folder / (digest + PART)
        try:
            wanted = self._on_disk(here + len(data)) - self._counted[folder].get(digest, 0)
            self._make_room(folder, wanted, digest)
        except CapacityExceeded:
            if digest.startswith("xxh3-"):  # a file's half may go on when there is room
                self._remove(folder, digest)
            raise
        try:
            with open(part, "ab") as file:
                file.write(data)
        except OSError as error:
            self._remove(folder, digest)
            raise CapacityExceeded(f"the gateway cannot store it: {error.strerror}") from None
        self._counted[folder][digest] = self._on_disk(here + len(data))
        self._hash(part, here, data)
        here += len(data)
        if here == size:
            self._complete(folder, digest, part)
        return here

    def _hash(self, part: Path, before: int, data: memoryview) -> None:
        known = self._hashers.get(part)
        if known is None or known[0] != before:  # begun by a former gateway
            computed, left = hasher(part.name), before
            with open(part, "rb") as file:
                while left and (piece := file.read(min(left, _READ_BYTES))):
                    computed.update(piece)
                    left -= len(piece)
        else:
            computed = known[1]
        computed.update(data)
        self._hashers[part] = (before + len(data), computed)

    def _complete(self, folder: Path, digest: str, part: Path) -> None:
        _, computed = self._hashers.pop(part)
        if computed.hexdigest() != digest.partition("-")[2]:
            self._remove(folder, digest)
            raise ValueRefused("the bytes that came are not those of their digest: they were damaged on the way")
        os.chmod(part, 0o444)
        os.replace(part, folder / digest)

    def intake(self, principal: str, digest: str) -> Intake:
        """A file of unknown size that arrives in one stream."""
        return Intake(self, self.folder(principal), digest)

    def take_in(self, principal: str, digest: str, size: int) -> None:
        """A worker host begins to write a blob of results into the folder: count it.

        Raises:
            CapacityExceeded: The principal's limit leaves no room; what there is of it is gone.
        """
        folder = self.folder(principal)
        try:
            self._make_room(folder, size, digest)
        except CapacityExceeded:
            self._remove(folder, digest)
            raise
        self._counted[folder][digest] = self._on_disk(size)

    def keep_caches(self, principal: str, data: bytes) -> None:
        """Replace what the principal's compilers have kept.

        Raises:
            CapacityExceeded: The principal's limit leaves no room.
        """
        folder = self.folder(principal)
        self._make_room(folder, len(data), CACHES)
        fresh = folder / (CACHES + PART)
        fresh.write_bytes(data)
        self._become_caches(folder, fresh)

    def adopt_caches(self, principal: str, digest: str) -> None:
        """As ``keep_caches``, of a blob that a worker host has written; nothing happens if it is not whole."""
        folder = self.folder(principal)
        self._counted[folder].pop(digest, None)
        with contextlib.suppress(FileNotFoundError):
            self._become_caches(folder, folder / digest)
        (folder / (digest + PART)).unlink(missing_ok=True)

    def _become_caches(self, folder: Path, fresh: Path) -> None:
        fresh.chmod(0o444)  # the principal's workers read it, under user ids of their own
        self._counted[folder][CACHES] = self._on_disk(fresh.stat().st_size)
        fresh.replace(folder / CACHES)

    def path(self, principal: str, digest: str) -> Path:
        """A whole blob.

        Raises:
            NotFoundError: There is none.
        """
        path = self.folder(principal) / digest
        if not path.exists():
            raise NotFoundError(f"the gateway holds no {digest[:20]}…: it was removed meanwhile, send it again")
        return path

    def read(self, principal: str, digest: str, offset: int, into: memoryview) -> bool:
        """Fill ``into`` with a blob's bytes from ``offset`` on; false while a host is still writing them.

        Raises:
            NotFoundError: There is no such blob, or it is shorter.
        """
        path = self.folder(principal) / digest
        for candidate in (path, path.with_name(digest + PART), path):  # the last: it may be finished meanwhile
            try:
                descriptor = os.open(candidate, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                done = os.preadv(descriptor, [into], offset)
            finally:
                os.close(descriptor)
            if done == into.nbytes:
                return True
            if candidate != path:
                return False
            raise NotFoundError(f"{into.nbytes} bytes from {offset} on were asked for, the blob is shorter")
        raise NotFoundError(f"the gateway holds no {digest[:20]}…: its worker was lost, or it was fetched before")

    def pin(self, principal: str, digests: Collection[str]) -> Callable[[], None]:
        """Keep blobs, however full it gets, until the returned function is called."""
        paths = [self.folder(principal) / digest for digest in digests]
        self._pinned.update(paths)

        def unpin() -> None:
            self._pinned.subtract(paths)
            for path in paths:
                if self._pinned[path] <= 0:
                    del self._pinned[path]

        return unpin

    def drop(self, principal: str, digest: str) -> None:
        """A parcel was delivered, or an upload given up. Whole files stay: the cache decides."""
        folder = self.folder(principal)
        if digest.startswith("xxh3-") or not (folder / digest).exists():
            self._remove(folder, digest)

    def _remove(self, folder: Path, digest: str) -> None:
        for path in (folder / digest, folder / (digest + PART)):
            path.unlink(missing_ok=True)
        self._counted[folder].pop(digest, None)
        self._hashers.pop(folder / (digest + PART), None)

    def _on_disk(self, size: int) -> int:
        if self._block_bytes == 1:
            return size
        return -(-size // self._block_bytes) * self._block_bytes + self._block_bytes

    def _used(self, folder: Path) -> int:
        return sum(self._counted[folder].values())

    def _make_room(self, folder: Path, wanted: int, keep: str) -> None:
        if self._used(folder) + wanted <= self._limit_bytes:
            return
        self._recount(folder)
        if self._used(folder) + wanted <= self._limit_bytes:
            return
        whole = [path for path in folder.iterdir() if path.name.startswith("sha256-") and path.suffix != PART]
        files = [path for path in whole if path.name != keep and path not in self._pinned]
        could = sum(self._counted[folder].get(path.name, 0) for path in files)
        if self._used(folder) - could + wanted <= self._limit_bytes:  # else nothing is thrown away in vain
            for path in sorted(files, key=_used_s):
                self._remove(folder, path.name)
                if self._used(folder) + wanted <= self._limit_bytes:
                    return
        raise CapacityExceeded(
            f"your files and values on this gateway may take {_size(self._limit_bytes)}, "
            f"{_size(self._used(folder))} are in use: fetch or drop results, or send less at once"
        )

    def prune(self, now: float, live: Collection[str] = ()) -> None:
        """Remove parcels and halves that nobody has asked for in a while; ``live`` digests stay."""
        for folder in self._root.glob("*"):
            self._count(folder)
            on_disk = {path.name.removesuffix(PART): path for path in folder.iterdir()}
            for digest, path in on_disk.items():
                is_transit = digest.startswith("xxh3-") or path.suffix == PART
                if is_transit and digest not in live and now - _used_s(path) > TRANSIT_S:
                    self._remove(folder, digest)
            self._recount(folder)

    def _recount(self, folder: Path) -> None:
        """Worker hosts remove parcels that they have handed over, and results whose worker was lost."""
        here = {path.name.removesuffix(PART) for path in folder.iterdir()}
        for digest in self._counted[folder].keys() - here:
            del self._counted[folder][digest]

    def usage(self, principal: str) -> tuple[int, int]:
        """Bytes in use, and the limit."""
        folder = self.folder(principal)
        self._recount(folder)
        return self._used(folder), self._limit_bytes


class Intake:
    """A file on its way in. It is nobody's until its digest holds."""

    def __init__(self, artifacts: Artifacts, folder: Path, digest: str) -> None:
        self._artifacts = artifacts
        self._folder = folder
        self._digest = digest
        self._key = f"intake-{secrets.token_hex(8)}"  # two may come at once, and one may be false
        self._path = folder / (self._key + PART)
        self._file = self._path.open("wb", buffering=0)
        self._hasher = hasher(digest)
        self._reserved = 0
        self.size = 0

    def write(self, data: memoryview) -> None:
        """The next bytes.

        Raises:
            CapacityExceeded: The principal's limit or the disk leaves no room.
        """
        self.size += data.nbytes
        if self.size > self._reserved:
            self._reserved = self.size + _RESERVED_BYTES
            before = self._artifacts._counted[self._folder].get(self._key, 0)
            self._artifacts._make_room(self._folder, self._artifacts._on_disk(self.size) - before, self._digest)
            self._artifacts._counted[self._folder][self._key] = self._artifacts._on_disk(self._reserved)
        self._hasher.update(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise CapacityExceeded(f"the gateway cannot store it: {error.strerror}") from None

    def finish(self) -> None:
        """All bytes are here.

        Raises:
            ValueRefused: They are others than the digest says.
        """
        if self._hasher.hexdigest() != self._digest.partition("-")[2]:
            self.abort()
            raise ValueRefused("the bytes that came are not those of their digest")
        self._file.close()
        os.chmod(self._path, 0o444)
        os.replace(self._path, self._folder / self._digest)
        counted = self._artifacts._counted[self._folder]
        counted.pop(self._key, None)
        counted[self._digest] = self._artifacts._on_disk(self.size)

    def abort(self) -> None:
        """Nothing of it stays."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        self._artifacts._counted[self._folder].pop(self._key, None)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _used_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
