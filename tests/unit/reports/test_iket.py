"""Ranges inside kernels, by warp."""

from __future__ import annotations

import json

import pytest

from kcoral_magic.display.trace import IketReport
from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports.iket import read
from tests.standins.iket import trace
from tests.unit.display.test_profile import check


def test_ranges_are_counted_with_their_middle_their_tail_and_their_share() -> None:
    (launch,) = read(json.dumps(trace(["gemm"])).encode()).launches
    assert [(one.name, one.count, one.p50_ns, one.p95_ns) for one in launch.ranges] == [
        ("mma", 12, 1920.0, 1920.0),
        ("load", 12, 960.0, 960.0),
        ("store", 12, 320.0, 320.0),
    ]
    assert launch.ranges[0].share == pytest.approx(0.6)
    assert list(launch.lanes) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert launch.spans[0].start_ns == 0


def test_a_trace_is_drawn_with_a_text_alternative() -> None:
    report = IketReport(read(json.dumps(trace(["<gemm>"], warps=100)).encode()))
    check(report.html())
    assert "4" in report.html()
    assert "and 76 warps more" in report.html()
    assert "mma" in repr(report)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"launches": 3}', b'{"launches": [{"ranges": [{"rangeName": 1}]}]}', b"[" * 100_000]
)
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    with pytest.raises(ReportInvalid):
        read(data)
