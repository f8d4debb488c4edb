"""The process that worker hosts are forked from, as the gateway sees it; ``host/zygote.py`` is its inside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys

_TRIES = 3
_FORK_S = 30.0  # a machine that takes longer to fork is out of memory


class Host:
    """A forked host. The descriptor names the process for as long as we hold it, and is readable once it has ended."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(descriptor, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set_result(None)

    async def wait(self) -> None:
        """Until it has ended."""
        await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Zygote:
    """Starts with the first host, and again if it has died."""

    def __init__(self, cwd: str | None) -> None:
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def fork(self, spec: bytes) -> Host:
        """A host with this spec.

        Raises:
            OSError: None can be started.
        """
        async with self._lock:
            for _ in range(_TRIES - 1):
                with contextlib.suppress(OSError):
                    return await self._ask(spec)
                self.close()  # it has died: another one
            return await self._ask(spec)

    async def _ask(self, spec: bytes) -> Host:
        if self._channel is None:
            self._start()
        channel = self._channel
        assert channel is not None
        channel.send(spec)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(channel.fileno(), _done, answered)
        try:
            await asyncio.wait_for(answered, _FORK_S)
        except BaseException:  # its answer would be taken for the next one's
            self.close()
            raise
        finally:
            if channel.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(channel.fileno())
        data, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
        if not data or not descriptors:
            raise ConnectionResetError("the process that starts worker hosts has ended")
        return Host(descriptors[0])

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kcoral_gateway.host"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd=self._cwd,
                env={name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")},
                start_new_session=True,  # a Ctrl-C at the gateway's terminal is not theirs
            )
        self._channel = ours

    def close(self) -> None:
        """Fork no more. Hosts that run are not touched."""
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
        self._channel = None
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self._process = None
