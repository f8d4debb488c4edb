"""Times a cell's body in its session: checks it, takes turns with its baseline, stops when the median is known."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import linecache
import math
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kcoral_gateway.worker import machine, timers
from kcoral_magic.reports.bench import WELL_KNOWN
from kcoral_magic.reports.statistics import relative_width

_MOST_SAMPLES = 20_000
_FEWEST_SAMPLES = 20
_LOOK_EVERY = 10  # samples between two looks at the interval
_WARM_S = 0.05
_RESULT = "__kcoral_result"
_ZERO = 0.1  # of the tolerance, for what is near 0 beside the largest value; an absolute bound takes all that is small


class _Dropped:
    """Standard output of the calls that are timed: the first, unmeasured one has shown what they print.

    What other threads of the session print meanwhile goes its way.
    """

    def __init__(self, real: Any) -> None:
        self._real = real
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        if threading.current_thread() is not threading.main_thread():
            return int(self._real.write(text))
        self.count += len(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _NotRight(Exception):
    """The candidate computes something else than it should: it is not timed."""


def run(
    source: str,
    *,
    baseline: str | None,
    function: str | None,
    method: str,
    is_cold: bool,
    check: str | None,
    bytes_of: str | None,
    flops_of: str | None,
    sweep: Mapping[str, Sequence[Any]],
    seconds: float,
) -> dict[str, Any]:
    """Time ``source`` at every point of the sweep.

    Args:
        baseline: Source of what it is compared with.
        function: The name of what it is compared with instead, if the session has such a function.
        check: An expression over ``result`` (and ``expected``, the baseline's) that must hold; ``same`` compares.
        bytes_of, flops_of: Expressions for what a call moves and computes.
        seconds: For each body and point.

    Returns:
        ``points`` and ``machine``; or ``not_right``, why a result is not the one that was expected. Only said, for an
        exception of that name could be the cell's own.
    """
    shell = get_ipython()  # type: ignore[name-defined]  # noqa: F821 - IPython's builtin
    namespace: dict[str, Any] = shell.user_ns
    candidate = _compiled(shell, source, "candidate")
    found = namespace.get(function) if function is not None else None
    other = found if callable(found) else None if baseline is None else _compiled(shell, baseline, "baseline")
    points = []
    kept = {name: namespace[name] for name in sweep if name in namespace}
    try:
        for at in _points(sweep):
            namespace.update(at)
            points.append(_point(candidate, other, namespace, at, method, is_cold, check, bytes_of, flops_of, seconds))
    except _NotRight as error:
        return {"not_right": str(error)}
    finally:
        for name in sweep:
            namespace.pop(name, None)
        namespace.update(kept)
    return {
        "points": points,
        "machine": machine.described(),
        "cpu": platform.processor() or platform.machine(),
        "is_function": callable(found),
    }


def _points(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    names = list(sweep)
    for values in itertools.product(*(sweep[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _compiled(shell: Any, source: str, name: str) -> Callable[[], Any]:
    """The body as a function of no arguments that gives its last expression, as ``%timeit`` has it: what it assigns
    stays inside."""
    tree = ast.parse(shell.transform_cell(source))
    if not tree.body:
        raise SyntaxError("there is nothing to time")
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Return(last.value), last)
    function = ast.parse(f"def {name}(): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = tree.body
    module = ast.fix_missing_locations(ast.Module([function], []))
    made: dict[str, Any] = {}
    place = f"<{name} of a benchmark>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)  # for tracebacks
    exec(compile(module, place, "exec"), shell.user_ns, made)  # the user's own code
    body: Callable[[], Any] = made[name]
    return body


def _point(
    candidate: Callable[[], Any],
    other: Callable[[], Any] | None,
    namespace: dict[str, Any],
    at: Mapping[str, Any],
    method: str,
    is_cold: bool,
    check: str | None,
    bytes_of: str | None,
    flops_of: str | None,
    seconds: float,
) -> dict[str, Any]:
    bodies = {"candidate": candidate} if other is None else {"baseline": other, "candidate": candidate}
    firsts, results = {}, {}
    for name, body in bodies.items():
        start = time.perf_counter()
        results[name] = body()
        _synchronise()
        firsts[name] = time.perf_counter() - start
        if inspect.isgenerator(results[name]) or inspect.iscoroutine(results[name]):
            kind = "generator" if inspect.isgenerator(results[name]) else "coroutine"
            raise _NotRight(f"the {name} gives a {kind}, so nothing of it ran: list(…) or asyncio.run(…) runs it")
    _check(check, namespace, results)
    with contextlib.redirect_stdout(_Dropped(sys.stdout)) as dropped:
        made = {name: timers.make(method, body, is_cold=is_cold) for name, body in bodies.items()}
        readings = [machine.reading()]
        samples, is_known = _in_turn(made, seconds)
        readings.append(machine.reading())
    if dropped.count:
        print(f"what the timed calls printed is dropped: {dropped.count:,} characters", file=sys.stderr)
    amounts = {
        "bytes": _amount(bytes_of, namespace),
        "flops": _amount(flops_of, namespace),
        "at": {name: one if isinstance(one, int | float | str | bool) else repr(one) for name, one in at.items()},
    }
    return {
        name: {
            "method": timer.method,
            "is_cold": timer.is_cold,
            "flush_bytes": timer.flush_bytes,
            "samples": samples[name],
            "first_s": firsts[name],
            "host_s": timer.host_s(),
            "kernels": timer.kernels(),
            "has_nan": has_nan(results[name]),
            "is_stopped": not is_known,
            "readings": [one for one in readings if one],
            **amounts,
        }
        for name, timer in made.items()
    }


def _in_turn(made: Mapping[str, timers.Timer], seconds: float) -> tuple[dict[str, list[float]], bool]:
    """Samples of each, taken one after the other in changing order, until all medians are known or the time is over."""
    samples: dict[str, list[float]] = {name: [] for name in made}
    warm = time.perf_counter() + _WARM_S
    while time.perf_counter() < warm:
        for timer in made.values():
            timer.sample()
    order = list(made.items())
    end = time.perf_counter() + seconds * len(made)
    while True:
        for name, timer in order:
            samples[name].append(timer.sample())
        order.reverse()  # whoever comes second finds the other's caches
        count = len(samples[order[0][0]])
        if count % _LOOK_EVERY == 0 and count >= _FEWEST_SAMPLES and _are_known(samples.values()):
            return samples, True
        if time.perf_counter() > end or count >= _MOST_SAMPLES:
            return samples, _are_known(samples.values())


def _are_known(all_samples: Any) -> bool:
    return all(relative_width(one) < WELL_KNOWN for one in all_samples)


def _check(check: str | None, namespace: dict[str, Any], results: Mapping[str, Any]) -> None:
    if check is None:
        return
    result, expected = results["candidate"], results.get("baseline")
    if check == "same":
        if "baseline" not in results:
            raise _NotRight("--check same compares with the baseline: --baseline NAME says which")
        if not is_close(result, expected):
            raise _NotRight(f"the result is not the baseline's: {result!r:.200} instead of {expected!r:.200}")
        return
    held = eval(check, {**namespace, "result": result, "expected": expected})
    if not bool(held.all() if hasattr(held, "all") else held):
        raise _NotRight(f"--check {check} does not hold: the result is {result!r:.200}")


def is_close(one: Any, other: Any) -> bool:
    """Whether two results are the same up to rounding: numbers, arrays, tensors, tuples, lists and dicts of them."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_close(one[key], other[key]) for key in one)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return False
        near = 1e-2 if one.dtype in (torch.float16, torch.bfloat16) else 1e-4
        wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
        one, other = one.to(wide), other.to(one.device, wide)
        size = other.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if other.numel() else 0.0
        return bool(torch.allclose(one, other, near, _ZERO * near * size, equal_nan=True))
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(one, numpy.ndarray) or isinstance(other, numpy.ndarray)):
        if numpy.shape(one) != numpy.shape(other):
            return False
        if not {numpy.asarray(one).dtype.kind, numpy.asarray(other).dtype.kind} & {"f", "c"}:
            return bool(numpy.array_equal(one, other))
        size = numpy.nan_to_num(numpy.abs(other), posinf=0.0).max(initial=0.0)
        return bool(numpy.allclose(one, other, 1e-4, _ZERO * 1e-4 * size, equal_nan=True))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    return bool(one == other)


def has_nan(result: Any) -> bool:
    """Whether a result holds NaN, as far as one can look."""
    if isinstance(result, float):
        return math.isnan(result)
    if isinstance(result, list | tuple):
        return any(map(has_nan, result[:100]))
    try:
        if hasattr(result, "isnan"):
            return bool(result.isnan().any())
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(result, numpy.ndarray) and result.dtype.kind == "f":
            return bool(numpy.isnan(result).any())
    except Exception:  # noqa: BLE001 - a type of the user's
        return False
    return False


def _amount(expression: str | None, namespace: dict[str, Any]) -> float | None:
    if expression is None:
        return None
    value = float(eval(expression, dict(namespace)))
    if not value >= 0:
        raise ValueError(f"{expression} is {value}: a number of bytes or operations was expected")
    return value


def _synchronise() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.synchronize()
