"""A cut path, really cut: packets vanish, nobody is told. Public fault 17 (three minutes: tests/unit, by the clock)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kcoral_magic import Client
from kcoral_magic.client.results import Reconnected, Reconnecting
from kcoral_magic.protocol import messages as m
from tests.support import GatewayProcess, until


class Path:
    """A TCP relay whose wire can be pulled: while it is, bytes go nowhere and both ends stay open."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = self._loop.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if self._open.is_set():  # else the bytes are lost, as in a dead radio link
                    sink.write(data)
                    await sink.drain()
        sink.close()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def path(gateway: GatewayProcess) -> Iterator[Path]:
    relay = Path(int(gateway.url.rpartition(":")[2]))
    yield relay
    relay.close()


@pytest.fixture
def roaming(gateway: GatewayProcess, token: str, path: Path) -> Iterator[Client]:
    target = replace(gateway.target(token), url=f"ws://127.0.0.1:{path.port}")
    with Client(target=target, ping_after_s=0.2, dead_after_s=0.6) as client:
        yield client


def test_output_of_a_cell_is_complete_once_and_in_order_over_a_cut(roaming: Client, path: Path) -> None:
    session = roaming.session()
    session.run("import time")
    execution = session.execute("for i in range(300): print(i, flush=True); time.sleep(0.01)")
    states: list[type] = []
    text, numbers = "", []
    for output in execution:
        text += output.text
        if isinstance(output.body, m.Stream):
            numbers.append(output.number)
        if "50\n" in text and not states:
            path.cut()
            states.append(Path)
        if isinstance(output.body, Reconnecting):
            states.append(Reconnecting)
            path.mend()
        if isinstance(output.body, Reconnected):
            states.append(Reconnected)
    assert text == "".join(f"{i}\n" for i in range(300))
    assert numbers == sorted(set(numbers))
    assert states[0] is Path
    assert states[-1] is Reconnected
    assert path.connections >= 2


def test_a_cell_sent_into_a_dead_path_runs_once_when_it_is_back(roaming: Client, path: Path) -> None:
    session = roaming.session()
    session.run("count = 0")
    path.cut()
    execution = session.execute("count += 1; print(count)")
    until(lambda: not roaming.aio.is_connected, 10, "the client gives the path up")
    path.mend()
    assert execution.result().stdout == "1\n"
    assert session.run("count").text == "1"


def test_requests_into_a_dead_path_are_answered_when_it_is_back(roaming: Client, path: Path) -> None:
    roaming.session().run("1")
    path.cut()
    found: list[int] = []
    asker = threading.Thread(target=lambda: found.append(len(roaming.gpus().gpus)))
    asker.start()
    until(lambda: not roaming.aio.is_connected, 10, "the client gives the path up")
    path.mend()
    asker.join(10)
    assert found == [2]


def test_an_interrupt_into_a_dead_path_arrives_when_it_is_back(roaming: Client, path: Path) -> None:
    session = roaming.session()
    execution = session.execute("import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
    for output in execution:
        if output.text:
            break
    path.cut()
    execution.interrupt()
    until(lambda: not roaming.aio.is_connected, 10, "the client gives the path up")
    path.mend()
    with pytest.raises(KeyboardInterrupt):
        execution.result()
