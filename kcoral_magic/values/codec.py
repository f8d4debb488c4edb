"""Which format a value travels in, and what stands for one that may not come in.

Safe formats always come first. A pickle is written only for a reader that takes pickles; otherwise type and repr come
as an ``Opaque``. Towards another minor version of Python, functions and classes of the notebook travel as source:
their bytecode would not run there, or worse.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import parcel, pickled, tree, versions
from kcoral_magic.values.buffers import Buffer, NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest, shown

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
_REPR_CHARS = 400


class Opaque:
    """Stands for a value that came from a side which is not trusted: its type and repr, nothing of it runs here."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text

    def __repr__(self) -> str:
        return f"<{self.kind} of the session: {self.text}>"


@dataclass
class Packed:
    """A parcel, and why some names are not in it."""

    parcel: parcel.Parcel
    problems: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def pack(
    values: dict[str, Any],
    *,
    may_pickle: bool,
    peer: str = VERSION,
    digests: dict[str, str] | None = None,
    cell_of: Callable[[str], int | None] | None = None,
) -> Packed:
    """All values that can travel, in one parcel.

    Args:
        values: By name.
        may_pickle: The reader takes pickles.
        peer: The reader's Python, ``major.minor``.
        digests: Already made, by name.
        cell_of: The number of the cell that a file name of code belongs to.
    """
    problems: dict[str, str] = {}
    while True:
        failed, entries = _entries(values, problems, may_pickle, peer, digests or {}, cell_of)
        if not failed:
            break
        problems |= failed  # a pickle that broke off has spoilt the memo that the others share: again, without it
    notes = [f"{entry.name}: {note}" for entry, _, _ in entries for note in entry.notes]
    return Packed(parcel.pack(entries), problems, notes)


def _entries(
    values: dict[str, Any],
    problems: dict[str, str],
    may_pickle: bool,
    peer: str,
    digests: dict[str, str],
    cell_of: Callable[[str], int | None] | None,
) -> tuple[dict[str, str], list[tuple[parcel.Entry, Buffer, list[Buffer]]]]:
    entries: list[tuple[parcel.Entry, Buffer, list[Buffer]]] = []
    shared = Writer()
    pickler = pickled.Pickler(shared, cell_of)
    for name, value in values.items():
        if name in problems:
            continue
        writer = Writer()
        try:
            kind, head = _write(value, name, writer, shared, pickler, may_pickle, peer)
            mark = digests.get(name) or digest(value, name)[0] if kind != "opaque" else ""
        except ValueRefused as error:
            return {name: str(error)}, []
        if kind == "pickle":
            writer = Writer()
            writer.buffers, shared.buffers = shared.buffers, []
            writer.notes, shared.notes = shared.notes, []
        made_with = versions.here() if kind == "pickle" else ()
        entry = parcel.Entry(name, kind, (0, 0), (), mark, shown(value), tuple(writer.notes), made_with)
        entries.append((entry, head, list(writer.buffers)))
    return {}, entries


def _write(
    value: Any, name: str, writer: Writer, shared: Writer, pickler: pickled.Pickler, may_pickle: bool, peer: str
) -> tuple[str, bytes]:
    if isinstance(value, types.ModuleType):
        return "module", value.__name__.encode()
    try:
        return "tree", tree.write(value, writer)
    except NotSafe as error:
        reason = error
        writer.buffers.clear()
        writer.notes.clear()
    if peer != VERSION and may_pickle:
        return "source", _source(value, name, peer)
    if not may_pickle:
        return "opaque", msgspec.msgpack.encode((_type_name(value), _safe_repr(value), reason.why))
    try:
        return "pickle", pickler.pickled(value)
    except Exception as error:  # noqa: BLE001 - any __reduce__ may raise anything
        raise pickled.explain(value, name, error) from None


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.").removeprefix("__main__.")


def _safe_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may do anything
        text = f"<repr() failed: {type(error).__name__}>"
    return text if len(text) <= _REPR_CHARS else f"{text[:_REPR_CHARS]}…"


def _source(value: Any, name: str, peer: str) -> bytes:
    """Source of a function or class, for an interpreter that cannot take its bytecode."""
    versions = f"Python {VERSION} here, {peer} there"
    is_function = type(value) is types.FunctionType
    if not is_function and not isinstance(value, type):
        raise ValueRefused(
            f"{name} is a {_type_name(value)}: only a pickle could carry it, and pickles need one Python ({versions})"
        )
    if is_function and (value.__closure__ or value.__name__ == "<lambda>"):
        raise ValueRefused(
            f"{name} is a closure or lambda: only bytecode could carry it ({versions}); use a def without closure"
        )
    try:
        text = textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        raise ValueRefused(f"{name} has no source here: only bytecode could carry it ({versions})") from None
    return msgspec.msgpack.encode((value.__name__, f"<source of {name}>", text))


class Unpacked:
    """The values of a parcel that arrived, one by one: an error of one is not the others'."""

    def __init__(
        self,
        data: Buffer,
        *,
        takes_pickles: bool,
        is_trusted_writer: bool = False,
        on_source: Callable[[str, int], None] | None = None,
    ) -> None:
        """Open it.

        Raises:
            ValueRefused: The bytes are no parcel.
        """
        self._opened = parcel.Opened(data)
        self._takes_pickles = takes_pickles
        self._is_trusted_writer = is_trusted_writer
        self._unpickler: pickled.Unpickler | None = None
        self._on_source = on_source
        self.entries = self._opened.entries

    def values(self) -> Iterator[tuple[parcel.Entry, Any]]:
        """Each entry with its value, or with the ``ValueRefused`` that says why there is none."""
        for entry in self.entries:
            try:
                yield entry, self._value(entry)
            except ValueRefused as error:
                yield entry, error
            except Exception as error:  # noqa: BLE001 - a pickle's code may raise anything
                text = f"{entry.name} cannot be read here: {type(error).__name__}: {error}"
                differing = versions.difference(entry.versions)
                yield entry, ValueRefused(f"{text} ({differing})" if differing else text)

    def _value(self, entry: parcel.Entry) -> Any:
        head = self._opened.part(entry.head)
        match entry.format:
            case "tree":
                parts = [self._opened.part(span) for span in entry.buffers]
                return tree.read(head, Reader(parts, is_trusted_writer=self._is_trusted_writer))
            case "opaque":
                return _opaque(head)
            case "pickle" | "source" | "module" if not self._takes_pickles:
                raise ValueRefused(
                    f"{entry.name} came as a {entry.format}, which is taken over a trusted connection only"
                )
            case "pickle":
                return self._pickles().load()
            case "source":
                return _from_source(head)
            case "module":
                return _module(str(head, "utf-8"))
            case _:
                raise ValueRefused(f"{entry.name} came in the format {entry.format!r:.20}, which is none of ours")

    def _pickles(self) -> pickled.Unpickler:
        if self._unpickler is None:
            mine = [entry for entry in self.entries if entry.format == "pickle"]
            data = b"".join(self._opened.part(entry.head) for entry in mine)
            buffers: Iterable[memoryview] = (self._opened.part(span) for entry in mine for span in entry.buffers)
            self._unpickler = pickled.Unpickler(data, buffers, self._on_source)
        return self._unpickler


def _opaque(head: memoryview) -> Opaque:
    try:
        kind, text, _ = msgspec.msgpack.decode(head, type=tuple[str, str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueRefused(f"a placeholder's head cannot be read: {error}") from None
    return Opaque(kind[:200], text[: _REPR_CHARS + 1])


def _from_source(head: memoryview) -> Any:
    name, file, text = msgspec.msgpack.decode(head, type=tuple[str, str, str])
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope = pickled.main_globals()
    former = scope.get(name, scope)
    exec(compile(text, file, "exec"), scope)  # the session's own client wrote it
    made = scope[name]
    if former is not scope:
        scope[name] = former
    return made


def _module(name: str) -> types.ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueRefused(f"module {name} cannot be imported there: {error}") from None
