"""A multipart body (RFC 7578) as it arrives: each part's headers are checked before a byte of it is taken.

``python-multipart`` finds the boundaries; the rules are KCoral's: every part has exactly one Content-Disposition with a
name and exactly one Content-Type, no part is encoded or multipart itself.
"""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from typing import Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kcoral_magic.errors import ProgramInvalid


class Part(Protocol):
    """Who takes a part's bytes."""

    def write(self, data: memoryview) -> None:
        """The next bytes."""

    def finish(self) -> None:
        """That was all."""


OpenPart = Callable[[str, str], Part]  # its name and content type


class Reader:
    """Feeds a body's parts to what ``open_part`` returns.

    Raises:
        ProgramInvalid: From any method: the body breaks a rule.
    """

    def __init__(self, content_type: str | None, open_part: OpenPart) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ProgramInvalid("the request must be multipart/form-data with a boundary")
        self._open_part = open_part
        self._part: Part | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._field = self._value = b""
        self._is_whole = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_part_data": self._data,
                    "on_part_end": self._end,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_end": self._finished,
                },
            )
        except FormParserError as error:
            raise ProgramInvalid(f"the request's boundary cannot be used: {error}") from None

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise ProgramInvalid(f"the multipart body cannot be read: {error}") from None

    def close(self) -> None:
        """That was all of them."""
        if not self._is_whole:
            raise ProgramInvalid("the multipart body breaks off before its last boundary")

    # ── what the parser tells ──

    def _begin(self) -> None:
        self._headers = []

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers.append((self._field.strip().lower(), self._value.strip()))
        self._field = self._value = b""

    def _headers_finished(self) -> None:
        disposition, content_type = self._one(b"content-disposition"), self._one(b"content-type")
        kind, options = parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise ProgramInvalid("a part's Content-Disposition must be form-data with a name")
        encodings = [value.lower() for name, value in self._headers if name == b"content-transfer-encoding"]
        if not set(encodings) <= {b"binary", b"8bit"}:
            raise ProgramInvalid("a part's Content-Transfer-Encoding must be binary or 8bit, or left out")
        message = Message()
        message["content-type"] = content_type.decode("latin-1")
        self._part = self._open_part(options[b"name"].decode("utf-8", "replace"), message.get_content_type())

    def _one(self, wanted: bytes) -> bytes:
        found = [value for name, value in self._headers if name == wanted]
        if len(found) != 1:
            raise ProgramInvalid(f"each part has exactly one {wanted.decode().title()}, one has {len(found)}")
        return found[0]

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part is not None:
            self._part.write(memoryview(data)[start:end])

    def _end(self) -> None:
        if self._part is None:
            raise ProgramInvalid("a part has no headers")
        part, self._part = self._part, None
        part.finish()

    def _finished(self) -> None:
        self._is_whole = True
