"""Instructions of a report's kernels, named by the real nvdisasm, with the source that lies beside the notebook."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from kcoral_gateway.worker import listing as there
from kcoral_magic.display.profile import Report
from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports import ncu_rep
from kcoral_magic.tools import listing
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer
from tests.unit.reports.samples import sample

SOURCE = """__global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""


@pytest.fixture
def cubin(tmp_path: Path) -> bytes:
    if listing.program("nvdisasm") is None or shutil.which("nvcc") is None:
        pytest.skip("nvcc and nvdisasm (kcoral-magic[asm]) are needed")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "saxpy.cu").write_text(SOURCE)
    subprocess.run(
        ["nvcc", "-cubin", "-lineinfo", "-arch=sm_90", "-o", "k.cubin", "elsewhere/saxpy.cu"], cwd=tmp_path, check=True
    )
    return (tmp_path / "k.cubin").read_bytes()


def test_hot_spots_name_instruction_and_source_line(
    cubin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = saxpy()
    launch.mangled = "_Z5saxpyifPKfPf"
    profile = ncu_rep.read(Writer().report([launch], cubin=cubin))
    monkeypatch.chdir(tmp_path)
    without = listing.of(profile)["_Z5saxpyifPKfPf"]
    assert {line.source for line in without.values()} == {""}
    shutil.copy(tmp_path / "elsewhere" / "saxpy.cu", tmp_path)
    listings = listing.of(profile)
    told = [line for line in listings["_Z5saxpyifPKfPf"].values() if "FFMA" in line.text]
    assert told[0].source == "if (i < n) y[i] = a * x[i] + y[i];"
    html = Report(profile, listings=listings).html()
    assert "saxpy.cu:" in html
    assert "if (i &lt; n) y[i] = a * x[i] + y[i];" in html


def test_a_client_without_nvdisasm_reads_what_the_gateway_s_machine_printed(
    cubin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = saxpy()
    launch.mangled = "_Z5saxpyifPKfPf"
    (tmp_path / "report.ncu-rep").write_bytes(Writer().report([launch], cubin=cubin))
    profile = ncu_rep.read((tmp_path / "report.ncu-rep").read_bytes())
    here = listing.of(profile)
    monkeypatch.setenv("PATH", str(Path(str(listing.program("nvdisasm"))).parent))
    there.write(str(tmp_path))
    monkeypatch.setattr(listing, "program", lambda name: None)
    assert listing.of(profile) == {}
    assert listing.of(profile, (tmp_path / there.FILE).read_text()) == here


@pytest.mark.parametrize("data", [b"", b"NVR\0 and then nothing of a report"])
def test_what_is_no_report_leaves_no_listing(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "report.ncu-rep").write_bytes(data)
    with contextlib.suppress(ReportInvalid):
        there.write(str(tmp_path))
    assert not (tmp_path / there.FILE).exists()


def test_a_link_named_as_the_source_is_not_followed(
    cubin: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saxpy.cu").symlink_to(tmp_path / "elsewhere" / "saxpy.cu")
    monkeypatch.chdir(tmp_path)
    found = listing.of(ncu_rep.read(Writer().report([saxpy()], cubin=cubin)))
    assert {line.source for line in found["_Z5saxpyifPKfPf"].values()} == {""}


def test_instructions_of_a_real_report_are_those_of_nvidia_s_reader() -> None:
    ncu_report = pytest.importorskip("ncu_report", reason="NVIDIA's reader: pip install kcoral-magic[oracle]")
    if listing.program("nvdisasm") is None:
        pytest.skip("nvdisasm is not installed: kcoral-magic[asm]")
    from tests.unit.reports.samples import FOLDER

    profile = ncu_rep.read(sample("indexspaces.ncu-rep"))
    action = ncu_report.load_report(str(FOLDER / "indexspaces.ncu-rep")).range_by_idx(0).action_by_idx(0)
    kernel = profile[0]
    lines = listing.of(profile)[kernel.mangled]
    assert kernel.code is not None
    base = dict(kernel.code.functions)[kernel.mangled]
    for offset, line in lines.items():
        theirs = " ".join(action.sass_by_pc(base + offset).split())
        assert line.text == theirs or "BRA" in line.text  # labels are spelled another way


def test_code_that_is_none_is_no_listing() -> None:
    assert listing.of(ncu_rep.read(Writer().report([saxpy()], cubin=b"\x7fELF junk"))) == {}
