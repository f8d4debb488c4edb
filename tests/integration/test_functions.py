"""``@client.function``: functions of this program that run elsewhere."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kcoral_magic import AsyncClient, Client, Program
from kcoral_magic.errors import ExecutionTimeout, UsageError, ValueRefused
from tests.support import GatewayProcess


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 2


@pytest.fixture
def notebook() -> Iterator[Callable[[str], dict[str, Any]]]:
    """Runs source as a notebook's cell: in ``__main__``, whose names are the program's own."""
    space = vars(sys.modules["__main__"])
    before = dict(space)

    def run(source: str) -> dict[str, Any]:
        exec(compile(source, "<a cell>", "exec"), space)
        return space

    yield run
    for name in space.keys() - before.keys():
        del space[name]
    space.update(before)


def test_a_call_runs_there_prints_here_and_gives_its_result(
    client: Client, notebook: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    space = notebook(
        "import os\nscale = 3\ndef twice(x):\n  return 2 * x\n"
        "def work(x, *, more=0):\n  print('in', os.getcwd())\n  return scale * twice(x) + more"
    )
    work = client.function(gpus=0)(space["work"])
    assert work.remote(2, more=1) == 13
    assert capsys.readouterr().out == "in /workspace\n"
    assert work.__name__ == "work"
    notebook("scale = 10")
    assert work.remote(2) == 40


def test_a_function_still_runs_here_when_it_is_called_plainly(client: Client) -> None:
    assert client.function()(abs)(-3) == 3


def test_arrays_go_and_come_and_errors_keep_their_type(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    work = client.function(gpus=0)(notebook("def work(a):\n  return a[::2] * 2")["work"])
    assert np.array_equal(work.remote(np.arange(6)), [0, 4, 8])
    with pytest.raises(TypeError, match="not subscriptable"):
        work.remote(5)
    with pytest.raises(ValueRefused, match=r"\[0\] is a _thread\.lock"):
        work.remote(threading.Lock())


def test_a_global_that_cannot_go_along_is_named_with_the_reason(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    space = notebook("import threading\nguard = threading.Lock()\ndef work():\n  return guard.locked()")
    with pytest.raises(ValueRefused, match="reads guard, which could not go along"):
        client.function(gpus=0)(space["work"]).remote()


def test_a_result_that_cannot_travel_is_an_error_also_where_nothing_is_pickled(
    gateway: GatewayProcess, token: str, notebook: Callable[[str], dict[str, Any]]
) -> None:
    space = notebook("import threading\ndef work():\n  return threading.Lock()")
    program = Program()
    module = program.upload(kind="module", source="import threading\ndef work():\n  return threading.Lock()")
    made = program.run(fn=program.get_function(module=module, name="work", cpu_only=True))
    program.return_(key="lock", value=made)
    with Client(target=gateway.target(token, is_trusted=False)) as stranger:
        with pytest.raises(ValueRefused, match="cannot travel from a gateway that is not trusted"):
            stranger.function(gpus=0)(space["work"]).remote()
        result = stranger.submit(program).program_result()
    assert result.error is not None
    assert result.error.kind == "serialization"
    assert "lock" in result.error.message


@pytest.mark.parametrize("gpus", [-1, "two", 1.5, True])
def test_what_no_gateway_can_give_is_refused_here(client: Client, gpus: Any) -> None:
    with pytest.raises(UsageError, match="gpus: "):
        client.function(gpus=gpus)(abs).remote(1)
    with pytest.raises(UsageError, match="timeout_s: "):
        client.session(gpus=0).run("1", timeout_s=0)
    with pytest.raises(UsageError, match="execution_id: "):
        client.attach("nosuch")
    assert client.session(gpus=0).run("1").text == "1"


def test_a_client_that_was_closed_says_so(gateway: GatewayProcess, token: str) -> None:
    client = gateway.client(token)
    client.close()
    with pytest.raises(UsageError, match="has been closed"):
        client.gpus()


def test_without_a_session_nothing_stays_and_with_one_it_does(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    count = notebook(
        "def count():\n  import builtins\n  builtins.n = getattr(builtins, 'n', 0) + 1\n  return builtins.n"
    )
    fresh, kept = client.function(gpus=0)(count["count"]), client.function(gpus=0, session="kept")(count["count"])
    assert [fresh.remote(), fresh.remote()] == [1, 1]
    assert [kept.remote(), kept.remote()] == [1, 2]
    client.close_session("kept")


def test_a_job_is_asked_later_or_cancelled(client: Client, notebook: Callable[[str], dict[str, Any]]) -> None:
    space = notebook(
        "import time\ndef add(a, b):\n  return a + b\ndef wait():\n  print('on', flush=True)\n  time.sleep(60)"
    )
    job = client.function(gpus=0, session="jobs")(space["add"]).spawn(1, 2)
    assert job.result() == 3
    assert job.result() == 3
    assert job.done()
    waiting = client.function(gpus=0, session="jobs")(space["wait"]).spawn()
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(KeyboardInterrupt):
        waiting.result()
    client.close_session("jobs")


def test_a_map_keeps_the_order_and_a_timeout_is_one(client: Client, notebook: Callable[[str], dict[str, Any]]) -> None:
    space = notebook("import time\ndef square(n):\n  return n * n\ndef slow():\n  time.sleep(60)")
    square = client.function(gpus=0, session="map")(space["square"])
    assert list(square.map(range(5))) == [0, 1, 4, 9, 16]
    with pytest.raises(UsageError, match="workers must be 1 or more"):
        list(square.map(range(5), workers=0))
    with pytest.raises(ExecutionTimeout):
        client.function(gpus=0, session="map", timeout_s=0.3)(space["slow"]).remote()
    client.close_session("map")


def test_a_call_cancelled_at_once_is_stopped_there_however_early(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    wait = client.function(gpus=0)(notebook("import time\ndef wait():\n  time.sleep(60)")["wait"])
    jobs = [wait.spawn() for _ in range(6)]
    for job in jobs:
        job.cancel()
    for job in jobs:
        with pytest.raises(KeyboardInterrupt):
            job.result()


def test_calls_without_a_session_run_side_by_side_and_hold_no_gpu_if_they_say_so(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    space = notebook("import os\ndef gpus():\n  return os.environ.get('CUDA_VISIBLE_DEVICES', '')")
    held = client.session("holds-all", gpus="all")
    held.run("1")
    assert client.function(cpu_only=True)(space["gpus"]).remote() in ("", "-1")
    held.close()
    assert client.function(gpus=2)(space["gpus"]).remote().count("GPU-") == 2
    with pytest.raises(UsageError, match="leave gpus and session out"):
        client.function(cpu_only=True, gpus=1)


def test_a_job_can_be_awaited_and_cancelling_the_wait_stops_it(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    space = notebook("import time\nasync def add(a, b):\n  return a + b\ndef wait():\n  time.sleep(60)")

    async def both() -> int:
        stopped = asyncio.create_task(client.function(gpus=0)(space["wait"]).aremote())
        made = await client.function(gpus=0)(space["add"]).aremote(1, 2)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        return int(made)

    assert asyncio.run(both()) == 3


def test_an_async_client_has_functions_too(
    gateway: GatewayProcess, token: str, notebook: Callable[[str], dict[str, Any]]
) -> None:
    space = notebook("import time\ndef square(n):\n  print(n)\n  return n * n\ndef wait():\n  time.sleep(60)")

    async def use() -> list[int]:
        async with AsyncClient(target=gateway.target(token)) as client:
            square = client.function(gpus=0)(space["square"])
            job = await client.function(gpus=0)(space["wait"]).spawn()
            made = [n async for n in square.map(range(4), workers=2)]
            assert await (await square.spawn(9)) == 81
            await job.cancel()
            with pytest.raises(KeyboardInterrupt):
                await job
            return made

    assert asyncio.run(use()) == [0, 1, 4, 9]
