"""``POST /execute`` where many meet: what a black-box pack of single requests does not show."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support import GatewayProcess, until


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 7


def post(gateway: GatewayProcess, token: str, source: str, *, wait_s: float = 60.0, **options: Any) -> httpx.Response:
    instructions = [
        {"op": "upload", "id": "m", "kind": "module", "source": source},
        {"op": "get_function", "id": "f", "module": {"$ref": "m"}, "name": "run", "cpu_only": True},
        {"op": "run", "id": "r", "fn": {"$ref": "f"}},
        {"op": "return", "key": "made", "value": {"$ref": "r"}},
    ]
    program = json.dumps({"instructions": instructions, "options": options})
    files = {"program": ("program", program, "application/json")}
    url = gateway.url.replace("ws", "http", 1) + "/execute"
    return httpx.post(url, files=files, headers={"Authorization": f"Bearer {token}"}, timeout=wait_s)


def test_programs_that_return_the_same_large_value_at_once_each_get_it_whole(
    gateway: GatewayProcess, token: str
) -> None:
    source = "def run():\n    return b'same' * 2_000_000"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: post(gateway, token, source), range(8)))
    for answer in answers:
        assert answer.status_code == 200
        assert answer.content.count(b"same") == 2_000_000


def test_a_program_that_ran_too_long_has_its_last_output_in_the_message(gateway: GatewayProcess, token: str) -> None:
    source = "import time\ndef run():\n    print('step 7', flush=True)\n    time.sleep(60)"
    answer = post(gateway, token, source, timeout_seconds=1)
    assert answer.status_code == 504
    assert answer.json()["error"]["message"].endswith("its output ends with: step 7\n")
    assert answer.json()["stdout"] == "step 7\n"


def test_a_client_that_hangs_up_ends_its_program(gateway: GatewayProcess, token: str) -> None:
    source = "import time\ndef run():\n    print('on', flush=True)\n    time.sleep(60)"
    with pytest.raises(httpx.ReadTimeout):
        post(gateway, token, source, wait_s=1.0)
    with gateway.client(token) as client:
        until(lambda: not client.jobs(), 10, "its program ends")
        assert client.records(limit=1)[0].status in ("failed", "interrupted")
