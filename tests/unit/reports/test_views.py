"""What the views show is what NVIDIA's own rules say of the same reports."""

from __future__ import annotations

import re

import pytest

from kcoral_magic.reports import ncu_rep, roofline, views
from kcoral_magic.reports.hotspots import disassembly, hot_spots
from kcoral_magic.reports.ncu import Kernel
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Launch, Writer, curve, section
from tests.unit.reports.samples import sample

KERNEL = ncu_rep.read(Writer().report([saxpy()]))[0]
_SAID = re.compile(r"achieved\s+(close to )?(\d+)% of this device's fp32 peak performance and\s+(close to )?(\d+)%")


def kernels_with_a_roofline_rule() -> list[tuple[Kernel, re.Match[str]]]:
    found = []
    for kernel in ncu_rep.read(sample("indexspaces.ncu-rep")):
        for rule in kernel.rules:
            if rule.id == "SOLFPRoofline" and (said := _SAID.search(rule.text)):
                found.append((kernel, said))
    return found


def test_rooflines_agree_with_nvidia_s_rule_text_within_a_point() -> None:
    pairs = kernels_with_a_roofline_rule()
    assert len(pairs) == 5
    for kernel, said in pairs:
        (chart,) = roofline.charts(kernel)
        points = {point.label: point for point in chart.points}
        for label, group in (("FP32", 2), ("FP64", 4)):
            share = points[label].of_peak_pct
            assert share is not None
            assert abs(share - float(said[group])) <= 1.0


def test_a_roofline_is_drawn_from_metrics_where_the_report_has_no_such_section() -> None:
    bare = Launch("k", saxpy().metrics)
    (with_section,) = roofline.charts(KERNEL)
    (without,) = roofline.charts(ncu_rep.read(Writer().report([bare]))[0])
    assert [ceiling.label for ceiling in without.ceilings] == ["FP32", "FP64"]
    assert without.points[0] == with_section.points[0]


def test_a_report_without_the_numbers_has_no_roofline() -> None:
    kernel = ncu_rep.read(Writer().report([Launch("k", {"gpu__time_duration.sum": 1.0})]))[0]
    assert roofline.charts(kernel) == ()
    assert views.memory(kernel) is None
    assert views.stalls(kernel) == []
    assert hot_spots(kernel) == ()


@pytest.mark.parametrize("name", ["indexspaces", "esmm", "yzcuda", "mojo_profile"])
def test_the_largest_of_a_breakdown_is_the_throughput_that_it_explains(name: str) -> None:
    for kernel in ncu_rep.read(sample(f"{name}.ncu-rep")):
        parts = views.breakdown(kernel, "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed")
        assert parts[0][1] == pytest.approx(kernel.metric(views.COMPUTE))


def test_the_limiters_of_occupancy_are_the_causes_with_the_smallest_limit() -> None:
    found = views.occupancy(KERNEL)
    assert found.limiters == ("registers", "warps")
    assert (found.theoretical, found.achieved) == (100.0, 91.7)


def test_stalls_are_found_by_the_beginning_of_their_names() -> None:
    kernel = ncu_rep.read(
        Writer().report([Launch("k", {"smsp__average_warps_issue_stalled_gmma_new_per_issue_active.ratio": 2.5})])
    )[0]
    assert views.stalls(kernel) == [("gmma new", 2.5)]


def test_hot_spots_are_instructions_by_samples_with_the_reasons_for_waiting() -> None:
    top, second, *_ = hot_spots(KERNEL)
    assert (top.offset, top.samples, top.stalls) == (0x40, 630, (("long_scoreboard", 600), ("wait", 30)))
    assert top.share == pytest.approx(0.63)
    assert second.offset == 0x50


SASS = """
\t.section\t.text._Z5saxpyifPKfPf,"ax",@progbits
.text._Z5saxpyifPKfPf:
\t//## File "/home/u/saxpy.cu", line 3
        /*0040*/                   LDG.E R2, desc[UR4][R2.64] ;
\t//## File "/home/u/saxpy.cu", line 4 inlined at "/home/u/other.h", line 9
        /*0050*/                   FFMA R5, R2, c[0x0][0x214], R7 ;  /* 0x000 */
"""


def test_a_disassembly_names_the_instructions_and_their_source_lines() -> None:
    listing = disassembly(SASS)["_Z5saxpyifPKfPf"]
    assert listing[0x40].text == "LDG.E R2, desc[UR4][R2.64]"
    assert (listing[0x40].file, listing[0x40].line) == ("/home/u/saxpy.cu", 3)
    assert listing[0x50].text == "FFMA R5, R2, c[0x0][0x214], R7"
    assert hot_spots(KERNEL, listing)[0].line == listing[0x40]


def test_a_roof_that_is_below_zero_or_endless_is_none() -> None:
    for value in (-1.0, 1e308):
        metrics = {**saxpy().metrics, "dram__bytes.sum.peak_sustained": value}
        assert roofline.charts(ncu_rep.read(Writer().report([Launch("k", metrics)]))[0]) == ()


def test_points_of_a_curve_that_are_no_numbers_are_left_out_and_curves_are_few() -> None:
    name = "launch__occupancy_per_register_count"
    points = [(8.0, 64.0), (float("inf"), 1.0), (float("nan"), 1.0), (16.0, float("nan")), (16.0, 32.0)]
    charts = section("O", "O", 1, [], [curve("t", "x", "y", name, "")] * 50)
    launch = Launch("k", {name: 64}, instances={name: points}, sections=[charts])
    found = views.curves(ncu_rep.read(Writer().report([launch]))[0])
    assert len(found) == 12
    assert found[0][1] == [(8.0, 64.0), (16.0, 32.0)]
