"""torch tensors: any dtype torch can view as bytes, whatever its device and strides, as one buffer each.

A view ships only its own part. Tensors of a GPU are copied to the CPU, and a note says so. Where torch is not
installed, a tensor arrives as a numpy array, or as ``TensorData`` for dtypes that numpy does not have.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from kcoral_magic.values.buffers import NotSafe, Reader, Writer, refuse_unless, shape_in

# Bytes of an element; the names are torch's. What is not here travels by pickle.
ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
_NOT_NUMPY = {"bfloat16", "complex32", *(name for name in ITEM_BYTES if name.startswith("float8"))}


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a plain tensor or parameter. torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "nn") and type(value) in (torch.Tensor, torch.nn.Parameter)


def write(value: Any, writer: Writer) -> list[Any]:
    """``[dtype, shape, buffer, requires_grad, is a parameter]``. Contiguous CPU memory is not copied.

    Raises:
        NotSafe: It is sparse, quantized, on the meta device, or of a dtype without a name here.
    """
    import torch

    name = str(value.dtype).removeprefix("torch.")
    if value.layout != torch.strided or value.is_quantized or value.is_meta or name not in ITEM_BYTES:
        raise NotSafe(f"a {value.layout} tensor of dtype {name} on {value.device}")
    if value.device.type != "cpu":
        writer.notes.append(f"{name} tensor {list(value.shape)} copied from {value.device} to the CPU")
    number = writer.add(bytes_of(value))
    return [name, list(value.shape), number, bool(value.requires_grad), isinstance(value, torch.nn.Parameter)]


def bytes_of(value: Any) -> memoryview:
    """The elements of a strided tensor in C order."""
    import torch

    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.numel() == 0:
        return memoryview(b"")
    return memoryview(plain.reshape(-1).view(torch.uint8).numpy().data)


def read(node: list[Any], reader: Reader) -> Any:
    """The tensor, on the buffer itself.

    Raises:
        ValueRefused: The description does not fit the buffer.
    """
    refuse_unless(len(node) == 5 and isinstance(node[0], str) and node[0] in ITEM_BYTES, "no tensor of a known dtype")
    name, shape_node, number, requires_grad, is_parameter = node
    shape = shape_in(shape_node)
    view = reader.take(number, math.prod(shape) * ITEM_BYTES[name])
    try:
        import torch
    except ImportError:
        return _without_torch(name, shape, view)
    if not hasattr(torch, name):
        return TensorData(name, shape, view)
    tensor = from_bytes(view, name, shape)
    if is_parameter and (tensor.is_floating_point() or tensor.is_complex() or not requires_grad):
        return torch.nn.Parameter(tensor, requires_grad=bool(requires_grad))
    if requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
        tensor.requires_grad_()
    return tensor


def from_bytes(view: memoryview, name: str, shape: tuple[int, ...]) -> Any:
    """A tensor on ``view``, which is copied only if it may not be written to or lies crookedly."""
    import torch

    dtype = getattr(torch, name)
    if view.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    if flat.data_ptr() % ITEM_BYTES[name]:
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


def _without_torch(name: str, shape: tuple[int, ...], view: memoryview) -> Any:
    try:
        import numpy as np
    except ImportError:
        return TensorData(name, shape, view)
    if name in _NOT_NUMPY:
        return TensorData(name, shape, view)
    return np.frombuffer(view, np.dtype(name)).reshape(shape)


class TensorData:
    """A tensor where torch is not installed (or does not know its dtype): dtype, shape and raw bytes.

    Attributes:
        dtype: torch's name of it, say ``bfloat16``.
        shape: Elements of each axis.
        raw: The elements in C order, little endian.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], raw: memoryview) -> None:
        self.dtype = dtype
        self.shape = shape
        self.raw = raw

    def __repr__(self) -> str:
        return f"<tensor {self.dtype} {list(self.shape)}: install torch here to compute with it; .raw has its bytes>"
