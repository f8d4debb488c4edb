"""The clients' way in: one websocket each, subprotocol ``kcoral.v1``.

A receiving and a sending loop around ``GatewayConnection``. The sender gives every reader of the connection one piece
in turn, so that a flood in one session delays another by one frame at most, and sends answers before events.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections import deque
from collections.abc import Sequence
from logging import getLogger
from typing import Any, assert_never, cast

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from kcoral_gateway.auth import Principal, TokenStore, authenticate
from kcoral_gateway.execution.journal import Gap
from kcoral_gateway.execution.service import Service
from kcoral_gateway.execution.sessions import Execution
from kcoral_magic.errors import KCoralError, NotFoundError, ProtocolError
from kcoral_magic.protocol import PRODUCT, framing
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_log = getLogger(__name__)
_HELLO_S = 10.0
_WRITING_S = 30.0  # a worker that writes results writes them at once; longer means that it was stopped
_WRITING_LOOK_S = 0.001
_TICK_S = 1.0
_ANSWERS = 64  # frames that wait for a client which does not read; then its questions wait


class Clients:
    """Makes a ``_Client`` of each websocket that may come in."""

    def __init__(
        self, service: Service, tokens: TokenStore, *, own_uid: int, instance: str, level: str, is_simulated: bool
    ) -> None:
        self.service = service
        self.tokens = tokens
        self._own_uid = own_uid
        self._welcome = m.Welcome(
            version=m.VERSION,
            instance=instance,
            product=PRODUCT,
            principal="",
            sandbox=level,
            python=platform.python_version(),
            is_simulated=is_simulated,
            credit_bytes=c.CREDIT_BYTES,
        )
        self._open: set[_Client] = set()

    def principal_of(self, request: HTTPConnection) -> Principal | None:
        """Who a request comes from, if it says so with a credential that holds."""
        peer_uid: int | None = getattr(request.state, "peer_uid", None)
        return authenticate(self.tokens, request.headers.get("authorization"), peer_uid, self._own_uid)

    async def serve(self, websocket: WebSocket) -> None:
        """One client, from handshake to goodbye."""
        principal = self.principal_of(websocket)
        if principal is None:
            _log.info("client refused", extra={"why": "no valid credential"})
            await websocket.send_denial_response(JSONResponse({"error": "a valid token is needed"}, 401))
            return
        if m.SUBPROTOCOL not in websocket.scope.get("subprotocols", ()):
            text = f"the websocket subprotocol {m.SUBPROTOCOL} is needed"
            await websocket.send_denial_response(JSONResponse({"error": text}, 400))
            return
        await websocket.accept(m.SUBPROTOCOL)
        client = _Client(self, websocket, principal)
        self._open.add(client)
        try:
            await client.run(m.Welcome(**{**_fields(self._welcome), "principal": principal.name}))
        finally:
            self._open.discard(client)

    async def close(self) -> None:
        """Give every client what it should still hear, then say that the gateway goes."""
        goodbyes = [asyncio.wait_for(client.say_goodbye(), 2.0) for client in self._open]
        await asyncio.gather(*goodbyes, return_exceptions=True)


def _fields(welcome: m.Welcome) -> dict[str, Any]:
    return {name: getattr(welcome, name) for name in welcome.__struct_fields__}


class _Client:
    """One websocket."""

    def __init__(self, clients: Clients, websocket: WebSocket, principal: Principal) -> None:
        self._service = clients.service
        self._tokens = clients.tokens
        self._websocket = websocket
        self._principal = principal
        self._connection = c.GatewayConnection()
        self._liveness = c.Liveness(time.monotonic())
        self._executions: dict[str, Execution] = {}
        self._catching_up: set[str] = set()
        self._answers: deque[bytes | t.Fetch] = deque()  # a fetch is read when it is sent, so that none waits in memory
        self._wanted = asyncio.Event()
        self._has_room = asyncio.Event()
        self._drained = asyncio.Event()
        self._hello: m.Hello | None = None

    async def run(self, welcome: m.Welcome) -> None:
        """Until the websocket or the credential ends."""
        try:
            frame = await asyncio.wait_for(self._receive(), _HELLO_S)
            self._hello = hello = self._connection.opened(frame)
        except ProtocolError as error:
            await self._fail(error)
            return
        except (TimeoutError, WebSocketDisconnect):
            return
        await self._websocket.send_bytes(c.encode_handshake(welcome))
        name = self._principal.name
        self._service.client_came(name, hello.client_id, hello.instance)
        _log.info("client came", extra={"principal": name, "product": hello.product})
        tasks = [asyncio.create_task(loop) for loop in (self._receiver(), self._sender(), self._ticker())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._ended(done.pop())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for execution in self._executions.values():
                execution.watchers.discard(self._wake)
            self._service.client_went(name, hello.client_id)

    async def _ended(self, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if isinstance(error, ProtocolError):
            await self._fail(error)
        elif error is not None and not isinstance(error, WebSocketDisconnect | RuntimeError | OSError):
            _log.error("client connection failed", exc_info=error)

    async def _fail(self, error: ProtocolError) -> None:
        _log.warning("protocol error", extra={"principal": self._principal.name, "error": str(error)})
        with contextlib.suppress(TimeoutError, WebSocketDisconnect, RuntimeError):  # it may have gone already
            for frame in framing.encode(m.Problem(error.code, str(error)[:4000])):
                await asyncio.wait_for(self._websocket.send_bytes(frame), 1.0)
        await self._leave(c.CLOSE_PROTOCOL, str(error)[:100])

    async def say_goodbye(self) -> None:
        """Wait until everything due has been sent, then close."""
        self._wake()
        await asyncio.wait_for(self._drained.wait(), 1.0)
        await self._websocket.close(c.CLOSE_GOING_AWAY, "the gateway is shutting down")

    # ── receiving ──

    async def _receive(self) -> bytes:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data = message.get("bytes")
        if data is None:
            raise ProtocolError("frames are binary, got a text frame")
        return bytes(data)

    async def _receiver(self) -> None:
        while True:
            frame = await self._receive()
            self._liveness.heard(time.monotonic())
            message = self._connection.receive(frame)
            if message is not None:
                self._handle(message)
            if len(self._answers) > _ANSWERS:  # it asks faster than it reads
                self._has_room.clear()
                await self._has_room.wait()

    def _handle(self, message: framing.Message[m.ToGateway]) -> None:
        body = message.body
        try:
            self._obey(body, message.buffers)
        except ProtocolError:
            raise
        except KCoralError as error:
            execution_id = getattr(body, "execution_id", "")
            self._answer(m.Problem(error.code, str(error), execution_id, getattr(body, "request", None)))
            self._connection.drop(execution_id)

    def _obey(self, body: m.ToGateway, buffers: tuple[framing.Buffer, ...]) -> None:
        service, who, hello = self._service, self._principal.name, self._hello
        assert hello is not None
        match body:
            case m.Execute(execution_id=execution_id):
                self._watch(service.execute(who, hello, body, *map(bytes, buffers)))
            case m.Attach(execution_id=execution_id, after=after):
                self._watch(service.attach(who, execution_id, after))
                self._catching_up.add(execution_id)
                self._wake()
            case m.Detach(execution_id=execution_id):
                self._catching_up.discard(execution_id)
                execution = self._executions.pop(execution_id, None)
                if execution is not None:
                    execution.watchers.discard(self._wake)
            case m.Ack():
                self._wake()
            case m.Interrupt(execution_id=execution_id, kill=kill):
                service.interrupt(who, execution_id, kill=kill)
            case t.Supply():
                service.supply(who, body, *buffers)
            case t.InputReply():
                service.reply(who, body, buffers[0])
            case t.Have(request=request, blobs=blobs):
                offsets = tuple(service.artifacts.held(who, digest, size) for digest, size in blobs)
                self._answer(t.Held(request, offsets))
            case t.Chunk(request=request, digest=digest, size=size, offset=offset):
                here = service.artifacts.append(who, digest, size, offset, memoryview(buffers[0]))
                self._answer(t.Held(request, (here,)))
            case t.Fetch():
                self._answers.append(body)
                self._wake()
            case t.ListStorage(request=request):
                self._answer(t.Storage(request, *service.artifacts.usage(who)))
            case t.Drop(digest=digest):
                service.artifacts.drop(who, digest)
            case m.Ping():
                self._answer(m.Pong())
            case m.Pong():
                pass
            case m.ListSessions(request=request):
                self._answer(m.Sessions(request, service.sessions(who)))
            case m.ListGpus(request=request):
                self._answer(m.GpuList(request, *service.gpus(who)))
            case m.ListExecutions(request=request, session=session):
                self._answer(m.Executions(request, service.executions(who, hello, session)))
            case m.ListRecords():
                self._answer(m.Records(body.request, service.records(who, body)))
            case m.Restart(request=request, session=ask):
                service.restart(who, hello, ask)
                self._answer(m.Done(request))
            case m.CloseSession(request=request, session=session):
                service.close_session(who, hello, session)
                self._answer(m.Done(request))
            case _:
                assert_never(body)

    def _watch(self, execution: Execution) -> None:
        self._executions[execution.execution_id] = execution
        execution.watchers.add(self._wake)
        if execution.journal.last:
            self._wake()

    # ── sending ──

    def _wake(self) -> None:
        self._drained.clear()
        self._wanted.set()

    def _answer(self, body: m.ToClient) -> None:
        self._answers += framing.encode(body)
        self._wake()

    async def _sender(self) -> None:
        while True:
            self._wanted.clear()
            is_more = True
            while is_more:
                is_more = False
                for execution_id in list(self._connection.readers):
                    await self._send_answers()
                    is_more = await self._send_piece(execution_id) or is_more
            await self._send_answers()
            self._has_room.set()
            if not self._wanted.is_set():
                self._drained.set()
            await self._wanted.wait()

    async def _send_answers(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            for frame in [answer] if isinstance(answer, bytes) else await self._fetched(answer):
                await self._websocket.send_bytes(cast(bytes, frame))  # uvicorn takes any buffer

    async def _fetched(self, fetch: t.Fetch) -> Sequence[framing.Buffer]:
        """The piece, once the host that may still be writing it has come that far."""
        frame, room = framing.frame_with_room(t.Piece(fetch.request), fetch.length)
        artifacts, until = self._service.artifacts, time.monotonic() + _WRITING_S
        try:
            while not artifacts.read(self._principal.name, fetch.digest, fetch.offset, room):
                if time.monotonic() > until:
                    raise NotFoundError(f"the rest of {fetch.digest[:20]}… has not come for {_WRITING_S:g} s")
                await asyncio.sleep(_WRITING_LOOK_S)
        except KCoralError as error:
            return framing.encode(m.Problem(error.code, str(error), "", fetch.request))
        return [frame]

    async def _send_piece(self, execution_id: str) -> bool:
        """Send the next event of one reader. Whether there may be more."""
        reader = self._connection.readers.get(execution_id)
        execution = self._executions.get(execution_id)
        if reader is None or execution is None or not reader.has_credit:
            return False
        piece = execution.journal.next(reader)
        if piece is None:
            self._let_go(execution)
            return False
        if isinstance(piece, Gap):
            reader.sent(piece.to, 0)
            for frame in framing.encode(m.Skip(execution_id, piece.to, piece.stream_bytes, piece.lines)):
                await self._websocket.send_bytes(frame)
            return True
        reader.sent(piece.number, piece.size)
        for frame in piece.frames:
            await self._websocket.send_bytes(frame)
        return True

    def _let_go(self, execution: Execution) -> None:
        """A finished execution is watched on, for what its threads print late, until its session's next one."""
        if not execution.journal.is_finished:
            return
        if execution.execution_id in self._catching_up:
            self._catching_up.discard(execution.execution_id)
            self._answer(m.CaughtUp(execution.execution_id))
        newest = [other for other in self._executions.values() if other.session == execution.session][-1]
        if newest is not execution:
            self._connection.drop(execution.execution_id)
            del self._executions[execution.execution_id]
            execution.watchers.discard(self._wake)

    async def _ticker(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            if self._liveness.is_dead(now):
                await self._leave(c.CLOSE_GOING_AWAY, "nothing was heard for too long")
                return
            if self._liveness.wants_ping(now):
                self._answer(m.Ping())
            if not self._tokens.is_valid(self._principal):
                await self._leave(c.CLOSE_POLICY, "the token was revoked")
                return

    async def _leave(self, code: int, reason: str) -> None:
        """Close, without waiting for a client that does not read."""
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            await asyncio.wait_for(self._websocket.close(code, reason), 1.0)
