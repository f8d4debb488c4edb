"""What a host still has to send to its gateway: sent at once where the socket takes it, kept in order where not."""

from __future__ import annotations

import selectors
import socket
from collections import deque


class Outbox:
    """The gateway's socket, written without ever waiting for it. ``OSError`` means that the gateway has gone."""

    def __init__(self, gateway: socket.socket, selector: selectors.BaseSelector) -> None:
        self._gateway = gateway
        self._selector = selector
        self._waiting: deque[memoryview] = deque()
        self.waiting_bytes = 0

    def send(self, packed: bytes) -> None:
        """Send now, or keep it behind what waits."""
        data = memoryview(packed)
        if not self._waiting:
            try:
                data = data[self._gateway.send(data) :]
            except BlockingIOError:
                pass
            if not data:
                return
            self._selector.modify(self._gateway, selectors.EVENT_READ | selectors.EVENT_WRITE, "gateway")
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def flush(self) -> None:
        """The socket takes more."""
        while self._waiting:
            data = self._waiting[0]
            try:
                sent = self._gateway.send(data)
            except BlockingIOError:
                return
            self.waiting_bytes -= sent
            if sent < len(data):
                self._waiting[0] = data[sent:]
                return
            self._waiting.popleft()
        self._selector.modify(self._gateway, selectors.EVENT_READ, "gateway")

    def finish(self, seconds: float) -> None:
        """Send the rest, waiting for the gateway at most that long for each piece."""
        self._gateway.setblocking(True)
        self._gateway.settimeout(seconds)
        for data in self._waiting:
            self._gateway.sendall(data)
        self._waiting.clear()
