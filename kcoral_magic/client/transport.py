"""Websocket I/O around ``protocol.connection``: connect, resume after any loss, and know when a path is dead.

The first connection must succeed; a configured gateway that does not answer is an error, never a fallback. After
that a lost path is retried with growing pauses for ``give_up_s``: what runs goes on meanwhile and its output waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from websockets.asyncio.client import ClientConnection as Websocket
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from kcoral_magic.client import embedded
from kcoral_magic.config import Target
from kcoral_magic.errors import AuthenticationError, GatewayUnreachable, KCoralError, ProtocolError, UsageError
from kcoral_magic.protocol import connection as c
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)
OPEN_S = 10.0
GIVE_UP_S = 3600.0  # the gateway keeps an own session as long (disconnect_s)
_PAUSES_S = (0.1, 0.3, 1.0, 2.0, 5.0)


class Transport:
    """One client's path to its gateway. All methods belong to one event loop."""

    def __init__(
        self,
        target: Target,
        connection: c.ClientConnection,
        on_message: Callable[[c.Incoming], None],
        on_state: Callable[[float | None, str], None],
        on_dead: Callable[[KCoralError], None],
        *,
        ping_after_s: float = c.PING_AFTER_S,
        dead_after_s: float = c.DEAD_AFTER_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._target = target
        self._connection = connection
        self._on_message = on_message
        self._on_state = on_state
        self._on_dead = on_dead
        self._liveness_s = (ping_after_s, dead_after_s)
        self._give_up_s = give_up_s
        self._websocket: Websocket | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._liveness: c.Liveness | None = None
        self.pending: dict[object, list[bytes]] = {}  # sent again after a reconnect, until whoever put it takes it out

    @property
    def is_connected(self) -> bool:
        """Whether a websocket is open now."""
        return self._websocket is not None

    async def open(self) -> None:
        """Connect for the first time.

        Raises:
            GatewayUnreachable: Nothing answers.
            AuthenticationError: The credential does not hold.
            ProtocolError: What answers is no gateway of a version we speak.
        """
        websocket = await self._connect()
        self._task = asyncio.create_task(self._run(websocket))

    async def send(self, frames: Sequence[bytes]) -> None:
        """Send now if there is a path; if not, resuming will (executions and ``pending``)."""
        websocket = self._websocket
        if websocket is None:
            return
        with contextlib.suppress(ConnectionClosed):  # the reader notices too, and resumes
            async with self._lock:
                for frame in frames:
                    await websocket.send(frame)

    async def close(self) -> None:
        """Leave; the gateway keeps named sessions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._websocket is not None:
            await self._websocket.close()
            self._websocket = None

    async def _connect(self) -> Websocket:
        target = self._target
        options: dict[str, Any] = {
            "subprotocols": [m.SUBPROTOCOL],
            "compression": None,
            "max_size": framing.MAX_FRAME_BYTES,
            "ping_interval": None,  # Liveness asks the application instead
            "open_timeout": OPEN_S,
            "close_timeout": 1.0,
        }
        if target.token:
            options["additional_headers"] = {"Authorization": f"Bearer {target.token}"}
        try:
            if target.url is None:
                path = await asyncio.to_thread(embedded.ensure, target.gateway_options)
                websocket = await unix_connect(path, "ws://localhost/ws", **options)
            else:
                if target.url.startswith("wss:"):
                    options["ssl"] = _tls(target.ca)
                websocket = await connect(f"{target.url}/ws", proxy=None, **options)
        except InvalidStatus as error:
            raise _refused(target, error) from None
        except (OSError, TimeoutError, InvalidHandshake, ssl.SSLError) as error:
            raise GatewayUnreachable(f"{target.shown} does not answer: {error or type(error).__name__}") from None
        try:
            await websocket.send(self._connection.hello())
            frame = await asyncio.wait_for(websocket.recv(), OPEN_S)
            resume = self._connection.opened(_binary(frame))
        except (ConnectionClosed, TimeoutError) as error:
            websocket.transport.abort()
            raise GatewayUnreachable(f"{target.shown} closed the connection: {error}") from None
        except ProtocolError:
            websocket.transport.abort()
            raise
        self._liveness = c.Liveness(
            time.monotonic(), ping_after_s=self._liveness_s[0], dead_after_s=self._liveness_s[1]
        )
        async with self._lock:
            try:
                for frames in (resume, *self.pending.values()):
                    for frame in frames:
                        await asyncio.wait_for(websocket.send(frame), OPEN_S)
            except (ConnectionClosed, TimeoutError) as error:
                websocket.transport.abort()
                raise GatewayUnreachable(f"{target.shown} closed the connection: {error}") from None
            self._websocket = websocket
        return websocket

    async def _run(self, websocket: Websocket) -> None:
        while True:
            why = await self._receive(websocket)
            self._websocket = None
            self._connection.closed()
            websocket.transport.abort()
            if websocket.close_code == c.CLOSE_PROTOCOL:  # what it refused would be sent again, and refused again
                self._on_dead(ProtocolError(f"the gateway refused a message of this client ({why})"))
                return
            lost_s = time.monotonic()
            self._on_state(0.0, why)
            found = await self._reconnect(lost_s, why)
            if found is None:
                return
            websocket = found
            self._on_state(None, "")

    async def _receive(self, websocket: Websocket) -> str:
        """Pass messages on until the path is lost; why it was."""
        ticker = asyncio.create_task(self._tick(websocket))
        try:
            async for frame in websocket:
                assert self._liveness is not None
                self._liveness.heard(time.monotonic())
                message = self._connection.receive(_binary(frame))
                if message is None:
                    continue
                if isinstance(message.body, m.Ping):
                    await self.send(framing.encode(m.Pong()))
                elif not isinstance(message.body, m.Pong):
                    self._pass_on(message)
            return f"closed: {websocket.close_reason or websocket.close_code}"
        except ConnectionClosed as error:
            return f"closed: {error.rcvd.reason if error.rcvd and error.rcvd.reason else error}"
        except ProtocolError as error:
            return str(error)
        finally:
            ticker.cancel()

    def _pass_on(self, message: c.Incoming) -> None:
        try:
            self._on_message(message)
        except Exception:  # noqa: BLE001 - a reader of one cell that fails must not take the connection from the others
            _log.exception("an output could not be passed on")

    async def _tick(self, websocket: Websocket) -> None:
        interval_s = min(1.0, self._liveness_s[0] / 2)
        while True:
            await asyncio.sleep(interval_s)
            assert self._liveness is not None
            now = time.monotonic()
            if self._liveness.is_dead(now):
                websocket.transport.abort()
                return
            if self._liveness.wants_ping(now):
                await self.send(framing.encode(m.Ping()))

    async def _reconnect(self, lost_s: float, why: str) -> Websocket | None:
        attempt = 0
        while True:
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
            try:
                return await self._connect()
            except (AuthenticationError, ProtocolError) as error:
                self._on_dead(error)
                return None
            except KCoralError as error:
                away_s = time.monotonic() - lost_s
                if away_s > self._give_up_s:
                    self._on_dead(GatewayUnreachable(f"{error}; gave up after {away_s:.0f} s (the first loss: {why})"))
                    return None
                self._on_state(away_s, str(error))


def _tls(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"the certificate authority file {ca} cannot be read: {error}") from None


def _refused(target: Target, error: InvalidStatus) -> KCoralError:
    status = error.response.status_code
    if status >= 500:  # a proxy whose gateway is being restarted
        return GatewayUnreachable(f"{target.shown} answered HTTP {status}")
    body = bytes(error.response.body or b"")[:200].decode("utf-8", "replace")
    if status == 401:
        what = "does not accept the token" if target.token else "wants a token, none was given"
        return AuthenticationError(f"{target.shown} {what}: `kcoral-magic connect {target.url or 'URL'}` stores one")
    return ProtocolError(f"{target.shown} answered HTTP {status}: {body or 'is it a kcoral gateway?'}")


def _binary(frame: str | bytes) -> bytes:
    if isinstance(frame, str):
        raise ProtocolError("frames are binary, got a text frame")
    return frame
