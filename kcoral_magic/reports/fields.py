"""Protocol Buffers' wire format, as far as reports need it: the fields of one message, each length checked.

The format is public (protobuf.dev/programming-guides/encoding). The package ``protobuf`` is no choice here: it needs
generated classes, and NVIDIA's schemas may not be redistributed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kcoral_magic.errors import ReportInvalid

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST = 1 << 20  # fields of one message: a file of a few bytes each must not become gigabytes of objects
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """The fields of the message that lies in ``data[at:end]``, in the order they come.

    Returns:
        ``(number, a, b)``: of a varint ``a`` is its value and ``b`` is -1; of all else ``data[a:b]`` are its bytes.

    Raises:
        ReportInvalid: A field reaches beyond the message, or is of a kind that does not exist.
    """
    found: list[tuple[int, int, int]] = []
    add = found.append
    try:
        for _ in range(MOST):
            if at >= end:
                break
            key = data[at]
            at += 1
            if key > 127:
                key, at = _varint(data, at - 1, end)
            kind = key & 7
            if kind == BYTES:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _varint(data, at - 1, end)
                start, at = at, at + size
                if at > end:
                    break
                add((key >> 3, start, at))
            elif kind == VARINT:
                value = data[at]
                at += 1
                if value > 127:
                    value, at = _varint(data, at - 1, end)
                add((key >> 3, value, -1))
            elif kind == FIXED64:
                add((key >> 3, at, at + 8))
                at += 8
            elif kind == FIXED32:
                add((key >> 3, at, at + 4))
                at += 4
            else:
                raise ReportInvalid(f"the report is damaged: a field of kind {kind} at byte {at}")
        else:
            raise ReportInvalid(f"the report is damaged, or no report: a message of more than {MOST:,} fields")
    except IndexError:
        at = end + 1
    if at != end:
        raise ReportInvalid(
            f"the report is cut or damaged: a field reaches beyond its message, which ends at byte {end}"
        )
    return found


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ReportInvalid(f"the report is cut or damaged: a number without an end at byte {at}")


def text(data: bytes, at: int, end: int) -> str:
    """A string; what is no UTF-8 in it becomes U+FFFD."""
    if end < 0:
        raise ReportInvalid("the report is damaged: a number where a text should be")
    return data[at:end].decode("utf-8", "replace")


def number(data: bytes, at: int, end: int) -> float:
    """A double or a float."""
    if end - at == 8:
        return float(_DOUBLE.unpack_from(data, at)[0])
    if end - at == 4:
        return float(_FLOAT.unpack_from(data, at)[0])
    raise ReportInvalid("the report is damaged: a floating-point number of an odd size")


def inside(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that is a field itself."""
    if end < 0:
        raise ReportInvalid("the report is damaged: a number where a message should be")
    return iter(fields(data, at, end))
