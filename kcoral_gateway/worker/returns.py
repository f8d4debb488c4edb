"""Values of KCoral programs on their way in and out: tensors from blobs, results as typed JSON with binary parts."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol.program import ITEM_BYTES
from kcoral_magic.values import tensors

_DEPTH = 100  # of nested values; JSON readers give up not far beyond
_INTEGER_BITS = 14_284  # 4300 digits: Python reads no longer ones


def tensor_of(path: Path, dtype: str, shape: list[int]) -> Any:
    """A tensor on the blob's own pages, on the GPU if this worker has one. Writing to it copies the page.

    Raises:
        ImportError: torch is not installed here.
    """
    tensor = tensors.from_bytes(_mapped(path), dtype, tuple(shape))
    import torch

    return tensor.cuda() if torch.cuda.is_available() else tensor


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))


@dataclass(frozen=True)
class File:
    """A file of the workspace that goes back."""

    data: memoryview

    def as_plain(self) -> Any:
        """For the values' codec."""
        return self.data


@dataclass(frozen=True)
class Folder:
    """A folder of the workspace that goes back: its regular files, and all its folders, by their paths."""

    files: dict[str, memoryview]
    directories: list[str]

    def as_plain(self) -> Any:
        """For the values' codec."""
        return {"files": self.files, "directories": self.directories}


def file_of(path: str) -> File:
    """A regular file below the workspace.

    Raises:
        ValueRefused: It is none, or a link leads to it.
    """
    return File(_mapped(_real(path, stat.S_ISREG, "a regular file")))


def folder_of(path: str) -> Folder:
    """A folder below the workspace with all it holds.

    Raises:
        ValueRefused: It is none, or holds a link or a special file.
    """
    top = _real(path, stat.S_ISDIR, "a folder")
    files: dict[str, memoryview] = {}
    directories: list[str] = []
    for found in sorted(top.rglob("*")):
        name = found.relative_to(top).as_posix()
        if name.encode("utf-8", "replace").decode() != name:
            raise ValueRefused(f"{path}/{name!a} cannot go back: its name is not UTF-8")
        mode = found.lstat().st_mode
        if stat.S_ISDIR(mode):
            directories.append(name)
        elif stat.S_ISREG(mode):
            files[name] = _mapped(found)
        else:
            raise ValueRefused(f"{path}/{name} is a link or special file: only files and folders go back")
    return Folder(files, directories)


def _real(path: str, is_kind: Any, kind: str) -> Path:
    place = Path.cwd()
    for part in path.split("/"):
        place = place / part
        try:
            mode = place.lstat().st_mode
        except OSError:
            raise ValueRefused(f"{path!r:.200} is not in the workspace") from None
        if stat.S_ISLNK(mode):
            raise ValueRefused(f"{path!r:.200} is or goes through a link")
    if not is_kind(mode):
        raise ValueRefused(f"{path!r:.200} is not {kind}")
    return place


class Encoder:
    """Makes typed JSON of a value; ``parts`` are its binary parts, numbered in the order they are met."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self._nodes: list[dict[str, Any]] = []

    def encode(self, value: Any, depth: int = 0) -> dict[str, Any]:
        """The value's JSON.

        Raises:
            ValueRefused: It is of a type that has none.
        """
        if depth > _DEPTH:
            raise ValueRefused("a value cannot go back: it is nested too deeply, or in itself")
        match value:
            case None:
                return {"type": "null"}
            case bool():
                return {"type": "boolean", "value": value}
            case int():
                if value.bit_length() > _INTEGER_BITS:
                    raise ValueRefused("an integer cannot go back: it has more than 4300 digits")
                return {"type": "integer", "value": int(value)}
            case float():
                if not math.isfinite(value):
                    raise ValueRefused(f"{value} cannot go back: JSON has no such number")
                return {"type": "number", "value": float(value)}
            case str():
                return {"type": "string", "value": str(value)}
            case bytes() | bytearray() | memoryview():
                data = memoryview(value)
                return self._part(data.cast("B") if data.c_contiguous else memoryview(bytes(data)), type="bytes")
            case list() | tuple():
                return {"type": "array", "value": [self.encode(item, depth + 1) for item in value]}
            case dict():
                if not all(isinstance(key, str) for key in value):
                    raise ValueRefused("a dict goes back if all of its keys are strings")
                return {"type": "object", "value": {key: self.encode(item, depth + 1) for key, item in value.items()}}
            case File(data=data):
                return self._part(data, type="file", size=data.nbytes)
            case Folder():
                return self._folder(value)
        return self._array(value)

    def _folder(self, folder: Folder) -> dict[str, Any]:
        files = {path: self.encode(File(data)) for path, data in sorted(folder.files.items())}
        return {"type": "folder", "files": files, "directories": sorted(folder.directories)}

    def _array(self, value: Any) -> dict[str, Any]:
        """Tensors, and what becomes one: numpy arrays and scalars."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            name = str(value.dtype).removeprefix("torch.")
            if name in ITEM_BYTES and value.layout == torch.strided and not value.is_quantized and not value.is_meta:
                return self._tensor(name, list(value.shape), tensors.bytes_of(value))
        elif numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
            return self.encode(value.item())
        elif numpy is not None and isinstance(value, numpy.ndarray):
            plain = numpy.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            if plain.dtype.name in ITEM_BYTES:
                return self._tensor(plain.dtype.name, list(value.shape), memoryview(plain.reshape(-1).view("u1")))
        raise ValueRefused(f"a value of type {type(value).__name__} cannot go back in KCoral's format")

    def _tensor(self, name: str, shape: list[int], data: memoryview) -> dict[str, Any]:
        return self._part(data, type="tensor", dtype=name, shape=shape)

    def _part(self, data: memoryview, **fields: Any) -> dict[str, Any]:
        node = {**fields, "part": len(self.parts), "sha256": "0" * 64}
        self.parts.append(data)
        self._nodes.append(node)
        return node

    def seal(self) -> None:
        """Write the digests in. They take as long as the way out, and can be computed on another thread meanwhile."""
        for node, data in zip(self._nodes, self.parts, strict=True):
            node["sha256"] = hashlib.sha256(data).hexdigest()
