"""``kcoral-magic ncu | sanitize | asm | bench`` as people and scripts type them; stand-ins where a GPU is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.standins.__main__ import make
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer
from tests.support import GatewayProcess

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "from standin_gpu import launch\nprint('runs')\nlaunch('saxpy'{})\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("family")
    process = GatewayProcess(folder / "state", "--tools", str(make(folder / "tools")))
    process.spares = 4
    yield process
    process.stop()


@pytest.fixture
def run(gateway: GatewayProcess, token: str, tmp_path: Path) -> Run:
    own = {name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")}
    env = {**own, "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token}
    shutil.copy(ROOT / "notebooks" / "standin_gpu.py", tmp_path)

    def made(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kcoral_magic.cli", *words]
        quiet = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, cwd=tmp_path, env=env, timeout=90, check=False, **quiet)

    return made


def test_a_program_is_profiled_and_its_report_is_text_json_and_page(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(""))
    done = run("ncu", "--set", "basic", "--html", "page.html", "script.py")
    assert done.stdout.startswith("runs\nncu: 1 launched, 1 captured")
    assert done.returncode == 0
    assert "<svg" in (tmp_path / "page.html").read_text()
    told = run("ncu", "--json", "script.py")
    assert json.loads(told.stdout)["kernels"][0]["name"] == "saxpy"
    assert "runs" in told.stderr


def test_a_failed_expectation_is_the_exit_status(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(""))
    done = run("ncu", "--expect", "duration < 1us", "script.py")
    assert done.returncode == 1
    assert "saxpy: gpu__time_duration.sum is 12,345 ns, expected < 1,000 ns" in done.stderr
    told = run("ncu", "--json", "--expect", "duration < 1us", "script.py")
    assert json.loads(told.stdout)["error"]["code"] == "expectation"


def test_reports_that_lie_here_are_read_without_a_gateway(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.ncu-rep").write_bytes(Writer().report([saxpy(9_000.0)]))
    (tmp_path / "b.ncu-rep").write_bytes(Writer().report([saxpy(6_000.0)]))
    assert "saxpy" in run("ncu", "view", "a.ncu-rep").stdout
    assert json.loads(run("ncu", "diff", "a.ncu-rep", "b.ncu-rep", "--json").stdout)["schema"] == "kcoral.ncu-diff/1"
    missing = run("ncu", "view", "nosuch.ncu-rep")
    assert (missing.returncode, missing.stderr) == (1, "kcoral-magic: nosuch.ncu-rep: No such file or directory\n")


def test_faults_of_a_program_are_the_exit_status(run: Run, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(", fault='oob'"))
    done = run("sanitize", "script.py")
    assert done.returncode == 1
    assert "Invalid __global__ write of size 4 ×1,000" in done.stdout
    assert json.loads(run("sanitize", "--json", "script.py").stdout)["errors"] == 1000


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_a_file_is_compiled_for_some_architectures(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) { x[threadIdx.x] *= 2; }")
    told = json.loads(run("asm", "--arch", "sm_80,sm_90a", "--json", "k.cu").stdout)
    assert [target["arch"] for target in told["targets"]] == ["sm_80", "sm_90a"]
    (tmp_path / "bad.cu").write_text("__global__ void k() { nonsense; }")
    bad = run("asm", "bad.cu")
    assert bad.returncode == 1
    assert 'identifier "nonsense" is undefined' in bad.stderr


def test_a_file_is_timed_and_kept_under_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "body.py").write_text("sum(range(1000))")
    told = json.loads(run("bench", "--name", "sums", "--seconds", "0.5", "--json", "body.py").stdout)
    assert told["points"][0]["median_s"] > 0
    assert "1 kept" in run("bench", "log", "sums").stdout
    wrong = run("bench", "--check", "result == 1", "body.py")
    assert wrong.returncode == 1
    assert "does not hold" in wrong.stderr


def test_a_module_beside_the_file_goes_along_to_be_timed_and_judged(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "helper.py").write_text("def double(x):\n    return x * 2\n")
    (folder / "body.py").write_text("import helper\nhelper.double(3)")
    (folder / "solution.py").write_text("import helper\ndef solution(x):\n    return helper.double(x)\n")
    (tmp_path / "judge.py").write_text(
        "def inputs(rng):\n    return (rng.randbytes(4096),)\n\ndef reference(x):\n    return x + x\n"
    )
    timed = run("bench", "--seconds", "0.2", "--check", "result == 6", "below/body.py")
    assert timed.returncode == 0, timed.stderr
    judged = json.loads(run("bench", "--json", "--judge", "judge.py", "below/solution.py").stdout)
    assert judged["verdict"] in ("RIGHT", "SUSPECT"), judged["reasons"]
    missing = run("bench", "--no-sync", "below/body.py")
    assert "No module named 'helper'" in missing.stderr


def test_headers_beside_a_kernel_go_along(run: Run, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is needed")
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "k.cu").write_text('#include "deep/a.h"\n__global__ void k(int *x) { x[0] = TWO; }\n')
    (tmp_path / "src" / "deep" / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "src" / "deep" / "b.h").write_text("#define TWO 2\n")
    made = run("asm", "--code", "src/k.cu")
    assert made.returncode == 0, made.stderr
    assert "sm_90 k: " in made.stdout
    assert "        2  st.global.u32" in made.stdout


def test_what_did_not_run_or_was_not_checked_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("")
    assert "there is no file nosuch.py" in run("ncu", "nosuch.py").stderr
    assert "--expect after the program goes to the program" in run("ncu", "run.py", "--expect", "duration < 1us").stderr
    (tmp_path / "log").write_text(
        "========= COMPUTE-SANITIZER\n"
        "========= Error: Target application terminated before first instrumented API call\n"
    )
    assert "is no program; a report is read by: kcoral-magic ncu view a.ncu-rep" in run("ncu", "a.ncu-rep").stderr
    assert run("ncu", "view", "--help").stdout.startswith("kcoral-magic ncu view FILE")
    viewed = run("sanitize", "view", "log")
    assert (viewed.returncode, "nothing was checked" in viewed.stderr) == (1, True)
    (tmp_path / "bad.py").write_text("import nosuch_module")
    assert "What was printed says why if it failed before" in run("ncu", "bad.py").stderr


def test_words_that_make_no_command_say_what_was_expected(run: Run) -> None:
    assert "a program was expected" in run("ncu").stderr
    assert "--set: invalid choice" in run("ncu", "--set", "everything", "a.py").stderr
    assert "FILE was expected" in run("asm").stderr
    assert "one FILE was expected" in run("asm", "k.cu", "more").stderr
    for words in (("ncu", "log", "x"), ("sanitize", "diff", "a", "b"), ("iket", "log")):
        assert run(*words).returncode == 1


def test_stdout_is_one_json_document_and_the_status_is_not_0_however_it_fails(run: Run, tmp_path: Path) -> None:
    (tmp_path / "body.py").write_text("1 / 0")
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "script.py").write_text(SCRIPT.format("") + "import sys\nsys.exit(3)\n")
    for words, code in (
        (("ncu", "view", "nosuch", "--json"), "usage"),
        (("ncu", "--json", "body.py"), "tool"),
        (("bench", "--json", "body.py"), "error"),
        (("bench", "--json", "--check", "False", "one.py"), "expectation"),
    ):
        done = run(*words)
        assert (json.loads(done.stdout)["error"]["code"], done.returncode) == (code, 1)
        assert "kcoral_magic/" not in done.stderr
    failed = run("ncu", "--json", "script.py")
    assert (json.loads(failed.stdout)["captured"], failed.returncode) == (1, 1)
    unwritten = run("sanitize", "--html", ".", "script.py")
    assert unwritten.returncode == 1
    assert "nothing found" in unwritten.stdout
    assert "--html .: Is a directory" in unwritten.stderr
