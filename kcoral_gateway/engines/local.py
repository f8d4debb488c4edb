"""The engine of one machine: worker hosts as child processes, and spares for each principal's last shape.

A spare's sandbox is bound to its GPUs when it starts, so it is made for the GPUs that the principal's next session
would get, and ``choose`` prefers GPUs a spare waits for. A spare holds no GPU: it has not touched one. Programs have
spares of their own, as many as run at once.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger

import msgspec

from kcoral_gateway.config import Config, Device, HostSpec, Level
from kcoral_gateway.engines.base import Lease, Shape
from kcoral_gateway.engines.cgroups import prepare
from kcoral_gateway.engines.zygote import Host, Zygote

_log = getLogger(__name__)
_DEATH_S = 10.0  # for a killed process to be gone


@dataclass
class _Host:
    ticket: str
    shape: Shape
    uid: int
    process: Host
    watcher: asyncio.Task[None] | None = field(default=None)


class LocalEngine:
    """Worker hosts on the gateway's own machine."""

    def __init__(self, config: Config, level: Level, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        self._config = config
        self._level: Level = level
        self._hosts: dict[str, _Host] = {}
        self._spares: dict[tuple[str, bool], list[str]] = {}  # principal, for programs -> tickets
        self._starting: Counter[tuple[str, bool]] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callback: Callable[[str], None] = lambda ticket: None
        self._is_closing = False
        self._uids: set[int] = set()
        self._zygote = Zygote("/" if level != "none" else None)
        self._cgroup = prepare() if level != "none" else None

    def on_host_exit(self, callback: Callable[[str], None]) -> None:
        """Call back with the ticket of each host process that has ended."""
        self._callback = callback

    def choose(self, principal: str, gpu_count: int, free: Sequence[str], *, is_for_programs: bool) -> tuple[str, ...]:
        """The GPUs of a spare; else those that the fewest workers are bound to, in inventory order."""
        for spare in self._spares_of(principal, is_for_programs):
            bound = [device.uuid for device in spare.shape.devices]
            if len(bound) == gpu_count and set(bound) <= set(free):
                return tuple(bound)
        return self._least_loaded(gpu_count, free)

    def _least_loaded(self, gpu_count: int, free: Sequence[str]) -> tuple[str, ...]:
        loads = Counter(device.uuid for host in self._hosts.values() for device in host.shape.devices)
        return tuple(sorted(free, key=lambda uuid: loads[uuid])[:gpu_count])

    def _spares_of(self, principal: str, is_for_programs: bool) -> list[_Host]:
        tickets = self._spares.get((principal, is_for_programs), [])
        return [self._hosts[ticket] for ticket in tickets if ticket in self._hosts]

    async def start(self, shape: Shape) -> Lease:
        """A spare of this shape, or a new host."""
        for spare in self._spares_of(shape.principal, shape.is_for_programs):
            if spare.shape == shape:
                self._spares[shape.principal, shape.is_for_programs].remove(spare.ticket)
                return Lease(spare.ticket)
        return Lease((await self._spawn(shape)).ticket)

    def keep_spare(self, shape: Shape, free: Sequence[str], count: int = 1) -> None:
        """Start spares in the background, in place of those of another shape."""
        key, gpu_count = (shape.principal, shape.is_for_programs), len(shape.devices)
        if self._is_closing or gpu_count > len(free):
            return  # all GPUs are taken: whoever comes next waits longer than a start takes
        uuids = self.choose(shape.principal, gpu_count, free, is_for_programs=shape.is_for_programs)
        wanted = self._on(shape, uuids)
        kept: Counter[int] = Counter()  # by number of GPUs
        for spare in self._spares_of(*key):
            number = len(spare.shape.devices)
            is_like = spare.shape == (
                wanted if not shape.is_for_programs else replace(shape, devices=spare.shape.devices)
            )
            if is_like and (number == gpu_count or not kept[number]):  # of other numbers one each
                kept[number] += 1
            else:
                self._spares[key].remove(spare.ticket)
                self.drop(spare.ticket)
        for _ in range(count - kept[gpu_count] - self._starting[key]):
            if shape.is_for_programs:  # spread: each GPU's programs load while another one computes
                wanted = self._on(shape, self._least_loaded(gpu_count, free))
            self._starting[key] += 1
            task = asyncio.create_task(self._start_spare(wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _on(self, shape: Shape, uuids: Sequence[str]) -> Shape:
        return replace(shape, devices=tuple(device for device in self.devices if device.uuid in uuids))

    async def _start_spare(self, shape: Shape) -> None:
        key = (shape.principal, shape.is_for_programs)
        try:
            host = await self._spawn(shape)
            self._spares.setdefault(key, []).append(host.ticket)
        except OSError as error:
            _log.warning("no spare worker could be started", extra={"error": str(error)})
        finally:
            self._starting[key] -= 1

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
            tools=self._config.tools,
            is_for_programs=shape.is_for_programs,
            cgroup=self._cgroup,
        )
        try:
            process = await self._zygote.fork(msgspec.json.encode(spec))
        except BaseException:
            self._uids.discard(uid)
            raise
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
        await host.process.wait()
        self._hosts.pop(host.ticket, None)
        self._uids.discard(host.uid)
        spares = self._spares.get((host.shape.principal, host.shape.is_for_programs), [])
        if host.ticket in spares:
            spares.remove(host.ticket)
        _log.info("host ended", extra={"ticket": host.ticket[:6]})
        self._callback(host.ticket)

    def drop_spare(self, principal: str) -> None:
        """End the spares of a principal who has left."""
        for is_for_programs in (False, True):
            for ticket in self._spares.pop((principal, is_for_programs), []):
                self.drop(ticket)

    def drop(self, ticket: str) -> None:
        """End a host; its sandbox dies with it."""
        host = self._hosts.get(ticket)
        if host is not None:
            host.process.signal(signal.SIGTERM)  # it ends its worker, tidies up and goes

    async def ended(self, ticket: str) -> None:
        """Until this host's process has ended, at most ``_DEATH_S``."""
        host = self._hosts.get(ticket)
        if host is not None and host.watcher is not None:
            await asyncio.wait({host.watcher}, timeout=_DEATH_S)

    async def close(self) -> None:
        """End every host and wait until all are gone."""
        self._is_closing = True
        for task in list(self._tasks):
            task.cancel()
        watchers = [host.watcher for host in self._hosts.values() if host.watcher is not None]
        for ticket in list(self._hosts):
            self.drop(ticket)
        if watchers:
            await asyncio.wait(watchers, timeout=_DEATH_S)
        for host in self._hosts.values():  # stuck, say in a driver: it goes when the kernel lets it
            host.process.signal(signal.SIGKILL)
        self._zygote.close()
