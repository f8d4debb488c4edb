"""The composition root: builds every part of a gateway from one ``Config``, serves, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from logging import getLogger
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kcoral_gateway.auth import TokenStore
from kcoral_gateway.config import Config, Device, GiB, Level
from kcoral_gateway.endpoints.guard import Guard
from kcoral_gateway.endpoints.health import Health
from kcoral_gateway.endpoints.hosts import HostLink
from kcoral_gateway.endpoints.kcoral_http import KCoralHttp
from kcoral_gateway.endpoints.websocket import Clients
from kcoral_gateway.engines.local import LocalEngine
from kcoral_gateway.execution.service import Service
from kcoral_magic.errors import SandboxUnavailable, UsageError
from kcoral_magic.protocol import __version__, framing

_log = getLogger(__name__)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ASK_S = 60.0
_SO_PEERCRED_BYTES = 12  # struct ucred: pid, uid, gid


class _Http(HttpToolsProtocol):
    """uvicorn's, with the unix peer's user id in the scope's state: it is not in the ASGI scope by itself."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        self.app_state = {**self.app_state, "peer_uid": _peer_uid(transport)}


def _peer_uid(transport: asyncio.Transport) -> int | None:
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family != socket.AF_UNIX:
        return None
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED_BYTES)
    return int.from_bytes(credentials[4:8], sys.byteorder)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the gateway's."""
        yield


async def _ask_host(*arguments: str) -> Any:
    """One question to the host program, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kcoral_gateway.host", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), _ASK_S)
    except TimeoutError:  # a hanging driver must not hang the gateway
        process.kill()
        raise SandboxUnavailable(f"the host program did not answer {' '.join(arguments)} within {_ASK_S:g} s") from None
    if process.returncode != 0:
        raise SandboxUnavailable(f"the host program failed on {' '.join(arguments)}: exit code {process.returncode}")
    return json.loads(out)


async def find_level(config: Config) -> tuple[Level, str]:
    """The isolation to run with, and what was found.

    Raises:
        SandboxUnavailable: What was asked for (or, for a shared gateway, anything) does not hold.
    """
    if config.sandbox == "none":
        return "none", "asked for"
    found = await _ask_host("check", config.sandbox, str(config.uid_base))
    level: Level = found["level"]
    report = "; ".join(f"{name}: {', '.join(failed) or 'holds'}" for name, failed in found["found"].items())
    if level == "none" and not (config.is_embedded and config.sandbox == "auto"):
        raise SandboxUnavailable(
            f"no sandbox of level {config.sandbox!r} holds here ({report}): mend that, or say --sandbox none to run "
            "other people's code as this user"
        )
    return level, report


async def find_devices(config: Config) -> tuple[tuple[Device, ...], str]:
    """The GPUs, real or asked for as simulated."""
    if config.simulate_gpus:
        return tuple(
            Device(f"GPU-simulated-{index}", "Simulated GPU", index, 16 * GiB) for index in range(config.simulate_gpus)
        ), "simulated"
    found = await _ask_host("inventory")
    return tuple(msgspec.convert(found["gpus"], list[Device])), found["reason"]


class Gateway:
    """A running gateway. Use as ``async with Gateway.start(config) as gateway``."""

    def __init__(self, config: Config, service: Service, clients: Clients, engine: LocalEngine, app: Guard) -> None:
        self.config = config
        self.service = service
        self.clients = clients
        self.engine = engine
        self.app = app
        self.port = 0
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, config: Config) -> AsyncIterator[Gateway]:
        """Serve until the block ends."""
        check_addresses(config)
        try:
            config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the state folder cannot be made: {error}") from None
        _check_private(config.state_dir)
        with _lock(config.state_dir / "lock"):
            level, report = await find_level(config)
            devices, why_none = await find_devices(config)
            _log.info("isolation", extra={"sandbox": level, "report": report})
            _log.info("gpus", extra={"count": len(devices), "note": why_none})
            engine = LocalEngine(config, level, devices)
            service = Service(config, engine)
            instance = secrets.token_hex(8)
            clients = Clients(
                service,
                TokenStore(config.tokens_path),
                own_uid=os.geteuid(),
                instance=instance,
                level=level,
                is_simulated=bool(config.simulate_gpus),
            )
            details: dict[str, object] = {
                "version": __version__,
                "sandbox": level,
                "is_simulated": bool(config.simulate_gpus),
            }
            routes = [
                Route("/health", Health(clients, instance, devices[0].arch if devices else "", details).serve),
                WebSocketRoute("/ws", clients.serve),
                Route("/execute", KCoralHttp(clients).execute, methods=["POST"]),
            ]
            is_open = config.host is not None and config.host not in _LOOPBACK
            app = Starlette(routes=routes, exception_handlers={404: _plain_problem, 405: _plain_problem})
            guard = Guard(app, _names(config), allows_addresses=is_open)
            _log.info("names served", extra={"names": ["localhost", *_names(config)], "addresses": is_open})
            gateway = cls(config, service, clients, engine, guard)
            try:
                async with gateway._serving():
                    yield gateway
            finally:
                await engine.close()

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        config = self.config
        loop = asyncio.get_running_loop()
        for path in (config.hosts_path, config.socket_path):
            path.unlink(missing_ok=True)
        hosts = await loop.create_unix_server(lambda: HostLink(self.service), str(config.hosts_path))
        config.hosts_path.chmod(0o600)
        await self._listen(uds=str(config.socket_path))
        config.socket_path.chmod(0o600)
        if config.host is not None:
            try:
                listener = socket.create_server((config.host, config.port), family=_family(config.host))
            except (OSError, OverflowError) as error:
                await self._stop_servers()
                hosts.close()
                raise UsageError(f"{config.host}:{config.port} cannot be listened on: {error}") from None
            self.port = listener.getsockname()[1]
            await self._listen(
                listener,
                ssl_certfile=str(config.tls_cert) if config.tls_cert else None,
                ssl_keyfile=str(config.tls_key) if config.tls_key else None,
            )
        self._write_run_file()
        try:
            yield
        finally:
            config.run_path.unlink(missing_ok=True)
            await self.service.close()
            await self.clients.close()
            await self._stop_servers()
            hosts.close()
            for path in (config.hosts_path, config.socket_path):
                path.unlink(missing_ok=True)

    async def _stop_servers(self) -> None:
        for server, task in self._servers:
            server.should_exit = True
            server.force_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self, listener: socket.socket | None = None, **options: Any) -> None:
        server = _Server(
            uvicorn.Config(
                self.app,
                http=_Http,
                ws="websockets-sansio",
                ws_max_size=framing.MAX_FRAME_BYTES,
                ws_per_message_deflate=False,  # facts: 20–30 times slower, and a way to send bombs
                ws_ping_interval=None,  # protocol.connection.Liveness asks the application, not the library
                lifespan="off",
                server_header=False,
                log_config=None,
                timeout_graceful_shutdown=1,
                **options,
            )
        )
        task = asyncio.create_task(server.serve([listener] if listener is not None else None))
        while not server.started:
            if task.done():
                task.result()
                raise UsageError("the address cannot be served")
            await asyncio.sleep(0.005)
        self._servers.append((server, task))

    def _write_run_file(self) -> None:
        """How this machine's clients find us; the folder is closed to others."""
        scheme = "wss" if self.config.tls_cert else "ws"
        content = {
            "pid": os.getpid(),
            "socket": str(self.config.socket_path),
            "url": f"{scheme}://{self.config.host}:{self.port}" if self.config.host is not None else None,
            "version": __version__,
        }
        descriptor, name = tempfile.mkstemp(dir=self.config.state_dir)  # 0600
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file)
        os.replace(name, self.config.run_path)  # whole or not at all: clients wait for it

    async def until_stopped(self) -> None:
        """Until SIGTERM or SIGINT, or, for an embedded gateway, until nobody needs it."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        idle_since = time.monotonic()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            if not self.service.is_idle:
                idle_since = time.monotonic()
            elif self.config.is_embedded and time.monotonic() - idle_since > self.config.idle_exit_s:
                _log.info("nobody needs this embedded gateway any more")
                return
        _log.info("shutting down")


async def _plain_problem(request: Request, error: Exception) -> JSONResponse:
    status, text = getattr(error, "status_code", 500), getattr(error, "detail", "")
    return JSONResponse({"detail": text}, status, getattr(error, "headers", None))


def check_addresses(config: Config) -> None:
    """Beyond loopback only with TLS, or when told so.

    Raises:
        UsageError: The combination would send tokens in the clear.
    """
    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError("--tls-cert and --tls-key go together")
    if config.tls_cert:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_cert, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the certificate or key cannot be read: {error}") from None
    if config.host is None or config.host in _LOOPBACK:
        return
    if not config.tls_cert and not config.is_insecure:
        raise UsageError(
            f"{config.host} is reachable from elsewhere: give --tls-cert and --tls-key, tunnel to 127.0.0.1 by ssh, "
            "or say --insecure to send tokens and code unencrypted"
        )


def _names(config: Config) -> list[str]:
    host = config.host
    if host is None:
        return list(config.allowed_hosts)
    own = [] if host in _LOOPBACK else [socket.gethostname()]
    return [*config.allowed_hosts, *own, f"[{host}]" if ":" in host else host]


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(f"{folder} must belong to you alone (chmod 700): tokens, journals and the socket are in it")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One gateway for a state folder."""
    import fcntl

    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a gateway runs already on {path.parent}: see gateway.json there") from None
        yield
