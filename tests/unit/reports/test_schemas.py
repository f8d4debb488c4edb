"""The JSON that agents get is what docs/schemas says, for every tool of the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoral_magic.display.assembly import Assembly, Built
from kcoral_magic.display.bench import BenchReport, JudgeReport
from kcoral_magic.display.findings import SanitizerReport
from kcoral_magic.display.profile import Report
from kcoral_magic.display.trace import IketReport, TorchReport
from kcoral_magic.display.twin import fitting
from kcoral_magic.reports import iket, ncu_rep
from kcoral_magic.reports.bench import Bench, Machine, Measured
from kcoral_magic.reports.ptxas import Usage
from kcoral_magic.reports.sanitizer import read_text
from tests.standins.iket import trace
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer
from tests.unit.reports.samples import sample

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "schemas"


def profile(duration_ns: float = 12_345.0) -> Report:
    return Report(ncu_rep.read(Writer().report([saxpy(duration_ns)])))


def measured(scale: float = 1.0) -> Measured:
    return Measured("host", tuple(scale * (1e-3 + n * 1e-6) for n in range(20)), at={"n": 4}, bytes=1e6, flops=2e6)


ROW = {"name": "aten::mm", "count": 1, "self_cpu_us": 1.0, "cpu_us": 1.0, "self_device_us": 0.0, "memory_bytes": 0}
FOUND = "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4\n=========     at k+0x1"
USED = Usage("k", "sm_90", 10)
DOCUMENTS: dict[str, Any] = {
    "ncu-1": lambda: profile().json(),
    "ncu-diff-1": lambda: profile(9_000.0).diff(profile()).json(),
    "sanitizer-1": lambda: SanitizerReport("memcheck", read_text(FOUND)).json(),
    "iket-1": lambda: IketReport(iket.read(json.dumps(trace(["k"])).encode())).json(),
    "asm-1": lambda: Assembly("", [Built("sm_90", {"k": USED}, {}, {}), Built("sm_1", {}, {}, {}, "none")], 256).json(),
    "bench-1": lambda: BenchReport(
        Bench("b", (measured(),), Machine(cpu="c"), (measured(2.0),), "ref", is_interleaved=True)
    ).json(),
    "judge-1": lambda: JudgeReport("WRONG", ("call 0",), (), None).json(),
    "torch-1": lambda: TorchReport([ROW], [], elapsed_s=1.0, memory={"cuda": 4}).json(),
}


def validate(document: Any, name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(document, allow_nan=False)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_as_its_schema_says(name: str) -> None:
    document = DOCUMENTS[name]()
    validate(document, name)
    assert document["schema"] == f"kcoral.{name.removesuffix('-1')}/1"


def test_every_schema_has_a_document() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DOCUMENTS)


@pytest.mark.parametrize("name", ["indexspaces", "esmm", "yzcuda", "mojo_profile", "extrap_exgpu_s10"])
def test_real_reports_are_as_the_schema_says(name: str) -> None:
    report = Report(ncu_rep.read(sample(f"{name}.ncu-rep")))
    validate(report.json(), "ncu-1")
    validate(report.compact(), "ncu-1")


def test_data_that_an_agent_gets_unasked_is_cut_to_its_size_and_says_so() -> None:
    made = fitting({"schema": "x", "findings": [{"kind": "k" * 100, "n": n} for n in range(5000)], "notes": ["a", "b"]})
    assert len(json.dumps(made)) <= 64 * 1024
    assert made["cut"] == {"findings": 5000}
    assert made["notes"] == ["a", "b"]
