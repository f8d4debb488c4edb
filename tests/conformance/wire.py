"""KCoral's wire as the pack speaks it: how a request is written, and how strictly an answer is read.

Every answer goes through ``Answer``: what a KCoral client would refuse to read fails the test that asked for it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from typing import Any

import httpx

BOUNDARY = "conformance-boundary"
JSON, BYTES = "application/json", "application/octet-stream"
NUMBERS = ("queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms")
ERROR_FIELDS = {"kind", "message", "instruction_index", "instruction_op", "instruction_id", "traceback"}
VALUE_FIELDS: dict[str, set[str]] = {
    "null": set(),
    "boolean": {"value"},
    "integer": {"value"},
    "number": {"value"},
    "string": {"value"},
    "array": {"value"},
    "object": {"value"},
    "bytes": {"part", "sha256"},
    "tensor": {"dtype", "shape", "part", "sha256"},
    "file": {"size", "part", "sha256"},
    "folder": {"files", "directories"},
}
Instruction = dict[str, Any]


# ── requests ──


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def ref(name: str) -> dict[str, str]:
    return {"$ref": name}


def module(source: str, name: str = "m") -> Instruction:
    return {"op": "upload", "id": name, "kind": "module", "source": source}


def upload(kind: str, data: bytes, name: str = "u", **more: Any) -> Instruction:
    return {"op": "upload", "id": name, "kind": kind, "blob": digest(data), **more}


def function(name: str = "main", made: str = "f", of: str = "m", **more: Any) -> Instruction:
    return {"op": "get_function", "id": made, "module": ref(of), "name": name, **more}


def call(*args: Any, fn: str = "f", name: str = "r") -> Instruction:
    return {"op": "run", "id": name, "fn": ref(fn), "args": list(args)}


def returned(of: str = "r", key: str = "out") -> Instruction:
    return {"op": "return", "key": key, "value": ref(of)}


def returned_path(kind: str, path: Any, key: str = "out") -> Instruction:
    return {"op": "return", "key": key, "kind": kind, "path": path}


def body_of(source: str, *args: Any) -> list[Instruction]:
    """The usual program: define ``main``, call it, return what it returns."""
    return [module(source), function(), call(*args), returned()]


@dataclass(frozen=True)
class Part:
    """A part of a request, with every header line in the test's hands."""

    name: str
    data: bytes
    content_type: str = BYTES
    headers: tuple[str, ...] | None = None

    def encoded(self) -> bytes:
        lines = self.headers
        if lines is None:
            lines = (f'Content-Disposition: form-data; name="{self.name}"', f"Content-Type: {self.content_type}")
        return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + self.data + b"\r\n"


def program(instructions: Sequence[Instruction], options: Mapping[str, Any] | None = None) -> Part:
    whole: dict[str, Any] = {"instructions": list(instructions)}
    if options is not None:
        whole["options"] = dict(options)
    return program_text(json.dumps(whole))


def program_text(text: str | bytes) -> Part:
    return Part("program", text.encode() if isinstance(text, str) else text, JSON)


def blob(data: bytes) -> Part:
    return Part(f"blob:{digest(data)}", data)


def multipart(parts: Sequence[Part]) -> bytes:
    return b"".join(f"--{BOUNDARY}\r\n".encode() + part.encoded() for part in parts) + f"--{BOUNDARY}--\r\n".encode()


# ── answers ──


@dataclass(frozen=True)
class Answer:
    """An answer of ``POST /execute`` that a strict client can read."""

    status: int
    headers: httpx.Headers
    body: dict[str, Any]
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.body["error"]
        return error

    @property
    def refusal(self) -> tuple[int, str]:
        """HTTP status and error kind of what was refused before it ran."""
        assert self.body["status"] == "ERROR", self.body
        assert self.error.keys() == {"kind", "message"}
        assert self.error["message"]
        return self.status, self.error["kind"]

    @property
    def failure(self) -> tuple[str, int, str, str | None]:
        """Kind and instruction of what failed while it ran."""
        assert (self.status, self.body["status"]) == (200, "FAILED"), self.body
        assert self.error["message"]
        return tuple(self.error[name] for name in ("kind", "instruction_index", "instruction_op", "instruction_id"))

    def result(self, key: str = "out") -> Any:
        """A returned value: its JSON, or the bytes of its part."""
        assert self.body["status"] == "COMPLETED", self.body
        return self.plain(self.body["results"][key])

    def plain(self, value: dict[str, Any]) -> Any:
        match value["type"]:
            case "null":
                return None
            case "array":
                return [self.plain(item) for item in value["value"]]
            case "object":
                return {name: self.plain(item) for name, item in value["value"].items()}
            case "bytes" | "file":
                return self.parts[value["part"]]
            case "tensor":
                return value["dtype"], value["shape"], self.parts[value["part"]]
            case "folder":
                return {path: self.plain(item) for path, item in value["files"].items()}, value["directories"]
            case _:
                return value["value"]


def read(response: httpx.Response) -> Answer:
    """Check all that a strict client checks of any answer."""
    kind = response.headers["content-type"]
    parts: dict[str, bytes] = {}
    if kind.startswith("multipart/form-data"):
        message = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + response.content)
        sections: list[Any] = message.get_payload()  # type: ignore[assignment]
        names = [section.get_param("name", header="content-disposition") for section in sections]
        kinds = [section.get_content_type() for section in sections]
        assert names == ["result", *(f"return:{number}" for number in range(len(sections) - 1))]
        assert kinds == [JSON, *[BYTES] * (len(sections) - 1)]
        parts = dict(zip(names, _raw_parts(response.content, message.get_boundary() or ""), strict=True))
        body = json.loads(parts.pop("result"))
    else:
        assert kind.partition(";")[0] == JSON
        body = response.json()
    answer = Answer(response.status_code, response.headers, body, parts)
    assert str(uuid.UUID(body["request_id"])) == body["request_id"] == response.headers["x-request-id"]
    if body["status"] in ("COMPLETED", "FAILED"):
        _check_finished(answer)
    return answer


def _raw_parts(content: bytes, boundary: str) -> list[bytes]:
    """By the boundary alone: the email package changes line ends of bytes."""
    sections = (b"\r\n" + content).split(f"\r\n--{boundary}".encode())
    assert sections[0] == b""
    assert sections[-1].strip() == b"--"
    return [section.partition(b"\r\n\r\n")[2] for section in sections[1:-1]]


def _check_finished(answer: Answer) -> None:
    body = answer.body
    assert answer.status == 200
    assert all(type(body[name]) in (int, float) and body[name] >= 0 for name in NUMBERS)
    assert all(type(body[name]) is str for name in ("stdout", "stderr"))
    assert all(type(body[f"{name}_truncated"]) is bool for name in ("stdout", "stderr"))
    assert ("gpu_ids" in body) == ("gpu_count" in body)
    assert ("error" in body) == (body["status"] == "FAILED")
    if "error" in body:
        assert body["error"].keys() == ERROR_FIELDS
        assert type(body["error"]["instruction_index"]) is int
    used = [name for value in body["results"].values() for name in _used(value, answer.parts)]
    assert used == list(answer.parts)


def _used(value: dict[str, Any], parts: dict[str, bytes]) -> Iterator[str]:
    """The parts that a value refers to, in order; its fields are exactly those of its type."""
    kind = value["type"]
    assert value.keys() == {"type"} | VALUE_FIELDS[kind]
    if "part" in value:
        data = parts[value["part"]]
        assert value["sha256"] == digest(data)
        assert value.get("size", len(data)) == len(data)
        yield value["part"]
    children: Any = ()
    if kind == "array":
        children = value["value"]
    elif kind == "object":
        children = value["value"].values()
    elif kind == "folder":
        assert list(value["files"]) == sorted(value["files"])
        assert value["directories"] == sorted(value["directories"])
        children = value["files"].values()
    for child in children:
        yield from _used(child, parts)


# ── a server ──


class Endpoint:
    """A KCoral server, ours or another. ``stranger`` are the credentials of a second person, where there are any."""

    def __init__(self, url: str, token: str | None = None, stranger: str | None = None) -> None:
        self.url = url
        self.token = token
        self.stranger = stranger
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    @property
    def is_ours(self) -> bool:
        return self.token is not None

    def headers(self, token: str | None = None) -> dict[str, str]:
        token = token or self.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/health", headers=self.headers()).raise_for_status().json()
        return found

    def post(self, *parts: Part, token: str | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        """These parts, in this order."""
        sent = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **self.headers(token), **(headers or {})}
        return read(self.http.post("/execute", content=multipart(parts), headers=sent))

    def run(self, instructions: Sequence[Instruction], *blobs: bytes, **options: Any) -> Answer:
        """A program with all of its blobs."""
        return self.post(program(instructions, options or None), *map(blob, blobs))
