"""What a program gives back: its values by key, files and folders that can be saved, and why it failed if it did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcoral_magic.client.files import place_for
from kcoral_magic.client.program import Program
from kcoral_magic.client.results import Collector, with_id
from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.protocol import messages as m


@dataclass(frozen=True)
class ReturnedFile:
    """A file of the program's workspace."""

    data: memoryview = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.data.nbytes

    def read_bytes(self) -> bytes:
        """Its content."""
        return bytes(self.data)

    def read_text(self) -> str:
        """Its content as UTF-8."""
        return str(self.data, "utf-8")

    def save(self, dest: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it to the file ``dest``.

        Raises:
            UsageError: There is something of that name already.
        """
        path = Path(dest)
        _write(path, self.data, overwrite=overwrite)
        return path


@dataclass(frozen=True)
class ReturnedFolder:
    """A folder of the program's workspace: files by their paths in it, and all folders in it."""

    files: Mapping[str, ReturnedFile]
    directories: tuple[str, ...]

    def save(self, dest: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write everything below the folder ``dest``, which is made.

        Raises:
            UsageError: A file is there already.
            ValueRefused: A name leads out of ``dest``, or through a link.
        """
        base = Path(dest)
        base.mkdir(parents=True, exist_ok=True)
        for name in self.directories:
            place_for(base, f"{name}/_")  # makes the folder, and follows no link on the way
        places = {name: place_for(base, name) for name in self.files}
        if not overwrite and (there := [str(place) for place in places.values() if os.path.lexists(place)]):
            raise UsageError(f"{there[0]} is there already: overwrite=True replaces it")
        for name, place in places.items():
            _write(place, self.files[name].data, overwrite=overwrite)
        return base


def _write(path: Path, data: memoryview, *, overwrite: bool) -> None:
    if overwrite and path.is_symlink():
        path.unlink()  # the name is replaced, not what it leads to
    try:
        with path.open("wb" if overwrite else "xb") as file:
            file.write(data)
    except FileExistsError:
        raise UsageError(f"{path} is there already: overwrite=True replaces it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class ProgramError:
    """Why a program failed, attributed to the instruction that did.

    Attributes:
        kind: parse, compile, runtime, gpu_access, correctness, serialization, unavailable, engine or timeout.
        index, op, instruction_id: The instruction; ``index`` is -1 if none had begun.
        traceback: The program's own frames.
    """

    kind: str
    message: str
    index: int = -1
    op: str = ""
    instruction_id: str = ""
    traceback: str = field(default="", repr=False)

    def __str__(self) -> str:
        where = f"instruction {self.index} ({self.op} {self.instruction_id})".replace(" )", ")")
        return f"{where if self.index >= 0 else 'the program'} failed, {self.kind}: {self.message}"


@dataclass(frozen=True)
class ProgramResult:
    """A program that ran, to its end or not. ``result[key]`` is what came back under ``key``."""

    execution_id: str
    results: Mapping[str, Any]
    stdout: str
    stderr: str
    error: ProgramError | None = None
    gpus: tuple[m.Gpu, ...] = ()
    elapsed_ms: float = 0.0
    exception: BaseException | None = field(default=None, repr=False)  # what it raised, by its own type if known here

    @property
    def completed(self) -> bool:
        """Whether every instruction succeeded."""
        return self.error is None

    def __getitem__(self, key: str) -> Any:
        if key in self.results:
            return self.results[key]
        self.check()
        raise KeyError(key)

    def check(self) -> ProgramResult:
        """This result, if the program completed.

        Raises:
            Exception: What the program raised.
            KCoralError: It failed otherwise.
        """
        if self.exception is not None:
            raise self.exception
        return self

    def save(self, dest: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write every file and folder that came back below ``dest``, each by its key.

        Raises:
            UsageError: Nothing of the kind came back, or a file is there already.
        """
        base = Path(dest)
        found = {key: v for key, v in self.results.items() if isinstance(v, ReturnedFile | ReturnedFolder)}
        if not found:
            raise UsageError("the program returned no file and no folder: return_file and return_folder do")
        base.mkdir(parents=True, exist_ok=True)
        for key, value in found.items():
            is_file = isinstance(value, ReturnedFile)
            place = place_for(base, key) if is_file else place_for(base, f"{key}/_").parent
            value.save(place, overwrite=overwrite)
        return base


def result_of(program: Program | None, collector: Collector) -> ProgramResult:
    """The result of an execution that has been read to its end.

    Raises:
        UsageError: It is no program's.
        KCoralError: It did not run: it waited too long, say, or no GPU of the kind is there.
    """
    if program is None:
        raise UsageError("this execution is no program: result() gives its result")
    whole, finished, failed = collector.collected(), collector.finished, collector.failed
    exception = collector.exception()
    results: dict[str, Any] = {}
    for index, (key, kind) in program.keys.items():
        if (name := f"return:{index}") in whole.values:
            results[key] = _wrapped(whole.values[name], kind)
    if exception is None and (lost := [key for key, _ in program.keys.values() if key not in results]):
        exception = with_id(ValueRefused(f"{', '.join(lost)} did not come back"), whole.execution_id)
    error = None
    if failed is not None:
        error = ProgramError(
            failed.kind, failed.message, failed.index, failed.op, failed.instruction_id, collector.traceback
        )
        if exception is None or failed.kind == "serialization":
            exception = with_id(ValueRefused(str(error)), whole.execution_id)
    elif exception is not None:
        if finished is None or finished.status == "failed":  # nothing of it had begun
            raise exception
        kind = "serialization" if finished.status == "ok" else "runtime"
        error = ProgramError(kind, str(exception) or finished.status)
    return ProgramResult(
        whole.execution_id,
        results,
        whole.stdout,
        whole.stderr,
        error,
        collector.gpus,
        whole.elapsed_ms,
        exception,
    )


def _wrapped(value: Any, kind: str) -> Any:
    """As what the program returned it. A worker that sends another kind of thing is not believed."""
    if kind == "file" and isinstance(value, memoryview):
        return ReturnedFile(value)
    if kind == "folder" and isinstance(value, dict):
        files, directories = value.get("files"), value.get("directories")
        if isinstance(files, dict) and isinstance(directories, list):
            whole = all(isinstance(k, str) and isinstance(v, memoryview) for k, v in files.items())
            if whole and all(isinstance(name, str) for name in directories):
                return ReturnedFolder({name: ReturnedFile(v) for name, v in files.items()}, tuple(directories))
    if kind != "value":
        raise ValueRefused(f"a {kind} was to come back, and something else came")
    return value
