"""Placement on real GPUs: ``make gpu-check`` on a machine that has one. Skipped, with the reason, elsewhere."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from kcoral_magic import Client

_LOOK = """
import ctypes, glob, os
nodes = sorted(glob.glob('/dev/nvidia[0-9]*'))
try:
    cuda = ctypes.CDLL('libcuda.so.1')
except OSError:
    cuda = None
started = cuda.cuInit(0) if cuda else -1
count = ctypes.c_int()
if started == 0: cuda.cuDeviceGetCount(ctypes.byref(count))
print(len(nodes), started, count.value, os.environ['CUDA_VISIBLE_DEVICES'])
"""


def test_the_inventory_is_what_nvidia_smi_lists(inventory: dict[str, Any]) -> None:
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True)
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == listed.stdout.split()
    assert all(Path(f"/dev/nvidia{gpu['minor']}").exists() for gpu in inventory["gpus"])


def test_a_session_on_one_gpu_sees_that_one_and_cuda_starts(real: Client, inventory: dict[str, Any]) -> None:
    session = real.session("one", gpus=1)
    nodes, started, count, uuid = session.run(_LOOK).stdout.split()
    assert (nodes, started, count) == ("1", "0", "1")
    assert uuid in [gpu["uuid"] for gpu in inventory["gpus"]]
    session.close()


def test_a_session_without_gpus_sees_none(real: Client) -> None:
    session = real.session("none", gpus=0)
    nodes, _, count, *_ = [*session.run(_LOOK).stdout.split(), ""]
    assert (nodes, count) == ("0", "0")
    session.close()


def test_memory_can_be_allocated_and_a_cell_ends_after_its_kernels(real: Client) -> None:
    session = real.session("alloc", gpus=1)
    source = (
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0)\n"
        "context, pointer = ctypes.c_void_p(), ctypes.c_void_p()\n"
        "codes = [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),\n"
        "         cuda.cuMemAlloc_v2(ctypes.byref(pointer), 1 << 20), cuda.cuMemsetD8_v2(pointer, 7, 1 << 20)]\n"
        "print(codes)"
    )
    assert session.run(source).stdout == "[0, 0, 0, 0]\n"
    session.close()
