"""A cell under a tool: run in a fresh worker as a child of the tool, with what it needs of its session.

A profiler must be in place before CUDA starts, and a session's CUDA has started. So ``copying`` says in the session
what the cell needs of it; here, in the fresh worker, ``run`` starts the tool, and in the tool's child ``main`` rebuilds
the names, runs the session's setup cells and then the cell. Nothing else is ever run again.
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
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kcoral_gateway.worker import cuda, tool
from kcoral_magic.protocol import bundle
from kcoral_magic.protocol import messages as m
from kcoral_magic.values import pickled

_ORDER, _ENDED = "order.pickle", "ended.json"  # in a folder of ours: the workspace is the cell's
_LINGER_S = 2.0  # for threads of the cell, before its process ends
_TEXT = 500  # characters of one problem
_TIMED_OUT = 124
_GRACE_S = 30.0  # for the tool, to write down what it has when the cell's time is over


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
    ours = tempfile.TemporaryDirectory(prefix="kcoral-")
    Path(ours.name, _ORDER).write_bytes(pickle.dumps({**order, "timeout_s": timeout_s}))
    library = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.append({library!r}); from kcoral_gateway.worker import replica; "
    start += f"replica.main({ours.name!r})"
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
        said = json.loads(Path(ours.name, _ENDED).read_text("utf-8"))
        status, error, problems = said["status"], said["error"], [*ended["problems"], *said["problems"]]
    except (OSError, ValueError, LookupError, TypeError):  # the cell's process went away, or wrote there itself
        status, error, problems = None, None, ended["problems"]
    ours.cleanup()
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


def main(folder: str) -> None:
    """Rebuild the names, run the setup cells and the cell, and say how it ended.

    Args:
        folder: Absolute, for a cell may change its directory: the order lies there, and the answer goes there.
    """
    order: dict[str, Any] = pickle.loads(Path(folder, _ORDER).read_bytes())  # noqa: S301 - our own worker wrote it
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
    said = {"status": status, "error": output.error, "problems": problems}
    Path(folder, _ENDED).write_text(json.dumps(said), "utf-8")
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
