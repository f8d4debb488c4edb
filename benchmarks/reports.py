"""Reading and showing kernel profiles, against a bare walk over the same files' protobuf fields in the same run.

    python -m benchmarks.reports [--rounds N]

The walk looks at every field of every message and makes nothing of it: the floor of any reader in Python. Files are the
real samples where they are, and one of our writer's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks.report import Report, machine
from kcoral_magic.display.profile import Report as Shown
from kcoral_magic.reports import ncu_rep
from kcoral_magic.reports.fields import fields
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer
from tests.unit.reports.samples import FOLDER

NAMES = ("indexspaces", "esmm", "yzcuda", "mojo_profile", "extrap_exgpu_s10")
_MOST_HTML = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    report = Report("ours / walk or read")
    files = {name: path.read_bytes() for name in NAMES if (path := FOLDER / f"{name}.ncu-rep").is_file()}
    files["200 kernels of our writer"] = Writer().report([saxpy(float(n + 1), name=f"kernel_{n}") for n in range(200)])
    for name, data in files.items():
        profile = ncu_rep.read(data)
        pairs = [(timed(lambda d=data: ncu_rep.read(d)), timed(lambda d=data: walk(d))) for _ in range(rounds)]
        report.ratio(f"{name}: read / walk over its fields", pairs, 3.0)
        views = [
            (timed(lambda p=profile: Shown(p).html(pages=1)), timed(lambda d=data: ncu_rep.read(d)))
            for _ in range(rounds)
        ]
        report.ratio(f"{name}: first view / read", views, 1.0)
        size = len(Shown(profile).html())
        report.add(f"{name}: HTML", f"{size / 1024:,.0f} KiB", "", "", "< 1 MB", size < _MOST_HTML)
    print("\n" + report.markdown())
    print(f"\n{machine()}; {rounds} rounds")
    sys.exit(0 if report.is_met else 1)


def timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def walk(data: bytes) -> int:
    """Every field of every message that a reader of metrics, sections and rules has to look at; how many there are."""
    blocks, _ = ncu_rep._blocks(data)
    return sum(_result(data, *span) for block in blocks for span in block.results)


def _result(data: bytes, start: int, end: int) -> int:
    found = fields(data, start, end)
    seen = len(found)
    for key, a, b in found:
        if key == 13:
            seen += _metric(data, a, b)
        elif key in (17, 19):
            seen += _deep(data, a, b, 3 if key == 17 else 4)
    return seen


def _metric(data: bytes, start: int, end: int) -> int:
    found = fields(data, start, end)
    seen = len(found)
    for key, a, b in found:
        if key == 2:
            seen += len(fields(data, a, b))
        elif key == 3:
            for _, c, d in fields(data, a, b):
                seen += 1 + len(fields(data, c, d))
    return seen


def _deep(data: bytes, start: int, end: int, depth: int) -> int:
    """A section's or rule's messages: their texts are fields of numbers 1, 2 and 7 to 9."""
    found = fields(data, start, end)
    seen = len(found)
    for key, a, b in found:
        if b >= 0 and depth and key in (3, 4, 5, 6) and b - a > 8:
            try:
                seen += _deep(data, a, b, depth - 1)
            except ncu_rep.ReportInvalid:  # a text after all
                continue
    return seen


if __name__ == "__main__":
    main()
