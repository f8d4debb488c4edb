"""What ncu prints as CSV, with all that is odd about it, becomes the same model in base units."""

from __future__ import annotations

import math

import pytest

from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports import ncu_csv, roofline, views
from tests.unit.reports.samples import sample

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description",'
    '"Estimated Speedup Type","Estimated Speedup"\n'
)
ROW = '"0","1","python3","h","void saxpy<float>(int, float)","1","7","(256, 1, 1)","(4,096, 1, 1)","0","9.0",'


def details(*rows: str) -> str:
    return HEAD + "".join(ROW + row + "\n" for row in rows)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12,319,469", 12_319_469),
        ("4,963,609,951.19", 4_963_609_951.19),
        ("1,234", 1_234),
        ("1.5", 1.5),
        ("0,5", 0.5),
        ("1.234.567,8", 1_234_567.8),
        ("12.319.469", 12_319_469),
        ("1'234'567", 1_234_567),
        ("1\u202f234\u202f567", 1_234_567),
        ("-3", -3),
        ("1e-5", 1e-5),
        ("n/a", None),
        ("", None),
        ("CachePreferNone", "CachePreferNone"),
        ("1,2,3", "1,2,3"),
    ],
)
def test_numbers_are_read_in_any_locale(text: str, value: object) -> None:
    assert ncu_csv.number(text) == value


def test_nan_and_infinity_stay_what_they_are() -> None:
    assert math.isnan(ncu_csv.number("nan"))  # type: ignore[arg-type]
    assert ncu_csv.number("-inf") == float("-inf")


@pytest.mark.parametrize(
    ("value", "unit", "base"),
    [
        (6.75, "us", (6750.0, "ns")),
        (2, "msecond", (2_000_000, "ns")),
        (1.5, "second", (1.5e9, "ns")),
        (2.33, "Mbyte", (2.33e6, "byte")),
        (345.14, "Gbyte/s", (345.14e9, "byte/s")),
        (13.72, "Ghz", (13.72e9, "hz")),
        (9, "%", (9, "%")),
        (3, "inst/cycle", (3, "inst/cycle")),
    ],
)
def test_units_that_scale_themselves_become_base_units(value: float, unit: str, base: tuple[float, str]) -> None:
    number, name = ncu_csv.based(value, unit)
    assert number == pytest.approx(base[0])
    assert name == base[1]


def test_labels_become_the_metrics_behind_them_and_rules_stay_with_their_kernel() -> None:
    text = details(
        '"GPU Speed Of Light Throughput","Duration","us","6.75"',
        '"GPU Speed Of Light Throughput","Compute (SM) Throughput","%","9.15"',
        '"Memory Workload Analysis","Memory Throughput","Gbyte/s","345.14"',
        '"Occupancy","","","","TheoreticalOccupancy","OPT","Use fewer registers","global","80.34"',
    )
    (kernel,) = ncu_csv.read(text)
    assert (kernel.name, kernel.duration_ns, kernel.capability) == ("saxpy", 6750.0, "9.0")
    assert views.speed_of_light(kernel) == [("Compute (SM)", 9.15)]
    assert kernel.metric("dram__bytes.sum.per_second") == pytest.approx(345.14e9)
    assert kernel.advice[0].speedup == ("global", 80.34)


def test_what_stands_before_the_header_is_passed_over() -> None:
    text = "hello from the program\n==PROF== Connected to process 1\n" + details(
        '"Launch Statistics","Threads","thread","1,024"'
    )
    assert ncu_csv.read(text)[0].metric("launch__thread_count") == 1024


def test_a_byte_order_mark_and_semicolons_are_no_hindrance() -> None:
    text = "\ufeff" + details('"Launch Statistics","Threads","thread","1024"').replace('","', '";"')
    assert ncu_csv.read(text)[0].metric("launch__thread_count") == 1024


def test_the_raw_page_has_a_column_for_each_metric_and_a_line_of_units() -> None:
    text = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
        '"Device","CC","dram__bytes_read.sum","gpu__time_duration.sum","launch__registers_per_thread","sm__x.avg"\n'
        '"","","","","","","","","","","","Mbyte","us","register/thread",""\n'
        f'{ROW}"2.5","12.3","24","n/a"\n{ROW.replace("saxpy", "scale")}"1","6"\n'
    )
    first, second = ncu_csv.read(text)
    assert first.metric("dram__bytes_read.sum") == pytest.approx(2.5e6)
    assert first["gpu__time_duration.sum"].unit == "ns"
    assert first.metric("sm__x.avg") is None
    assert (second.name, second.duration_ns) == ("scale", pytest.approx(6000))


@pytest.mark.parametrize("text", ["", "nothing here", "a,b,c\n1,2,3\n", "==ERROR== ERR_NVGPUCTRPERM\n"])
def test_what_is_no_csv_of_ncu_is_refused_with_what_ncu_said(text: str) -> None:
    with pytest.raises(ReportInvalid, match="is no CSV of ncu") as caught:
        ncu_csv.read(text)
    assert ("ERR_NVGPUCTRPERM" in str(caught.value)) == ("==ERROR==" in text)


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("void saxpy<float>(int, float *)", "saxpy"),
        ("enable_if<!T7, void>::type kernel<int, g<int>>(T13)", "kernel"),
        ("copy_blocked[v1,abc](Array<long long, 1>, long long)", "copy_blocked"),
        ("at::native::vectorized_elementwise_kernel<4, at::f>(int)", "vectorized_elementwise_kernel"),
        ("(anonymous namespace)::fill(int)", "fill"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
    ],
)
def test_a_kernel_s_name_is_taken_out_of_its_signature(signature: str, name: str) -> None:
    assert ncu_csv._function(signature) == name


def test_real_details_pages_are_read_whole() -> None:
    (kernel,) = ncu_csv.read(sample("csv_nsightful_copy_blocked_details.csv").decode())
    assert (kernel.name, kernel.duration_ns, kernel.capability) == ("copy_blocked", 21_058_944, "7.5")
    assert len(kernel.rules) == 11
    assert views.occupancy(kernel).limiters == ("warps",)
    (kernel,) = ncu_csv.read(sample("csv_llmperfopt_k1_details.csv").decode())
    assert kernel.metric("dram__bytes_read.sum") == pytest.approx(2.33e6)
    assert kernel.metric("flop_count_hp.sum") is None


def test_a_roofline_section_with_item_labels_gives_the_roofline() -> None:
    (kernel,) = ncu_csv.read(sample("csv_llmperfopt_k1_section_SpeedOfLight_RooflineChart.csv").decode())
    (chart,) = roofline.charts(kernel)
    point = chart.points[0]
    assert point.flop_per_s == pytest.approx((158.12 + 1.97) * 2.15e9)
    assert point.of_peak_pct == pytest.approx(100 * (158.12 + 1.97) / 43_520)


@pytest.mark.parametrize("text", ["+-inf", "--nan", "²", "1e²"])
def test_what_only_resembles_a_number_stays_text(text: str) -> None:
    assert ncu_csv.number(text) == text


@pytest.mark.parametrize("odd", ["²", "9" * 5000])
def test_identities_that_no_int_is_made_of_are_passed_over(odd: str) -> None:
    text = (
        details('"S","l","%","1"').replace('"9.0"', f'"{odd}"').replace("(256,", f"({odd},").replace('"7"', f'"{odd}"')
    )
    (kernel,) = ncu_csv.read(text)
    assert (kernel.capability, kernel.block, kernel.stream) == ("", (1, 1, 1), 0)


def test_a_page_of_more_kernels_than_are_read_is_refused() -> None:
    for head in ("ID,Kernel Name\n", "ID,Kernel Name,Metric Name\n"):
        with pytest.raises(ReportInvalid, match=r"more than the 65,536 kernels"):
            ncu_csv.read(head + "".join(f"{number}\n" for number in range(70_000)))


def test_a_name_that_is_only_a_scope_is_the_signature() -> None:
    assert ncu_csv._function("a::") == "a::"


def test_a_speedup_without_bounds_is_none() -> None:
    assert ncu_csv.read(details('"S","","","","R","OPT","text","global","1e999"'))[0].rules[0].speedup is None
