"""The GPU that times are taken on: name, driver, caches, and at a moment its clocks, power and heat, by NVML."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

# NVML, nvmlClocksEventReasons: those that slow a GPU down against its wish. Idle and what a person set are none.
_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "hardware heat", 0x80: "power brake"}
_handle: Any = None


def described() -> dict[str, Any]:
    """What a time is worth on; without a GPU the processor."""
    found: dict[str, Any] = {"cpu": _cpu()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        found["cuda"] = str(getattr(torch.version, "cuda", "") or "")
    nvml, handle = _device()
    if handle is None:
        return found
    with contextlib.suppress(Exception):  # an old driver knows less
        found["gpu"] = _text(nvml.nvmlDeviceGetName(handle))
        found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(Exception):
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6
        found["peak_byte_per_s"] = 2 * clock * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    with contextlib.suppress(Exception):
        limits = nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_GRAPHICS)
        found["clock_policy"] = f"application clock {limits} MHz"
    if torch is not None and torch.cuda.is_available():
        found["l2_bytes"] = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", None)
    return found


def reading() -> dict[str, Any]:
    """The GPU now; empty without one."""
    nvml, handle = _device()
    if handle is None:
        return {}
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        found["sm_hz"] = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6
        found["temperature_c"] = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        found["power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    with contextlib.suppress(Exception):
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        found["throttled"] = [text for bit, text in _REASONS.items() if bits & bit]
    return found


def _device() -> tuple[Any, Any]:
    """NVML and the session's first GPU; none without both."""
    global _handle
    try:
        import pynvml
    except ImportError:
        return None, None
    if _handle is None:
        try:
            pynvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
            if visible.startswith("GPU-"):
                _handle = pynvml.nvmlDeviceGetHandleByUUID(visible)
            else:
                _handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible or 0))
        except Exception:  # noqa: BLE001 - NVMLError without a driver, or a simulated GPU
            return None, None
    return pynvml, _handle


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
