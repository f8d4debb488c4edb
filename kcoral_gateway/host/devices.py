"""GPUs of this machine, and the device nodes a worker that holds them may open.

NVML is asked in a child process (``inventory``): its driver library must not live in the gateway, and a hanging driver
must not hang it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kcoral_gateway.config import Device

# Opened by every CUDA process; uvm-tools since driver 570 (facts, section 1.4).
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class Inventory(msgspec.Struct, frozen=True):
    """The GPUs by NVML, those that some process computes on, and why there are none."""

    gpus: tuple[Device, ...] = ()
    busy: tuple[str, ...] = ()
    reason: str = ""


def inventory() -> Inventory:
    """What NVML says of this machine."""
    try:
        import pynvml
    except ImportError:
        return Inventory(reason="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Inventory(reason=f"NVML does not start: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_device(pynvml, index, handle) for index, handle in enumerate(handles))
        busy = tuple(
            gpu.uuid
            for gpu, handle in zip(gpus, handles, strict=True)
            if pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        )
        return Inventory(gpus, busy)
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml: Any, index: int, handle: Any) -> Device:
    return Device(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        index=index,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
        arch=arch_of(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
    )


def arch_of(major: int, minor: int) -> str:
    """A compute capability as compilers name it; from 9.0 on with the features of that architecture alone (``a``)."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def nodes(devices: Iterable[Device]) -> list[str]:
    """The device nodes for these GPUs that exist here."""
    minors = [device.minor for device in devices if device.minor is not None]
    if not minors:
        return []
    wanted = (*_SHARED_NODES, *(f"/dev/nvidia{minor}" for minor in minors))
    return [node for node in wanted if Path(node).exists()]


def environment(devices: Iterable[Device]) -> dict[str, str]:
    """CUDA's view of them: by UUID, since numbers inside start at 0 whatever the machine calls them."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}
