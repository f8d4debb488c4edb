"""Whether an Arrow IPC stream is compressed, without unpacking it: a stranger's kilobyte may unpack to gigabytes.

Arrow's own readers cannot be told to refuse that. The format: each message is 0xFFFFFFFF, the length of its metadata, a
flatbuffer (``Message``: version, header type, header, body length), and the body. A ``RecordBatch`` (header type 3, or
within a ``DictionaryBatch``, type 2) names it in its fourth field (Arrow columnar format, "Compression").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DICTIONARY, _RECORDS = 2, 3
_MESSAGES = 100_000


def is_compressed(stream: memoryview) -> bool:
    """Whether any batch is, or the stream cannot be followed (its reader will say what is wrong with it)."""
    try:
        return any(_names_compression(metadata) for metadata in _messages(stream))
    except (struct.error, IndexError, ValueError, OverflowError):
        return True


def _messages(stream: memoryview) -> Iterator[memoryview]:
    at = 0
    for _ in range(_MESSAGES):
        if at + 8 > stream.nbytes:
            return
        mark, size = struct.unpack_from("<Ii", stream, at)
        if mark != 0xFFFFFFFF:
            raise ValueError("no message")
        if size == 0:
            return
        metadata = stream[at + 8 : at + 8 + size]
        if size < 0 or metadata.nbytes != size:
            raise ValueError("cut short")
        yield metadata
        body_bytes = _long(metadata, _field(metadata, _root(metadata), 3))
        if body_bytes < 0:
            raise ValueError("negative")
        at += 8 + size + body_bytes
    raise ValueError("too many messages")


def _names_compression(metadata: memoryview) -> bool:
    root = _root(metadata)
    kind_at, header_at = _field(metadata, root, 1), _field(metadata, root, 2)
    kind = metadata[kind_at] if kind_at else 0
    if not header_at or kind not in (_DICTIONARY, _RECORDS):
        return False
    batch = _follow(metadata, header_at)
    if kind == _DICTIONARY:
        inner = _field(metadata, batch, 1)
        if not inner:
            return False
        batch = _follow(metadata, inner)
    return bool(_field(metadata, batch, 3))


def _root(buffer: memoryview) -> int:
    return _follow(buffer, 0)


def _follow(buffer: memoryview, at: int) -> int:
    (offset,) = struct.unpack_from("<I", buffer, at)
    return int(at + offset)


def _field(buffer: memoryview, table: int, number: int) -> int:
    """Where a table's field is; 0 if it has none."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    if vtable < 0:
        raise ValueError("outside")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    if 4 + 2 * number + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + 4 + 2 * number)
    return int(table + offset) if offset else 0


def _long(buffer: memoryview, at: int) -> int:
    if not at:
        return 0
    (value,) = struct.unpack_from("<q", buffer, at)
    return int(value)
