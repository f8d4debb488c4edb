"""Two profiles side by side, and what one is expected to hold."""

from __future__ import annotations

import pytest

from kcoral_magic.errors import NotFoundError, UsageError
from kcoral_magic.reports import ncu_rep
from kcoral_magic.reports.comparison import Change, Expectation, better_is, compare
from kcoral_magic.reports.ncu import DURATION, Profile
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Launch, Writer


def profile(*launches: Launch) -> Profile:
    return ncu_rep.read(Writer().report(launches))


def test_less_time_is_better_more_throughput_is_better_and_a_grid_is_neither() -> None:
    found = compare(profile(saxpy(12_000.0, memory_pct=60.0)), profile(saxpy(9_000.0, memory_pct=80.0)))
    (pair,) = found.pairs
    time, memory = (
        pair.change(DURATION),
        pair.change("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    )
    assert time is not None
    assert memory is not None
    assert (time.verdict, memory.verdict) == ("better", "better")
    assert time.ratio == 0.75
    assert better_is("launch__grid_size") == 0


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [(100.0, 100.9, "same"), (100.0, 102.0, "worse"), (100.0, 98.0, "better"), (0.0, 0.0, "same"), (0.0, 5.0, "worse")],
)
def test_a_change_of_a_per_cent_is_none(before: float, after: float, verdict: str) -> None:
    assert Change(DURATION, "ns", before, after).verdict == verdict


def test_kernels_match_by_signature_and_launch_and_the_rest_is_gone_or_new() -> None:
    before = profile(saxpy(1.0), saxpy(2.0), saxpy(name="old"))
    after = profile(saxpy(name="young"), saxpy(3.0), saxpy(4.0), saxpy(name="other"))
    found = compare(before, after)
    assert [(pair.before.index, pair.after.index) for pair in found.pairs] == [(0, 1), (1, 2)]
    assert [kernel.name for kernel in found.gone] == ["old"]
    assert [kernel.name for kernel in found.new] == ["young", "other"]


def test_the_only_kernels_are_compared_though_one_was_renamed() -> None:
    found = compare(profile(saxpy(name="v1")), profile(saxpy(name="v2")))
    assert len(found.pairs) == 1
    assert found.notes == ("v1 is compared with v2: they are the only kernels",)


def test_another_clock_is_said() -> None:
    slow = saxpy()
    slow.metrics = {**slow.metrics, "gpc__cycles_elapsed.avg.per_second": 1.0e9}
    assert any("SM clocks differ" in note for note in compare(profile(saxpy()), profile(slow)).notes)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("gpu__time_duration.sum < 12us", False),
        ("gpu__time_duration.sum < 13us", True),
        ("gpu__time_duration.sum<12345.5", True),
        ("duration <= 0.012345ms", True),
        ("saxpy: duration < 1s", True),
        ("occupancy >= 90%", True),
        ("registers == 24", True),
        ("dram__bytes_read.sum < 1 MB", False),
        ("sm__cycles_elapsed.avg.per_second > 1.4 GHz", True),
        ("dram__bytes.sum.per_second > 1 GB/s", True),
    ],
)
def test_expectations_are_checked_in_the_units_that_people_write(text: str, holds: bool) -> None:
    assert (Expectation.parse(text).failures(profile(saxpy())) == []) == holds


def test_a_failed_expectation_says_what_was_measured() -> None:
    (said,) = Expectation.parse("duration < 12us").failures(profile(saxpy()))
    assert said == "saxpy: gpu__time_duration.sum is 12,345 ns, expected < 12,000 ns"


@pytest.mark.parametrize("text", ["", "duration", "duration < ", "< 12us", "duration < fast", "duration ~ 12us"])
def test_what_is_no_expectation_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"gpu__time_duration\.sum < 12us"):
        Expectation.parse(text)


def test_an_expectation_of_what_is_not_there_is_an_error_and_none_of_no_kernel_holds() -> None:
    with pytest.raises(NotFoundError):
        Expectation.parse("nosuch < 1").failures(profile(saxpy()))
    with pytest.raises(NotFoundError, match="no kernel 'gemm'"):
        Expectation.parse("gemm: duration < 1us").failures(profile(saxpy()))
    with pytest.raises(UsageError, match="in ns, the expectation in 'MB'"):
        Expectation.parse("duration < 1MB").failures(profile(saxpy()))
    assert Expectation.parse("duration < 1s").failures(profile()) == ["duration < 1s: no kernel was captured"]
