"""Reports are read as NVIDIA's own reader reads them, and what is damaged is refused, fast and in words."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from kcoral_magic.errors import NotFoundError, ReportInvalid
from kcoral_magic.reports import ncu_rep
from kcoral_magic.reports.ncu import MOST_KERNELS, Kernel
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Launch, Writer, data, number, rule
from tests.unit.reports.samples import FOLDER, NAMES, sample

REPORT = Writer().report([saxpy(), saxpy(9_876.0, name="scale")])


def actions(path: Path) -> list[Any]:
    """The kernels as NVIDIA's reader has them."""
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's reader: pip install kcoral-magic[oracle]")
    context = ncu_report.load_report(str(path))
    ranges = [context.range_by_idx(index) for index in range(context.num_ranges())]
    return [one.action_by_idx(index) for one in ranges for index in range(one.num_actions())]


def agrees(kernel: Kernel, action: Any) -> None:
    assert kernel.name == action.name()
    assert set(kernel.metrics) == set(action.metric_names())
    for name, metric in kernel.metrics.items():
        theirs = action[name]
        value = theirs.value()
        if metric.value is None:
            assert not value, name
        elif isinstance(value, float) and math.isnan(value):
            assert str(metric.value) == "nan", name
        else:
            assert metric.value == value, name
        assert len(metric.parts) == theirs.num_instances(), name
    said = [(rule["rule_identifier"], rule["rule_message"]["message"]) for rule in action.rule_results_as_dicts()]
    assert sorted((rule.id, rule.text) for rule in kernel.rules if rule.text) == sorted(
        pair for pair in said if pair[1]
    )
    assert sorted((one.id, one.name) for one in kernel.sections) == sorted(
        (one.identifier(), one.name()) for one in action.sections()
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_section_and_rule_of_a_real_report_is_that_of_nvidia_s_reader(name: str) -> None:
    profile = ncu_rep.read(sample(f"{name}.ncu-rep"), name)
    theirs = actions(FOLDER / f"{name}.ncu-rep")
    assert len(profile) == len(theirs) > 0
    for kernel, action in zip(profile, theirs, strict=True):
        agrees(kernel, action)


@pytest.mark.parametrize("name", ["indexspaces", "esmm"])
def test_instances_are_those_of_nvidia_s_reader(name: str) -> None:
    profile = ncu_rep.read(sample(f"{name}.ncu-rep"), name)
    for kernel, action in zip(profile, actions(FOLDER / f"{name}.ncu-rep"), strict=True):
        for metric in kernel.metrics.values():
            theirs = action[metric.name]
            keys = theirs.correlation_ids() if theirs.has_correlation_ids() else None
            for place, (key, part) in enumerate(metric.instances):
                if isinstance(part, int | float):
                    assert float(part) == theirs.as_double(place), metric.name
                if keys is not None and isinstance(key, int):
                    assert key == keys.as_uint64(place), metric.name


def test_nvidia_s_reader_takes_what_our_writer_makes(tmp_path: Path) -> None:
    path = tmp_path / "made.ncu-rep"
    path.write_bytes(REPORT)
    theirs = actions(path)
    profile = ncu_rep.read(REPORT)
    assert len(profile) == len(theirs) == 2
    for kernel, action in zip(profile, theirs, strict=True):
        agrees(kernel, action)
    speedup = next(rule.speedup for rule in profile[0].rules if rule.speedup)
    assert speedup == ("global", 11.6)


def test_units_are_nvidia_s_for_nearly_all_metrics() -> None:
    """``.ncu-rep`` files have none; a few that are odd in NVIDIA's own table are left to it."""
    same = other = 0
    for name in ("indexspaces", "esmm", "yzcuda", "mojo_profile"):
        profile = ncu_rep.read(sample(f"{name}.ncu-rep"))
        for kernel, action in zip(profile, actions(FOLDER / f"{name}.ncu-rep"), strict=True):
            for metric in kernel.metrics.values():
                if metric.unit == action[metric.name].unit():
                    same += 1
                else:
                    other += 1
    assert other / same < 0.02


def test_a_kernel_is_found_by_number_name_beginning_and_pattern() -> None:
    profile = ncu_rep.read(REPORT)
    assert profile[1].name == profile["scale"].name == profile["sca"].name == profile["s.*e$"].name == "scale"
    with pytest.raises(NotFoundError, match="no kernel 'gemm' was captured: saxpy, scale"):
        profile["gemm"]
    with pytest.raises(NotFoundError, match=r"near it: gpu__time_duration\.sum"):
        profile[0].metric("gpu_time_duration.sum")


def test_the_heaviest_kernel_comes_first() -> None:
    assert [kernel.name for kernel in ncu_rep.read(REPORT).heaviest()] == ["saxpy", "scale"]


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"", "is empty"),
        (b"GARBAGE", "begins with b'GARBAGE'"),
        (REPORT[:4], "cut: it ends at byte 4"),
        (REPORT[:-1], "cut"),
        (REPORT[: len(REPORT) // 2], "cut"),
        (b"NVR\0" + struct.pack("<I", 2) + number(1, 8), "version 8; 7 is read"),
        (b"NVR\0" + struct.pack("<I", 2) + number(1, 7) + struct.pack("<I", 2**32 - 1), "says 4,294,967,295 bytes"),
        (
            b"NVR\0" + struct.pack("<I", 2) + number(1, 7) + struct.pack("<I", 4) + number(2, 99) + b"\x28\x00",
            "99 entries",
        ),
    ],
)
def test_what_is_no_report_is_refused_in_words(damaged: bytes, words: str) -> None:
    with pytest.raises(ReportInvalid) as caught:
        ncu_rep.read(damaged, "x.ncu-rep")
    assert words in str(caught.value)


def test_a_report_without_kernels_is_one() -> None:
    assert len(ncu_rep.read(Writer().report([]))) == 0


def test_a_metric_that_names_no_string_is_damage() -> None:
    broken = (
        Writer()
        .report([Launch("k", {"a": 1})])
        .replace(data(13, number(1, 0) + data(2, number(5, 1))), data(13, number(1, 9) + data(2, number(5, 1))))
    )
    with pytest.raises(ReportInvalid, match="names string 9 of 1"):
        ncu_rep.read(broken)


def test_a_packed_report_is_read_where_zstandard_is() -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(REPORT)
    assert [kernel.name for kernel in ncu_rep.read(packed)] == ["saxpy", "scale"]
    with pytest.raises(ReportInvalid, match=r"cut|unpacked"):
        ncu_rep.read(packed[:-9])


def test_a_packed_bomb_is_refused_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    zstandard = pytest.importorskip("zstandard")
    monkeypatch.setattr(ncu_rep, "MOST_BYTES", 1 << 20)
    with pytest.raises(ReportInvalid, match="larger than the 1,048,576"):
        ncu_rep.read(zstandard.ZstdCompressor().compress(bytes(1 << 26)))


def test_a_redacted_report_names_no_host_process_or_path_and_is_read_as_before(tmp_path: Path) -> None:
    data_ = Writer(host="secret-host", process="/home/somebody/bin/python").report(
        [saxpy()], cubin=b"\x7fELF\0/home/somebody/k.cu\0"
    )
    redacted = ncu_rep.redact(data_)
    assert b"secret-host" not in redacted
    assert b"somebody" not in redacted
    assert len(redacted) == len(data_)
    before, after = ncu_rep.read(data_), ncu_rep.read(redacted)
    assert before[0].metrics == after[0].metrics
    assert before.origin.host == "secret-host"
    assert b"someuser" not in ncu_rep.redact(sample("indexspaces.ncu-rep"))


def test_functions_of_the_machine_code_lie_where_their_counters_begin() -> None:
    for kernel in ncu_rep.read(sample("indexspaces.ncu-rep")):
        assert kernel.code is not None
        assert dict(kernel.code.functions)[kernel.mangled] == min(kernel["inst_executed"].keys)  # type: ignore[type-var]


def test_what_has_four_bytes_in_a_file_and_a_kilobyte_here_has_a_limit() -> None:
    start = Writer().report([])
    for much in (bytes(4 * MOST_KERNELS + 4), Writer()._block(bytes(4 * MOST_KERNELS + 4), results=MOST_KERNELS + 1)):
        with pytest.raises(ReportInvalid, match=r"more than the 65,536 kernels"):
            ncu_rep.read(start + much)


def test_code_that_is_a_number_is_not_the_rest_of_the_file() -> None:
    writer = Writer()
    code = writer._block(writer._sized(number(1, 1) + number(4, 0)), sources=1)
    report = writer.report([]) + code + writer.report([Launch("k", {"a": 1})])[len(writer.report([])) :]
    kernel = ncu_rep.read(report)[0]
    assert kernel.code is not None
    assert kernel.code.cubin == b""


def test_a_speedup_without_bounds_is_none() -> None:
    endless = rule("r", "n", "s", "text", speedup=(1, float("inf")))
    assert ncu_rep.read(Writer().report([Launch("k", {"a": 1}, rules=[endless])]))[0].rules[0].speedup is None


def test_a_redacted_report_keeps_its_lengths_also_where_one_is_a_slash() -> None:
    """47 is ``/``: a text of that length which has another slash looked like a path that begins with its length."""
    text = "L1/TEX cache is busy".ljust(ord("/"), "x")
    redacted = ncu_rep.redact(Writer().report([Launch("k", {"a": 1}, rules=[rule("r", "n", "s", text)])]))
    assert ncu_rep.read(redacted)[0].rules[0].text == text
