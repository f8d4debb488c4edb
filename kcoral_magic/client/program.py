"""``Program``: KCoral's instructions, built here and run there in a worker that nobody has used.

program = Program()
module = program.upload(kind="module", source="def add(a, b): return a + b")
add = program.get_function(module=module, name="add")
program.return_(key="sum", value=program.run(fn=add, args=[1, 2]))
client.execute(program)["sum"]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from kcoral_magic.client.blobs import PIECE_BYTES
from kcoral_magic.errors import ProgramInvalid, UsageError, ValueRefused
from kcoral_magic.protocol import program as p


@dataclass(frozen=True)
class Register:
    """What an instruction makes, for later ones."""

    id: str


@dataclass(frozen=True)
class Blob:
    """Bytes that an instruction refers to: in memory, or a file that is read when it is sent."""

    digest: str  # SHA-256, hex
    size: int
    data: memoryview | Path

    def pieces(self, offset: int) -> Iterator[list[memoryview]]:
        """The bytes from ``offset`` on."""
        if isinstance(self.data, memoryview):
            for start in range(offset, self.size, PIECE_BYTES):
                yield [self.data[start : start + PIECE_BYTES]]
            return
        try:
            with self.data.open("rb") as file:
                file.seek(offset)
                while data := file.read(PIECE_BYTES):
                    yield [memoryview(data)]
        except OSError as error:
            raise ValueRefused(f"{self.data} cannot be read any more: {error.strerror}") from None


class Program:
    """Instructions in the order in which they run; each is checked when it is added.

    Attributes:
        instructions: As they go over the wire.
        blobs: What they refer to, by SHA-256.
    """

    def __init__(self) -> None:
        self.instructions: list[dict[str, Any]] = []
        self.blobs: dict[str, Blob] = {}
        self._rules = p.Rules()
        self._ids: set[str] = set()
        self._compiler: Register | None = None

    def upload(
        self,
        *,
        kind: Literal["module", "tensor", "bytes", "library"],
        source: str | None = None,
        value: Any = None,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        id: str | None = None,
    ) -> Register:
        """Python source, or a value that is there before anything runs. What is uploaded may be changed afterwards.

        Args:
            kind: ``module`` takes ``source``. ``tensor`` takes a torch tensor or an array, or bytes with ``dtype`` and
                ``shape``. ``bytes`` and ``library`` (a shared object) take bytes, or a ``Path`` to a file.

        Raises:
            ProgramInvalid: It breaks a rule of the language.
            UsageError: The value is of no such kind.
        """
        made: dict[str, Any] = {"kind": kind}
        if kind == "module":
            if source is None:
                raise UsageError("a module is uploaded with source=, its text")
            made["source"] = source
        elif kind == "tensor":
            data, made["dtype"], made["shape"] = _tensor(value, dtype, shape)
            made["blob"] = self._blob(data)
        else:
            made["blob"] = self._blob(value)
        return self._add("upload", id, made)

    def upload_file(self, *, blob: Any, path: str, id: str | None = None) -> Register:
        """A file of the workspace: ``blob`` is bytes, text, or a ``Path`` to a file here. Its value is its path."""
        return self._add("upload", id, {"kind": "file", "blob": self._blob(blob), "path": path})

    def upload_folder(self, folder: str | os.PathLike[str], *, path: str) -> None:
        """All regular files below ``folder``, each at its place below ``path``.

        Raises:
            UsageError: There is no such folder, or it holds a link or a special file.
        """
        top = Path(folder)
        if not top.is_dir():
            raise UsageError(f"{top} is no folder")
        for found in sorted(top.rglob("*")):
            if found.is_symlink() or not (found.is_dir() or found.is_file()):
                raise UsageError(f"{found} is a link or a special file: only files and folders are uploaded")
            if found.is_file():
                self.upload_file(blob=found, path=f"{path}/{found.relative_to(top).as_posix()}")

    def get_function(self, *, module: Register, name: str, cpu_only: bool = False, id: str | None = None) -> Register:
        """A function of a module or library. Its calls hold no GPU if they are ``cpu_only``."""
        made: dict[str, Any] = {"module": _ref(module), "name": name}
        if cpu_only:
            made["cpu_only"] = True
        return self._add("get_function", id, made)

    def run(self, *, fn: Register, args: Sequence[Any] = (), id: str | None = None) -> Register:
        """Call a function. An argument is what an instruction made, or plain JSON."""
        plain = [_ref(arg) if isinstance(arg, Register) else arg for arg in args]
        try:
            snapshot = json.loads(json.dumps(plain, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            text = "arguments are JSON or what an instruction made (upload a tensor or bytes)"
            raise ProgramInvalid(f"{text}: {error}") from None
        return self._add("run", id, {"fn": _ref(fn), "args": snapshot})

    def compile_cuda(
        self,
        source: str,
        *,
        target: str,
        kind: Literal["cubin", "ptx", "fatbin", "shared"] = "cubin",
        options: Sequence[str] = (),
    ) -> Register:
        """Build CUDA C++ there with nvcc, on a worker that holds no GPU meanwhile; the object's bytes.

        Args:
            target: The architecture it is for, as in ``sm_90a``; ``client.gpus().gpus[0].arch`` is a gateway's.
            kind: ``shared`` is a library with host code, which a later call can load with ``ctypes``.
            options: More of nvcc's options, as in ``["-O3", "--use_fast_math"]``.

        A source with errors fails the program with kind ``compile`` and the compiler's own words.
        """
        if self._compiler is None:
            self._compiler = self.upload(kind="module", source="from kcoral_gateway.worker.nvcc import build")
        build = self.get_function(module=self._compiler, name="build", cpu_only=True)
        return self.run(fn=build, args=[source, target, kind, list(options)])

    def return_(self, *, key: str, value: Register) -> None:
        """Send back what an instruction made."""
        self._append({"op": "return", "key": key, "value": _ref(value)})

    def return_file(self, *, key: str, path: str | Register) -> None:
        """Send back a file of the workspace."""
        self._return_path(key, path, "file")

    def return_folder(self, *, key: str, path: str | Register) -> None:
        """Send back a folder of the workspace and all that is in it."""
        self._return_path(key, path, "folder")

    def _return_path(self, key: str, path: str | Register, kind: str) -> None:
        where = _ref(path) if isinstance(path, Register) else path
        self._append({"op": "return", "key": key, "kind": kind, "path": where})

    def source(self) -> bytes:
        """The program's JSON.

        Raises:
            ProgramInvalid: It has no instruction.
        """
        data = json.dumps({"instructions": self.instructions}).encode()
        p.parse(data)
        return data

    @property
    def keys(self) -> dict[int, tuple[str, str]]:
        """What comes back: key and kind (``value``, ``file``, ``folder``) by instruction."""
        returns = ((n, made) for n, made in enumerate(self.instructions) if made["op"] == "return")
        return {number: (made["key"], made.get("kind", "value")) for number, made in returns}

    def _add(self, op: str, name: str | None, made: Mapping[str, Any]) -> Register:
        given = name if name is not None else self._new_id(op)
        self._append({"op": op, "id": given, **made})
        self._ids.add(given)
        return Register(given)

    def _new_id(self, op: str) -> str:
        numbers = itertools.count(len(self.instructions))
        return next(made for number in numbers if (made := f"{op}_{number}") not in self._ids)

    def _append(self, made: dict[str, Any]) -> None:
        self._rules.add(p.instruction_of(made, len(self.instructions)))
        self.instructions.append(made)

    def _blob(self, value: Any) -> str:
        blob = _blob_of(value)
        self.blobs.setdefault(blob.digest, blob)
        return blob.digest


def _blob_of(value: Any) -> Blob:
    match value:
        case str():
            data = memoryview(value.encode())
        case bytes():
            data = memoryview(value)
        case Path():
            try:
                with value.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    return Blob(digest, os.fstat(file.fileno()).st_size, value)
            except OSError as error:
                raise UsageError(f"{value} cannot be read: {error.strerror}") from None
        case _:
            try:
                data = memoryview(bytes(memoryview(value)))  # its own: the caller may write to his
            except TypeError:
                text = f"bytes, text or a Path to a file were expected, got {type(value).__name__}"
                raise UsageError(text) from None
    return Blob(hashlib.sha256(data).hexdigest(), data.nbytes, data)


def _tensor(value: Any, dtype: str | None, shape: Sequence[int] | None) -> tuple[bytes, str, list[int]]:
    """Elements, dtype and shape of a tensor, an array, or bytes that are said to be one."""
    from kcoral_magic.values import tensors

    if isinstance(value, bytes | bytearray | memoryview) or (dtype is not None and shape is not None):
        if dtype is None or shape is None:
            raise UsageError("bytes are a tensor with dtype= and shape=")
        return bytes(value), dtype, list(shape)
    if tensors.is_tensor(value):
        return bytes(tensors.bytes_of(value)), str(value.dtype).removeprefix("torch."), list(value.shape)
    try:
        import numpy

        array = numpy.asarray(value)  # what speaks DLPack or the array interface becomes one too
        plain = numpy.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    except Exception as error:  # noqa: BLE001 - whatever the value's own code raises
        raise UsageError(f"a tensor or an array was expected, got {type(value).__name__} ({error})") from None
    return plain.tobytes(), plain.dtype.name, list(array.shape)


def _ref(register: Register) -> dict[str, str]:
    if not isinstance(register, Register):
        raise UsageError(f"what an instruction made was expected, got {type(register).__name__}")
    return msgspec.to_builtins(p.Ref(register.id))  # type: ignore[no-any-return]
