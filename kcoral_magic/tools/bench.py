"""``%%kcoral bench`` and ``kcoral-magic bench``: how long a cell takes, how well that is known, and against what."""

from __future__ import annotations

import argparse
import ast
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.display.bench import BenchReport, JudgeReport
from kcoral_magic.display.html import Table
from kcoral_magic.display.quantities import time as spoken
from kcoral_magic.errors import ExpectationFailed, NotFoundError, UsageError, ValueRefused
from kcoral_magic.reports import bench as reports
from kcoral_magic.reports.bench import Bench, Machine, Measured, Reading
from kcoral_magic.tools import arguments, kept
from kcoral_magic.tools import said as said_by
from kcoral_magic.tools.family import Shown

if TYPE_CHECKING:
    from kcoral_magic.client.exchange import Outgoing
    from kcoral_magic.client.files import FileSet
    from kcoral_magic.client.sync import Execution, Session

WHERE = "inside"
USAGE = "%%kcoral bench [options] over a cell, or %kcoral bench log NAME"
METHODS = ("cupti", "graph", "event", "host")
_ASK = "__import__('kcoral_gateway.worker.bench', fromlist=['run']).run"
_MOST_POINTS = 200
_MOST_SAMPLES = 50_000


# What came before: its source, its machine, and what was measured then.
Former = tuple[str | None, Machine | None, tuple[Measured, ...]]


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell and the command line take."""
    add = to.add_argument
    add("--name", metavar="NAME", help="keep the result as NAME; --baseline does too")
    add("--baseline", metavar="NAME", help="against NAME's first result, or a function of the session, in turn with it")
    add("--method", choices=METHODS, help="the best there is: cupti or event with a GPU, else host")
    add("--cold", dest="is_cold", action="store_true", default=True, help="flush the L2 cache before each call")
    add("--warm", dest="is_cold", action="store_false", help="do not; a host's caches are always as they are")
    add("--check", metavar="EXPRESSION", help="must hold of `result` (and `expected`), or nothing is timed; 'same'")
    add("--bytes", metavar="EXPRESSION", help="what a call moves, for GB/s")
    add("--flops", metavar="EXPRESSION", help="what a call computes, for FLOP/s")
    add("--sweep", action="append", default=[], type=_sweep, metavar="n=256,1024", help="for each value; repeatable")
    add("--seconds", type=arguments.seconds, default=2.0, metavar="S", help="most for each body and point (2)")
    add("--judge", metavar="FILE", help="judge the cell's solution() on inputs it cannot know, from outside")


def _sweep(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    if not name.strip().isidentifier() or not values.strip():
        raise argparse.ArgumentTypeError(f"a name and values as in n=256,1024; got {text!r:.200}")
    try:
        made = ast.literal_eval(f"[{values}]")
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        made = [word.strip() for word in values.split(",")]
    if any(isinstance(one, float) and not math.isfinite(one) for one in made) or "" in made:
        raise argparse.ArgumentTypeError(f"values as in n=256,1024, none of them empty or infinite; got {text!r:.200}")
    return name.strip(), made


def reads(options: argparse.Namespace) -> str:
    """Code beside the cell's whose names go along: of the expressions, and the baseline's."""
    source = baseline_of(options)[0]
    return "\n".join(
        part
        for part in (source, _function(options), options.check, options.bytes, options.flops)
        if part and part != "same"
    )


def start(
    session: Session,
    cell: str,
    options: argparse.Namespace,
    out: Outgoing | None = None,
    files: FileSet | None = None,
) -> Execution:
    """Have it timed in the session, where its names are.

    Raises:
        UsageError: The sweep has too many points.
    """
    if options.name:
        _place(options.name)  # a wrong one is told before anything is timed
    if options.judge:
        return _judged(session, cell, options, files)
    sweep = dict(options.sweep)
    if len(sweep) < len(options.sweep):
        raise UsageError("--sweep names the same thing twice: one --sweep n=1,2 has all its values")
    points = 1
    for values in sweep.values():
        points *= len(values)
    if points > _MOST_POINTS:
        raise UsageError(f"the sweep has {points:,} points, at most {_MOST_POINTS} are timed")
    order = {
        "source": cell,
        "baseline": baseline_of(options)[0],
        "function": _function(options),
        "method": options.method or "auto",
        "is_cold": options.is_cold,
        "check": options.check,
        "bytes_of": options.bytes,
        "flops_of": options.flops,
        "sweep": sweep,
        "seconds": options.seconds,
    }
    source = order.pop("source")
    arguments = ", ".join(f"{name}={value!r}" for name, value in order.items())
    return session.execute(
        "# bench\n__kcoral_timed = " + f"{_ASK}({source!r}, {arguments})",
        wants=[("timed", "__kcoral_timed")],
        out=out,
        files=files,
        timeout_s=options.timeout,
        queue_timeout_s=options.queue_timeout,
    )


def _judged(session: Session, cell: str, options: argparse.Namespace, files: FileSet | None) -> Execution:
    """In a fresh worker on the session's GPUs: the candidate shares nothing with anybody."""
    try:
        rules = Path(options.judge).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--judge {options.judge}: {getattr(error, 'strerror', None) or error}") from None
    call = f"run(__kcoral_solution, __kcoral_rules, {options.seconds!r})"
    return session.execute(
        f"# bench --judge\n__kcoral_timed = __import__('kcoral_gateway.worker.judge', fromlist=['run']).{call}",
        send={"__kcoral_solution": cell, "__kcoral_rules": rules},
        wants=[("timed", "__kcoral_timed")],
        files=files,
        is_fresh=True,
        timeout_s=options.timeout,
        queue_timeout_s=options.queue_timeout,
    )


def _verdict(said: Any) -> Shown:
    """What the judge found; anything but RIGHT fails the cell."""
    verdicts = ("RIGHT", "WRONG", "SUSPECT", "FAILED")
    verdict = said.get("verdict") if isinstance(said, dict) else None
    if not isinstance(verdict, str) or verdict not in verdicts:
        raise ValueRefused("the worker sent no judgement")
    given = said.get("samples")
    times = map(said_by.number, given[:_MOST_SAMPLES] if isinstance(given, list) else ())
    samples = tuple(one for one in times if one is not None)
    reasons = said_by.texts(said.get("reasons"), 20, 2000)
    made = JudgeReport(verdict, reasons, samples, said_by.number(said.get("reference_s")))
    failed = None if made.verdict == "RIGHT" else ExpectationFailed(f"{made.verdict}: {'; '.join(reasons)}")
    return Shown(made, failed)


def baseline_of(options: argparse.Namespace) -> Former:
    """What a candidate is run against: the source of NAME's first result, its machine and samples."""
    lines = _lines(options.baseline) if options.baseline else []
    return reports.recalled(lines[0]) if lines else (None, None, ())


def _function(options: argparse.Namespace) -> str | None:
    """What a candidate is run against before that: the session's function of this name, if it has one."""
    name = options.baseline
    return name if name and name.isidentifier() else None


def read(said: Any, options: argparse.Namespace, source: str, former: Former) -> BenchReport:
    """What a worker measured, as far as it is that; kept under its name.

    Raises:
        ValueRefused: It is something else.
    """
    try:
        points = said["points"]
        candidate = tuple(_measured(point["candidate"]) for point in points)
        baseline = tuple(_measured(point["baseline"]) for point in points if "baseline" in point)
        machine = _machine(said)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueRefused(f"the worker sent no measurements ({type(error).__name__}: {error!s:.100})") from None
    if not candidate:
        raise ValueRefused("the worker measured nothing")
    is_interleaved = len(baseline) == len(candidate)
    is_function = said.get("is_function") is True
    notes: tuple[str, ...] = ()
    if options.baseline and not is_interleaved and former[0] is None:
        notes = (
            f"nothing is kept as {options.baseline!r}, and the session has no such function: this result is kept, and "
            "the next is compared with it",
        )
    made = Bench(
        # A candidate under the name of the function that it was compared with would stand in its place.
        name=options.name or ("" if is_function else options.baseline) or "",
        candidate=candidate,
        machine=machine,
        baseline=baseline if is_interleaved else former[2],
        baseline_name=options.baseline or "",
        is_interleaved=is_interleaved,
        time_s=time.time(),
        source=source,
        made_on=None if is_interleaved else former[1],
        notes=notes,
    )
    return BenchReport(_keep(made.name, made) if made.name else made)


def _measured(said: Mapping[str, Any]) -> Measured:
    samples = tuple(float(sample) for sample in said["samples"][:_MOST_SAMPLES])
    if not samples or not all(0 <= sample < 1e6 for sample in samples) or said["method"] not in METHODS:
        raise ValueError("no samples, or no times")
    return Measured(
        method=said["method"],
        samples=samples,
        is_cold=said["is_cold"] is True,
        first_s=said_by.number(said.get("first_s")),
        host_s=said_by.number(said.get("host_s")),
        flush_bytes=said["flush_bytes"] if said_by.is_small(said.get("flush_bytes")) else None,
        kernels=said["kernels"] if said_by.is_small(said.get("kernels")) else None,
        has_nan=said.get("has_nan") is True,
        is_stopped=said.get("is_stopped") is True,
        bytes=said_by.number(said.get("bytes")),
        flops=said_by.number(said.get("flops")),
        at={said_by.text(name, 60): _at(value) for name, value in dict(said.get("at", {})).items()},
        readings=tuple(map(_reading, said.get("readings", ())[:10])),
    )


def _at(value: Any) -> Any:
    """A point's value, as it can be kept and shown: JSON has no infinity."""
    is_plain = isinstance(value, bool) or said_by.is_small(value)
    return value if is_plain or said_by.number(value) is not None else said_by.text(value, 200)


def _reading(said: Mapping[str, Any]) -> Reading:
    return Reading(
        said_by.number(said.get("sm_hz")),
        said_by.number(said.get("temperature_c")),
        said_by.number(said.get("power_w")),
        said_by.texts(said.get("throttled"), 10, 40),
    )


def _machine(said: Mapping[str, Any]) -> Machine:
    found = said["machine"]
    texts = {
        name: said_by.text(found.get(name), 200) for name in ("gpu", "driver", "cuda", "torch", "cpu", "clock_policy")
    }
    l2 = found.get("l2_bytes")
    return Machine(
        **texts,
        l2_bytes=l2 if said_by.is_small(l2) else None,
        peak_byte_per_s=said_by.number(found.get("peak_byte_per_s")),
    )


# ── kept ──


def _place(name: str) -> Any:
    kept.baseline(name, "")  # whether it is a name
    return kept.FOLDER / "bench" / f"{name}.jsonl"


def _lines(name: str) -> list[dict[str, Any]]:
    place = _place(name)
    if not place.is_file():
        return []
    try:
        lines = [json.loads(line) for line in place.read_text("utf-8").splitlines() if line.strip()]
        for line in lines:
            reports.recalled(line)
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{place} cannot be read: {error}; move it away to begin anew") from None
    return lines


def _keep(name: str, bench: Bench) -> Bench:
    """The benchmark; with a note where it could not be kept: it was measured, and is shown all the same."""
    place = _place(name)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place, "a", encoding="utf-8") as file:
            file.write(json.dumps(reports.record(bench)) + "\n")
    except OSError as error:
        return replace(bench, notes=(*bench.notes, f"not kept: {place} cannot be written: {error.strerror or error}"))
    return bench


def log(name: str) -> Table:
    """Every result that was kept as ``name``.

    Raises:
        NotFoundError: There is none.
    """
    lines = _lines(name)
    if not lines:
        raise NotFoundError(f"nothing was kept as {name!r}: %%kcoral bench --name {name} does")
    rows = []
    first: float | None = None
    for line in lines:
        _, machine, points = reports.recalled(line)
        middle = points[0].summary.median
        first = first if first is not None else middle
        try:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(line["time_s"]))
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            when = "–"
        ratio = f"{middle / first:.3f}" if first else "–"
        rows.append((when, spoken(middle), ratio, points[0].method, machine.gpu or machine.cpu))
    return Table(
        f"bench {name}: {len(lines)} kept", ("when", "time", "to the first", "method", "on"), tuple(rows), data=lines
    )


def offline(given: list[str]) -> Table:
    """``bench log NAME``.

    Raises:
        UsageError: It is something else.
    """
    match given:
        case ["log", name]:
            return log(name)
    raise UsageError(USAGE)


def ended(execution: Execution, cell: str, options: argparse.Namespace) -> BenchReport | Shown:
    """What was measured.

    Raises:
        ExpectationFailed: The check did not hold: nothing was timed.
        Exception: What the cell raised.
    """
    said = execution.result().values.get("timed")
    if isinstance(said, dict) and "not_right" in said:
        raise ExpectationFailed(str(said["not_right"]))
    return _verdict(said) if options.judge else read(said, options, cell, baseline_of(options))
