"""The gateway's settings, and what it tells the programs it starts.

Defaults are sizes a shared GPU host can give to every session at once; each limit names its reason.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

MiB = 1024 * 1024
GiB = 1024 * MiB
Level = Literal["strict", "user", "none"]


class Limits(msgspec.Struct, frozen=True):
    """What one worker may use."""

    memory_bytes: int = 16 * GiB
    workspace_bytes: int = 8 * GiB  # tmpfs: counts as memory once written
    tmp_bytes: int = 4 * GiB
    shm_bytes: int = 4 * GiB  # PyTorch's DataLoader passes batches through /dev/shm
    processes: int = 2048  # threads count too: one torch process with 64 cores starts hundreds
    open_files: int = 8192


class Device(msgspec.Struct, frozen=True):
    """A GPU of this machine. ``minor`` names its node, /dev/nvidia<minor>; ``None`` for a simulated one."""

    uuid: str
    name: str
    index: int
    memory_bytes: int
    minor: int | None = None
    arch: str = ""  # as compilers call it: sm_90a

    @property
    def is_simulated(self) -> bool:
        """Whether there is no such GPU."""
        return self.minor is None


class HostSpec(msgspec.Struct, frozen=True):
    """What a worker host is told on its standard input: never on its command line, which anybody may read."""

    socket: str
    ticket: str
    level: Level
    limits: Limits
    devices: tuple[Device, ...] = ()
    uid: int = 0  # of the sandbox's user in the strict layout
    python: str = sys.executable
    folder: str = ""  # the principal's blobs: files for the workspace are read there, large results written
    tools: tuple[str, ...] = ()  # folders of programs that come first on the worker's PATH
    cgroup: str | None = None  # a folder below which the host may make one with limits
    interrupt_patience_s: float = 5.0  # after which a stuck interpreter is looked at
    is_for_programs: bool = False  # it starts without IPython, and reads the principal's files where they lie


@dataclass(frozen=True)
class Config:
    """All of a gateway's settings."""

    state_dir: Path
    host: str | None = "127.0.0.1"  # None: the unix socket only
    port: int = 7878
    tls_cert: Path | None = None
    tls_key: Path | None = None
    is_insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    sandbox: Level | Literal["auto"] = "auto"
    simulate_gpus: int = 0
    is_embedded: bool = False
    pythons: tuple[tuple[str, str], ...] = ()  # interpreter environments by name, beside the gateway's own
    tools: tuple[str, ...] = ()  # folders of programs for workers: profilers, compilers
    limits: Limits = field(default_factory=Limits)
    uid_base: int = 300_000  # above what distributions give to people and services
    disconnect_s: float = 3600.0
    disconnect_named_s: float = 12 * 3600.0
    idle_exit_s: float = 60.0  # an embedded gateway without clients and sessions ends after this
    kill_after_s: float = 5.0  # from a timeout's interrupt to its kill
    stream_bytes: int = 256 * MiB  # of one execution's text kept in full
    tail_bytes: int = 16 * MiB  # of what comes after
    max_sessions: int = 64  # of one principal
    cpu_workers: int = field(default_factory=lambda: default_cpu_workers())  # places without a GPU
    gpu_workers: int = 8  # places for each GPU: what has the turn computes, the others load and compile
    max_queued: int = 1000  # executions of one session, or of one principal without a session
    max_queued_bytes: int = 128 * MiB  # of the sources of a principal's executions without a session
    artifact_bytes: int = 50 * GiB  # files and values on their way, of one principal
    journal_days: float = 14.0
    journal_bytes: int = 4 * GiB  # of one principal
    record_days: float = 90.0
    record_count: int = 10_000  # of one principal

    @property
    def socket_path(self) -> Path:
        """Where clients of this machine come in."""
        return self.state_dir / "gateway.sock"

    @property
    def hosts_path(self) -> Path:
        """Where worker hosts of this machine dial in."""
        return self.state_dir / "hosts.sock"

    @property
    def tokens_path(self) -> Path:
        """The hashed tokens."""
        return self.state_dir / "tokens.json"

    @property
    def journals_dir(self) -> Path:
        """The executions' events, one folder for each principal."""
        return self.state_dir / "journals"

    @property
    def records_dir(self) -> Path:
        """What ended executions leave behind, one file for each principal."""
        return self.state_dir / "records"

    @property
    def artifacts_dir(self) -> Path:
        """Files and values on their way, one folder for each principal."""
        return self.state_dir / "artifacts"

    @property
    def run_path(self) -> Path:
        """What says how to reach a running gateway: address and process id, 0600."""
        return self.state_dir / "gateway.json"


def default_cpu_workers() -> int:
    """Twice the cores, since some wait; on a small machine four."""
    return max(4, 2 * (os.cpu_count() or 1))


def default_state_dir() -> Path:
    """``KCORAL_GATEWAY_STATE``, or the user's state folder (XDG base directory specification)."""
    if given := os.environ.get("KCORAL_GATEWAY_STATE"):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "kcoral-gateway"
