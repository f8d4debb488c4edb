"""The real profilers on a real GPU: ncu captures, compute-sanitizer finds what was planted, bench against do_bench.

Each goes the way that ``kcoral-magic ncu | sanitize | bench`` goes, to a gateway that has this machine's GPUs. What is
missing, or forbidden to this user, is a skip with the reason that the product itself gives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoral_magic.reports import roofline, views
from kcoral_magic.tools import ncu_report
from tests.support import GatewayProcess

Run = Callable[..., "subprocess.CompletedProcess[str]"]

_TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)
n = 1 << 22
x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
out = torch.empty_like(x)
add[(n // 1024,)](x, y, out, n, BLOCK=1024)
torch.cuda.synchronize()
assert torch.equal(out, x + y)
"""
_PLANTED = """
#include <cuda_runtime.h>
__global__ void beyond(int *x, int n) { x[threadIdx.x + n] = 1; }
__global__ void racing(int *out) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
int main(int argc, char **argv) {
  void *p; cudaMalloc(&p, 1 << 24);
  if (argc > 1 && argv[1][0] == 'b') beyond<<<1, 32>>>((int *)p, 1 << 24);
  else if (argc > 1 && argv[1][0] == 'r') racing<<<1, 64>>>((int *)p);
  else saxpy<<<4096, 256>>>(1 << 20, 2.f, (float *)p, (float *)p + (1 << 20));
  return cudaDeviceSynchronize() != cudaSuccess;
}
"""


@pytest.fixture(scope="module")
def gateway(inventory: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path_factory.mktemp("profilers") / "state", gpus=0)
    yield process
    process.stop()


@pytest.fixture
def run(gateway: GatewayProcess, tmp_path: Path) -> Run:
    own = {name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")}
    env = {**own, "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": gateway.token()}

    def made(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kcoral_magic.cli", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False)
        for reason in ("counters are closed", "there is no ", "does not know the GPU", "do not fit together"):
            if reason in ended.stderr:
                pytest.skip(f"not run on a GPU: {ended.stderr.strip()[-300:]}")
        return ended

    return made


@pytest.fixture
def planted(nvcc: str, tmp_path: Path) -> Path:
    """A program with a kernel that is right, one that writes beyond, and one that races."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no host compiler for nvcc")
    (tmp_path / "planted.cu").write_text(_PLANTED)
    subprocess.run([nvcc, "-lineinfo", "-arch=native", "-o", "planted", "planted.cu"], cwd=tmp_path, check=True)
    return tmp_path / "planted"


def test_ncu_captures_a_cuda_kernel_and_its_views_have_numbers(run: Run, planted: Path, tmp_path: Path) -> None:
    done = run("ncu", "--set", "full", "--save", "k.ncu-rep", "--", "./planted")
    assert done.returncode == 0, done.stderr
    kernel = ncu_report.load_report(str(tmp_path / "k.ncu-rep"))["saxpy"].kernel
    assert kernel.grid == (4096, 1, 1)
    assert kernel.duration_ns
    assert len(views.speed_of_light(kernel)) >= 4
    assert roofline.charts(kernel)[0].points
    assert views.stalls(kernel)
    print(done.stdout)


def test_ncu_captures_a_triton_kernel(run: Run, torch: Any, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed here")
    (tmp_path / "kernel.py").write_text(_TRITON)
    done = run("ncu", "--json", "--kernel", "regex:add", "--expect", "duration < 1s", "kernel.py")
    assert done.returncode == 0, done.stderr
    assert any("add" in kernel["name"] for kernel in json.loads(done.stdout)["kernels"])


def test_a_planted_write_beyond_is_one_finding_with_its_line(run: Run, planted: Path) -> None:
    done = run("sanitize", "--json", "--", "./planted", "b")
    found = json.loads(done.stdout)["findings"]
    print(found)
    assert done.returncode == 1
    assert any("write of size 4" in one["kind"] and "beyond" in one["kernel"] for one in found)


def test_a_planted_race_is_found(run: Run, planted: Path) -> None:
    done = run("sanitize", "--tool", "racecheck", "--json", "--", "./planted", "r")
    found = json.loads(done.stdout)["findings"]
    print(found)
    assert done.returncode == 1
    assert any("racing" in one["kernel"] for one in found)


def test_bench_agrees_with_do_bench(run: Run, torch: Any, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="triton is not installed here")
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    theirs = triton.testing.do_bench(lambda: a @ a, return_mode="median") / 1000
    (tmp_path / "body.py").write_text(
        "import torch\nif 'a' not in globals():\n"
        "    globals()['a'] = torch.randn(4096, 4096, device='cuda', dtype=torch.float16)\n"
        "globals()['a'] @ globals()['a']"
    )
    done = run("bench", "--json", "--method", "event", "--cold", "body.py")
    assert done.returncode == 0, done.stderr
    point = json.loads(done.stdout)["points"][0]
    print(f"bench {point['median_s'] * 1e6:.1f} µs, do_bench {theirs * 1e6:.1f} µs")
    assert point["method"] == "event"
    assert 0.9 < point["median_s"] / theirs < 1.15
