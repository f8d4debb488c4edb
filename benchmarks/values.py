"""Values, files and capture side by side with named peers in one run: prints ratios, never times alone.

    python benchmarks/values.py [--rounds N]

Peers: ipyparallel's ``push`` and ``pull`` on one engine (arrays), and a bare websocket with 1 MiB messages through
uvicorn, the way the gateway serves (the wire itself, with nobody behind it). Each round measures all sides one after
the other, so that they see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ipyparallel
import numpy as np
import torch
import uvicorn
from websockets.sync.client import connect

from benchmarks.report import Report, gateway, machine
from kcoral_magic import Client
from kcoral_magic.client.exchange import Belief
from kcoral_magic.client.files import Digests, FileSet, to_send
from kcoral_magic.kernel.capture import Capture

MIB = 1024 * 1024
ARRAY_MIB = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report("ours / peer")
    with (
        tempfile.TemporaryDirectory() as folder,
        gateway(Path(folder)) as (target, _),
        Client(target=target) as client,
    ):
        session = client.session(gpus=0)
        session.run("1")
        with peers() as (engine, wire):
            arrays(session, engine, wire, report, options.rounds)
        tensors(session, report, options.rounds)
        files(session, report, options.rounds)
        capture(report, options.rounds)
    print("\n" + report.markdown())
    packages = ("numpy", "torch", "ipyparallel", "websockets", "uvicorn", "uvloop")
    print(f"\n{machine(*packages)}; {options.rounds} rounds")
    sys.exit(0 if report.is_met else 1)


def timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def rates(count: int, ours: Callable[[], object], *peers: Callable[[], object]) -> list[list[float]]:
    """MiB/s of each, in ``count`` rounds; one round before is thrown away."""
    found = [[ARRAY_MIB / timed(what) for what in (ours, *peers)] for _ in range(count + 1)]
    return found[1:]


def side(rounds: list[list[float]], peer: int) -> list[tuple[float, float]]:
    """Ours against one peer."""
    return [(each[0], each[peer]) for each in rounds]


def arrays(session: Any, engine: Any, wire: Wire, report: Report, count: int) -> None:
    array = np.random.default_rng(1).random(ARRAY_MIB * MIB // 8)
    step = iter(range(1 << 30))

    def put() -> None:
        array[0] = next(step)  # another value each time, or nothing would travel
        session.run("", send={"a": array})

    def get() -> None:
        assert session.run("", wants=["a"]).values["a"][0] == array[0]

    def push() -> None:
        engine.push({"a": array}, block=True)

    def pull() -> None:
        assert engine.pull("a", block=True)[0] == array[0]

    for name, ours, theirs, bare in (("in", put, push, wire.up), ("out", get, pull, wire.down)):
        rounds = rates(count, ours, theirs, bare)
        label = f"{ARRAY_MIB} MiB numpy array {name}"
        report.ratio(f"{label} / ipyparallel's", side(rounds, 1), 1.0, unit="MiB/s", is_least=True)
        report.ratio(f"{label} / bare websocket, 1 MiB messages", side(rounds, 2), 0.4, unit="MiB/s", is_least=True)


def tensors(session: Any, report: Report, count: int) -> None:
    array = np.random.default_rng(2).random(100_000_000 // 8)
    tensor = torch.from_numpy(array.copy())
    step = iter(range(1 << 30))

    def put(value: Any) -> None:
        value[0] = next(step)
        session.run("", send={"t": value})

    rounds = [[timed(lambda: put(tensor)), timed(lambda: put(array))] for _ in range(count + 1)][1:]
    report.ratio("CPU torch tensor 100 MB in / numpy", rounds, 1.2)


def files(session: Any, report: Report, count: int) -> None:
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count + 1):
            path = Path(folder, f"file-{number}")
            path.write_bytes(os.urandom(ARRAY_MIB * MIB))
            digests = Digests()

            def put(path: Path = path, digests: Digests = digests) -> None:
                session.run("", files=FileSet(to_send([str(path)], "", digests)))

            first, again = timed(put), timed(put)
            rounds.append([again, first])
            session.run(f"import os; os.unlink({path.name!r})")
    report.ratio("100 MiB file put a second time / the first", rounds[1:], 0.1)


def capture(report: Report, count: int) -> None:
    """A cell among 50 names of 10 MB: 2 ms, and 0.1 ms for each MB that the cell reads."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    names = {f"a{number}": np.random.default_rng(number).random(1_250_000) for number in range(50)}
    shell.user_ns.update(names)
    looker = Capture(shell)

    def look(cell: str) -> None:
        looker.of_cell(cell, (), Belief(), limit_bytes=1 << 40, is_on=True)

    for cell, read_mb in (("x = 1", 0), ("a1.sum()", 10), ("sum(a.sum() for a in (a1, a2, a3, a4, a5))", 50)):
        look(cell)
        allowed_s = (2 + 0.1 * read_mb) / 1000
        once = partial(look, cell)
        rounds = [[statistics.median(timed(once) for _ in range(9)), allowed_s] for _ in range(count)]
        report.ratio(f"capture among 50 names of 10 MB, {read_mb} MB read / what it may cost", rounds, 1.0)


class Wire:
    """A websocket server that throws away what comes and sends what is asked, in a process of its own."""

    def __init__(self, port: int) -> None:
        self._leave = contextlib.ExitStack()
        self._connection = self._leave.enter_context(connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None))
        self._piece = os.urandom(MIB)

    def up(self) -> None:
        for _ in range(ARRAY_MIB):
            self._connection.send(self._piece)
        self._connection.send("done")
        assert self._connection.recv() == "done"

    def down(self) -> None:
        self._connection.send(str(ARRAY_MIB))
        for _ in range(ARRAY_MIB):
            self._connection.recv()

    def close(self) -> None:
        self._leave.close()


def serve_wire() -> None:
    """The peer's process: prints its port, then serves until it is ended."""
    piece = os.urandom(MIB)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text == "done":
                await send({"type": "websocket.send", "text": "done"})
            elif text:
                for _ in range(int(text)):
                    await send({"type": "websocket.send", "bytes": piece})

    server = uvicorn.Server(
        uvicorn.Config(
            app, port=0, ws="websockets-sansio", ws_max_size=1 << 30, ws_per_message_deflate=False, log_level="error"
        )
    )

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await task

    asyncio.run(run())


@contextlib.contextmanager
def peers() -> Iterator[tuple[Any, Wire]]:
    """An ipyparallel engine, and the bare websocket."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from benchmarks.values import serve_wire; serve_wire()"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    wire = Wire(int(process.stdout.readline()))
    with tempfile.TemporaryDirectory() as home:
        os.environ["IPYTHONDIR"] = home
        cluster = ipyparallel.Cluster(n=1, log_level=40)
        engines = cluster.start_and_connect_sync(activate=False)
        try:
            yield engines[0], wire
        finally:
            wire.close()
            process.terminate()
            process.wait()
            engines.close()
            cluster.stop_cluster_sync()


if __name__ == "__main__":
    main()
