"""``%%kcoral ncu``, ``%kcoral ncu script.py`` and ``ncu view``: the options, and the report that comes of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from kcoral_magic.display.comparison import ProfileDiff
from kcoral_magic.display.profile import Report
from kcoral_magic.errors import ExpectationFailed, KCoralError, ReportInvalid, ToolFailed, UsageError
from kcoral_magic.reports import ncu_csv, ncu_log, ncu_rep
from kcoral_magic.reports.comparison import Expectation
from kcoral_magic.reports.ncu import Profile
from kcoral_magic.tools import kept, listing
from kcoral_magic.tools.base import OUTPUTS
from kcoral_magic.tools.cell import Ran, Under
from kcoral_magic.tools.family import Shown
from kcoral_magic.tools.job import TIMED_OUT, Done
from kcoral_magic.tools.ncu import HINT, REPORT, beginning

LOG, LISTING = "ncu.log", "listing.sass"
WHERE = "under"
RUN = "ncu"
USAGE = "%kcoral ncu [options] script.py ARGS, or ncu view FILE, or ncu diff BEFORE AFTER"
SETS = ("basic", "detailed", "full", "roofline")
_NOT_FOUND = 127


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell, a line and the command line take."""
    add = to.add_argument
    add("--set", choices=SETS, help="how much is measured (detailed); full takes about forty passes")
    add("--metrics", metavar="A,B", help="these metrics instead of a set")
    add("--kernel", metavar="NAME", help="only kernels of this name; regex:PATTERN for many")
    add("--launch-skip", type=_count, metavar="N", help="pass over the first N that match")
    add("--launch-count", type=_count, metavar="N", help="then capture N")
    add("--nvtx", metavar="RANGE", help="only kernels in this NVTX range")
    add("--replay", choices=("kernel", "application", "range", "app-range"), help="what is repeated for each pass")
    add("--clocks", choices=("base", "none"), default="base", help="lock the GPU's clocks to base (base), or not")
    add("--cache", choices=("all", "none"), default="all", help="flush caches before each pass (all), or not")
    add("--source", action="store_true", help="keep the source in the report (build with -lineinfo)")
    add("--baseline", metavar="NAME", help="compare with the report kept as NAME; the first is kept; or a FILE")
    add(
        "--expect", action="append", default=[], metavar="'METRIC < VALUE'", help="fail if it does not hold; repeatable"
    )
    add("--save", metavar="FILE", help="where the report is written (.kcoral/reports)")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a count was expected, got {text!r}")
    return int(text)


def argv(options: argparse.Namespace) -> tuple[str, ...]:
    """The command line of ncu, up to the program.

    Raises:
        UsageError: An expectation or a baseline is none: told before anything runs.
    """
    for text in options.expect:
        Expectation.parse(text)
    if options.baseline:
        _place(options.baseline)
    words = [*beginning(), "--log-file", f"{OUTPUTS}/{LOG}", "--target-processes", "all"]
    if options.metrics:
        words += ["--metrics", f"{options.metrics},gpu__time_duration.sum"]
    if options.set or not options.metrics:
        words += ["--set", options.set or "detailed"]
    for option, value in (
        ("--kernel-name", options.kernel),
        ("--launch-skip", options.launch_skip),
        ("--launch-count", options.launch_count),
        ("--replay-mode", options.replay),
    ):
        if value is not None:
            words += [option, str(value)]
    if options.nvtx:
        words += ["--nvtx", "--nvtx-include", options.nvtx]
    if options.source:
        words += ["--import-source", "yes"]
    return (*words, "--clock-control", options.clocks, "--cache-control", options.cache)


def under(options: argparse.Namespace) -> Under:
    """ncu around a cell."""
    return Under(argv(options), ("--profile-from-start", "off"), {"NCU_PROFILE": "1"}, HINT)


def words(options: argparse.Namespace) -> list[str]:
    """The same as ``run ncu`` takes it, which brings its own beginning."""
    return list(argv(options)[len(beginning()) :])


def offline(given: list[str]) -> Report | ProfileDiff | None:
    """``view FILE`` and ``diff BEFORE AFTER``.

    Raises:
        UsageError: There is no such file, or there are too few.
        ReportInvalid: A file is no report, or damaged.
    """
    match given:
        case ["view", path]:
            return load_report(path)
        case ["diff", before, after]:
            return load_report(after).diff(load_report(before))
        case ["view" | "diff", *_]:
            raise UsageError("%kcoral ncu view FILE, or %kcoral ncu diff BEFORE AFTER")
    return None


def shown(done: Done, options: argparse.Namespace, ran: Ran | None) -> Shown:
    """The report, kept beside the notebook, compared and checked as asked.

    Raises:
        ToolFailed: Nothing was captured.
    """
    expected = [Expectation.parse(text) for text in options.expect]
    try:
        made = report(done, options)
    except ToolFailed:
        if ran is not None and ran.error is not None:
            raise ran.error from None  # it failed before a kernel ran, and says why
        raise
    unkept, beside = None, None
    try:
        made.saved = kept.save(made.data, options.save, "ncu", ".ncu-rep")
        beside = _against(made, options.baseline) if options.baseline else None
    except KCoralError as error:  # it was measured, and is shown all the same
        unkept = error
    failures = [text for one in expected for text in one.failures(made.profile)]
    return Shown(made, ExpectationFailed("; ".join(failures)) if failures else unkept, beside)


def _against(made: Report, baseline: str) -> ProfileDiff | None:
    """The comparison with a baseline; the first report under its name becomes it."""
    place = _place(baseline)
    if place.is_file():
        return made.diff(load_report(str(place)))
    kept.write(place, made.data)
    made.remarks.append(f"kept as the baseline {baseline!r}, in {place}: the next run is compared with it")
    return None


def _place(baseline: str) -> Path:
    """Where a baseline lies: a file that is there, or what a name stands for.

    Raises:
        UsageError: There is no such file, or it is no name.
    """
    if not baseline.endswith((".ncu-rep", ".csv")):
        return kept.baseline(baseline, ".ncu-rep")
    place = Path(baseline).expanduser()
    if not place.is_file():
        raise UsageError(f"--baseline {baseline}: there is no such file")
    return place


def report(done: Done, options: argparse.Namespace) -> Report:
    """What was captured, with what it cost.

    Raises:
        ToolFailed: Nothing was captured; the message says why and what to do.
    """
    log = ncu_log.read((done.file(LOG) or b"").decode("utf-8", "replace"))
    data = done.file(REPORT)
    profile = ncu_rep.read(data, REPORT) if data else Profile(())
    if not profile.kernels:
        raise _failed(done, log)
    notes = list(profile.notes)
    if log.failure is not None:
        notes.append(f"{log.failure.what}: {log.failure.remedy}")
    if done.status == TIMED_OUT:
        notes.append("the time was over: this is what was captured until then")
    for name in (options.metrics or "").split(","):
        if name.strip() and not any(name.strip() in kernel.metrics for kernel in profile):
            notes.append(f"{name.strip()} is in no kernel of the report: this GPU or this ncu has no such metric")
    made = Profile(profile.kernels, profile.origin, profile.source, tuple(notes))
    return Report(
        made,
        data or b"",
        listings=listing.of(made, (done.file(LISTING) or b"").decode("utf-8", "replace")),
        cost=_cost(made, log, options),
        launched=launched(len(made), options),
    )


def launched(captured: int, options: argparse.Namespace) -> int | None:
    """How many kernels were launched: ncu does not count those that it passes over."""
    if any((options.kernel, options.nvtx, options.launch_count is not None)):
        return None
    return captured + (options.launch_skip or 0)


def _cost(profile: Profile, log: ncu_log.Log, options: argparse.Namespace) -> str:
    passes = log.passes or max((kernel.get("profiler__replayer_passes") or 0 for kernel in profile), default=0)
    clocks = "locked to base" if options.clocks == "base" else "as they were"
    caches = "flushed before each pass" if options.cache == "all" else "warm"
    what = "metrics as named" if options.metrics and not options.set else f"set {options.set or 'detailed'}"
    times = f"{passes:.0f} pass{'es' if passes != 1 else ''} a kernel" if passes else "passes not said"
    return f"{what}, {times}; clocks {clocks}, caches {caches}: times are not those of a benchmark"


def _failed(done: Done, log: ncu_log.Log) -> KCoralError:
    failure = ncu_log.MISSING if done.status == _NOT_FOUND else log.failure
    if failure is not None:
        return ToolFailed(f"{failure.what}. {failure.remedy[0].upper()}{failure.remedy[1:]}", failure.code)
    if done.status == TIMED_OUT:
        return ToolFailed("the time was over before a kernel was captured: --timeout gives more", "timeout")
    said = "; ".join(log.errors)[:400] or f"exit status {done.status}"
    return ToolFailed(f"ncu captured nothing: {said}", "nothing")


def load_report(path: str) -> Report:
    """A report that lies here: ``.ncu-rep``, or what ``ncu --csv`` printed.

    Raises:
        ReportInvalid: It is neither, or damaged.
        UsageError: There is no such file.
    """
    place = Path(path).expanduser()
    try:
        size = place.stat().st_size
        if size > ncu_rep.MOST_BYTES:
            raise ReportInvalid(f"{path} has {size:,} bytes, more than the {ncu_rep.MOST_BYTES:,} that are read")
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if data[:4] in (ncu_rep.MAGIC, ncu_rep.ZSTD) or place.suffix in (".ncu-rep", ".ncu-repz"):
        profile = ncu_rep.read(data, place.name)
        return Report(profile, data, listings=listing.of(profile))
    return Report(ncu_csv.read(data.decode("utf-8", "replace"), place.name))
