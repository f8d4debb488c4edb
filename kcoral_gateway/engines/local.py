"""The engine of one machine: worker hosts as child processes, and one spare for each principal's last shape.

A spare's sandbox is bound to its GPUs when it starts, so it is made for the GPUs that the principal's next session
would get, and ``reserve`` prefers GPUs a spare waits for. A spare holds no GPU: it has not touched one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from logging import getLogger

import msgspec

from kcoral_gateway.config import Config, Device, HostSpec, Level
from kcoral_gateway.engines.base import Lease, Shape
from kcoral_gateway.engines.cgroups import prepare

_log = getLogger(__name__)
_DEATH_S = 10.0  # for a killed process to be gone


@dataclass
class _Host:
    ticket: str
    shape: Shape
    uid: int
    process: asyncio.subprocess.Process
    watcher: asyncio.Task[None] | None = field(default=None)


class LocalEngine:
    """Worker hosts on the gateway's own machine."""

    def __init__(self, config: Config, level: Level, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        self._config = config
        self._level: Level = level
        self._busy: set[str] = set()
        self._hosts: dict[str, _Host] = {}
        self._spares: dict[str, str] = {}  # principal -> ticket
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._callback: Callable[[str], None] = lambda ticket: None
        self._is_closing = False
        self._uids: set[int] = set()
        self._cgroup = prepare() if level != "none" else None

    def on_host_exit(self, callback: Callable[[str], None]) -> None:
        """Call back with the ticket of each host process that has ended."""
        self._callback = callback

    def reserve(self, principal: str, gpu_count: int) -> tuple[Device, ...]:
        """Free GPUs, those of the principal's spare first; in inventory order, so that equal asks get equal sets."""
        found = self._pick(principal, gpu_count)
        self._busy.update(device.uuid for device in found)
        return found

    def _pick(self, principal: str, gpu_count: int) -> tuple[Device, ...]:
        free = [device for device in self.devices if device.uuid not in self._busy]
        spare = self._hosts.get(self._spares.get(principal, ""))
        if spare is not None and len(spare.shape.devices) == gpu_count and set(spare.shape.devices) <= set(free):
            return spare.shape.devices
        return tuple(free[:gpu_count])

    def release(self, devices: tuple[Device, ...]) -> None:
        """Give GPUs back."""
        self._busy.difference_update(device.uuid for device in devices)

    async def start(self, shape: Shape) -> Lease:
        """A spare of this shape, or a new host."""
        spare = self._hosts.get(self._spares.get(shape.principal, ""))
        if spare is not None and spare.shape == shape:
            del self._spares[shape.principal]
            return Lease(spare.ticket)
        return Lease((await self._spawn(shape)).ticket)

    def keep_spare(self, shape: Shape) -> None:
        """Start a spare in the background, in place of one of another shape."""
        devices = self._pick(shape.principal, len(shape.devices))
        if len(devices) < len(shape.devices) or self._is_closing:
            return  # all GPUs are taken: whoever comes next waits longer than a start takes
        wanted = replace(shape, devices=devices)
        spare = self._hosts.get(self._spares.get(shape.principal, ""))
        if (spare is not None and spare.shape == wanted) or shape.principal in self._starting:
            return
        task = asyncio.create_task(self._replace_spare(wanted))
        self._starting[shape.principal] = task
        task.add_done_callback(lambda _: self._starting.pop(shape.principal, None))

    async def _replace_spare(self, shape: Shape) -> None:
        old = self._spares.pop(shape.principal, None)
        if old is not None:
            self.drop(old)
        try:
            host = await self._spawn(shape)
        except OSError as error:
            _log.warning("no spare worker could be started", extra={"error": str(error)})
            return
        self._spares[shape.principal] = host.ticket

    async def _spawn(self, shape: Shape) -> _Host:
        uid = self._free_uid()
        self._uids.add(uid)  # before anything is awaited: another start may ask meanwhile
        spec = HostSpec(
            socket=str(self._config.hosts_path),
            ticket=secrets.token_urlsafe(16),
            level=self._level,
            limits=self._config.limits,
            devices=shape.devices,
            python=shape.python,
            uid=uid,
            folder=shape.folder,
            cgroup=self._cgroup,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kcoral_gateway.host",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            cwd="/" if self._level != "none" else None,
            env={name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")},
            start_new_session=True,  # a Ctrl-C at the gateway's terminal is not theirs
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError, BrokenPipeError):  # it died at once: its watcher tells
            process.stdin.write(msgspec.json.encode(spec))
            process.stdin.close()
        host = _Host(spec.ticket, shape, spec.uid, process)
        self._hosts[spec.ticket] = host
        host.watcher = asyncio.create_task(self._watch(host))
        return host

    def _free_uid(self) -> int:
        uid = self._config.uid_base
        while uid in self._uids:
            uid += 1
        return uid

    async def _watch(self, host: _Host) -> None:
        code = await host.process.wait()
        self._hosts.pop(host.ticket, None)
        self._uids.discard(host.uid)
        if self._spares.get(host.shape.principal) == host.ticket:
            del self._spares[host.shape.principal]
        _log.info("host ended", extra={"ticket": host.ticket[:6], "exit_code": code})
        self._callback(host.ticket)

    def drop_spare(self, principal: str) -> None:
        """End the spare of a principal who has left."""
        if (ticket := self._spares.get(principal)) is not None:
            self.drop(ticket)

    def drop(self, ticket: str) -> None:
        """End a host; its sandbox dies with it."""
        host = self._hosts.get(ticket)
        if host is not None and host.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                host.process.terminate()  # it ends its worker, tidies up and goes

    async def ended(self, ticket: str) -> None:
        """Until this host's process has ended, at most ``_DEATH_S``."""
        host = self._hosts.get(ticket)
        if host is not None and host.watcher is not None:
            await asyncio.wait({host.watcher}, timeout=_DEATH_S)

    async def close(self) -> None:
        """End every host and wait until all are gone."""
        self._is_closing = True
        for task in list(self._starting.values()):
            task.cancel()
        watchers = [host.watcher for host in self._hosts.values() if host.watcher is not None]
        for ticket in list(self._hosts):
            self.drop(ticket)
        if watchers:
            await asyncio.wait(watchers, timeout=_DEATH_S)
        for host in self._hosts.values():  # stuck, say in a driver: it goes when the kernel lets it
            with contextlib.suppress(ProcessLookupError):
                host.process.kill()
