"""JSON-like values and all they commonly hold, as a msgpack tree that no code runs for.

A scalar stands for itself. Everything else is ``[tag, …]``; lists, dicts, sets, arrays and tensors are numbered in the
order they begin, and a second mention is a reference, so that what was one object is one object again, cycles
included. A list of scalars alone is written as one piece: two million ints take no walk.

Dataclasses, namedtuples and enums travel by the name of their class: the reader takes a class that it has loaded
already (a worker may also import what its own client names), and makes the object without calling anything of it.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import pathlib
import sys
import types
import uuid
import zoneinfo
from collections import OrderedDict
from typing import Any, cast

import msgspec

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import arrays, tables, tensors
from kcoral_magic.values.buffers import NotSafe, Reader, Writer, number_in, refuse_unless

MAX_DEPTH = 200  # of nesting; Python's own recursion limit is 1,000, and pickle's is near there
_BUFFER_BYTES = 4096  # bytes longer than this travel beside the tree
_INT_RANGE = range(-(1 << 63), 1 << 64)  # msgpack's
_PLAIN = frozenset((int, float, str, bool, type(None)))

LIST, TUPLE, SET, FROZENSET, DICT, ORDERED, PLAIN, REF = range(8)
BIG_INT, COMPLEX, BYTES, BYTEARRAY, TEXT, ELLIPSIS, RANGE, SLICE, VIEW = range(10, 19)
DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID, PATH = range(20, 27)
ARRAY, TENSOR, TABLE = range(30, 33)
DATACLASS, NAMEDTUPLE, ENUM = range(40, 43)


# What Python, numpy and torch raise for a head that says nonsense.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError)


def write(value: Any, writer: Writer) -> bytes:
    """The head of ``value``; its raw parts go to ``writer``.

    Raises:
        NotSafe: It, or something in it, has no safe format.
    """
    try:
        return msgspec.msgpack.encode(_TreeWriter(writer).node(value, None, 0))
    except (OverflowError, ValueError, TypeError, RecursionError) as error:  # a number or text that msgpack has not
        raise NotSafe(f"a value that cannot be written down ({type(error).__name__})") from None


def read(head: bytes | memoryview, reader: Reader) -> Any:
    """The value.

    Raises:
        ValueRefused: Head and buffers describe none, or one of a class that is not loaded here.
    """
    try:
        node = msgspec.msgpack.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ValueRefused(f"the value's head cannot be read: {error}") from None
    try:
        return _TreeReader(reader).value(node, 0)
    except ValueRefused:
        raise
    except _MALFORMED as error:
        raise ValueRefused(f"the value's head is malformed ({type(error).__name__}: {str(error)[:200]})") from None


_Path = tuple[Any, str, Any] | None  # the way to a part, from its end: the way before, and what kind of step it was


def _shown_path(path: _Path) -> str:
    text = ""
    while path is not None:
        path, kind, step = path
        if kind == "[]":
            text = f"[{step!r:.40}]{text}" if type(step) in (int, str, bytes, bool) else f"[…]{text}"
        else:
            text = f"{kind}{step}{text}"
    return text


class _TreeWriter:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._numbers: dict[int, int] = {}
        self._alive = writer.objects  # an id may be used again once its object is gone
        self._contents: dict[int, tuple[Any, bytes]] = {}

    def node(self, value: Any, path: _Path, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return self._scalar(value, kind)
        if depth > MAX_DEPTH:
            raise NotSafe(f"nested more than {MAX_DEPTH} deep", _shown_path(path))
        number = self._numbers.get(id(value))
        if number is not None:
            return [REF, number]
        if kind is list or kind is dict or kind is set or kind is OrderedDict:
            self._number(value)
            return self._container(value, kind, path, depth)
        if kind is tuple:
            if set(map(type, value)) <= _PLAIN:  # nobody can tell two equal ones apart, and they cost nothing
                return [TUPLE, [self._scalar(item, type(item)) for item in value]]
            made = [TUPLE, [self.node(item, (path, "[]", n), depth + 1) for n, item in enumerate(value)]]
            self._number(value)  # after its items: the reader has no tuple before it has them
            return made
        if kind is frozenset:
            made = [FROZENSET, self._sorted(value, path, depth)]
            self._number(value)
            return made
        return self._leaf(value, kind, path, depth)

    def _number(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._alive)
        self._alive.append(value)

    def _scalar(self, value: Any, kind: type) -> Any:
        if kind is int and value not in _INT_RANGE:
            return [BIG_INT, value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)]
        if kind is str and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:  # lone surrogates: paths of odd file names have them
                return [TEXT, value.encode("utf-8", "surrogatepass")]
        return value

    def _container(self, value: Any, kind: type, path: _Path, depth: int) -> list[Any]:
        if kind is list:
            if _is_plain(value):
                return [PLAIN, value]
            return [LIST, [self.node(item, (path, "[]", n), depth + 1) for n, item in enumerate(value)]]
        if kind is set:
            return [SET, self._sorted(value, path, depth)]
        flat: list[Any] = []
        for key, item in value.items():
            flat.append(self.node(key, (path, " key", ""), depth + 1))
            flat.append(self.node(item, (path, "[]", key), depth + 1))
        return [DICT if kind is dict else ORDERED, flat]

    def _sorted(self, value: Any, path: _Path, depth: int) -> list[Any]:
        """In one order everywhere, so that equal sets have equal digests: that of each item's content."""
        ordered = sorted(value, key=lambda item: self._content(item, depth))
        return [self.node(item, (path, " item", ""), depth + 1) for item in ordered]

    def _content(self, value: Any, depth: int) -> bytes:
        """Bytes that equal values have in common, to sort by; what is hashable is made of few kinds of things."""
        kind = type(value)
        known = self._contents.get(id(value))
        if known is not None:
            return known[1]
        name = f"{kind.__module__}.{kind.__qualname__}".encode("utf-8", "backslashreplace")
        if depth > MAX_DEPTH:
            return name
        if isinstance(value, tuple):
            made = b"".join(self._content(item, depth + 1) for item in value)
        elif kind is frozenset:
            made = b"".join(sorted(self._content(item, depth + 1) for item in value))
        elif kind in _PLAIN or kind is bytes:
            made = msgspec.msgpack.encode(self._scalar(value, kind))
        elif isinstance(value, enum.Enum):
            made = str(value.name).encode("utf-8", "backslashreplace")
        elif dataclasses.is_dataclass(kind):
            self._contents[id(value)] = (value, name)  # of a circle
            fields = [getattr(value, field.name, None) for field in dataclasses.fields(kind)]
            made = b"".join(self._content(item, depth + 1) for item in fields)
        else:
            simple = _simple(value, kind)
            made = b"" if simple is None else msgspec.msgpack.encode(simple)
        made = name + b":" + hashlib.sha256(made).digest() if len(made) > 64 else name + b":" + made
        self._contents[id(value)] = (value, made)
        return made

    def _leaf(self, value: Any, kind: type, path: _Path, depth: int) -> Any:
        writer = self._writer
        try:
            if arrays.is_array(value):
                self._number(value)
                return [ARRAY, *arrays.write(value, writer)]
            if tensors.is_tensor(value):
                self._number(value)
                return [TENSOR, *tensors.write(value, writer)]
            if (table := tables.kind_of(value)) is not None:
                self._number(value)
                return [TABLE, *tables.write(value, table, writer)]
        except NotSafe as error:
            raise NotSafe(error.why, _shown_path(path)) from None
        if kind is bytes:
            return value if len(value) <= _BUFFER_BYTES else [BYTES, writer.add(value)]
        if kind is memoryview and value.c_contiguous and value.format == "B" and value.ndim == 1:
            return [VIEW, writer.add(value)]
        if kind is bytearray:
            self._number(value)
            return [BYTEARRAY, writer.add(value)]
        if (simple := _simple(value, kind)) is not None:
            return simple
        return self._of_class(value, kind, path, depth)

    def _of_class(self, value: Any, kind: type, path: _Path, depth: int) -> list[Any]:
        where = _shown_path(path)
        if isinstance(value, enum.Enum):
            if type(value).__members__.get(value.name or "") is not value:  # several flags at once
                raise NotSafe(f"a combined {kind.__name__}", where)
            return [ENUM, class_reference(kind, where, may_track=self._writer.may_track), value.name]
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            if not _is_only_its_fields(value, kind, names):
                raise NotSafe(f"a {kind.__name__} that is more than its fields", where)
            self._number(value)
            nodes = [self.node(getattr(value, name), (path, ".", name), depth + 1) for name in names]
            return [DATACLASS, class_reference(kind, where, may_track=self._writer.may_track), names, nodes]
        if isinstance(value, tuple) and hasattr(kind, "_fields") and kind.__mro__[1] is tuple:
            names = [str(field) for field in getattr(kind, "_fields")]  # noqa: B009 - a tuple's type does not have it
            nodes = [self.node(item, (path, ".", n), depth + 1) for n, item in zip(names, value, strict=True)]
            return [NAMEDTUPLE, class_reference(kind, where, may_track=self._writer.may_track), names, nodes]
        raise NotSafe(f"a {kind.__module__}.{kind.__qualname__}", where)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, not by C code


def _is_only_its_fields(value: Any, kind: type, names: list[str]) -> bool:
    """Whether a dataclass's fields are all there is to an object: no other attribute or slot, no list or dict below."""
    if any(base is not object and not base.__flags__ & _HEAP_TYPE for base in kind.__mro__):
        return False
    known = set(names)
    if not all(hasattr(value, name) for name in names) or set(getattr(value, "__dict__", ())) - known:
        return False
    slots = {name for base in kind.__mro__ for name, part in vars(base).items() if type(part) is _SLOT}
    return not any(hasattr(value, name) for name in slots - known)


_SLOT = types.MemberDescriptorType


def _is_plain(items: list[Any]) -> bool:
    """Whether msgpack holds these items as they are."""
    kinds = set(map(type, items))
    if not kinds <= _PLAIN:
        return False
    if int in kinds:
        numbers = items if kinds <= {int, bool} else [item for item in items if type(item) is int]
        if min(numbers) < _INT_RANGE.start or max(numbers) >= _INT_RANGE.stop:
            return False
    if str in kinds:
        try:
            "".join(items if kinds == {str} else [item for item in items if type(item) is str]).encode()
        except UnicodeEncodeError:
            return False
    return True


def _simple(value: Any, kind: type) -> list[Any] | None:
    """Immutable values of the standard library."""
    if kind is complex:
        return [COMPLEX, value.real, value.imag]
    if value is Ellipsis:
        return [ELLIPSIS]
    if kind is range and all(part in _INT_RANGE for part in (value.start, value.stop, value.step)):
        return [RANGE, value.start, value.stop, value.step]
    if kind is slice and all(
        part is None or (type(part) is int and part in _INT_RANGE) for part in (value.start, value.stop, value.step)
    ):
        return [SLICE, value.start, value.stop, value.step]
    if kind is datetime.datetime and (zone := _zone(value.tzinfo)) is not None:
        return [DATETIME, value.replace(tzinfo=None).isoformat(), value.fold, zone]
    if kind is datetime.date:
        return [DATE, value.isoformat()]
    if kind is datetime.time and value.tzinfo is None:
        return [TIME, value.isoformat(), value.fold]
    if kind is datetime.timedelta:
        return [TIMEDELTA, value.days, value.seconds, value.microseconds]
    if kind is decimal.Decimal:
        return [DECIMAL, str(value)]
    if kind is uuid.UUID:
        return [UUID, value.bytes]
    if isinstance(value, pathlib.PurePath) and kind.__module__.startswith("pathlib"):
        return [PATH, value.as_posix().encode("utf-8", "surrogatepass")]
    return None


def _zone(zone: datetime.tzinfo | None) -> str | int | None:
    """``""`` without a zone, seconds east of UTC, or an IANA name; ``None`` for a zone of another kind."""
    if zone is None:
        return ""
    if type(zone) is datetime.timezone and str(zone) == str(datetime.timezone(zone.utcoffset(None))):
        offset = zone.utcoffset(None)
        return round(offset.total_seconds()) if offset.microseconds == 0 else None
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return zone.key
    return None


# ── classes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def class_reference(cls: type, path: str = "", *, may_track: bool = False) -> list[str]:
    """``[module, qualname, tracker]`` of a class that its reader can find.

    A class of the notebook travels in pickles. Only towards a reader that takes none, it is named by the tracker id
    under which cloudpickle brought it here: by name alone, a class that has been redefined meanwhile would be taken for
    the old one.

    Raises:
        NotSafe: The class was made inside a function, or is the notebook's.
    """
    if cls.__module__ == "__main__":
        from cloudpickle import cloudpickle

        tracker = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.get(cls) if may_track else None
        if tracker is None:
            raise NotSafe(f"a {cls.__qualname__}, a class of its own side only", path)
        return ["__main__", cls.__qualname__, str(tracker)]
    if _loaded(cls.__module__, cls.__qualname__) is not cls:
        raise NotSafe(f"a {cls.__module__}.{cls.__qualname__}, which cannot be found by its name", path)
    return [cls.__module__, cls.__qualname__, ""]


def _loaded(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _class_of(node: Any, reader: Reader) -> type:
    module, qualname, tracker = (str(part) for part in node)
    if tracker:
        from cloudpickle import cloudpickle

        found: Any = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
    else:
        if reader.is_trusted_writer and module not in sys.modules:
            _import(module)
        found = _loaded(module, qualname)
    if not isinstance(found, type):
        raise ValueRefused(f"its class {module}.{qualname} is not known here: import or define it first")
    return found


def _import(module: str) -> None:
    import importlib

    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ValueRefused(f"its module {module} cannot be imported: {error}") from None


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _TreeReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._begun: list[Any] = []

    def value(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind in _PLAIN or kind is bytes:
            return node
        refuse_unless(kind is list and bool(node), f"a node was due, got {node!r:.60}")
        refuse_unless(depth <= MAX_DEPTH + 1, f"nested more than {MAX_DEPTH} deep")
        tag = node[0]
        if tag == REF:
            return self._begun[number_in(node[1], 0, len(self._begun) - 1)]
        if tag <= ORDERED or tag == PLAIN:
            return self._container(tag, node[1], depth)
        if tag in (ARRAY, TENSOR, TABLE):
            return self._leaf(tag, node[1:])
        if tag in (DATACLASS, NAMEDTUPLE, ENUM):
            return self._of_class(tag, node, depth)
        return self._simple(tag, node)

    def _begin(self, value: Any) -> Any:
        """Number a value, as the writer did: a container before its items, a tuple or frozenset after."""
        self._begun.append(value)
        return value

    def _container(self, tag: int, items: Any, depth: int) -> Any:
        refuse_unless(type(items) is list, "items were due")
        if tag == PLAIN:
            refuse_unless(set(map(type, items)) <= _PLAIN, "a list of scalars holds something else")
            return self._begin(items)
        if tag == LIST:
            made: list[Any] = self._begin([])
            made.extend(self.value(item, depth + 1) for item in items)
            return made
        if tag == SET:
            found: set[Any] = self._begin(set())
            found.update(self.value(item, depth + 1) for item in items)
            return found
        if tag == TUPLE:
            made_tuple = tuple(self.value(item, depth + 1) for item in items)
            return made_tuple if set(map(type, made_tuple)) <= _PLAIN else self._begin(made_tuple)
        if tag == FROZENSET:
            return self._begin(frozenset(self.value(item, depth + 1) for item in items))
        refuse_unless(len(items) % 2 == 0, "a dict has pairs")
        into: dict[Any, Any] = self._begin({} if tag == DICT else OrderedDict())
        for place in range(0, len(items), 2):
            key = self.value(items[place], depth + 1)
            into[key] = self.value(items[place + 1], depth + 1)
        return into

    def _leaf(self, tag: int, parts: list[Any]) -> Any:
        place = len(self._begun)
        self._begun.append(None)
        module = {ARRAY: arrays, TENSOR: tensors, TABLE: tables}[tag]
        self._begun[place] = module.read(parts, self._reader)
        return self._begun[place]

    def _simple(self, tag: int, node: list[Any]) -> Any:
        match tag, node[1:]:
            case 10, [bytes(data)]:
                return int.from_bytes(data, "little", signed=True)
            case 11, [float(real), float(imag)]:
                return complex(real, imag)
            case 12, [number]:
                return bytes(self._reader.take(number))
            case 13, [number]:
                return self._begin(bytearray(self._reader.take(number)))
            case 14, [bytes(data)]:
                return data.decode("utf-8", "surrogatepass")
            case 15, []:
                return Ellipsis
            case 16, [int(start), int(stop), int(step)]:
                return range(start, stop, step)
            case 17, [start, stop, step]:
                return slice(start, stop, step)
            case 18, [number]:
                return self._reader.take(number)
            case 20, [str(text), int(fold), zone]:
                return datetime.datetime.fromisoformat(text).replace(fold=fold, tzinfo=_zone_of(zone))
            case 21, [str(text)]:
                return datetime.date.fromisoformat(text)
            case 22, [str(text), int(fold)]:
                return datetime.time.fromisoformat(text).replace(fold=fold)
            case 23, [int(days), int(seconds), int(microseconds)]:
                return datetime.timedelta(days, seconds, microseconds)
            case 24, [str(text)]:
                return decimal.Decimal(text)
            case 25, [bytes(data)]:
                return uuid.UUID(bytes=data)
            case 26, [bytes(data)]:
                return pathlib.Path(data.decode("utf-8", "surrogatepass"))
            case _:
                raise ValueRefused(f"tag {tag!r:.20} with {len(node) - 1} parts is none of ours")

    def _of_class(self, tag: int, node: list[Any], depth: int) -> Any:
        cls = _class_of(node[1], self._reader)
        if tag == ENUM:
            members = vars(cls).get("_member_map_")
            refuse_unless(isinstance(cls, enum.EnumMeta) and isinstance(members, dict), f"{cls.__name__} is no enum")
            refuse_unless(node[2] in cast("dict[str, Any]", members), f"{cls.__name__} has no member {node[2]!r:.40}")
            return cast("dict[str, Any]", members)[node[2]]
        names, nodes = node[2], node[3]
        refuse_unless(type(names) is list and type(nodes) is list and len(names) == len(nodes), "fields are missing")
        if tag == NAMEDTUPLE:
            fits = issubclass(cls, tuple) and list(getattr(cls, "_fields", ())) == names
            refuse_unless(fits, f"{cls.__name__} has other fields here than {names!r:.80}")
            return tuple.__new__(cls, [self.value(item, depth + 1) for item in nodes])
        fits = dataclasses.is_dataclass(cls) and [field.name for field in dataclasses.fields(cls)] == names
        refuse_unless(fits, f"{cls.__name__} has other fields here than {names!r:.80}")
        made = self._begin(object.__new__(cls))  # neither __init__ nor __setattr__ of the class runs
        for name, item in zip(names, nodes, strict=True):
            _set_field(made, name, self.value(item, depth + 1))
        return made


def _set_field(made: Any, name: str, value: Any) -> None:
    """Set a field without running anything of its class: in its slot, or in the object's own dictionary."""
    for base in type(made).__mro__:
        part = vars(base).get(name)
        if type(part) is _SLOT:
            part.__set__(made, value)
            return
        if part is not None and hasattr(type(part), "__set__"):
            raise ValueRefused(f"{type(made).__name__}.{name} is a property here: its code would run")
    object.__getattribute__(made, "__dict__")[name] = value


def _zone_of(zone: Any) -> datetime.tzinfo | None:
    if zone == "":
        return None
    if isinstance(zone, int):
        return datetime.timezone(datetime.timedelta(seconds=zone))
    return zoneinfo.ZoneInfo(str(zone))
