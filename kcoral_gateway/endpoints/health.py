"""``GET /health``: alive. With a credential also what there is, for our clients and for KCoral's."""

from __future__ import annotations

import importlib.metadata
import time
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse

from kcoral_gateway.endpoints.websocket import Clients

_VERSIONS = {  # KCoral's word -> distribution
    "torch": "torch",
    "triton": "triton",
    "tvm": "apache-tvm",
    "tvm_ffi": "apache-tvm-ffi",
    "cutlass": "nvidia-cutlass-dsl",
    "flashinfer": "flashinfer-python",
}


class Health:
    """Answers without a credential say nothing but that the gateway runs.

    Args:
        arch: What the GPUs here are called by compilers; empty without any.
        details: More for those with a credential.
    """

    def __init__(self, clients: Clients, instance: str, arch: str, details: dict[str, object]) -> None:
        self._clients = clients
        self._details = {
            **details,
            "instance_id": instance,
            "started_at": datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z"),
            "target": {"arch": arch} if arch else {},
            "versions": _versions(),
        }

    async def serve(self, request: Request) -> JSONResponse:
        """The answer."""
        principal = self._clients.principal_of(request)
        if principal is None:
            return JSONResponse({"status": "ok"})
        service = self._clients.service
        gpus, free, waiting = service.gpus(principal.name)
        capacity, taken, line = service.load()
        load = {"request_capacity": capacity, "requests_in_progress": taken, "requests_waiting": line}
        return JSONResponse(
            {
                "status": "ok",
                **self._details,
                "gpu_count": len(gpus),
                "gpus_free": free,
                "asks_waiting": waiting,
                "load": load,
            }
        )


def _versions() -> dict[str, str]:
    """Of what programs may import from this gateway's environment; nothing is imported to find out."""
    found = {}
    for name, distribution in _VERSIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
