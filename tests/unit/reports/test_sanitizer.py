"""What compute-sanitizer prints or saves, in all its dialects, becomes one finding for each fault."""

from __future__ import annotations

import pytest

from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports.sanitizer import Finding, read_text, read_xml
from tests.unit.reports.samples import sample


def text(*lines: str, prefix: str = "=========") -> str:
    return "\n".join(f"{prefix} {line}" for line in ("COMPUTE-SANITIZER", *lines))


def one(*lines: str) -> Finding:
    (finding,) = read_text(text(*lines)).findings
    return finding


@pytest.mark.parametrize(
    ("frame", "kernel", "place"),
    [
        ("at copy(int *)+0x170 in a.cu:6", "copy(int *)", "a.cu:6"),
        ("at copy(int *):0x170 in a.cu:6", "copy(int *)", "a.cu:6"),
        ("at 0x170 in a.cu:6:copy(int *)", "copy(int *)", "a.cu:6"),
        ("at 0x00000170 in copy(int *)", "copy(int *)", "0x00000170"),
        ("at copy(int *)+0x170", "copy(int *)", "0x170"),
        ("at void ns::copy<float>(ns::T *)+0x170 in /a b/c.cu:16", "void ns::copy<float>(ns::T *)", "/a b/c.cu:16"),
    ],
)
def test_frames_are_read_in_the_styles_of_all_versions(frame: str, kernel: str, place: str) -> None:
    found = one("Invalid __global__ write of size 4 bytes", f"    {frame}", "    by thread (3,0,0) in block (1,0,0)")
    assert (found.kind, found.kernel, found.place) == ("Invalid __global__ write of size 4", kernel, place)
    assert "thread (3,0,0)" in found.example


@pytest.mark.parametrize(
    ("head", "kind", "severity"),
    [
        ("Invalid __shared__ read of size 16", "Invalid __shared__ read of size 16", "error"),
        ("Misaligned __local__ write of size 8 bytes", "Misaligned __local__ write of size 8", "error"),
        (
            "Uninitialized __global__ memory read of size 4 bytes",
            "Uninitialized __global__ memory read of size 4",
            "error",
        ),
        ("Leaked 130.056.192 bytes at 0x7f00", "Leaked", "error"),
        (
            'Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMalloc.',
            "cudaErrorInvalidValue (error 1) in cudaMalloc",
            "error",
        ),
        (
            "Barrier error detected. Divergent thread(s) in warp",
            "Barrier error detected. Divergent thread(s) in warp",
            "error",
        ),
        (
            "WARN: Potential WAW hazard detected at __shared__ 0x10 in block (0,0,0) :",
            "Potential WAW hazard detected",
            "warning",
        ),
        ("WARN:(Warp Level Programming) Potential RAW hazard detected", "Potential RAW hazard detected", "warning"),
        ("Malloc/Free error encountered : Double free", "Malloc/Free error encountered : Double free", "error"),
        ("Internal Sanitizer Error: bad", "Internal Sanitizer Error: bad", "error"),
    ],
)
def test_kinds_lose_what_differs_from_thread_to_thread(head: str, kind: str, severity: str) -> None:
    found = one(head)
    assert (found.kind, found.severity) == (kind, severity)


def test_the_same_fault_of_a_thousand_threads_is_one_row() -> None:
    lines = []
    for thread in range(1000):
        lines += [
            "Invalid __global__ write of size 4 bytes",
            "    at copy(int *)+0x70 in a.cu:6",
            f"    by thread ({thread},0,0) in block (0,0,0)",
            "",
        ]
    found = read_text(text(*lines, "ERROR SUMMARY: 1000 errors"))
    assert [(finding.count, finding.line) for finding in found.findings] == [(1000, 6)]
    assert found.errors == 1000


def test_errors_that_were_not_printed_count() -> None:
    found = read_text(
        text(
            "Invalid __global__ read of size 1",
            "    at k+0x1",
            "",
            "ERROR SUMMARY: 5,000 errors",
            "ERROR SUMMARY: 4,999 errors were not printed. Use --print-limit option",
        )
    )
    assert found.errors >= 1
    told = read_text(text("Invalid __global__ read of size 1", "    at k+0x1", "", "1,234 errors were not printed"))
    assert told.errors == 1235


def test_a_race_is_told_with_both_accesses_and_its_hazards() -> None:
    found = one(
        "Error: Race reported between Write access at sum(int *)+0x100 in a.cu:18",
        "    and Read access at sum(int *)+0x170 in a.cu:27 [1,508 hazards]",
    )
    assert (found.kind, found.count, found.place) == ("Race between Write and Read", 1508, "a.cu:18")


def test_racecheck_s_clean_line_is_clean() -> None:
    found = read_text(text("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"))
    assert (found.findings, found.errors) == ((), 0)
    assert found.summary.startswith("RACECHECK SUMMARY")


def test_a_prefix_of_one_s_own_is_found() -> None:
    told = (
        "hello\n"
        + text("Invalid __global__ read of size 1", "    at k+0x1", prefix="#san#")
        + "\n========= no line of it\n"
    )
    assert len(read_text(told).findings) == 1


def test_what_the_real_one_says_without_a_gpu_is_a_note() -> None:
    found = read_text(sample("compute_sanitizer_no_gpu.log").decode())
    assert found.findings == ()
    assert "Error: Target application terminated before first instrumented API call" in found.notes


RECORD = (
    "<record><kind>Precise</kind><level>Error</level><who><threadIdx><x>{n}</x><y>0</y><z>0</z></threadIdx></who>"
    "<what><text>Invalid write: Access is out of bounds</text><space>global</space><size>4</size>"
    "<direction>write</direction><address>0x7f{n}</address></what>"
    "<where><func>put(int*)</func><path>k.cu</path><line>8</line><pc>0x70</pc></where>"
    "<hostStack><frame><func>main</func><path>m.cu</path><line>3</line></frame></hostStack></record>"
)


def xml(*records: str) -> bytes:
    return f'<?xml version="1.0"?><ComputeSanitizerOutput>{"".join(records)}</ComputeSanitizerOutput>'.encode()


def test_xml_is_read_into_the_same_findings() -> None:
    (found,) = read_xml(xml(*(RECORD.format(n=n) for n in range(1000)))).findings
    assert (found.kind, found.count, found.kernel, found.place) == (
        "Invalid __global__ write of size 4",
        1000,
        "put(int*)",
        "k.cu:8",
    )
    assert found.frames == ("main in m.cu:3",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut or damaged"),
        (xml(RECORD.format(n=1))[:-20], "cut or damaged"),
        (b"<html></html>", "expected, got <html>"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><ComputeSanitizerOutput/>', "declares entities"),
    ],
)
def test_xml_that_is_none_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ReportInvalid, match=words):
        read_xml(data)


def test_hostile_lines_take_no_long_time() -> None:
    lines = [
        "Invalid " + "read " * 200_000,
        "at " + ":0x" * 100_000,
        "at " + "a+" * 200_000 + " in " * 100_000,
        "(" * 500_000,
    ]
    assert len(read_text(text(*lines, *("    " + line for line in lines))).findings) <= 4
