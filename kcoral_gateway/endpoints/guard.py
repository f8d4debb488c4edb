"""Before any endpoint: foreign Host and Origin are refused on every path, websockets included.

Host: a page whose name was rebound to 127.0.0.1 must not reach a loopback gateway. Origin: only browsers send it, and
no page of another site may use a person's network position. RFC 6454, RFC 9110 section 7.2.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """ASGI middleware in front of all of the gateway's paths."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], *, allows_addresses: bool = False) -> None:
        self._app = app
        self._allows_addresses = allows_addresses  # a numeric Host cannot have been rebound by a name server
        self._allowed = frozenset(host.lower() for host in (*LOOPBACK, *allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 421 (Host) or 403 (Origin)."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                status, text = refusal
                await JSONResponse({"error": text}, status)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_allowed(without_port(hosts[0])):
            return 421, "this host name is not served here: start the gateway with --allow-host NAME"
        for name, value in headers:
            if name == b"origin" and value.lower().partition("://")[2] != hosts[0].lower():
                return 403, "requests from pages of other origins are refused"
        return None

    def _is_allowed(self, host: str) -> bool:
        if host in self._allowed:
            return True
        if not self._allows_addresses:
            return False
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True


def without_port(host: str) -> str:
    """``example:80`` -> ``example``, ``[::1]:80`` -> ``[::1]``."""
    host = host.lower().strip()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
