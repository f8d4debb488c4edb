"""GPUs of this machine, and the device nodes a worker that holds them may open.

NVML is asked in a child process (``inventory``): its driver library must not live in the gateway, and a hanging driver
must not hang it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kcoral_gateway.config import Device

# Opened by every CUDA process; uvm-tools since driver 570 (facts, section 1.4).
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def inventory() -> tuple[list[Device], str]:
    """The GPUs by NVML, and why there are none (empty when there are some)."""
    try:
        import pynvml
    except ImportError:
        return [], "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"NVML does not start: {error}"
    try:
        return [_device(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())], ""
    finally:
        pynvml.nvmlShutdown()


def _device(pynvml, index: int) -> Device:  # type: ignore[no-untyped-def]  # an untyped module, loaded when met
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        index=index,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        minor=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
    )


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
