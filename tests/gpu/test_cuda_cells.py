"""Cells and programs on a real GPU, inside the sandbox: results, faults, printf, timing."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from kcoral_magic import Client, Program
from kcoral_magic.protocol import messages as m

_TIMING = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
def measure():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(20): a @ a
    end.record(); torch.cuda.synchronize()
    return start.elapsed_time(end) / 20
for _ in range(5): measure()
times = [measure() for _ in range(20)]
"""
_PRINTF = """
#include <cstdio>
#include <cuda_runtime.h>
__global__ void say(int n) { printf("device %d\\n", n); }
extern "C" int speak(int n) { say<<<1, 1>>>(n); return (int)cudaDeviceSynchronize(); }
"""


def test_a_cell_computes_on_the_gpu_and_its_state_stays(real: Client, torch: Any) -> None:
    session = real.session("compute", gpus=1)
    session.run("import torch\nx = torch.arange(1000, device='cuda').sum()")
    assert session.run("(x.item(), x.device.type)").text == "(499500, 'cuda')"
    session.close()


def test_a_cuda_fault_is_told_in_its_own_cell_and_the_next_cell_works(real: Client, torch: Any) -> None:
    session = real.session("fault", gpus=1)
    session.run("import torch\nkept = 1")
    bad = "torch.zeros(4, device='cuda')[torch.tensor([10], device='cuda')]"
    with pytest.raises(Exception, match=r"(?i)assert|illegal|CUDA"):
        session.run(bad)
    result = session.run("import torch\ntorch.ones(3, device='cuda').sum().item()")
    assert result.text == "3.0"
    assert any("state" in notice for notice in result.notices)
    session.close()


def test_device_printf_comes_in_its_place(real: Client, nvcc: str) -> None:
    arch = real.gpus().gpus[0].arch
    program = Program()
    made = program.compile_cuda(_PRINTF, target=arch, kind="shared")
    source = (
        "import ctypes\ndef run(data):\n    open('say.so', 'wb').write(data)\n    lib = ctypes.CDLL('./say.so')\n"
        "    for n in range(3):\n        print('host', n, flush=True)\n        assert lib.speak(n) == 0\n"
    )
    module = program.upload(kind="module", source=source)
    program.run(fn=program.get_function(module=module, name="run"), args=[made])
    result = real.execute(program, gpu_count=1)
    assert result.completed, result.error
    assert result.stdout.split("\n")[:-1] == [f"{who} {n}" for n in range(3) for who in ("host", "device")]


def test_a_cell_s_cuda_timing_is_that_of_the_same_code_bare(real: Client, torch: Any) -> None:
    space: dict[str, Any] = {}
    exec(_TIMING, space)  # bare, in this process
    session = real.session("timing", gpus=1)
    session.run(_TIMING)
    there = session.run("pass", wants=["times"]).values["times"]
    ratio = statistics.median(there) / statistics.median(space["times"])
    print(f"matmul 4096 fp16: {statistics.median(there):.4f} ms in a cell, {ratio:.3f} of bare")
    assert ratio < 1.1
    session.close()


def test_a_kcoral_program_has_its_tensors_on_the_gpu(real: Client, torch: Any) -> None:
    program = Program()
    module = program.upload(kind="module", source="def twice(x):\n    assert x.is_cuda\n    return x * 2")
    x = program.upload(kind="tensor", value=torch.arange(8, dtype=torch.float32))
    program.return_(key="y", value=program.run(fn=program.get_function(module=module, name="twice"), args=[x]))
    result = real.execute(program, gpu_count=1)
    assert result.completed, result.error
    assert torch.equal(result["y"].cpu(), torch.arange(8, dtype=torch.float32) * 2)
    assert [gpu.is_simulated for gpu in result.gpus] == [False]


def test_ncu_and_compute_sanitizer_answer_or_say_that_they_are_missing(real: Client) -> None:
    for tool in ("ncu", "compute-sanitizer"):
        result = real.session("tools", gpus=1).run(f"!{tool} --version || echo missing")
        print(result.stdout.strip().splitlines()[-1:])
        assert result.stdout
    real.close_session("tools")


def test_the_worker_is_boxed(real: Client) -> None:
    level = real.connect().sandbox
    if level == "none":
        pytest.skip("bubblewrap does not hold on this machine")
    session = real.session("boxed", gpus=1)
    assert session.run("import os\n(os.path.exists('/root'), os.getcwd())").text == "(False, '/workspace')"
    assert all(isinstance(gpu, m.Gpu) for gpu in real.gpus().gpus)
    session.close()
