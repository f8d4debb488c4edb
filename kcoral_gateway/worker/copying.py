"""What a cell under a tool needs of its session: the names it reads and what their functions read, files, setup cells.

Everything goes in one pickle, so that what names share stays shared, the memory of tensors included; only the fresh
worker's process opens it. What cannot go is left out and named.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import tarfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kcoral_gateway.worker.files import ROOT
from kcoral_magic.values import pickled, tensors
from kcoral_magic.values.buffers import Writer

_MOST_FILES_BYTES = 256 * 1024 * 1024
_MOST_TWICE_BYTES = 16 * 1024 * 1024  # of names that are sent by themselves as well
_MOST_NAMES_BYTES = 4 * 1024 * 1024 * 1024
_TEXT = 500  # characters of one problem

_CODE = (types.ModuleType, types.FunctionType, type)
_setup: list[tuple[str, int, int]] = []  # source, count and first line of the session's setup cells


def remember(source: str, count: int, first_line: int) -> int:
    """A cell that rebuilds state has run; the same text again takes the place of its first run."""
    _setup[:] = [cell for cell in _setup if cell[0] != source]
    _setup.append((source, count, first_line))
    return len(_setup)


def copied(reads: Sequence[str], *, has_files: bool = True) -> dict[str, Any]:
    """What a cell that reads these names needs of the session.

    Returns:
        ``pickles`` and ``buffers`` of the names; ``problems`` of those that cannot be copied; ``setup`` cells;
        ``files`` as a tar of the workspace; ``has_cuda`` if rebuilding the names starts CUDA.
    """
    namespace = pickled.main_globals()
    hidden = get_ipython().user_ns_hidden  # type: ignore[name-defined]  # noqa: F821 - IPython's builtin
    found = {
        name: namespace[name]
        for name in _reached(reads, namespace)
        if not (name in hidden and namespace[name] is hidden[name])
    }
    made, problems = _pickled(found)
    files, left = _packed(Path(ROOT)) if has_files else (b"", [])
    return {
        **made,
        "each": _each(found, made),
        "problems": [*problems, *left],
        "setup": list(_setup),
        "files": files,
        "has_cuda": _has_cuda(),
    }


def _reached(reads: Sequence[str], namespace: dict[str, Any]) -> list[str]:
    """``reads`` and what their functions and classes read of the namespace in turn."""
    found: dict[str, None] = {}
    waiting = [name for name in reads if name in namespace]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = None
        try:
            codes = list(_codes(namespace[name], namespace))
        except Exception:  # noqa: BLE001 - a dead proxy, or a class of the user's that answers nothing
            continue
        for code in codes:
            waiting += [used for used in code.co_names if used in namespace and used not in found]
    return list(found)


def _codes(value: Any, namespace: dict[str, Any]) -> Iterator[types.CodeType]:
    """The code of a function of the session, of a class's methods, and of what is inside them."""
    functions = [value]
    if isinstance(value, type) and value.__module__ == "__main__":
        functions = [getattr(member, "__func__", member) for member in vars(value).values()]
    elif getattr(type(value), "__module__", "") == "__main__":
        functions = [getattr(member, "__func__", member) for member in vars(type(value)).values()]
    for function in functions:
        inner = getattr(function, "__wrapped__", function)
        inner = getattr(inner, "fn", inner)  # as triton.jit wraps
        if isinstance(inner, types.FunctionType) and inner.__globals__ is namespace:
            waiting = [inner.__code__]
            while waiting:
                code = waiting.pop()
                yield code
                waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]


class _Memory:
    """What a tensor lies in: pickled once, however many tensors are views of it, and put back on its device."""

    def __init__(self, data: Any, device: str) -> None:
        self.data = data
        self.device = device
        self._made: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Memory, (pickle.PickleBuffer(self.data), self.device)

    def storage(self) -> Any:
        """The storage, the same each time."""
        import torch

        if self._made is None:
            data = bytearray(self.data)
            whole = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            self._made = whole.to(self.device).untyped_storage()
        return self._made


def view_of(memory: _Memory, dtype: str, offset: int, size: Sequence[int], stride: Sequence[int], grad: bool) -> Any:
    """A tensor as it lay in its memory."""
    import torch

    made = torch.empty(0, dtype=getattr(torch, dtype), device=memory.device)
    made.set_(memory.storage(), offset, tuple(size), tuple(stride))
    return made.requires_grad_() if grad else made


class _Pickler(pickled.Pickler):
    """Tensors go with the memory that they share, and back to their GPU."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self._memories: dict[tuple[str, int], _Memory] = {}

    def reducer_override(self, obj: Any) -> Any:
        if tensors.is_tensor(obj) and type(obj).__name__ == "Tensor" and obj.is_leaf and not obj.is_meta:
            if str(obj.layout) == "torch.strided" and not obj.is_quantized and not obj.is_conj() and not obj.is_neg():
                return self._tensor(obj)
        if tensors.is_tensor(obj):
            return NotImplemented
        return super().reducer_override(obj)

    def _tensor(self, tensor: Any) -> Any:
        import torch

        storage, device = tensor.untyped_storage(), str(tensor.device)
        key = (device, storage.data_ptr())
        if key not in self._memories:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._memories[key] = _Memory(flat.cpu().numpy().tobytes(), device)
        name = str(tensor.dtype).removeprefix("torch.")
        place = (name, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.requires_grad)
        return view_of, (self._memories[key], *place)


def _each(found: dict[str, Any], made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each name by itself, for when the whole cannot be read; not of what is large."""
    if len(made["pickles"]) + sum(map(len, made["buffers"])) > _MOST_TWICE_BYTES:
        return {}
    each = {}
    for name, value in sorted(found.items(), key=lambda item: not isinstance(item[1], _CODE)):
        with contextlib.suppress(Exception, SystemExit):
            each[name] = _one_pickle({name: value})
    return each


def _pickled(found: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """All names in one pickle, so that what they share stays shared; those that cannot go are left out and named."""
    problems = []
    try:
        return _one_pickle(found), []
    except (Exception, SystemExit):  # noqa: BLE001 - any __reduce__ may raise anything: now one by one
        kept = {}
        for name, value in found.items():
            try:
                _one_pickle({name: value})
                kept[name] = value
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the same
                problems.append(f"{name} cannot be copied: {_explained(value, name, error)}"[:_TEXT])
    return _one_pickle(kept), problems


def _explained(value: Any, name: str, error: BaseException) -> str:
    try:
        return str(pickled.explain(value, name, error))
    except (Exception, SystemExit):  # noqa: BLE001 - to look for the part that cannot go asks all parts
        return f"it raises {type(error).__name__}"


def _one_pickle(values: dict[str, Any]) -> dict[str, Any]:
    writer = Writer()
    pickler = _Pickler(writer)
    code = {name: value for name, value in values.items() if isinstance(value, _CODE)}
    # Modules, functions and classes first: what is rebuilt after may call them.
    data = pickler.pickled(code) + pickler.pickled({name: values[name] for name in values if name not in code})
    buffers = [bytes(buffer) for buffer in writer.buffers]
    size = len(data) + sum(map(len, buffers))
    if size > _MOST_NAMES_BYTES:
        raise ValueError(f"{size:,} bytes are more than the {_MOST_NAMES_BYTES:,} that are copied")
    return {"pickles": data, "buffers": buffers}


def _packed(root: Path) -> tuple[bytes, list[str]]:
    """The workspace's files as a tar, the smallest first, and which were too large."""
    found, left, total = [], [], 0
    for path in root.rglob("*"):
        try:
            if path.is_symlink():
                left.append(f"{path.relative_to(root)} is not copied: it is a symbolic link")
            elif path.is_file():
                found.append((path.stat().st_size, path))
        except OSError as error:  # it went away, or lies in a folder that is closed to us
            left.append(f"{path.relative_to(root)} is not copied: {error.strerror}")
    found.sort()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for size, path in found:
            total += size
            if total > _MOST_FILES_BYTES:
                left.append(f"{path.relative_to(root)} ({size:,} bytes) is not copied: more than 256 MiB of files")
                continue
            try:
                archive.add(path, str(path.relative_to(root)), recursive=False)
            except OSError as error:
                left.append(f"{path.relative_to(root)} is not copied: {error.strerror or error}")
    return made.getvalue() if found else b"", left[:20]


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized())
