"""The worker hosts' way in: a unix socket on the same machine, with the clients' frames behind u32 lengths.

Hosts are ours, but they handle strangers' bytes: what they send is decoded as strictly as a client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from logging import getLogger
from typing import cast

from kcoral_gateway.execution.service import Service
from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)


class HostLink(asyncio.Protocol):
    """One worker host's connection."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._splitter = framing.StreamSplitter()
        self._decoder = framing.Decoder[m.FromHost](m.FromHost)
        self._transport: asyncio.Transport | None = None
        self._ticket: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not an instance of it

    def data_received(self, data: bytes) -> None:
        """asyncio's: every complete message goes to the service at once; the journal is the buffer."""
        try:
            for frame in self._splitter.feed(data):
                message = self._decoder.decode(frame)
                if message is not None:
                    self._take(message)
        except ProtocolError as error:
            _log.error("a worker host broke the protocol", extra={"error": str(error)})
            self.close()

    def _take(self, message: framing.Message[m.FromHost]) -> None:
        if self._ticket is None:
            if not isinstance(message.body, m.HostHello):
                raise ProtocolError(f"the first message is HostHello, got {type(message.body).__name__}")
            self._ticket = message.body.ticket
        self._service.host_spoke(self._ticket, self, message)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's."""
        if self._ticket is not None:
            self._service.host_left(self._ticket)

    def send(self, body: object, buffers: Sequence[framing.Buffer] = ()) -> None:
        """Send a message; one to a host that has gone is dropped, ``host_left`` tells."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framing.pack(framing.encode(body, buffers)))

    def close(self) -> None:
        """Hang up: the host ends its worker and itself."""
        if self._transport is not None:
            self._transport.close()
