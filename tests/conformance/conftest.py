"""The server under test: a gateway of ours, or the one at ``KCORAL_CONFORMANCE_URL``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conformance.wire import Endpoint
from tests.support import GatewayProcess

SECRET = "a-secret-of-the-gateway-s-environment"


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    if url := os.environ.get("KCORAL_CONFORMANCE_URL"):
        with Endpoint(url) as foreign:
            yield foreign
        return
    secrets = {"FOO_SECRET": SECRET, "KCORAL_NODE_TOKEN": SECRET}
    process = GatewayProcess(tmp_path_factory.mktemp("conformance") / "state", env=secrets)
    try:
        url = process.url.replace("ws:", "http:")
        with Endpoint(url, process.token("conformance"), process.token("stranger")) as ours:
            yield ours
    finally:
        process.stop()


@pytest.fixture
def ours(endpoint: Endpoint) -> Endpoint:
    """For what KCoral 0.1.1 does not have, or does otherwise."""
    if not endpoint.is_ours:
        pytest.skip("about this gateway only: another server need not do it")
    return endpoint
