"""What a KCoral program returns, as JSON with numbered binary parts.

A worker packs each returned value by itself: its parts, and behind them a tail (key, value, sizes of the parts). So it
can send the parts while it computes the digests that the tail holds. The gateway joins the values into one response and
numbers the parts through, without looking into any part. What a worker says is a stranger's word: ``unpack`` lets pass
only what the format knows.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol.program import ITEM_BYTES, MAX_DIMENSIONS

_MAGIC = b"KCO1"
_FOOT = struct.Struct("<I4s")
_TAIL_BYTES = 64 * 1024 * 1024  # of JSON: a list of numbers is JSON too
_DEPTH = 200
_PART = "return:{}"
_SCALARS: dict[str, type | tuple[type, ...]] = {"boolean": bool, "integer": int, "number": (int, float), "string": str}
Value = dict[str, Any]


@dataclass(frozen=True)
class Returned:
    """One returned value. Its parts lie behind each other from the beginning of what it was unpacked from."""

    key: str
    value: Value
    sizes: tuple[int, ...]


def tail(key: str, value: Value, sizes: Sequence[int]) -> bytes:
    """What goes behind the parts. Its length does not depend on the digests."""
    text = json.dumps({"key": key, "value": value, "sizes": list(sizes)}, allow_nan=False).encode()
    return text + _FOOT.pack(len(text), _MAGIC)


FOOT_BYTES = _FOOT.size


def tail_bytes(foot: bytes | memoryview) -> int:
    """How long a tail is, from its last ``FOOT_BYTES``.

    Raises:
        ProtocolError: It is none.
    """
    if len(foot) < _FOOT.size:
        raise ProtocolError("a returned value breaks off in its tail")
    size, magic = _FOOT.unpack(foot[-_FOOT.size :])
    if magic != _MAGIC or size > _TAIL_BYTES:
        raise ProtocolError("a returned value has no tail")
    return _FOOT.size + int(size)


def unpack(data: bytes | memoryview, total: int) -> Returned:
    """``data`` ends with the tail of a value of ``total`` bytes in all; it need not begin with its parts.

    Raises:
        ProtocolError: It says what the format does not know, or the sizes do not add up.
    """
    length = tail_bytes(data)
    if length > len(data):
        raise ProtocolError("a returned value breaks off in its tail")
    try:
        told = json.loads(bytes(data[len(data) - length : len(data) - _FOOT.size]))
        key, value, sizes = told["key"], told["value"], tuple(told["sizes"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProtocolError("the tail of a returned value cannot be read") from None
    if not isinstance(key, str) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ProtocolError("the tail of a returned value has a key and sizes")
    if length + sum(sizes) != total:
        raise ProtocolError(f"a returned value of {length + sum(sizes)} bytes was announced, {total} came")
    used = _Parts(sizes)
    _check(value, used, 0)
    if used.next != len(sizes):
        raise ProtocolError("a returned value has parts that nothing refers to")
    return Returned(key, value, sizes)


@dataclass
class _Parts:
    sizes: tuple[int, ...]
    next: int = 0

    def take(self, value: Value, fields: set[str]) -> int:
        """The size of the next part, which ``value`` refers to."""
        digest = value.get("sha256")
        if value.keys() != fields | {"type", "part", "sha256"} or not _is(value["part"], self.next):
            raise ProtocolError("a returned value does not use its parts in order")
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ProtocolError("a returned value has no SHA-256")
        if self.next >= len(self.sizes):
            raise ProtocolError("a returned value refers to a part that it does not have")
        self.next += 1
        return self.sizes[self.next - 1]


def _check(value: Any, parts: _Parts, depth: int) -> None:
    if not isinstance(value, dict) or depth > _DEPTH:
        raise ProtocolError("a returned value is none, or nested too deeply")
    kind = value.get("type")
    match kind:
        case "null":
            _exact(value, {"type"})
        case "boolean" | "integer" | "number" | "string":
            _exact(value, {"type", "value"})
            inner = value["value"]
            if not isinstance(inner, _SCALARS[kind]) or (isinstance(inner, bool) and kind != "boolean"):
                raise ProtocolError(f"a returned {kind} is none")
            if isinstance(inner, float) and not math.isfinite(inner):
                raise ProtocolError(f"{inner} is no JSON number")
        case "array":
            _exact(value, {"type", "value"})
            for item in _typed(value["value"], list):
                _check(item, parts, depth + 1)
        case "object":
            _exact(value, {"type", "value"})
            for item in _typed(value["value"], dict).values():
                _check(item, parts, depth + 1)
        case "bytes":
            parts.take(value, set())
        case "tensor":
            size = parts.take(value, {"dtype", "shape"})
            shape, item = _typed(value["shape"], list), ITEM_BYTES.get(str(value["dtype"]))
            if item is None or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
                raise ProtocolError("a returned tensor has no shape, or a dtype that does not travel")
            if math.prod(shape) * item != size:
                raise ProtocolError("a returned tensor has another size than its dtype and shape say")
        case "file":
            size = parts.take(value, {"size"})
            if not _is(value["size"], size):
                raise ProtocolError("a returned file has another size than it says")
        case "folder":
            _exact(value, {"type", "files", "directories"})
            for name in _typed(value["directories"], list):
                _typed(name, str)
            for item in _typed(value["files"], dict).values():
                if _typed(item, dict).get("type") != "file":
                    raise ProtocolError("a returned folder holds files")
                _check(item, parts, depth + 1)
        case _:
            raise ProtocolError("a returned value is of no type that travels")


def _is(value: Any, number: int) -> bool:
    return type(value) is int and value == number  # to Python, true and 1.0 are 1 too


def _exact(value: Value, fields: set[str]) -> None:
    if value.keys() != fields:
        raise ProtocolError("a returned value has other fields than its type")


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ProtocolError(f"a {kind.__name__} was expected in a returned value")
    return value


# ── one response ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Outcome:
    """The values of one response. ``parts`` are places in whatever holds the bytes, in the order of their numbers."""

    results: dict[str, Value] = field(default_factory=dict)
    parts: list[tuple[Any, int, int]] = field(default_factory=list)  # holder, offset, size

    def add(self, returned: Returned, holder: Any) -> None:
        """One more value, whose bytes ``holder`` has."""
        self.results[returned.key] = _named(returned.value, len(self.parts))
        offset = 0
        for size in returned.sizes:
            self.parts.append((holder, offset, size))
            offset += size


def _named(value: Value, before: int) -> Value:
    """With the names that the response's parts have; ``before`` of them belong to values before this one."""
    match value["type"]:
        case "array":
            return {**value, "value": [_named(item, before) for item in value["value"]]}
        case "object":
            return {**value, "value": {key: _named(item, before) for key, item in value["value"].items()}}
        case "folder":
            return {**value, "files": {path: _named(item, before) for path, item in value["files"].items()}}
        case _:
            return {**value, "part": _PART.format(before + value["part"])} if "part" in value else value


def multipart(result: Mapping[str, Any], parts: Sequence[int], boundary: str) -> tuple[list[bytes], int]:
    """A multipart body: what stands before each part and at the end, and the length of the whole.

    The body is ``pieces[0]``, part 0, ``pieces[1]``, part 1, …, ``pieces[-1]``; RFC 7578.
    """
    pieces = []
    lead = f'--{boundary}\r\nContent-Disposition: form-data; name="result"\r\nContent-Type: application/json\r\n\r\n'
    text = lead.encode() + json.dumps(result, allow_nan=False).encode()
    for number in range(len(parts)):
        disposition = f'Content-Disposition: form-data; name="{_PART.format(number)}"'
        lines = ("", f"--{boundary}", disposition, "Content-Type: application/octet-stream", "", "")
        pieces.append(text + "\r\n".join(lines).encode())
        text = b""
    pieces.append(text + f"\r\n--{boundary}--\r\n".encode())
    return pieces, sum(map(len, pieces)) + sum(parts)
