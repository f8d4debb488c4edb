"""torch.profiler around a cell, in its session as it is: the averages, the memory, and the trace."""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from typing import Any

_ROWS = 400
_MOST_TRACE_BYTES = 512 * 1024 * 1024


def run(source: str, count: int, first_line: int) -> dict[str, Any]:
    """Run a cell under the profiler.

    Returns:
        ``operators`` and ``kernels`` (times in microseconds), ``memory`` peaks by device, ``elapsed_s``, and ``trace``:
        gzipped, as chrome://tracing and Perfetto read it.

    Raises:
        Exception: What the cell raised; what was profiled until then is lost.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    shell = get_ipython()  # type: ignore[name-defined]  # noqa: F821 - IPython's builtin
    has_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])]
    if has_gpu:
        torch.cuda.reset_peak_memory_stats()
    shell.compile.first_line = first_line
    with profile(activities=activities, profile_memory=True, record_shapes=False) as profiler:
        start = time.perf_counter()
        result = shell.run_cell(source, store_history=False)
        if has_gpu:
            torch.cuda.synchronize()
        elapsed_s = time.perf_counter() - start
    result.raise_error()
    averages = profiler.key_averages()
    rows = [(_is_of_device(one), _row(one)) for one in averages]
    operators = [row for is_of_device, row in rows if not is_of_device]
    kernels = [row for is_of_device, row in rows if is_of_device]
    memory = {"cuda": torch.cuda.max_memory_allocated()} if has_gpu else {}
    return {
        "operators": sorted(operators, key=lambda row: -row["self_cpu_us"])[:_ROWS],
        "kernels": sorted(kernels, key=lambda row: -row["self_device_us"])[:_ROWS],
        "memory": memory,
        "elapsed_s": elapsed_s,
        "trace": _trace(profiler),
    }


def _is_of_device(one: Any) -> bool:
    return "CUDA" in str(getattr(one, "device_type", ""))


def _row(one: Any) -> dict[str, Any]:
    """Torch has renamed its cuda fields to device fields; both are known."""
    device = getattr(one, "self_device_time_total", None)
    if device is None:
        device = getattr(one, "self_cuda_time_total", 0)
    memory = getattr(one, "self_device_memory_usage", 0) or getattr(one, "self_cpu_memory_usage", 0)
    return {
        "name": str(one.key)[:300],
        "count": int(one.count),
        "self_cpu_us": float(one.self_cpu_time_total),
        "cpu_us": float(one.cpu_time_total),
        "self_device_us": float(device or 0),
        "memory_bytes": int(memory),
    }


def _trace(profiler: Any) -> bytes:
    descriptor, path = tempfile.mkstemp(suffix=".json")
    os.close(descriptor)
    try:
        profiler.export_chrome_trace(path)
        if os.path.getsize(path) > _MOST_TRACE_BYTES:
            return b""
        with open(path, "rb") as file:
            return gzip.compress(file.read(), 5)
    finally:
        os.unlink(path)
