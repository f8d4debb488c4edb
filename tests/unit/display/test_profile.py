"""What a cell shows of a profile: complete, within its sizes, and nothing in it is believed to be HTML."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kcoral_magic.display.profile import MIME, Report
from kcoral_magic.display.quantities import quantity
from kcoral_magic.reports import ncu_csv, ncu_rep
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Launch, Writer, bars, rule, section
from tests.unit.reports.samples import NAMES, sample

DATA = Writer().report([saxpy(), saxpy(9_876.0, name="scale")])
REPORT = Report(ncu_rep.read(DATA, "capture.ncu-rep"), DATA)
EVIL = '<img src=x onerror="alert(1)">\'"&'


class _Checked(HTMLParser):
    """Every tag is closed, none is one that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("br", "img", "meta"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> set[str]:
    parser = _Checked()
    parser.feed(html)
    assert parser.open == []
    assert parser.tags.isdisjoint({"script", "img", "iframe", "link", "style", "object"})
    for picture in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        root = ElementTree.fromstring(picture)
        assert root.get("aria-label")
        assert "nan" not in picture.lower().replace("nanos", "")
    return parser.tags


def test_a_report_shows_its_kernels_and_the_views_of_the_heaviest() -> None:
    html = REPORT.html()
    check(html)
    for title in ("Speed of light", "Roofline", "Occupancy", "Memory", "Why warps waited", "Hot spots", "Advice"):
        assert title in html
    assert html.index("#0") < html.index("#1")
    assert "up to 11.6 %" in html
    assert 'href="https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html"' in html


@pytest.mark.parametrize("name", NAMES)
def test_real_reports_are_shown_whole_and_below_a_megabyte(name: str) -> None:
    report = Report(ncu_rep.read(sample(f"{name}.ncu-rep"), name))
    bundle = report._repr_mimebundle_()
    check(bundle["text/html"])
    assert len(bundle["text/html"]) < 1_000_000
    assert "application/json" not in bundle  # JupyterLab would show it instead of the page
    assert len(json.dumps(report.compact())) <= 64 * 1024
    assert len(json.dumps(bundle[MIME])) <= 2 * 1024 * 1024
    assert bundle["text/plain"].count("\n") < 30


def test_tensor_work_that_the_roofline_leaves_out_is_told() -> None:
    told = "Tensor cores worked"
    assert told in Report(ncu_rep.read(sample("indexspaces.ncu-rep")), b"").html()
    assert told not in REPORT.html()


def test_a_report_of_very_many_kernels_stays_within_its_sizes() -> None:
    report = Report(ncu_rep.read(Writer().report([saxpy(float(n + 1), name=f"kernel_{n}") for n in range(400)])))
    bundle = report._repr_mimebundle_()
    assert len(bundle["text/html"]) < 1_000_000
    assert "application/json" not in bundle  # JupyterLab would show it instead of the page
    assert len(json.dumps(report.compact())) <= 64 * 1024
    assert report.compact()["captured"] == 400
    assert report.compact()["kernels"][0]["name"] == "kernel_399"
    assert len(json.dumps(bundle[MIME])) <= 2 * 1024 * 1024


def test_every_string_of_a_report_is_escaped() -> None:
    launch = saxpy(name=EVIL)
    metrics = {**launch.metrics, "device__attribute_display_name": EVIL, f"l1tex__{EVIL}.sum": 1.0}
    told = rule("r", EVIL, "s", f"see @url:{EVIL}:javascript:alert(1)@ and @url:ok:https://x.y/'\"><b>@", title=EVIL)
    hostile = Launch(EVIL, metrics, signature=EVIL, sections=launch.sections, rules=[told], instances=launch.instances)
    html = Report(ncu_rep.read(Writer(process=EVIL).report([hostile, saxpy()]), EVIL)).html()
    tags = check(html)
    assert "b" in tags
    assert "javascript:" not in re.sub(r">[^<]*<", "><", html)
    assert "onerror=" not in re.sub(r"&lt;img src=x onerror=", "", html)


def test_a_comparison_shows_better_and_worse_in_words_too() -> None:
    faster = Report(ncu_rep.read(Writer().report([saxpy(6_000.0)])))
    diff = faster.diff(REPORT)
    check(diff.html())
    assert "-51.4 % better" in diff.html()
    assert "better" in repr(diff)
    assert diff.json()["schema"] == "kcoral.ncu-diff/1"
    assert REPORT.diff(faster).json()["kernels"][0]["changes"]


def test_a_report_is_saved_as_file_json_or_page(tmp_path: Path) -> None:
    assert REPORT.save(tmp_path / "a.ncu-rep").read_bytes() == DATA
    assert json.loads(REPORT.save(tmp_path / "a.json").read_text())["captured"] == 2
    assert "<svg" in REPORT.save(tmp_path / "a.html").read_text()
    assert ncu_rep.read(REPORT.redacted().data).origin.host == "x" * len("gpu-host")
    head = '"ID","Kernel Name","Metric Name","Metric Value","Metric Unit"\n"0","k","Duration","1","us"\n'
    with pytest.raises(ValueError, match=r"save it as \.json or \.html"):
        Report(ncu_csv.read(head)).save(tmp_path / "b.ncu-rep")


def test_tables_have_a_row_for_each_kernel_or_metric() -> None:
    pytest.importorskip("pandas")
    wide, long = REPORT.df(), REPORT.long()
    assert list(wide["kernel"]) == ["saxpy", "scale"]
    assert wide["gpu__time_duration.sum"].tolist() == [12_345.0, 9_876.0]
    assert set(long.columns) == {"index", "kernel", "signature", "grid", "block", "metric", "value", "unit"}
    assert REPORT["scale"].metric("gpu__time_duration.sum") == 9_876.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (12_345.0, "ns", "12.35 µs"),
        (1_168_077_824, "ns", "1.168 s"),
        (67.196, "%", "67.2 %"),
        (0.0052, "%", "0.0052 %"),
        (693_408_469_220.8, "byte/s", "693.4 GB/s"),
        (1.5e9, "hz", "1.5 GHz"),
        (1_015_808, "inst", "1,015,808 inst"),
        (None, "%", "–"),
        (float("nan"), "%", "n/a"),
    ],
)
def test_quantities_read_as_people_write_them(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_infinity_is_shown_as_a_word() -> None:
    assert quantity(float("inf"), "inst") == "inf inst"


def test_a_page_has_its_size_in_bytes_whatever_is_long_in_it() -> None:
    launch = Launch(
        "k",
        {"device__attribute_display_name": "é" * 1_000_000, "gpu__time_duration.sum": 1.0},
        rules=[rule("r", "n", "s", "é" * 400_000, title="ü" * 100_000)],
    )
    report = Report(ncu_rep.read(Writer().report([launch])))
    bundle = report._repr_mimebundle_()
    assert len(bundle["text/html"].encode()) < 1_000_000
    assert len(bundle["text/plain"]) < 5000
    assert "application/json" not in bundle  # JupyterLab would show it instead of the page
    assert len(json.dumps(report.compact())) <= 64 * 1024
    assert len(report[0]._repr_html_().encode()) < 1_000_000


def test_sections_of_one_name_show_each_picture_once() -> None:
    drawn = section("S", "S", 1, [], [bars("t", "a", 100, [("m", "label of a bar")])])
    html = Report(ncu_rep.read(Writer().report([Launch("k", {"m": 1.0}, sections=[drawn] * 20)]))).html()
    assert html.count(">label of a bar<") == 20
