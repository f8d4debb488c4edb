"""Programs whose code speaks to the host and the gateway in their worker's name."""

from __future__ import annotations

import time

import pytest

from kcoral_magic import Client, Program
from kcoral_magic.client.returned import ProgramResult
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import steps
from tests.support import GatewayProcess

# Finds the worker's channel and sends messages as the worker would.
FORGE = """
import os, socket, struct, sys, time
sys.path.append("/run/kcoral/lib")
from kcoral_magic.protocol import framing, messages as m, steps, transfers as t
channel = next(socket.socket(fileno=int(n)) for n in os.listdir("/proc/self/fd")
               if os.path.lexists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("socket:"))
def send(body, *buffers):
    channel.sendall(framing.pack(framing.encode(body, buffers)))
"""


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 7


def made(body: str, *, cpu_only: bool = True) -> Program:
    program = Program()
    module = program.upload(kind="module", source=FORGE + "def attack():\n" + body)
    function = program.get_function(module=module, name="attack", cpu_only=cpu_only)
    program.return_(key="said", value=program.run(fn=function))
    return program


def attack(client: Client, body: str, *, gpus: int = 1, cpu_only: bool = True) -> ProgramResult:
    return client.execute(made(body, cpu_only=cpu_only), gpu_count=gpus, timeout_s=20.0)


def test_a_turn_that_is_asked_for_and_given_back_at_once_stops_no_clock(client: Client) -> None:
    asks = "    send(steps.Turn(True)); time.sleep(0.3); send(steps.Turn(False))\n"
    program = made(f"    print('on', flush=True); time.sleep(1.5)\n{asks}    time.sleep(60)")
    running = client.submit(program, gpu_count=2, timeout_s=4.0)
    outputs = iter(running)
    next(output for output in outputs if isinstance(output.body, m.Stream))
    held = client.session("holder", gpus="all")
    held.run("1")
    began = time.monotonic()
    last = [output.body for output in outputs][-1]
    assert isinstance(last, m.Finished)
    assert last.code == "timeout"
    assert time.monotonic() - began < 20
    held.close()


def test_a_flood_of_turns_ends_its_program_and_the_gpus_are_free_after(client: Client) -> None:
    body = "    end = time.time() + 60\n    while time.time() < end: send(steps.Turn(True)); send(steps.Turn(False))"
    result = attack(client, body, gpus=2)
    assert not result.completed
    assert attack(client, "    return 7", gpus=2, cpu_only=False)["said"] == 7


def test_a_flood_of_failures_is_one(client: Client) -> None:
    body = "    for _ in range(5000): send(steps.Failed('engine', 0, 'run', 'x', 'y' * 16000))\n    return 1"
    execution = client.submit(made(body), gpu_count=1, timeout_s=60.0)
    told = [output.body for output in execution if isinstance(output.body, steps.Failed)]
    assert len(told) == 1
