"""A MIME bundle as it travels: one raw buffer for each MIME type, then the metadata.

Jupyter holds binary types as base64 text (Jupyter messaging 5.4, display_data); on the wire they are raw bytes, a
third smaller and never parsed. Text types are UTF-8; JSON types (``application/json``, ``…+json``) are JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol.framing import Buffer

_BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")

_NO_JSON = (TypeError, ValueError, RecursionError)


def _is_json(mime: str) -> bool:
    return mime == "application/json" or mime.endswith("+json")


def pack(data: Mapping[str, object], metadata: Mapping[str, object]) -> tuple[tuple[str, ...], list[bytes]]:
    """The MIME types in order and their buffers, the metadata's JSON last.

    Values that are neither text, bytes nor JSON become their ``repr``: a display must not fail a cell.
    """
    mimes, buffers = [], []
    for mime, value in data.items():
        mimes.append(mime)
        buffers.append(_to_bytes(mime, value))
    try:
        buffers.append(_json(metadata))
    except _NO_JSON:
        buffers.append(b"{}")
    return tuple(mimes), buffers


def _to_bytes(mime: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if _is_json(mime):
        try:
            return _json(value)
        except _NO_JSON:  # keys that are no text, a value that holds itself
            return _json(repr(value))
    if not isinstance(value, str):
        return repr(value).encode("utf-8", "backslashreplace")
    if mime in _BINARY:
        try:
            return base64.b64decode(value)
        except (binascii.Error, ValueError):
            pass
    return value.encode("utf-8", "backslashreplace")


def _json(value: object) -> bytes:
    return json.dumps(value, default=repr, separators=(",", ":")).encode()


def unpack(mimes: Sequence[str], buffers: Sequence[Buffer]) -> tuple[dict[str, object], dict[str, object]]:
    """The bundle as Jupyter wants it: ``(data, metadata)``.

    Raises:
        ProtocolError: The buffers do not fit the MIME types, or JSON is malformed.
    """
    if len(buffers) != len(mimes) + 1:
        raise ProtocolError(f"a bundle of {len(mimes)} types has {len(mimes) + 1} buffers, got {len(buffers)}")
    data: dict[str, object] = {}
    for mime, buffer in zip(mimes, buffers, strict=False):
        if mime in _BINARY:
            data[mime] = base64.b64encode(buffer).decode("ascii")
        elif _is_json(mime):
            data[mime] = _from_json(buffer)
        else:
            data[mime] = bytes(buffer).decode("utf-8", "replace")
    metadata = _from_json(buffers[-1])
    if not isinstance(metadata, dict):
        raise ProtocolError(f"a bundle's metadata is a JSON object, got {type(metadata).__name__}")
    return data, metadata


def _from_json(buffer: Buffer) -> object:
    try:
        value: object = json.loads(bytes(buffer))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"malformed JSON in a bundle: {error}") from None
    return value
