"""``Program`` and ``client.execute``: KCoral's instructions over the websocket, in workers nobody has used."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from kcoral_magic import AsyncClient, Client, Program
from kcoral_magic.client.program import Register
from kcoral_magic.client.returned import ProgramResult, ReturnedFile, ReturnedFolder
from kcoral_magic.errors import CapacityExceeded, NotFoundError, PlacementInfeasible, ProgramInvalid, UsageError
from kcoral_magic.protocol import messages as m
from tests.support import GatewayProcess, until

SOURCE = """
import os, sys, time
def add(a, b): return a + b
def say(text):
    print(text, flush=True)
    return text
def write():
    os.makedirs("out/empty")
    with open("out/a.txt", "w") as file: file.write("hi")
    return "out"
def fail(): raise FileNotFoundError(2, "none of that name")
def end(code): os._exit(code)
def wait(path):
    print("waits", flush=True)
    while not os.path.exists(path): time.sleep(0.01)
def sleep(): time.sleep(60)
def gpus(): return os.environ.get("CUDA_VISIBLE_DEVICES", "")
def poison():
    import json
    json.LEAK = getattr(json, "LEAK", 0) + 1
    return json.LEAK
def child():
    import subprocess
    return subprocess.Popen(["sleep", "1000"]).pid
"""


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 7  # for up to four programs, and one for each other number of GPUs


class Calls:
    """A program of calls of ``SOURCE``."""

    def __init__(self, *, cpu_only: bool = True) -> None:
        self.program = Program()
        self._cpu_only = cpu_only
        self._module = self.program.upload(kind="module", source=SOURCE)

    def call(self, name: str, *args: object, key: str = "", cpu_only: bool | None = None) -> Register:
        is_cpu = self._cpu_only if cpu_only is None else cpu_only
        function = self.program.get_function(module=self._module, name=name, cpu_only=is_cpu)
        made = self.program.run(fn=function, args=args)
        if key:
            self.program.return_(key=key, value=made)
        return made


def test_values_files_and_folders_go_and_come(client: Client, tmp_path: Path) -> None:
    calls = Calls()
    program = calls.program
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    one = program.upload(kind="tensor", value=array)
    array[:] = 0  # what was uploaded is what it was then
    raw = program.upload(kind="bytes", value=b"\0\1" * 500_000)
    (tmp_path / "here" / "deep").mkdir(parents=True)
    (tmp_path / "here" / "deep" / "x.txt").write_text("deep")
    program.upload_folder(tmp_path / "here", path="in")
    calls.call("add", one, one, key="tensor")
    calls.call("add", raw, raw, key="raw")
    program.return_folder(key="out", path=calls.call("write"))
    program.return_file(key="x", path="in/deep/x.txt")
    for _ in range(2):  # the second time nothing is sent
        result = client.execute(program)
        assert result.completed, result.error
        assert np.array_equal(result["tensor"], np.arange(6).reshape(2, 3) * 2)
        assert result["raw"] == b"\0\1" * 1_000_000
        assert isinstance(result["x"], ReturnedFile)
        assert result["x"].read_text() == "deep"
        folder = result["out"]
        assert isinstance(folder, ReturnedFolder)
        assert folder.directories == ("empty",)
    result.save(tmp_path / "saved")
    assert sorted(str(p.relative_to(tmp_path / "saved")) for p in (tmp_path / "saved").rglob("*")) == [
        "out",
        "out/a.txt",
        "out/empty",
        "x",
    ]
    with pytest.raises(UsageError, match="there already"):
        result.save(tmp_path / "saved")
    result.save(tmp_path / "saved", overwrite=True)
    with pytest.raises(KeyError, match="nothing"):
        result["nothing"]


def test_what_it_prints_is_printed_here_while_it_runs(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    calls = Calls()
    calls.call("say", "one")
    result = client.execute(calls.program, is_live=True)
    assert capsys.readouterr().out == result.stdout == "one\n"


@pytest.mark.parametrize(
    ("name", "args", "kind", "text"),
    [
        ("fail", (), "engine", "FileNotFoundError: \\[Errno 2\\] none of that name"),
        ("end", (7,), "runtime", "exit code 7"),
        ("sleep", (), "timeout", "longer than 1 s"),
        ("nothing", (), "parse", "has no name 'nothing'"),
    ],
)
def test_a_failure_names_its_instruction_and_keeps_what_was_before(
    client: Client, name: str, args: tuple[object, ...], kind: str, text: str
) -> None:
    calls = Calls()
    calls.call("say", "before", key="before")
    calls.call(name, *args, key="after")
    result = client.execute(calls.program, timeout_s=1 if name == "sleep" else 30)
    assert not result.completed
    assert result.error is not None
    assert result.error.kind == kind
    assert result.error.op == ("get_function" if kind == "parse" else "run")
    assert calls.program.instructions[result.error.index]["id"] == result.error.instruction_id
    assert result["before"] == "before"
    assert result.stdout == "before\n"
    with pytest.raises(Exception, match=text):
        result["after"]
    if name == "fail":
        assert isinstance(result.exception, FileNotFoundError)
        assert "in fail" in result.error.traceback


def test_each_program_has_a_worker_that_nobody_used_and_its_children_end_with_it(
    client: Client, gateway: GatewayProcess
) -> None:
    for _ in range(2):
        calls = Calls()
        calls.call("poison", key="leak")
        calls.call("child")
        result = client.execute(calls.program)
        assert result["leak"] == 1
    until(lambda: not [p for p in gateway.me.children(recursive=True) if p.name() == "sleep"], 10)


def test_gpus_are_one_process_s_and_a_program_that_needs_none_has_none(client: Client) -> None:
    for count in (1, 2):
        calls = Calls(cpu_only=False)
        calls.call("gpus", key="gpus")
        result = client.execute(calls.program, gpu_count=count)
        assert result["gpus"].count("GPU-") == len(result.gpus) == count
    with pytest.raises(PlacementInfeasible, match="3 GPUs were asked for, this gateway has 2"):
        client.execute(calls.program, gpu_count=3)
    text = Program()
    text.return_(key="text", value=text.upload(kind="bytes", value="text"))
    assert client.execute(text).gpus == ()


def test_a_cpu_only_call_lets_another_program_have_the_gpus(client: Client) -> None:
    first = Calls(cpu_only=False)
    first.call("gpus", key="gpus")
    first.call("sleep", cpu_only=True)
    running = client.submit(first.program, gpu_count=2)
    outputs = iter(running)
    next(output for output in outputs if isinstance(output.body, m.Placed))
    second = Calls(cpu_only=False)
    second.call("gpus", key="gpus")
    assert client.execute(second.program, gpu_count=2, queue_timeout_s=30).completed
    assert not running.is_finished
    running.interrupt()
    ended = [output.body for output in outputs]
    assert isinstance(ended[-1], m.Finished)
    assert ended[-1].status == "interrupted"


def test_waiting_for_a_turn_is_told_and_not_charged_to_the_time_limit(client: Client) -> None:
    held = client.session("holder", gpus="all")
    held.run("1")
    calls = Calls(cpu_only=False)
    calls.call("gpus", key="gpus")
    running = client.submit(calls.program, gpu_count=1, timeout_s=1.0)
    outputs = iter(running)
    queued = next(output.body for output in outputs if isinstance(output.body, m.Queued))
    assert queued.gpu_count == 1
    threading.Timer(1.5, held.close).start()
    last = [output.body for output in outputs][-1]
    assert isinstance(last, m.Finished)
    assert last.status == "ok"


def test_more_than_32_programs_run_at_once(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "many", "--cpu-workers", "40", gpus=0)
    try:
        target = gateway.target()

        async def all_at_once() -> list[ProgramResult]:
            calls = Calls()
            calls.call("wait", "/dev/shm/none")
            async with AsyncClient(target=target) as client:
                running = [await client.submit(calls.program) for _ in range(36)]
                readers = [execution.__aiter__() for execution in running]
                for reader in readers:  # each has printed, and none can end
                    while not isinstance((await reader.__anext__()).body, m.Stream):
                        pass
                for execution in running:
                    await execution.interrupt(kill=True)
                return [await client.execute(Calls().program)]

        assert asyncio.run(all_at_once())[0].completed
    finally:
        gateway.stop()


def test_a_blob_is_known_to_its_principal_only(gateway: GatewayProcess, client: Client) -> None:
    program = Program()
    program.return_(key="raw", value=program.upload(kind="bytes", value=b"mine alone, and secret"))
    assert client.execute(program)["raw"] == b"mine alone, and secret"
    program.blobs.clear()  # a client that does not send what it names
    with gateway.client(gateway.token("stranger")) as stranger, pytest.raises(NotFoundError):
        stranger.execute(program)
    assert client.execute(program).completed


def test_what_breaks_a_rule_is_refused_when_it_is_added() -> None:
    program = Program()
    module = program.upload(kind="module", source="x = 1")
    with pytest.raises(ProgramInvalid, match="arguments are JSON"):
        program.run(fn=module, args=[object()])
    with pytest.raises(ProgramInvalid, match="relative"):
        program.upload_file(blob=b"", path="../x")
    with pytest.raises(ProgramInvalid, match="used before"):
        program.upload(kind="bytes", value=b"", id=module.id)
    with pytest.raises(UsageError, match="is no folder"):
        program.upload_folder("/nowhere/at/all", path="x")
    with pytest.raises(UsageError, match="source="):
        program.upload(kind="module")
    assert len(program.instructions) == 1
    with pytest.raises(ProgramInvalid, match="at least one"):
        Program().source()


def test_an_exception_of_an_odd_class_is_told_all_the_same(client: Client) -> None:
    calls = Calls()
    odd = "class Odd(Exception): pass\nOdd.__module__ = 5\nOdd.__qualname__ = '\\ud800'\ndef run(): raise Odd('odd')"
    module = calls.program.upload(kind="module", source=odd)
    calls.program.run(fn=calls.program.get_function(module=module, name="run"))
    result = client.execute(calls.program)
    assert result.error is not None
    assert result.error.kind == "engine"
    assert "odd" in result.error.message


def test_a_result_that_the_cache_has_no_room_for_is_an_error_and_empties_nothing(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "small", "--cache-gib", "0.01", gpus=0)
    try:
        with gateway.client() as client:
            kept = Program()
            kept.return_(key="raw", value=kept.upload(kind="bytes", value=b"k" * 1_000_000))
            assert client.execute(kept).completed
            before = client.storage().used_bytes
            large = Program()
            source = "def run():\n    return bytes(50_000_000)"
            module = large.upload(kind="module", source=source)
            large.return_(key="large", value=large.run(fn=large.get_function(module=module, name="run")))
            result = client.execute(large)
            assert not result.completed
            assert "may take" in str(result.error)
            assert client.storage().used_bytes == before
    finally:
        gateway.stop()


def test_what_one_principal_has_waiting_is_bounded(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "few", "--cpu-workers", "1", gpus=0)
    try:
        with gateway.client() as client:
            text = "x" * 7_000_000
            calls = Program()
            calls.upload(kind="module", source=f"TEXT = {text!r}\nimport time\ntime.sleep(60)")
            running = [client.submit(calls) for _ in range(25)]
            with pytest.raises(CapacityExceeded, match="run or wait already"):
                running[-1].program_result()
            for execution in running[:-1]:
                execution.interrupt(kill=True)
            assert gateway.rss_bytes() < 500 * 2**20
    finally:
        gateway.stop()
