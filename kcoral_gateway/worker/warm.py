"""What compilers keep between programs: Triton's, inductor's and CUDA's caches outlive a worker, for its principal.

A program's worker is thrown away, and with it the kernels that were compiled in it. So new cache files go back to the
gateway as one archive, and the next worker of the principal unpacks it when torch or triton is imported, not before.
The archive is a stranger's to everybody but this principal's own workers.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# As in ``host.sandbox``'s environment: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, CUDA_CACHE_PATH.
NAMES = ("triton", "inductor", "cuda")
KEPT = "compilers.tar"  # as in ``storage.artifacts``, among the principal's blobs
MAX_BYTES = 64 * 1024 * 1024
_USERS = frozenset(("torch", "triton", "numba", "cupy", "tilelang"))


class Caches:
    """The caches below ``base``, kept in the archive ``kept`` between workers."""

    def __init__(self, base: Path, kept: Path) -> None:
        self._base = base
        self._kept = kept
        self._known: dict[str, tuple[int, int]] = {}
        self._is_unpacked = False

    def install(self) -> None:
        """Unpack when somebody is imported who has use for them."""
        if self._kept.exists():
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by ``import``; it never finds anything itself."""
        if name in _USERS and not self._is_unpacked:
            self._is_unpacked = True
            sys.meta_path.remove(self)
            self._unpack()
        return None

    def _unpack(self) -> None:
        with contextlib.suppress(OSError, tarfile.TarError, ValueError):  # cold is slow, not wrong
            self._base.mkdir(parents=True, exist_ok=True)
            with tarfile.open(self._kept) as archive:
                archive.extractall(self._base, filter="data")
        self._known = {name: stamp for name, _, stamp in self._files()}

    def archive(self) -> bytes | None:
        """All caches, if there is anything new in them: the newest files, as many as ``MAX_BYTES`` hold."""
        files = self._files()
        if all(self._known.get(name) == stamp for name, _, stamp in files):
            return None
        made, left = io.BytesIO(), MAX_BYTES
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name, path, (size, _) in sorted(files, key=lambda file: -file[2][1]):
                left -= size + 2 * tarfile.BLOCKSIZE
                if left < 0:
                    break
                archive.add(path, name, recursive=False)
        return made.getvalue()

    def _files(self) -> list[tuple[str, Path, tuple[int, int]]]:
        found = []
        for top in NAMES:
            for folder, _, names in os.walk(self._base / top):
                for name in names:
                    path = Path(folder, name)
                    with contextlib.suppress(OSError):  # a compiler's own temporary file
                        status = path.lstat()
                        if path.is_file() and not path.is_symlink():
                            shown = path.relative_to(self._base).as_posix()
                            found.append((shown, path, (status.st_size, status.st_mtime_ns)))
        return found
