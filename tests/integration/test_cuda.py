"""Synchronising CUDA before a cell ends, with a stand-in for the driver's library: there is no GPU here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = r"""
static int active = 0, failing = 0, pushed = 0, synchronised = 0;
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  *is_active = active && device == 1; return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { pushed++; return 0; }
int cuCtxPopCurrent_v2(void **context) { pushed--; return 0; }
int cuCtxSynchronize(void) { synchronised++; return failing; }
int cuGetErrorString(int code, const char **text) { *text = "device-side assert triggered"; return 0; }
void set_state(int is_active, int code) { active = is_active; failing = code; }
int get_pushed(void) { return pushed; }
int get_synchronised(void) { return synchronised; }
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in with")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "driver.c").write_text(_DRIVER)
    library = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(folder / "driver.c")]
    subprocess.run(command, check=True)
    return library


def _run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_cuda_nothing_is_loaded_or_asked() -> None:
    assert (
        _run("from kcoral_gateway.worker import cuda; cuda.synchronise(); cuda.synchronise(); print('fine')")
        == "fine\n"
    )


def test_active_contexts_are_synchronised_and_inactive_ones_are_left_alone(driver: Path) -> None:
    source = (
        "import ctypes\nfrom kcoral_gateway.worker import cuda\ncuda.synchronise()\n"
        f"fake = ctypes.CDLL({str(driver)!r})\n"
        "cuda.synchronise(); print(fake.get_synchronised())\n"
        "fake.set_state(1, 0); cuda.synchronise(); print(fake.get_synchronised(), fake.get_pushed())"
    )
    assert _run(source) == "0\n1 0\n"


def test_a_fault_that_a_kernel_left_behind_is_raised_and_known_as_sticky(driver: Path) -> None:
    source = (
        "import ctypes\nfrom kcoral_gateway.worker import cuda\n"
        f"fake = ctypes.CDLL({str(driver)!r}); fake.set_state(1, 710)\n"
        "try: cuda.synchronise()\n"
        "except cuda.CudaFault as fault: print(fault, cuda.is_sticky(fault), fake.get_pushed())"
    )
    assert _run(source) == "CUDA error: device-side assert triggered (code 710), found when the cell ended True 0\n"
