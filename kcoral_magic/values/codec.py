"""Which format a value travels in, and what stands for one that may not come in.

Safe formats always come first. A pickle is written only for a reader that takes pickles; otherwise type and repr come
as an ``Opaque``. Towards another minor version of Python, functions and classes of the notebook travel as source:
their bytecode would not run there, or worse.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import arrays, parcel, pickled, source, tensors, tree, versions
from kcoral_magic.values.buffers import Buffer, NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest, shown

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
_CODE_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType)
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
    is_strict: bool = False,
) -> Packed:
    """All values that can travel, in one parcel.

    Args:
        values: By name.
        may_pickle: The reader takes pickles.
        peer: The reader's Python, ``major.minor``.
        digests: Already made, by name.
        cell_of: The number of the cell that a file name of code belongs to.
        is_strict: A value that cannot travel is a problem; else its type and repr stand for it.
    """
    packer = _Packer(may_pickle, peer, digests or {}, cell_of, is_strict=is_strict)
    for name, value in values.items():
        packer.add(name, value)
    made = packer.made()
    notes = [f"{entry.name}: {note}" for entry, _, _ in made for note in entry.notes]
    return Packed(parcel.pack(made), packer.problems, notes)


def _has_identity(value: Any) -> bool:
    """Whether it matters that an object is the same wherever it is met: it can change, and is no singleton."""
    if isinstance(value, list | dict | set | bytearray) or arrays.is_array(value) or tensors.is_tensor(value):
        return True
    numpy = sys.modules.get("numpy")
    if isinstance(value, enum.Enum | type) or (numpy is not None and isinstance(value, numpy.dtype)):
        return False
    return hasattr(value, "__dict__") and not isinstance(value, _CODE_TYPES)


@dataclass
class _Pickled:
    """One name's pickle, made alone; ``objects`` are those that another name's may hold too, by id."""

    name: str
    value: Any
    head: bytes
    writer: Writer
    objects: dict[int, Any]


class _Packer:
    """Chooses the format of each name, and finds the pickles that must share one memo."""

    def __init__(
        self,
        may_pickle: bool,
        peer: str,
        digests: dict[str, str],
        cell_of: Callable[[str], int | None] | None,
        *,
        is_strict: bool,
    ) -> None:
        self._may_pickle = may_pickle
        self._is_strict = is_strict
        self._peer = peer
        self._digests = digests
        self._cell_of = cell_of
        self._no_code = "" if peer == VERSION else f"Python {VERSION} here, {peer} there"
        self._entries: dict[str, tuple[parcel.Entry, Buffer, list[Buffer]]] = {}
        self._pickled: list[_Pickled] = []
        self._trees: dict[str, tuple[Any, Writer]] = {}
        self._names: list[str] = []
        self.problems: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Take a value, or note why it cannot travel."""
        self._names.append(name)
        writer = Writer(may_track=not self._may_pickle)
        try:
            kind, head = self._write(value, name, writer)
            if kind == "pickle":
                self._pickled.append(self._pickle(name, value))
            else:
                self._enter(name, kind, value, head, writer)
                if kind == "tree" and self._may_pickle and not self._no_code and writer.objects:
                    self._trees[name] = (value, writer)
        except ValueRefused as error:
            self.problems[name] = str(error)

    def made(self) -> list[tuple[parcel.Entry, Buffer, list[Buffer]]]:
        """Everything, in the order it was added."""
        self._join_trees()
        for number, group in enumerate(_sharing(self._pickled)):
            if len(group) > 1:
                self._pickle_together(group)
            for one in group:
                self._enter(one.name, "pickle", one.value, one.head, one.writer, number)
        return [self._entries[name] for name in self._names if name in self._entries]

    def _join_trees(self) -> None:
        """A safe value that shares objects with a pickled one is pickled too: ``w`` is to stay ``model.weight``."""
        is_more = bool(self._pickled)
        while is_more:
            is_more = False
            shared = {key for one in self._pickled for key in one.objects}
            for name, (value, writer) in list(self._trees.items()):
                if shared & {id(one) for one in writer.objects if _has_identity(one)}:
                    del self._trees[name], self._entries[name]
                    self._pickled.append(self._pickle(name, value))
                    is_more = True

    def _enter(self, name: str, kind: str, value: Any, head: bytes, writer: Writer, group: int = 0) -> None:
        mark = self._digests.get(name) or (digest(value, name)[0] if kind != "opaque" else "")
        made_with = versions.here() if kind == "pickle" else ()
        entry = parcel.Entry(name, kind, (0, 0), (), mark, shown(value), tuple(writer.notes), made_with, group)
        self._entries[name] = (entry, head, list(writer.buffers))

    def _write(self, value: Any, name: str, writer: Writer) -> tuple[str, bytes]:
        if isinstance(value, types.ModuleType):
            return "module", value.__name__.encode()
        try:
            return "tree", tree.write(value, writer)
        except NotSafe as error:
            reason = error
            writer.buffers.clear()
            writer.notes.clear()
        if not self._may_pickle and self._is_strict:
            text = f"a {_type_name(value)}, which has no safe format ({reason.why})"
            raise ValueRefused(f"{name} is {text}: only a client that trusts the gateway takes more")
        if not self._may_pickle:
            return "opaque", msgspec.msgpack.encode((_type_name(value), _safe_repr(value), reason.why))
        if self._no_code and isinstance(value, type | types.FunctionType) and value.__module__ == "__main__":
            return "source", source.of(value, name, self._no_code)
        return "pickle", b""

    def _pickle(self, name: str, value: Any) -> _Pickled:
        writer = Writer()
        pickler = pickled.Pickler(writer, self._cell_of, self._no_code)
        try:
            head = pickler.pickled(value)
        except ValueRefused as error:
            raise ValueRefused(f"{name}: {error}") from None
        except Exception as error:  # noqa: BLE001 - any __reduce__ may raise anything
            raise pickled.explain(value, name, error) from None
        objects = {key: one for key, (_, one) in pickler.memo.copy().items() if _has_identity(one)}
        return _Pickled(name, value, head, writer, objects)

    def _pickle_together(self, group: list[_Pickled]) -> None:
        """Again, with one memo: a model and its optimiser hold the same parameters there too."""
        shared = Writer()
        pickler = pickled.Pickler(shared, self._cell_of, self._no_code)
        for one in group:
            one.head = pickler.pickled(one.value)
            one.writer.buffers, shared.buffers = shared.buffers, []


def _sharing(pickles: list[_Pickled]) -> list[list[_Pickled]]:
    """Groups of pickles that have objects in common, each in the order they were added."""
    groups: list[list[_Pickled]] = []
    for one in pickles:
        mine, others = [one], []
        for group in groups:
            if any(one.objects.keys() & other.objects.keys() for other in group):
                mine = [*group, *mine]
            else:
                others.append(group)
        groups = [*others, mine]
    return groups


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.").removeprefix("__main__.")


def _safe_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may do anything
        text = f"<repr() failed: {type(error).__name__}>"
    return text if len(text) <= _REPR_CHARS else f"{text[:_REPR_CHARS]}…"


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
        self._unpicklers: dict[int, pickled.Unpickler] = {}
        self._broken: dict[int, str] = {}
        self._on_source = on_source
        self.entries = self._opened.entries

    def values(self, names: Collection[str] | None = None) -> Iterator[tuple[parcel.Entry, Any]]:
        """Each entry (of ``names``, once) with its value, or with the ``ValueRefused`` that says why there is none."""
        seen: set[str] = set()
        for entry in self.entries:
            if entry.name in seen or (names is not None and entry.name not in names):
                continue
            seen.add(entry.name)
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
                return self._unpickled(entry)
            case "source":
                return source.read(head)
            case "module":
                return _module(str(head, "utf-8"))
            case _:
                raise ValueRefused(f"{entry.name} came in the format {entry.format!r:.20}, which is none of ours")

    def _unpickled(self, entry: parcel.Entry) -> Any:
        """Pickles of one group share a memo: they are read in order, and none after one that could not be read."""
        if entry.group in self._broken:
            other = self._broken[entry.group]
            raise ValueRefused(f"{entry.name} shares objects with {other}, which cannot be read here")
        unpickler = self._unpicklers.get(entry.group)
        if unpickler is None:
            mine = [one for one in self.entries if one.format == "pickle" and one.group == entry.group]
            data = b"".join(self._opened.part(one.head) for one in mine)
            buffers: Iterable[memoryview] = (self._opened.part(span) for one in mine for span in one.buffers)
            unpickler = self._unpicklers[entry.group] = pickled.Unpickler(data, buffers, self._on_source)
        try:
            return unpickler.load()
        except Exception:
            self._broken[entry.group] = entry.name
            raise


def _opaque(head: memoryview) -> Opaque:
    try:
        kind, text, _ = msgspec.msgpack.decode(head, type=tuple[str, str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueRefused(f"a placeholder's head cannot be read: {error}") from None
    return Opaque(kind[:200], text[: _REPR_CHARS + 1])


def _module(name: str) -> types.ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueRefused(f"module {name} cannot be imported there: {error}") from None
