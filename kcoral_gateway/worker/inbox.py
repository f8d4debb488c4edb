"""What the host sends, message by message, for whoever waits: the worker's loop, or a body that wants something."""

from __future__ import annotations

import os
import select
import socket
from collections import deque

from kcoral_gateway.worker.interrupts import Interrupts
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_READ_BYTES = 64 * 1024  # below malloc's mmap threshold: a larger buffer would be mapped anew at every read
_BUSY_BYTES = 1024 * 1024  # while a file or a large parcel is on its way
_DESCRIPTORS = 4


class HostGone(Exception):
    """The host has hung up: the worker ends."""


class Inbox:
    """The worker's end of its channel, for reading. One reader at a time: bodies run one by one."""

    def __init__(self, channel: socket.socket, interrupts: Interrupts) -> None:
        self._channel = channel
        self._interrupts = interrupts
        self._splitter = framing.StreamSplitter()
        self._decoder = framing.Decoder[m.ToWorker](m.ToWorker)
        self._messages: deque[framing.Message[m.ToWorker]] = deque()
        self._descriptors: deque[int] = deque()

    def next(self) -> framing.Message[m.ToWorker]:
        """The next message.

        Raises:
            HostGone: There will be none.
            KeyboardInterrupt: While a body waits; nothing that was read is lost.
        """
        while not self._messages:
            if self._interrupts.is_running:  # a signal must not fall between a read and its keeping
                select.select([self._channel], [], [])
                with self._interrupts.held():
                    data, descriptors, _, _ = socket.recv_fds(self._channel, self._size, _DESCRIPTORS)
                    self._descriptors.extend(descriptors)
                    self._keep(data)
            else:  # descriptors come for bodies that wait; the kernel closes one that comes too late
                self._keep(self._channel.recv(self._size))
        return self._messages.popleft()

    def wait(self, timeout_s: float | None, *others: int) -> bool:
        """Until the host sends something, ``timeout_s`` is over or one of ``others`` can be read; whether it sent."""
        if self._messages:
            return True
        channel = self._channel.fileno()
        return channel in select.select([channel, *others], [], [], timeout_s)[0]

    @property
    def _size(self) -> int:
        return _BUSY_BYTES if self._splitter.has_partial else _READ_BYTES

    def _keep(self, data: bytes) -> None:
        if not data:
            raise HostGone
        for frame in self._splitter.split(data):
            message = self._decoder.decode(frame)
            if message is not None:
                self._messages.append(message)

    def descriptor(self) -> int | None:
        """The descriptor that came with the message just taken; the caller closes it."""
        return self._descriptors.popleft() if self._descriptors else None

    def drop_descriptors(self) -> None:
        """What came for a body that has been interrupted is nobody's."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
