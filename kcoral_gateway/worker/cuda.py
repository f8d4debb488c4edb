"""CUDA at the end of a cell: faults surface in their own cell, and a broken context is known as broken.

Kernels run on after the Python call that launched them. Before a cell ends, every primary context that is active is
synchronised through the driver API (cuDevicePrimaryCtxGetState, cuCtxSynchronize), whichever framework made it, and
only if libcuda is already loaded: a cell without CUDA never touches it.
"""

from __future__ import annotations

import ctypes
import os
import re

# CUDA driver API, CUresult: after these "the CUDA context is in an inconsistent state and any further CUDA work will
# return the same error. To continue using CUDA, the process must be terminated and relaunched."
_STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})

# What frameworks say when they met a sticky error first (fault 18 of the public reports: one assert, every later cell).
_STICKY_TEXT = re.compile(
    r"CUDA error: (device-side assert|an illegal memory access|an illegal instruction|unspecified launch failure"
    r"|misaligned address|invalid program counter|the launch timed out|uncorrectable ECC error|hardware stack error)"
)


class CudaFault(RuntimeError):
    """A kernel of this cell failed after the Python call that launched it had returned."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"CUDA error: {text} (code {code}), found when the cell ended")
        self.is_sticky = code in _STICKY


def synchronise() -> None:
    """Wait for every active primary CUDA context of this process.

    Raises:
        CudaFault: Work that this cell launched has failed.
    """
    driver = _driver()
    if driver is None:
        return
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:  # loaded but not initialised
        return
    for device in range(count.value):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        if driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) != 0:
            continue
        if active.value:
            _synchronise_device(driver, device)


class _Loaded(ctypes.Structure):
    """The head of ``struct dl_phdr_info`` (dl_iterate_phdr(3)); ``adds`` counts libraries loaded so far."""

    _fields_ = (
        ("addr", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("phdr", ctypes.c_void_p),
        ("phnum", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
    )


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)
_adds = 0


@_Visit  # type: ignore[untyped-decorator]  # ctypes makes the type at run time
def _count_loaded(info: ctypes._Pointer[_Loaded], size: int, data: int) -> int:
    global _adds
    _adds = info.contents.adds
    return 1  # the counter is the same in every entry: stop at the first


class _Found:
    """libcuda as last looked for; looking again costs 30 µs a cell, counting loaded libraries 2."""

    adds = -1
    driver: ctypes.CDLL | None = None


def _driver() -> ctypes.CDLL | None:
    ctypes.pythonapi.dl_iterate_phdr(_count_loaded, None)
    if _Found.adds != _adds and _Found.driver is None:
        _Found.adds = _adds
        try:
            _Found.driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            _Found.driver = None
    return _Found.driver


def _synchronise_device(driver: ctypes.CDLL, device: int) -> None:
    context = ctypes.c_void_p()
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if code == 0:
        driver.cuCtxPushCurrent_v2(context)
        try:
            code = driver.cuCtxSynchronize()
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            driver.cuDevicePrimaryCtxRelease_v2(device)
    if code != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise CudaFault(code, (text.value or b"unknown error").decode("utf-8", "replace"))


def is_sticky(error: BaseException | None) -> bool:
    """Whether after ``error`` no CUDA call of this process can succeed."""
    seen = 0
    while error is not None and seen < 20:
        if isinstance(error, CudaFault) and error.is_sticky:
            return True
        if _STICKY_TEXT.search(str(error)):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False
