"""``%%kcoral sanitize``: compute-sanitizer over a cell or a program; the faults it finds fail the cell."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kcoral_magic.display.findings import SanitizerReport
from kcoral_magic.errors import FaultsFound, ReportInvalid, ToolFailed, UsageError
from kcoral_magic.reports import sanitizer
from kcoral_magic.reports.sanitizer import Findings
from kcoral_magic.tools.base import OUTPUTS
from kcoral_magic.tools.cell import Ran, Under
from kcoral_magic.tools.compute_sanitizer import HINT
from kcoral_magic.tools.family import Shown
from kcoral_magic.tools.job import Done

WHERE = "under"
RUN = "compute-sanitizer"
USAGE = "%kcoral sanitize [options] script.py ARGS, or sanitize view FILE"
XML, LOG = "sanitizer.xml", "sanitizer.log"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_NOT_FOUND = 127
_LIMIT = 20_000  # reports, a thousand of which may be one fault


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell, a line and the command line take."""
    add = to.add_argument
    add("--tool", choices=TOOLS, default="memcheck", help="what is looked for (memcheck)", dest="checker")
    add("--kernel", metavar="NAME", help="only kernels whose mangled name holds this; regex:PATTERN")
    add("--leaks", action="store_true", help="memcheck also tells what was never freed")


def words(options: argparse.Namespace) -> list[str]:
    """compute-sanitizer's options."""
    made = ["--tool", options.checker, "--xml", "yes", "--save", f"{OUTPUTS}/{XML}", "--log-file", f"{OUTPUTS}/{LOG}"]
    made += ["--print-limit", str(_LIMIT), "--target-processes", "all"]
    if options.kernel:
        is_pattern = options.kernel.startswith("regex:")
        made += ["--kernel-name", f"regex={options.kernel[6:]}" if is_pattern else f"kns={options.kernel}"]
    if options.leaks:
        made += ["--leak-check", "full"]
    return made


def under(options: argparse.Namespace) -> Under:
    """The sanitizer around a cell."""
    return Under(("compute-sanitizer", *words(options)), hint=HINT)


def offline(given: list[str]) -> SanitizerReport | None:
    """``view FILE``: XML or text that lies here.

    Raises:
        UsageError: There is no such file.
        ReportInvalid: It is none of compute-sanitizer's.
        ToolFailed: It is of a run that checked nothing.
    """
    match given:
        case ["view", path]:
            try:
                data = Path(path).expanduser().read_bytes()
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror or error}") from None
            found = read(data, b"")
            if _is_unchecked(found):
                raise ToolFailed(f"nothing was checked: {found.notes[-1]}", "nothing")
            return SanitizerReport("compute-sanitizer", found, _sources())
        case ["view", *_]:
            raise UsageError(USAGE)
    return None


def read(xml: bytes, text: bytes) -> Findings:
    """XML first, the text where there is none or what is there is damaged.

    Raises:
        ReportInvalid: There is neither.
    """
    told = sanitizer.read_text((text or xml).decode("utf-8", "replace"))
    if xml.lstrip()[:1] == b"<":
        try:
            found = sanitizer.read_xml(xml)
        except ReportInvalid as error:
            if not told.findings and not told.summary:
                raise
            return Findings(told.findings, told.summary, (*told.notes, str(error)), told.not_printed)
        return Findings(found.findings or told.findings, told.summary, (*found.notes, *told.notes), told.not_printed)
    if not told.findings and not told.summary and not told.notes:
        raise ReportInvalid("this is no output of compute-sanitizer: lines that begin with ========= were expected")
    return told


def shown(done: Done, options: argparse.Namespace, ran: Ran | None) -> Shown:
    """The findings; errors fail the cell.

    Raises:
        ToolFailed: Nothing was checked.
    """
    if done.status == _NOT_FOUND:
        what = "there is no compute-sanitizer where the cell runs"
        raise ToolFailed(f"{what}: {HINT}, or pip install nvidia-cuda-sanitizer-api there", "missing")
    xml, text = done.file(XML) or b"", done.file(LOG) or b""
    try:
        found = read(xml, text)
    except ReportInvalid as error:
        raise ToolFailed(f"compute-sanitizer checked nothing (exit status {done.status}): {error}", "nothing") from None
    if _is_unchecked(found):
        if ran is not None and ran.error is not None:
            raise ran.error  # it failed before a kernel ran, and says why
        who = "the program" if ran is None else "the cell"
        said = f"{who} used no CUDA (exit status {done.status}): it must launch a kernel in its own process"
        raise ToolFailed(said, "no_cuda")
    made = SanitizerReport(options.checker, found, _sources())
    return Shown(made, FaultsFound(_said(made)) if found.errors else None)


def _is_unchecked(found: Findings) -> bool:
    return any("terminated before first instrumented" in line for line in found.notes) and not found.findings


def _said(made: SanitizerReport) -> str:
    first = next(one for one in made.findings.findings if one.severity == "error")
    where = f" in {first.kernel}" if first.kernel else ""
    return f"{made.title}; the first: {first.kind}{where}{f' at {first.place}' if first.place else ''}"


class _Sources(dict[str, Any]):
    """Lines of source files beside the notebook, read when a finding names one."""

    def get(self, name: str, default: Any = ()) -> Any:
        path = Path(name)
        if name and not path.is_absolute() and ".." not in path.parts and path.is_file():
            try:
                return path.read_text("utf-8", "replace").splitlines() if path.stat().st_size < 1 << 22 else default
            except OSError:
                return default
        return default


def _sources() -> _Sources:
    return _Sources()
