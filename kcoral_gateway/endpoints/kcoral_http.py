"""``POST /execute``: KCoral 0.1.1's way in, for its own client.

A request is read as it arrives: blobs go into the principal's cache, the program is checked, and only then something
runs. A client that hangs up ends its program. The answer goes out as soon as the program has ended; binary parts are
read from disk while they are sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kcoral_gateway.auth import user_of
from kcoral_gateway.endpoints.multipart import Part, Reader
from kcoral_gateway.endpoints.outcomes import Watched, watch
from kcoral_gateway.endpoints.websocket import Clients
from kcoral_gateway.execution.sessions import Execution
from kcoral_gateway.storage.artifacts import Artifacts, Intake
from kcoral_magic.errors import CapacityExceeded, KCoralError, ProgramInvalid, ValueRefused
from kcoral_magic.protocol import PRODUCT, outcome, program
from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)
_PROGRAM_BYTES = 8 * 1024 * 1024  # as a body has over the websocket; large data is a blob
_BLOB = re.compile(r"blob:([0-9a-f]{64})")
_TIMEOUT_S, _MAX_TIMEOUT_S = 300.0, 900.0  # KCoral's default and most, as are those below
_QUEUE_S = 1800.0
_OUTPUT_BYTES, _MAX_OUTPUT_BYTES = 1024 * 1024, 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_TAIL_CHARS = 2000
_STATUS_OF = {  # of what the gateway refuses: HTTP status and KCoral's kind
    "program": (400, "parse"),
    "infeasible": (400, "parse"),
    "capacity": (503, "busy"),
    "queue_timeout": (503, "busy"),
    "timeout": (504, "timeout"),
}


class _Refused(Exception):
    """The request ends here, with this status and kind."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass
class _Text:
    """The ``program`` part."""

    data: bytearray = field(default_factory=bytearray)

    def write(self, data: memoryview) -> None:
        if len(self.data) + data.nbytes > _PROGRAM_BYTES:
            raise _Refused(413, "request_too_large", f"a program has at most {_PROGRAM_BYTES >> 20} MiB without blobs")
        self.data += data

    def finish(self) -> None:
        pass


@dataclass
class _Body:
    """What a request's parts say."""

    artifacts: Artifacts
    principal: str
    text: _Text | None = None
    blobs: dict[str, Intake] = field(default_factory=dict)

    def open_part(self, name: str, content_type: str) -> Part:
        """Whoever takes the part of this name."""
        if name == "program" and self.text is None:
            _typed(name, content_type, "application/json")
            self.text = _Text()
            return self.text
        found = _BLOB.fullmatch(name)
        if found is None or found[1] in self.blobs:
            what = "came twice" if found is not None or name == "program" else "is neither program nor blob:<sha256>"
            raise ProgramInvalid(f"part {name!r:.80} {what}")
        _typed(name, content_type, "application/octet-stream")
        intake = self.blobs[found[1]] = self.artifacts.intake(self.principal, f"sha256-{found[1]}")
        return intake

    def abort(self) -> None:
        """Nothing stays of what was not whole."""
        for intake in self.blobs.values():
            intake.abort()


def _typed(name: str, content_type: str, wanted: str) -> None:
    if content_type != wanted:
        raise ProgramInvalid(f"part {name!r:.80} must be {wanted}, got {content_type!r:.80}")


class _Json(JSONResponse):
    """In ASCII: what a program returns may hold halves of characters, which UTF-8 has not."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class KCoralHttp:
    """KCoral's endpoint on this gateway's port."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._service = clients.service
        self._hello = m.Hello((m.VERSION,), "kcoral-http", secrets.token_hex(8), f"{PRODUCT} http")

    async def execute(self, request: Request) -> Response:
        """One program, from its request to its answer."""
        request_id = _request_id(request)
        principal = self._clients.principal_of(request)
        if principal is None:
            body = _problem(request_id, "unauthenticated", "a valid token is needed, as a bearer or as Basic password")
            return _Json(body, 401, {"WWW-Authenticate": "Bearer", "X-Request-ID": request_id})
        try:
            response = await self._answer(request, request_id, principal.name)
        except (ProgramInvalid, ValueRefused) as error:
            response = _Json(_problem(request_id, "parse", str(error)), 400)
        except CapacityExceeded as error:
            response = _Json(_problem(request_id, "request_too_large", str(error)), 413)
        except _Refused as error:
            response = _Json(_problem(request_id, error.kind, str(error)), error.status)
            if error.status == 503:
                response.headers["Retry-After"] = "1"
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        response.headers["X-Request-ID"] = request_id
        return response

    async def _answer(self, request: Request, request_id: str, principal: str) -> Response:
        began = time.perf_counter()
        artifacts = self._service.artifacts
        body = _Body(artifacts, principal)
        try:
            reader = Reader(request.headers.get("content-type"), body.open_part)
            async for data in request.stream():
                reader.feed(data)
            reader.close()
            if body.text is None:
                raise ProgramInvalid("the request has no program part")
            made = program.parse(body.text.data)
            if strangers := body.blobs.keys() - set(made.blobs):
                raise ProgramInvalid(f"blob {min(strangers)[:12]}… came along, and no upload refers to it")
        finally:
            body.abort()
        missing = [blob for blob in made.blobs if not artifacts.has(principal, f"sha256-{blob}")]
        if missing:
            return _Json({"status": "CACHE_MISS", "request_id": request_id, "missing_blobs": missing})
        python = user_of(request.headers.get("authorization", ""))
        execution = self._start(made, bytes(body.text.data), principal, python)
        limit = min(_or(made.options.output_limit_bytes, _OUTPUT_BYTES), _MAX_OUTPUT_BYTES)
        del body, reader, made  # it may wait long: the execution has what is needed
        watched = await self._watch(request, execution, principal, limit)
        _log.info("program", extra={"request": request_id, "execution": execution.execution_id})
        return self._response(execution, watched, request_id, principal, (time.perf_counter() - began) * 1000)

    def _start(self, made: program.Program, source: bytes, principal: str, python: str) -> Execution:
        """``python`` is an interpreter environment if there is one of that name: ``http://NAME:TOKEN@host``."""
        options = made.options
        message = m.Execute(
            uuid.uuid4().hex,
            m.SessionAsk("", _or(options.gpu_count, None), python if self._service.has_python(python) else ""),
            timeout_s=min(_or(options.timeout_seconds, _TIMEOUT_S), _MAX_TIMEOUT_S),
            queue_timeout_s=_QUEUE_S,
            kind="program",
        )
        return self._service.execute(principal, self._hello, message, source, returns="kcoral", parsed=made)

    async def _watch(self, request: Request, execution: Execution, principal: str, limit: int) -> Watched:
        """Until it has ended; a client that hangs up meanwhile ends it."""
        watching = asyncio.create_task(watch(execution, limit))
        leaving = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait({watching, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                _log.info("client hung up", extra={"execution": execution.execution_id})
                with contextlib.suppress(KCoralError):
                    self._service.interrupt(principal, execution.execution_id, kill=True)
                self._drop(principal, await watching)
                raise ClientDisconnect
            return watching.result()
        finally:
            leaving.cancel()
            watching.cancel()

    def _drop(self, principal: str, watched: Watched) -> None:
        for blob in watched.blobs:
            self._service.artifacts.drop(principal, blob)

    # ── the answer ──

    def _response(
        self, execution: Execution, watched: Watched, request_id: str, principal: str, elapsed_ms: float
    ) -> Response:
        finished, times = watched.finished, execution.times
        text: dict[str, Any] = {
            "stdout": watched.text["stdout"].shown,
            "stderr": watched.text["stderr"].shown,
            "stdout_truncated": watched.text["stdout"].is_cut,
            "stderr_truncated": watched.text["stderr"].is_cut,
        }
        if finished.status == "failed" and (finished.code != "lost" or execution.step is None):
            self._drop(principal, watched)
            status, kind = _STATUS_OF.get(finished.code, (500, "engine"))
            body = _problem(request_id, kind, finished.message + _tail(text["stdout"], finished.code)) | text
            return _Json(body, status, {"Retry-After": "1"} if status == 503 else None)
        try:
            made = watched.outcome(self._service.artifacts.folder(principal))
        except (KCoralError, OSError) as error:
            self._drop(principal, watched)
            why = error.strerror if isinstance(error, OSError) else error
            raise _Refused(500, "engine", f"what the program returned cannot be read: {why}") from None
        result: dict[str, Any] = {
            "status": "COMPLETED" if finished.status == "ok" else "FAILED",
            "request_id": request_id,
            "queue_ms": max(0.0, (times.sent_s or time.monotonic()) - times.taken_s) * 1000,
            "elapsed_ms": elapsed_ms,
            "lease_wait_ms": times.turn_wait_s * 1000,
            "lease_held_ms": times.turn_held_s * 1000,
            **text,
            "results": made.results,
        }
        if watched.gpus:
            result |= {"gpu_ids": [gpu.index for gpu in watched.gpus], "gpu_count": len(watched.gpus)}
        if finished.status != "ok":
            result["error"] = watched.error()
        if not made.parts:
            self._drop(principal, watched)
            return _Json(result)
        boundary = secrets.token_hex(16)
        pieces, length = outcome.multipart(result, [size for _, _, size in made.parts], boundary)
        headers = {"Content-Length": str(length)}
        kind = f"multipart/form-data; boundary={boundary}"
        return StreamingResponse(self._stream(pieces, made, principal, watched), 200, headers, kind)

    async def _stream(
        self, pieces: list[bytes], made: outcome.Outcome, principal: str, watched: Watched
    ) -> AsyncIterator[bytes]:
        try:
            for piece, (holder, offset, size) in zip(pieces, made.parts, strict=False):
                yield piece
                for data in _read(holder, offset, size):
                    yield data
            yield pieces[-1]
        finally:
            self._drop(principal, watched)


def _read(holder: bytes | Path, offset: int, size: int) -> Iterator[bytes]:
    """A part, from memory or in pieces from disk."""
    if isinstance(holder, bytes):
        yield holder[offset : offset + size]
        return
    with holder.open("rb", buffering=0) as file:
        while size:
            data = os.pread(file.fileno(), min(size, _READ_BYTES), offset)
            if not data:
                raise OSError("a returned value is shorter than announced")
            offset, size = offset + len(data), size - len(data)
            yield data


def _tail(stdout: str, code: str) -> str:
    """KCoral's client shows the message alone of a program that ran too long: its last output belongs there."""
    return f"; its output ends with: {stdout[-_TAIL_CHARS:]}" if code == "timeout" and stdout else ""


def _or(value: Any, default: Any) -> Any:
    return default if value is msgspec.UNSET else value


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _request_id(request: Request) -> str:
    """The client's, if it is exactly one UUID as RFC 9562 writes it; else a new one."""
    given = request.headers.getlist("x-request-id")
    if len(given) == 1:
        with contextlib.suppress(ValueError):
            if str(uuid.UUID(given[0])) == given[0]:
                return given[0]
    return str(uuid.uuid4())


def _problem(request_id: str, kind: str, message: str) -> dict[str, Any]:
    return {"status": "ERROR", "request_id": request_id, "error": {"kind": kind, "message": message}}
