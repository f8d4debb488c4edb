"""numpy arrays and scalars of every dtype but object, as one buffer each."""

from __future__ import annotations

import math
import sys
from typing import Any

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values.buffers import NotSafe, Reader, Writer, refuse_unless, shape_in

_EMPTY_ITEMS = 1 << 20  # of a dtype without bytes: what a reader makes of nothing must stay small


def is_array(value: Any) -> bool:
    """Whether ``value`` is a plain array or scalar; subclasses hold more than their elements. numpy is not loaded."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (type(value) in (numpy.ndarray, numpy.memmap) or isinstance(value, numpy.generic))


def write(value: Any, writer: Writer) -> list[Any]:
    """``[dtype, shape, buffer, is Fortran-ordered, is scalar]``. Contiguous memory is not copied.

    Raises:
        NotSafe: It holds Python objects, or a dtype without a description.
    """
    import numpy as np

    is_scalar = not isinstance(value, np.ndarray)
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise NotSafe("an array of dtype object")
    try:
        descr = np.lib.format.dtype_to_descr(array.dtype)
        same = np.lib.format.descr_to_dtype(descr) == array.dtype
    except (ValueError, TypeError, UserWarning):
        same = False
    if not same or array.dtype.char == "T":
        raise NotSafe(f"an array of dtype {array.dtype}")
    is_fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
    flat = array.T if is_fortran else array
    if not flat.flags.c_contiguous:
        flat = np.ascontiguousarray(flat)
    number = writer.add(_bytes_of(flat))
    return [descr, list(array.shape), number, is_fortran, is_scalar]


def _bytes_of(array: Any) -> memoryview:
    import numpy as np

    if array.nbytes == 0:
        return memoryview(b"")
    return memoryview(array.reshape(-1).view(np.uint8).data)


def read(node: list[Any], reader: Reader) -> Any:
    """The array, on the buffer itself and writable where the buffer is.

    Raises:
        ValueRefused: The description does not fit the buffer.
    """
    refuse_unless(len(node) == 5, "an array has 5 parts")
    descr, shape_node, number, is_fortran, is_scalar = node
    shape = shape_in(shape_node)
    try:
        import numpy as np
    except ImportError:
        return Missing("numpy", f"array of {math.prod(shape)} elements")
    try:
        dtype = np.lib.format.descr_to_dtype(_as_descr(descr))
    except Exception as error:  # noqa: BLE001 - numpy raises what it likes for a stranger's description
        raise ValueRefused(f"{descr!r:.60} is no dtype: {type(error).__name__}") from None
    refuse_unless(not dtype.hasobject and dtype.char != "T", f"an array of dtype {dtype} holds Python objects")
    count = math.prod(shape)
    refuse_unless(dtype.itemsize > 0 or count <= _EMPTY_ITEMS, f"{count} elements of no bytes")
    size = count * dtype.itemsize
    view = reader.take(number, size)
    flat = np.frombuffer(view, np.uint8)
    if size and flat.ctypes.data % dtype.alignment:
        flat = flat.copy()
    array = flat.view(dtype) if size else np.empty(math.prod(shape), dtype)
    array = array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
    return array[()] if is_scalar and not shape else array


def _as_descr(node: Any) -> Any:
    """msgpack has lists where numpy wants tuples: ``[(name, descr), …]`` and ``(descr, shape)`` for subarrays."""
    if isinstance(node, str):
        return node
    if not isinstance(node, list):
        raise TypeError("no descr")
    if node and all(isinstance(field, list) for field in node) and not _is_subarray(node):
        return [_field(field) for field in node]
    if _is_subarray(node):
        return (_as_descr(node[0]), tuple(node[1]))
    return [_field(field) for field in node]


def _is_subarray(node: list[Any]) -> bool:
    return len(node) == 2 and isinstance(node[1], list) and all(type(axis) is int for axis in node[1])


def _field(field: list[Any]) -> tuple[Any, ...]:
    name, descr, *rest = field
    name = tuple(name) if isinstance(name, list) else name
    return (name, _as_descr(descr), *(tuple(shape) for shape in rest))


class Missing:
    """Stands for a value whose package is not installed here."""

    def __init__(self, package: str, what: str) -> None:
        self.package = package
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}: install {self.package} here to have it>"
