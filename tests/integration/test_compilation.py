"""CUDA C++ built without a GPU, by the real nvcc in the sandbox, and handed to a call that would run it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcoral_magic import Client, Program
from kcoral_magic.client.returned import ProgramResult
from tests.support import GatewayProcess

SOURCE = """
#include <cuda_runtime.h>
extern "C" __global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" int launch(int n) {
  saxpy<<<(n + 255) / 256, 256>>>(n, 2.0f, nullptr, nullptr);
  return (int)cudaGetLastError();
}
"""
pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed here")


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 7


def built(client: Client, source: str, target: str, kind: str) -> ProgramResult:
    program = Program()
    program.return_(key="object", value=program.compile_cuda(source, target=target, kind=kind))  # type: ignore[arg-type]
    return client.execute(program)


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_machine_code_and_ptx_for_a_named_target_are_made_without_a_gpu(client: Client, target: str) -> None:
    program = Program()
    for kind in ("cubin", "ptx"):
        program.return_(key=kind, value=program.compile_cuda(SOURCE, target=target, kind=kind))  # type: ignore[arg-type]
    result = client.execute(program)
    assert result["cubin"][:4] == b"\x7fELF"
    assert b"saxpy" in result["cubin"]
    text = result["ptx"].decode()
    assert f".target {target}" in text
    assert ".entry saxpy" in text


def test_a_source_with_errors_fails_as_compile_in_the_compilers_own_words(client: Client) -> None:
    error = built(client, "__global__ void f() { nothing; }", "sm_90", "cubin").error
    assert error is not None
    assert error.kind == "compile"
    assert 'kernel.cu(1): error: identifier "nothing" is undefined' in error.message
    assert built(client, SOURCE, "sm_90; rm", "cubin").error is not None


def test_a_program_builds_on_the_cpu_and_runs_what_it_built(client: Client) -> None:
    """Without a GPU the launch says so: the object was loaded, and its host code ran."""
    program = Program()
    target = "sm_90"
    made = program.compile_cuda(SOURCE, target=target, kind="shared")
    runner = program.upload(
        kind="module",
        source="import ctypes\ndef run(data):\n"
        "    open('kernel.so', 'wb').write(data)\n    return ctypes.CDLL('./kernel.so').launch(256)",
    )
    program.return_(key="code", value=program.run(fn=program.get_function(module=runner, name="run"), args=[made]))
    result = client.execute(program)
    assert result.completed, result.error
    assert result["code"] in (0, 35, 100)  # cudaSuccess, cudaErrorInsufficientDriver, cudaErrorNoDevice


def test_a_gateway_without_gpus_compiles_too(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "state", "--cpu-workers", "2", gpus=0)
    try:
        with gateway.client() as client:
            assert built(client, SOURCE, "sm_90", "cubin")["object"][:4] == b"\x7fELF"
    finally:
        gateway.stop()
