"""A cell under a tool: the names it reads, copied from its session into a process that the tool starts.

A profiler must be in place before CUDA starts, and a session's CUDA has started. So the cell runs in a fresh worker on
the session's GPUs, as a child of the tool: there the session's setup cells run first, then the cell, and nothing else
is ever run again. This module is on all three sides: in the session (``remember``, ``copied``), in the fresh worker
(``run``), and in the tool's child (``main``).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import json
import pickle
import signal
import sys
import tarfile
import threading
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kcoral_gateway.worker import cuda, tool
from kcoral_gateway.worker.files import ROOT
from kcoral_magic.protocol import bundle
from kcoral_magic.protocol import messages as m
from kcoral_magic.values import pickled, tensors
from kcoral_magic.values.buffers import Writer

_MOST_FILES_BYTES = 256 * 1024 * 1024
_MOST_TWICE_BYTES = 16 * 1024 * 1024  # of names that are sent by themselves as well
_LINGER_S = 2.0  # for threads of the cell, before its process ends
_MOST_NAMES_BYTES = 4 * 1024 * 1024 * 1024
_TEXT = 500  # characters of one problem
_TIMED_OUT = 124
_ORDER, _ENDED = ".kcoral-order", ".kcoral-ended"
_GRACE_S = 30.0  # for the tool, to write down what it has when the cell's time is over

_CODE = (types.ModuleType, types.FunctionType, type)
_setup: list[tuple[str, int, int]] = []  # source, count and first line of the session's setup cells


# ── in the session ──


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
            if path.is_file() and not path.is_symlink() and path.name not in (_ORDER, _ENDED):
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


# ── in the fresh worker ──


def run(
    order: dict[str, Any],
    *,
    prefix: Sequence[str],
    env: dict[str, str],
    folder: str,
    hint: str,
    timeout_s: float | None,
) -> dict[str, Any]:
    """Run a cell under a tool.

    Args:
        order: What ``copied`` gave, with ``source``, ``count``, ``first_line`` and ``is_late`` (profile between
            ``cudaProfilerStart`` and ``Stop``).
        prefix: The tool's command line; the cell's process follows it.
        folder: Its files come back.

    Returns:
        As ``tool.run``, and ``error``: how the cell failed, if it did.
    """
    if files := order.pop("files", b""):
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(".", filter="data")
    Path(_ORDER).write_bytes(pickle.dumps({**order, "timeout_s": timeout_s}))
    Path(_ENDED).unlink(missing_ok=True)
    library = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.append({library!r}); from kcoral_gateway.worker import replica; replica.main()"
    ended = tool.run(
        [*prefix, sys.executable, "-c", start],
        env={**env, "PYTHONUNBUFFERED": "1"},
        reads_input=False,
        timeout_s=None if timeout_s is None else timeout_s + _GRACE_S,
        fetch=[folder],
        folder=folder,
        hint=hint,
    )
    tool.take_status()  # it is the tool's: whether the cell went well is said by itself
    try:
        said = json.loads(Path(_ENDED).read_text("utf-8"))
        status, error, problems = said["status"], said["error"], [*ended["problems"], *said["problems"]]
    except (OSError, ValueError, LookupError, TypeError):  # the cell's process went away, or wrote there itself
        status, error, problems = None, None, ended["problems"]
    Path(_ORDER).unlink(missing_ok=True)
    return {**ended, "cell": status, "error": error, "problems": problems}


# ── in the tool's child ──


class _Plain:
    """Stands where a worker's output stands: what is displayed is printed, an error is kept."""

    is_owner = False

    def __init__(self) -> None:
        self.is_running = threading.Event()
        self.error: dict[str, Any] | None = None

    def send(self, body: Any, buffers: Sequence[Any] = ()) -> None:
        match body:
            case m.Error():
                text, traceback, args = (bytes(buffer).decode("utf-8", "replace") for buffer in buffers[:3])
                self.error = {
                    "ename": body.ename,
                    "module": body.module,
                    "qualname": body.qualname,
                    "is_interrupt": body.is_interrupt,
                    "texts": [text, traceback, args],
                }
            case m.Result(mimes=mimes):
                print(bundle.unpack(mimes, buffers)[0].get("text/plain", ""))


class _Clock:
    """Ends the cell when its time is over, so that the tool can write down what it has."""

    def __init__(self, timeout_s: float | None) -> None:
        self.is_over = False
        signal.signal(signal.SIGALRM, self._ring)
        if timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, timeout_s, 1.0)  # again, for code that swallows it

    def _ring(self, number: int, frame: object) -> None:
        self.is_over = True
        raise KeyboardInterrupt("the cell's time (--timeout) is over")

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Rebuild the names, run the setup cells and the cell, and say how it ended."""
    order: dict[str, Any] = pickle.loads(Path(_ORDER).read_bytes())  # noqa: S301 - our own worker wrote it
    from traitlets.config import Config

    from kcoral_gateway.worker.shell import Shell

    output: Any = _Plain()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "linux"
    Shell.output = output
    shell = Shell.instance(config=config)
    sys.path.insert(0, "")
    problems: list[str] = []
    status = "ok"
    clock = _Clock(order["timeout_s"])
    with contextlib.suppress(KeyboardInterrupt):  # rebuilding may hang, too
        shell.user_ns.update(_rebuilt(order, problems))
    with contextlib.suppress(KeyboardInterrupt):  # between two cells
        for source, count, first_line in order["setup"]:
            if not _runs(shell, source, count, first_line):
                problems.append(f"the setup cell In[{count}] failed, and the cell did not run")
                status = "setup"
                break
        else:
            with _profiled() if order["is_late"] else contextlib.nullcontext():
                status = "ok" if _runs(shell, order["source"], order["count"], order["first_line"]) else "error"
    clock.stop()
    status = "timeout" if clock.is_over else status
    Path(_ENDED).write_text(json.dumps({"status": status, "error": output.error, "problems": problems}), "utf-8")
    _leave(_TIMED_OUT if status == "timeout" else 0 if status == "ok" else 1)


def _rebuilt(order: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """The session's names: all of them as they hang together, else those that can be had."""
    try:
        return _loaded(order)
    except Exception as error:  # noqa: BLE001 - rebuilding runs anybody's code
        if not order["each"]:
            problems.append(f"the session's names could not be rebuilt: {type(error).__name__}: {error}"[:_TEXT])
    names: dict[str, Any] = {}
    for name, one in order["each"].items():
        try:
            names |= _loaded(one)
        except Exception as error:  # noqa: BLE001 - the same
            problems.append(f"{name} could not be rebuilt: {type(error).__name__}: {error}"[:_TEXT])
    return names


def _loaded(one: dict[str, Any]) -> dict[str, Any]:
    """The names of one pickle: what is code is at hand when the rest is rebuilt."""
    unpickler = pickled.Unpickler(one["pickles"], map(memoryview, one["buffers"]))
    names: dict[str, Any] = unpickler.load()
    pickled.main_globals().update(names)
    names |= unpickler.load()
    return names


def _leave(status: int) -> NoReturn:
    """End the process as ``exit`` does, for what a profiler has registered there; but not with threads for ever."""
    end = time.monotonic() + _LINGER_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                print("kcoral: a thread of the cell went on after it and was ended", file=sys.stderr)
                break
    else:
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).exit(status)  # C's, with what libraries have registered
    raise SystemExit(status)


def _runs(shell: Any, source: str, count: int, first_line: int) -> bool:
    shell.execution_count = count
    shell.compile.first_line = first_line
    result = shell.run_cell(source, store_history=True)
    try:
        cuda.synchronise()
    except cuda.CudaFault as fault:
        shell.showtraceback((type(fault), fault, fault.__traceback__), exception_only=True)
        return False
    sys.stdout.flush()
    return result.success is True


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    """``cudaProfilerStart`` and ``Stop`` around the cell; without a driver there is nothing to profile."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        yield
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        driver.cuCtxPushCurrent_v2(context)
        driver.cuCtxSynchronize()
    driver.cuProfilerStart()
    try:
        yield
    finally:
        driver.cuCtxSynchronize()
        driver.cuProfilerStop()
