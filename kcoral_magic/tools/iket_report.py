"""``%%kcoral iket``: events inside the kernels of a cell, by CUTLASS's run-iket; ranges as a table and lanes."""

from __future__ import annotations

import argparse
from pathlib import Path

from kcoral_magic.display.trace import IketReport
from kcoral_magic.errors import ToolFailed, UsageError
from kcoral_magic.reports import iket
from kcoral_magic.tools import kept
from kcoral_magic.tools.base import OUTPUTS
from kcoral_magic.tools.cell import Ran, Under
from kcoral_magic.tools.family import Shown
from kcoral_magic.tools.iket import HINT
from kcoral_magic.tools.job import Done

WHERE = "under"
RUN = "iket"
USAGE = "%kcoral iket [options] script.py ARGS, or iket view FILE.json"
_NOT_FOUND = 127


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell and a line take."""
    to.add_argument("--events", type=int, metavar="N", help="most events of a warp (--max-ts-cnt-per-warp)")
    to.add_argument("--save", metavar="FILE", help="where the Perfetto trace is written (.kcoral/reports)")


def words(options: argparse.Namespace) -> list[str]:
    """run-iket's own command and options, up to the program."""
    made = ["profile", "--postprocess", "all"]
    if options.events:
        made += ["--max-ts-cnt-per-warp", str(options.events)]
    return [*made, "--"]


def under(options: argparse.Namespace) -> Under:
    """run-iket around a cell."""
    return Under(("run-iket", "--output-dir", OUTPUTS, "--clobber", *words(options)), hint=HINT)


def offline(given: list[str]) -> IketReport | None:
    """``view FILE``: a trace's JSON that lies here.

    Raises:
        UsageError: There is no such file.
        ReportInvalid: It is none of run-iket's.
    """
    match given:
        case ["view", path]:
            try:
                return IketReport(iket.read(Path(path).expanduser().read_bytes()))
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror or error}") from None
        case ["view", *_]:
            raise UsageError(USAGE)
    return None


def shown(done: Done, options: argparse.Namespace, ran: Ran | None) -> Shown:
    """The ranges, and the Perfetto trace kept beside the notebook.

    Raises:
        ToolFailed: Nothing was traced.
    """
    if done.status == _NOT_FOUND:
        raise ToolFailed(f"there is no run-iket where the cell runs: {HINT}", "missing")
    texts = [bytes(data) for path, _, data in done.files if path.endswith(".json")]
    traces = [bytes(data) for path, _, data in done.files if path.endswith(".pftrace")]
    launches = [launch for text in texts for launch in iket.read(text).launches]
    if not launches:
        if ran is not None and ran.error is not None:
            raise ran.error
        text = "the kernel must be compiled in this run (CuTe DSL 4.6 or tvm_tirx), on compute capability 9.0 or newer"
        raise ToolFailed(f"no event was traced (exit status {done.status}): {text}", "nothing")
    saved, unkept = None, None
    try:
        saved = kept.save(traces[0], options.save, "iket", ".pftrace") if traces else None
    except UsageError as error:  # it was traced, and is shown all the same
        unkept = error
    return Shown(IketReport(iket.Trace(tuple(launches)), saved), unkept)
