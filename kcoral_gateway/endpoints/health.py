"""``GET /health``: alive. With a credential also what there is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

from kcoral_gateway.endpoints.websocket import Clients


class Health:
    """Answers without a credential say nothing but that the gateway runs."""

    def __init__(self, clients: Clients, details: dict[str, object]) -> None:
        self._clients = clients
        self._details = details

    async def serve(self, request: Request) -> JSONResponse:
        """The answer."""
        principal = self._clients.principal_of(request)
        if principal is None:
            return JSONResponse({"status": "ok"})
        gpus, free, waiting = self._clients.service.gpus(principal.name)
        return JSONResponse(
            {"status": "ok", **self._details, "gpus": len(gpus), "gpus_free": free, "asks_waiting": waiting}
        )
