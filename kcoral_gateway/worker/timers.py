"""How long a call takes: by the host's clock, by CUDA events, by graph replay, or by CUPTI's record of the kernels.

Each timer gives one sample at a time, so that two bodies can take turns. Flushing caches lies outside of every timed
span; a graph holds the call alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

_LEAST_S = 100e-6  # of one host sample: the clock's own cost is then below a thousandth
_FLUSH_OF_L2 = 2
_FALLBACK_FLUSH = 256 * 1024 * 1024


class Timer(Protocol):
    """Times one body."""

    method: str
    is_cold: bool
    flush_bytes: int | None

    def sample(self) -> float:
        """Seconds of a call."""

    def host_s(self) -> float | None:
        """How long a call keeps the CPU, where that is not what is timed."""

    def kernels(self) -> int | None:
        """How many kernels a call launches, if that is known."""


Body = Callable[[], Any]


class Host:
    """The host's clock. Short bodies are called many times for a sample; a GPU is waited for."""

    method = "host"
    is_cold = False
    flush_bytes: int | None = None

    def __init__(self, body: Body) -> None:
        self._body = body
        self._wait = _synchronise()
        self._calls = 1
        while self._calls < 1_000_000 and (took := self._timed()) < _LEAST_S:
            self._calls = max(self._calls * 2, min(self._calls * 10, int(_LEAST_S / max(took, 1e-9)) + 1))

    def _timed(self) -> float:
        body, calls = self._body, self._calls
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            body()
        self._wait()
        return time.perf_counter() - start

    def sample(self) -> float:
        return self._timed() / self._calls

    def host_s(self) -> float | None:
        return None

    def kernels(self) -> int | None:
        return None


def _synchronise() -> Callable[[], None]:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return lambda: torch.cuda.synchronize()
    return lambda: None


class _Gpu:
    """What the timers of a GPU share: the flush, and how long a call keeps the CPU."""

    method = ""

    def __init__(self, body: Body, *, is_cold: bool) -> None:
        import torch

        self._torch = torch
        self._body = body
        self.is_cold = is_cold
        self.flush_bytes: int | None = None
        self._buffer: Any = None
        if is_cold:
            size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) * _FLUSH_OF_L2
            self.flush_bytes = max(size, _FALLBACK_FLUSH)
            self._buffer = torch.empty(self.flush_bytes, dtype=torch.int8, device="cuda")

    def _flush(self) -> None:
        if self._buffer is not None:
            self._buffer.zero_()

    def host_s(self) -> float | None:
        self._torch.cuda.synchronize()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            self._body()
            times.append(time.perf_counter() - start)
            self._torch.cuda.synchronize()
        return sorted(times)[2]

    def kernels(self) -> int | None:
        return _kernels_of(self._torch, self._body)


def _kernels_of(torch: Any, body: Body) -> int | None:
    """By torch.profiler, once; none where it cannot say."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            body()
            torch.cuda.synchronize()
        return sum(1 for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    except Exception:  # noqa: BLE001 - CUPTI may be taken or missing: then it is not known
        return None


class Event(_Gpu):
    """CUDA events around a call: what the GPU did between them, gaps for the CPU included."""

    method = "event"

    def sample(self) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._flush()
        start.record()
        self._body()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


class Graph(_Gpu):
    """The call captured once as a CUDA graph and replayed: no CPU between the kernels. Flushes stay outside of it."""

    method = "graph"

    def __init__(self, body: Body, *, is_cold: bool) -> None:
        super().__init__(body, is_cold=is_cold)
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # what allocates or compiles lazily must be done before the capture
                body()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            body()

    def sample(self) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._flush()
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


class Cupti(_Gpu):
    """CUPTI's activity records: from the start of a call's first kernel to the end of its last."""

    method = "cupti"

    def __init__(self, body: Body, *, is_cold: bool) -> None:
        super().__init__(body, is_cold=is_cold)
        from cupti import cupti

        self._cupti = cupti
        self._spans: list[tuple[int, int]] = []
        cupti.activity_register_callbacks(lambda: (8 * 1024 * 1024, 0), self._completed)

    def _completed(self, activities: Any) -> None:
        self._spans += [(activity.start, activity.end) for activity in activities if hasattr(activity, "start")]

    def sample(self) -> float:
        cupti = self._cupti
        self._flush()
        self._torch.cuda.synchronize()
        cupti.activity_flush_all(1)
        self._spans.clear()
        kinds = (cupti.ActivityKind.CONCURRENT_KERNEL, cupti.ActivityKind.MEMCPY, cupti.ActivityKind.MEMSET)
        for kind in kinds:
            cupti.activity_enable(kind)
        try:
            self._body()
            self._torch.cuda.synchronize()
        finally:
            for kind in kinds:
                cupti.activity_disable(kind)
            cupti.activity_flush_all(1)
        if not self._spans:
            return 0.0
        return (max(end for _, end in self._spans) - min(start for start, _ in self._spans)) / 1e9


def make(method: str, body: Body, *, is_cold: bool) -> Timer:
    """A timer; ``auto`` is the best that there is.

    Raises:
        RuntimeError: It needs a GPU, and there is none.
    """
    has_gpu = _has_gpu()
    if method == "auto":
        method = ("cupti" if _has_cupti() else "event") if has_gpu else "host"
    if method == "host":
        return Host(body)
    if not has_gpu:
        raise RuntimeError(f"--method {method} needs a CUDA GPU and torch, which this session has not; host needs none")
    kinds: dict[str, Callable[..., Timer]] = {"event": Event, "graph": Graph, "cupti": Cupti}
    return kinds[method](body, is_cold=is_cold)


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_available())


def _has_cupti() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec("cupti") is not None
    except (ImportError, ValueError):
        return False
