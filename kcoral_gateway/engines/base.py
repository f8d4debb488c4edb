"""What the gateway needs of an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kcoral_gateway.config import Device


@dataclass(frozen=True)
class Shape:
    """What fixes a worker's sandbox when it starts; a spare fits only its own shape."""

    principal: str
    devices: tuple[Device, ...] = ()
    python: str = sys.executable
    folder: str = ""  # of the principal's blobs
    is_for_programs: bool = False


@dataclass(frozen=True)
class Lease:
    """A worker host that was started for somebody. It dials in with ``ticket``."""

    ticket: str


class Engine(Protocol):
    """Starts worker hosts and finds GPUs."""

    devices: tuple[Device, ...]

    def choose(self, principal: str, gpu_count: int, free: Sequence[str], *, is_for_programs: bool) -> tuple[str, ...]:
        """Which of the free GPUs (there are enough) suit best: those that a worker is ready for."""

    async def start(self, shape: Shape) -> Lease:
        """A worker host of this shape, a spare one if there is one."""

    def keep_spare(self, shape: Shape, free: Sequence[str], count: int = 1) -> None:
        """See that so many wait for the principal's next sessions (or programs) like this one, on free GPUs."""

    def drop_spare(self, principal: str) -> None:
        """End the spare of a principal who has left."""

    def drop(self, ticket: str) -> None:
        """This host is no longer wanted, or has gone."""

    async def ended(self, ticket: str) -> None:
        """Until this host's process has ended; with a bound, since a hung driver can keep a process for ever."""

    def on_host_exit(self, callback: Callable[[str], None]) -> None:
        """Call back with the ticket of each host process that has ended."""

    async def close(self) -> None:
        """End every host."""
