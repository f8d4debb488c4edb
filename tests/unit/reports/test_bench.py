"""Verdicts from samples, and every trap of a benchmark, without a GPU: what is in here is pure."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.display.bench import BenchReport
from kcoral_magic.reports import statistics
from kcoral_magic.reports.bench import Bench, Machine, Measured, Reading, recalled, record, warnings

GPU = Machine(gpu="H200", driver="580.1", clock_policy="locked", l2_bytes=60_000_000, peak_byte_per_s=4.8e12)
CPU = Machine(cpu="A processor")


def noisy(middle: float, count: int = 200, spread: float = 0.002, seed: int = 1) -> tuple[float, ...]:
    source = random.Random(seed)
    return tuple(middle * (1 + source.gauss(0, spread)) for _ in range(count))


def event(**given: Any) -> Measured:
    return Measured(**{"method": "event", "samples": noisy(1e-4), "is_cold": True, "flush_bytes": 256 << 20, **given})


def codes(measured: Measured, machine: Machine = GPU) -> set[str]:
    return {one.code for one in warnings(measured, machine)}


# ── statistics ──


@given(st.lists(st.floats(1e-9, 1e3), min_size=6, max_size=300))
def test_a_median_lies_in_its_interval_and_the_interval_in_the_samples(values: list[float]) -> None:
    low, high = statistics.median_interval(values)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    source, held = random.Random(7), 0
    for _ in range(500):
        low, high = statistics.median_interval([source.expovariate(1.0) for _ in range(60)])
        held += low <= 0.6931 <= high
    assert held >= 0.93 * 500


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "FASTER"), (1.1, "SLOWER"), (1.0, "SAME"), (1.004, "SAME")])
def test_pairs_give_a_verdict_though_both_drift(factor: float, verdict: str) -> None:
    before = [sample * (1 + place / 400) for place, sample in enumerate(noisy(1e-3, seed=2))]
    after = [sample * factor * (1 + place / 400) for place, sample in enumerate(noisy(1e-3, seed=3))]
    assert statistics.paired(before, after).verdict == verdict


def test_noise_and_too_few_samples_are_unsure() -> None:
    assert statistics.paired(noisy(1.0, 20, 0.3, 4), noisy(1.0, 20, 0.3, 5)).verdict == "UNSURE"
    assert statistics.paired([1.0, 1.0], [0.5, 0.5]).verdict == "UNSURE"
    assert statistics.paired([], []).verdict == "UNSURE"


def test_a_drift_is_seen_from_the_halves() -> None:
    assert abs(statistics.drift(noisy(1.0))) < 0.01
    assert statistics.drift([*noisy(1.0), *noisy(1.1)]) == pytest.approx(0.1, abs=0.01)


# ── traps ──


def test_a_sound_measurement_has_no_warning() -> None:
    assert codes(event(kernels=1, host_s=2e-5)) == set()


def test_a_flush_smaller_than_twice_the_l2_is_told() -> None:
    assert codes(event(kernels=1, flush_bytes=100_000_000)) == {"flush_small"}
    assert codes(event(kernels=1), dataclasses.replace(GPU, l2_bytes=None)) == {"flush_unknown"}


def test_a_body_that_launches_nothing_is_told() -> None:
    assert "nothing_launched" in codes(event(kernels=0))
    assert "nothing_launched" in codes(event(samples=noisy(1e-6)))
    assert "nothing_launched" not in codes(Measured("host", noisy(1e-7)), CPU)


def test_an_asynchronous_copy_alone_is_no_kernel() -> None:
    assert "nothing_launched" in codes(event(kernels=0, samples=noisy(5e-5)))


def test_a_first_call_that_compiled_is_told_and_not_counted() -> None:
    assert codes(event(kernels=1, first_s=1.5)) == {"first_call"}


def test_autotuning_inside_the_timed_runs_is_told() -> None:
    assert codes(event(kernels=1, samples=(*noisy(1e-4), 0.5, *noisy(1e-4)))) == {"spikes"}


def test_a_result_with_nan_is_told() -> None:
    assert codes(event(kernels=1, has_nan=True)) == {"nan"}


def test_a_host_that_is_slower_than_the_kernel_is_told_for_events_only() -> None:
    assert codes(event(kernels=1, host_s=1.2e-4)) == {"host_bound"}
    assert codes(event(method="graph", kernels=1, host_s=1.2e-4)) == set()


def test_a_clock_that_drifts_between_two_bodies_is_told() -> None:
    readings = (Reading(1.98e9, 60.0, 400.0), Reading(1.7e9, 82.0, 690.0, ("power cap",)))
    assert codes(event(kernels=1, readings=readings)) == {"clocks", "throttled"}
    assert codes(event(kernels=1, samples=(*noisy(1e-4), *noisy(1.1e-4)))) == {"drift"}


def test_more_than_the_memory_can_do_is_told() -> None:
    assert codes(event(kernels=1, bytes=1e9)) == {"above_roofline"}
    assert codes(event(kernels=1, bytes=1e8)) == set()


def test_a_median_that_is_not_known_well_is_told() -> None:
    assert "noisy" in codes(event(kernels=1, samples=noisy(1e-4, 20, 0.2), is_stopped=True))


# ── a run ──


def bench(candidate: Measured, baseline: Measured | None = None, **given: Any) -> Bench:
    told = {"is_interleaved": True, **given}
    return Bench("saxpy", (candidate,), GPU, (baseline,) if baseline else (), "ref" if baseline else "", **told)


def test_another_gpu_driver_or_clock_policy_gives_unsure() -> None:
    fast, slow = event(samples=noisy(5e-5)), event(samples=noisy(1e-4, seed=9))
    for other in ({"gpu": "A100"}, {"driver": "550.1"}, {"clock_policy": "boost"}):
        made = bench(fast, slow, is_interleaved=False, made_on=dataclasses.replace(GPU, **other))
        compared = made.comparison()
        assert compared is not None
        assert compared.verdict == "UNSURE"
        assert made.warnings()[0].code == "unlike"
    same = bench(fast, slow, is_interleaved=False, made_on=GPU).comparison()
    assert same is not None
    assert same.verdict == "FASTER"


def test_another_method_gives_unsure() -> None:
    compared = bench(event(), event(method="graph"), is_interleaved=False, made_on=GPU).comparison()
    assert compared is not None
    assert compared.verdict == "UNSURE"


def test_a_line_of_the_log_is_read_back_as_it_was_written() -> None:
    made = bench(event(bytes=1e6, at={"n": 4}))
    source, machine, points = recalled(json.loads(json.dumps(record(made))))
    assert (source, machine) == ("", GPU)
    assert points[0].samples == made.candidate[0].samples
    with pytest.raises(ValueError, match="has no"):
        recalled({"schema": "kcoral.bench/1"})


def test_it_is_shown_with_method_cache_policy_and_verdict() -> None:
    report = BenchReport(bench(event(samples=noisy(5e-5), bytes=1e7, flops=2e6), event()))
    text, html, data = repr(report), report.html(), report.json()
    assert "CUDA events, L2 flushed before each call (268.4 MB)" in text
    assert "FASTER than ref, 0.5" in text
    assert "GB/s (4% of roofline)" in text
    assert ">FASTER<" in html
    assert data["verdict"] == "FASTER"
    assert data["points"][0]["comparison"]["ratio"] == pytest.approx(0.5, abs=0.01)
    sweep = BenchReport(Bench("s", tuple(event(at={"n": n}, samples=noisy(n * 1e-7)) for n in (256, 1024, 65536)), GPU))
    assert "Time by n: 256: 25" in sweep.html()
    assert sweep.verdict is None
    assert list(sweep.df()["n"]) == [256, 1024, 65536]
