"""KCoral's programs: a list of instructions, read from strict JSON and checked before anything runs.

The rules are those of KCoral 0.1.1's wire: ids are unique, references point backwards, field sets
are exact. A reference is an object with the single key ``$ref``; only the top level of ``args`` is looked at for them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from kcoral_magic.errors import ProgramInvalid

MAX_GPUS = 8  # of one program, as KCoral has it
MAX_DIMENSIONS = 64  # of torch and numpy; the product of a million lengths would take hours
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2,
    "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_PATH_BYTES, _PART_BYTES = 4096, 255
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half a character, unless its other half follows
_Id = Annotated[str, Meta(min_length=1, max_length=512)]  # an error names it whole
_Key = Annotated[str, Meta(min_length=1)]
Blob = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an earlier instruction made."""

    id: _Id = msgspec.field(name="$ref")


class _Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class UploadModule(_Instruction, frozen=True):
    """Python source, executed in a namespace of its own."""

    op: Literal["upload"]
    id: _Id
    kind: Literal["module"]
    source: str


class UploadTensor(_Instruction, frozen=True):
    """A tensor; ``blob`` holds its elements, C-contiguous and little-endian."""

    op: Literal["upload"]
    id: _Id
    kind: Literal["tensor"]
    blob: Blob
    dtype: str
    shape: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MAX_DIMENSIONS)]

    @property
    def size(self) -> int:
        """Bytes of the blob."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class UploadBlob(_Instruction, frozen=True):
    """``bytes``, or a shared library that functions are looked up in."""

    op: Literal["upload"]
    id: _Id
    kind: Literal["bytes", "library"]
    blob: Blob


class UploadFile(_Instruction, frozen=True):
    """A file of the workspace; its value is its normalised path."""

    op: Literal["upload"]
    id: _Id
    kind: Literal["file"]
    blob: Blob
    path: str


class GetFunction(_Instruction, frozen=True):
    """A callable of a module or library. ``cpu_only``: its calls hold no GPU."""

    op: Literal["get_function"]
    id: _Id
    module: Ref
    name: Annotated[str, Meta(min_length=1)]
    cpu_only: bool = False


class Run(_Instruction, frozen=True):
    """Call a function. ``args`` at the top level may be references."""

    op: Literal["run"]
    id: _Id
    fn: Ref
    args: tuple[Any, ...] = ()


class ReturnValue(_Instruction, frozen=True):
    """Send a value back under a key."""

    op: Literal["return"]
    key: _Key
    value: Ref


class ReturnPath(_Instruction, frozen=True):
    """Send a file or folder of the workspace back under a key."""

    op: Literal["return"]
    key: _Key
    kind: Literal["file", "folder"]
    path: str | Ref


Upload = UploadModule | UploadTensor | UploadBlob | UploadFile
Instruction = Upload | GetFunction | Run | ReturnValue | ReturnPath
_UPLOADS: dict[str, type[Upload]] = {
    "module": UploadModule,
    "tensor": UploadTensor,
    "bytes": UploadBlob,
    "library": UploadBlob,
    "file": UploadFile,
}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program may ask for. ``gpu_count`` left out means one GPU where there are any."""

    timeout_seconds: float | msgspec.UnsetType = msgspec.UNSET
    output_limit_bytes: Annotated[int, Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    gpu_count: Annotated[int, Meta(ge=1, le=MAX_GPUS)] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Program:
    """A program that holds all rules. ``blobs`` are SHA-256 in hex, each once, in the order of their first use."""

    instructions: tuple[Instruction, ...]
    options: Options
    blobs: tuple[str, ...]

    @property
    def title(self) -> str:
        """By which lists know it: the functions that it gets."""
        names = [i.name for i in self.instructions if isinstance(i, GetFunction)]
        return f"program of {len(self.instructions)}: {', '.join(names[:5])}"[:80]

    @property
    def needs_no_gpu(self) -> bool:
        """Whether nothing of it may touch a GPU."""
        return not any(self.uses_gpu(index) for index in range(len(self.instructions)))

    def uses_gpu(self, index: int) -> bool:
        """Whether instruction ``index`` may touch a GPU: all but bytes, files and calls that said they do not."""
        instruction = self.instructions[index]
        match instruction:
            case UploadFile() | ReturnPath() | UploadBlob(kind="bytes") | GetFunction():
                return False
            case Run(fn=Ref(id=name)):
                made = self._maker(name)
                return not (isinstance(made, GetFunction) and made.cpu_only)
            case ReturnValue(value=Ref(id=name)):
                made = self._maker(name)
                return not (isinstance(made, UploadFile) or (isinstance(made, UploadBlob) and made.kind == "bytes"))
            case _:
                return True

    def _maker(self, name: str) -> Instruction:
        return self._makers[name]

    @cached_property
    def _makers(self) -> dict[str, Instruction]:
        made = (i for i in self.instructions if not isinstance(i, ReturnValue | ReturnPath))
        return {instruction.id: instruction for instruction in made}


def parse(data: bytes | bytearray | memoryview) -> Program:
    """A program from its JSON.

    Raises:
        ProgramInvalid: It breaks a rule; the message names the instruction and the rule.
    """
    whole = strict_json(data)
    if not isinstance(whole, dict) or not whole.keys() <= {"instructions", "options"}:
        raise ProgramInvalid("a program is an object with instructions and, if need be, options")
    raw = whole.get("instructions")
    if not isinstance(raw, list) or not raw:
        raise ProgramInvalid("instructions must be a list with at least one of them")
    options = _convert(whole["options"], Options, "options") if "options" in whole else Options()
    limit = options.timeout_seconds
    if limit is not msgspec.UNSET and not 0 < limit < math.inf:
        raise ProgramInvalid(f"options: timeout_seconds must be a finite number above 0, got {limit}")
    instructions = tuple(instruction_of(item, index) for index, item in enumerate(raw))
    check(instructions)
    blobs = dict.fromkeys(i.blob for i in instructions if isinstance(i, UploadTensor | UploadBlob | UploadFile))
    return Program(instructions, options, tuple(blobs))


def strict_json(data: bytes | bytearray | memoryview) -> Any:
    """JSON as RFC 7493 has it: UTF-8, no key twice, no number that is none, no half of a character.

    Raises:
        ProgramInvalid: It is not.
    """
    try:
        text = str(data, "utf-8")
        made = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        if _SURROGATE.search(text):
            json.dumps(made, ensure_ascii=False).encode()
        return made
    except UnicodeDecodeError as error:
        raise ProgramInvalid(f"the program is not UTF-8: {error.reason} at byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise ProgramInvalid(f"the program has {error.object[error.start]!a}, half a character") from None
    except RecursionError:
        raise ProgramInvalid("the program is nested too deeply") from None
    except ValueError as error:
        raise ProgramInvalid(f"the program is no JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ProgramInvalid(f"key {twice!r:.80} comes twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ProgramInvalid(f"{name} is no JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ProgramInvalid(f"{text:.80} is beyond what a number can be")
    return number


def instruction_of(item: Any, index: int) -> Instruction:
    """An instruction from its JSON object; ``index`` is its place in the program.

    Raises:
        ProgramInvalid: It is none.
    """
    where = f"instruction {index}"
    if not isinstance(item, dict):
        raise ProgramInvalid(f"{where}: an object was expected, got {type(item).__name__}")
    op, kind = item.get("op"), item.get("kind")
    wanted: type[Instruction] | None
    match op:
        case "upload":
            wanted = _UPLOADS.get(kind) if isinstance(kind, str) else None
            if wanted is None:
                raise ProgramInvalid(f"{where}: kind must be one of {', '.join(_UPLOADS)}, got {kind!r:.80}")
        case "get_function":
            wanted = GetFunction
        case "run":
            wanted = Run
        case "return":
            wanted = ReturnPath if "kind" in item else ReturnValue
        case _:
            raise ProgramInvalid(f"{where}: op must be upload, get_function, run or return, got {op!r:.80}")
    return cast(Instruction, _convert(item, wanted, where))


def _convert(item: Any, wanted: Any, where: str) -> Any:
    try:
        return msgspec.convert(item, wanted)
    except msgspec.ValidationError as error:
        raise ProgramInvalid(f"{where}: {error}") from None


# ── rules between instructions ──────────────────────────────────────────────────────────────────────────────────────


def check(instructions: Iterable[Instruction]) -> None:
    """The rules that one instruction alone cannot break.

    Raises:
        ProgramInvalid: One is broken.
    """
    rules = Rules()
    for instruction in instructions:
        rules.add(instruction)


class Rules:
    """The rules between instructions, for one after the other. One that breaks a rule leaves nothing behind."""

    def __init__(self) -> None:
        self._made: dict[str, Instruction] = {}
        self._keys: set[str] = set()
        self._files: dict[str, str] = {}  # normalised path -> "file" or "folder"
        self._count = 0

    def add(self, instruction: Instruction) -> None:
        """The next instruction.

        Raises:
            ProgramInvalid: It breaks a rule.
        """
        where = f"instruction {self._count}"
        if isinstance(instruction, ReturnValue | ReturnPath):
            if instruction.key in self._keys:
                raise ProgramInvalid(f"{where}: key {instruction.key!r:.80} was returned before")
        elif instruction.id in self._made:
            raise ProgramInvalid(f"{where}: id {instruction.id!r:.80} was used before")
        self._check(instruction, where)
        self._count += 1
        if isinstance(instruction, ReturnValue | ReturnPath):
            self._keys.add(instruction.key)
        else:
            self._made[instruction.id] = instruction

    def _check(self, instruction: Instruction, where: str) -> None:
        match instruction:
            case UploadTensor(dtype=dtype):
                if dtype not in ITEM_BYTES:
                    raise ProgramInvalid(f"{where}: dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype!r:.80}")
            case UploadFile(path=path):
                _place(self._files, normalised(path, where), where)
            case GetFunction(module=ref):
                self._find(ref, where)
            case Run(fn=ref, args=args):
                self._find(ref, where)
                for arg in args:
                    if (inner := as_ref(arg)) is not None:
                        self._find(inner, where)
            case ReturnValue(value=ref):
                self._find(ref, where)
            case ReturnPath(path=str() as path):
                normalised(path, where)
            case ReturnPath(path=Ref() as ref):
                self._find(ref, where)

    def _find(self, ref: Ref, where: str) -> None:
        if ref.id not in self._made:
            raise ProgramInvalid(f"{where}: {ref.id!r:.80} was not made by an earlier instruction")


def as_ref(value: Any) -> Ref | None:
    """The reference that a top-level argument is, or ``None`` if it is data: it has more keys, or no id."""
    if not (isinstance(value, dict) and value.keys() == {"$ref"}):
        return None
    name = value["$ref"]
    return Ref(name) if isinstance(name, str) and name else None


def _place(files: dict[str, str], path: str, where: str) -> None:
    """Two uploads may not want one path, nor one a file where the other wants a folder."""
    folders = [str(parent) for parent in PurePosixPath(path).parents][:-1]
    if path in files or any(files.get(folder) == "file" for folder in folders):
        raise ProgramInvalid(f"{where}: {path!r:.200} collides with another upload")
    files[path] = "file"
    files.update(dict.fromkeys(folders, "folder"))


def normalised(path: str, where: str = "a path") -> str:
    """A path below the workspace, without ``.`` and doubled slashes.

    Raises:
        ProgramInvalid: It is absolute, leads up, or is no name a file can have.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    is_odd = "\\" in path or "\0" in path or ".." in parts or path.startswith("/") or not parts
    try:
        raw = [part.encode() for part in parts]
    except UnicodeEncodeError:
        is_odd, raw = True, []
    if is_odd or sum(map(len, raw)) + len(raw) - 1 > _PATH_BYTES or any(len(part) > _PART_BYTES for part in raw):
        raise ProgramInvalid(f"{where}: a path is relative, with '/' and without '..', got {path!r:.200}")
    return "/".join(parts)
