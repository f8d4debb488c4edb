"""``%%kcoral ncu`` in a real kernel, with a real worker and a stand-in for ncu: no GPU is here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebooks.kernels import Kernel
from tests.standins.__main__ import make
from tests.support import GatewayProcess

pytestmark = pytest.mark.notebook
STANDIN = Path(__file__).resolve().parents[2] / "notebooks" / "standin_gpu.py"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("profiling")
    process = GatewayProcess(folder / "state", "--tools", str(make(folder / "tools")))
    yield process
    process.stop()


@pytest.fixture(scope="module")
def token(gateway: GatewayProcess) -> str:
    return gateway.token()


@pytest.fixture(autouse=True)
def folder(kernel: Kernel) -> Path:
    """The notebook's folder, with the stand-in for a GPU beside the notebook."""
    home = Path(kernel.run("import os; print(os.getcwd())").text().strip())
    (home / "standin_gpu.py").write_text(STANDIN.read_text())
    return home


LAUNCH = "from standin_gpu import launch\n"


def test_a_cell_under_ncu_shows_its_report_and_its_names_come_from_the_session(kernel: Kernel, folder: Path) -> None:
    kernel.run("%%kcoral --gpus 1\nscale = 2\ndef twice(x):\n    return scale * x")
    cell = kernel.run(
        f"%%kcoral ncu --set full\n{LAUNCH}print('times', twice(21))\nlaunch('saxpy')\nlaunch('scale', 9_876.0)"
    )
    assert "times 42" in cell.text()
    (result,) = cell.of("execute_result")
    data = result["data"]
    assert "2 launched, 2 captured" in data["text/plain"]
    assert "set full, 40 passes a kernel; clocks locked to base, caches flushed" in data["text/plain"]
    assert "Speed of light" in data["text/html"]
    assert data["application/vnd.kcoral.ncu+json"]["schema"] == "kcoral.ncu/1"
    assert data["application/vnd.kcoral.ncu+json"]["kernels"][0]["metrics"]
    saved = list((folder / ".kcoral" / "reports").glob("ncu-*.ncu-rep"))
    assert len(saved) == 1
    assert kernel.run("print(_.kernels[0].name, len(_.df()))").text() == "saxpy 2\n"
    shown = kernel.run(f"%kcoral ncu view {saved[0]}").of("execute_result")[0]
    assert "Roofline" in shown["data"]["text/html"]


def test_json_is_data_and_one_line_instead_of_a_page(kernel: Kernel) -> None:
    (result,) = kernel.run(f"%%kcoral ncu --json\n{LAUNCH}launch('saxpy')").of("execute_result")
    assert set(result["data"]) == {"text/plain", "application/json"}
    assert "\n" not in result["data"]["text/plain"]
    assert result["data"]["application/json"]["kernels"][0]["name"] == "saxpy"


def test_the_cell_under_ncu_leaves_the_session_as_it_was(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 1\ncount = 1")
    kernel.run(f"%%kcoral ncu\n{LAUNCH}count += 1\nlaunch('k')")
    assert kernel.run("%%kcoral\nprint(count)").text() == "1\n"


def test_setup_cells_run_before_it_unprofiled_and_nothing_else_runs_again(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 1\nprint('not again')")
    kernel.run("%%kcoral --setup\nimport threading\nlock = threading.Lock()\nprint('set up')")
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}print('locked', lock.locked())\nlaunch('k')")
    assert cell.text() == "set up\nlocked False\n"
    assert any("lock cannot be copied" in text for text in cell.shown())


def test_a_cell_may_change_its_directory_and_name_its_files_as_it_likes(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 1\nimport os\nos.makedirs('.kcoral-order', exist_ok=True)")
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}import os\nlaunch('k')\nos.chdir('/tmp')\nprint('there')")
    assert not cell.of("error")
    assert cell.text() == "there\n"


def test_an_error_of_the_cell_raises_after_the_report_was_shown(kernel: Kernel) -> None:
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}launch('k')\n1 / 0")
    assert cell.ename == "ZeroDivisionError"
    assert "----> 4 1 / 0" in cell.traceback
    assert any("1 launched, 1 captured" in content["data"]["text/plain"] for content in cell.of("display_data"))


def test_a_failed_expectation_fails_the_cell_with_the_report_in_it(kernel: Kernel) -> None:
    cell = kernel.run(f'%%kcoral ncu --expect "gpu__time_duration.sum < 12us"\n{LAUNCH}launch("k")')
    assert cell.ename == "ExpectationFailed"
    assert "k: gpu__time_duration.sum is 12,345 ns, expected < 12,000 ns" in cell.traceback
    assert cell.of("display_data")
    assert kernel.run(f'%%kcoral ncu --expect "duration < 13us"\n{LAUNCH}launch("k")').of("execute_result")


def test_a_baseline_is_kept_once_and_compared_with_after(kernel: Kernel, folder: Path) -> None:
    first = kernel.run(f"%%kcoral ncu --baseline mine\n{LAUNCH}launch('k', 12_000.0)")
    assert not [c for c in first.of("display_data") if "ncu diff" in c["data"]["text/plain"]]
    assert "kept as the baseline 'mine'" in first.shown()[-1]
    second = kernel.run(f"%%kcoral ncu --baseline mine\n{LAUNCH}launch('k', 9_000.0)")
    (diff,) = [c for c in second.of("display_data") if "ncu diff" in c["data"]["text/plain"]]
    assert "-25.0 % better" in diff["data"]["text/html"]
    reports = sorted((folder / ".kcoral" / "reports").glob("*.ncu-rep"))
    assert "ncu diff" in kernel.run(f"%kcoral ncu diff {reports[-2]} {reports[-1]}").shown()[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("launch('ERR_NVGPUCTRPERM')", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("pass", "used no CUDA"),
        ("launch('unsupported_chip')", "newer Nsight Compute"),
        ("launch('busy')", "another profiler holds the GPU"),
    ],
)
def test_a_failure_says_what_to_do(kernel: Kernel, body: str, words: str) -> None:
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}{body}")
    assert cell.ename == "ToolFailed"
    assert words in cell.traceback


def test_filters_reach_ncu_and_what_matches_nothing_is_told(kernel: Kernel) -> None:
    launches = f"{LAUNCH}for n in range(5): launch(f'gemm_{{n}}')"
    cell = kernel.run(f"%%kcoral ncu --kernel regex:gemm_[234] --launch-skip 1 --launch-count 1\n{launches}")
    assert "1 captured of those that match" in cell.shown()[-1]
    assert "gemm_3" in cell.shown()[-1]
    assert "no kernel was profiled" in kernel.run(f"%%kcoral ncu --kernel nosuch\n{launches}").traceback


def test_what_was_captured_before_the_time_was_over_is_shown(kernel: Kernel) -> None:
    cell = kernel.run(f"%%kcoral ncu --timeout 1\n{LAUNCH}launch('early')\nwhile True: pass", seconds=60)
    assert cell.ename == "ExecutionTimeout"
    (display,) = [c for c in cell.of("display_data") if "captured" in c["data"]["text/plain"]]
    assert "early" in display["data"]["text/plain"]


def test_a_script_is_profiled_with_the_module_beside_it(kernel: Kernel, folder: Path) -> None:
    (folder / "script.py").write_text(f"import sys\n{LAUNCH}print(sys.argv[1:])\nlaunch('of_a_script')\n")
    cell = kernel.run("%kcoral ncu --set basic script.py --n 3")
    assert cell.text() == "['--n', '3']\n"
    assert "of_a_script" in cell.of("execute_result")[0]["data"]["text/plain"]


def test_a_report_of_an_earlier_run_is_not_shown_as_this_one_s(kernel: Kernel, folder: Path) -> None:
    (folder / "script.py").write_text(f"{LAUNCH}launch('of_a_script')\n")
    (folder / "empty.py").write_text("")
    assert "of_a_script" in kernel.run("%kcoral ncu script.py").shown()[0]
    assert "used no CUDA" in kernel.run("%kcoral ncu empty.py").traceback
    assert "used no CUDA" in kernel.run("%%kcoral ncu\npass").traceback


def test_a_program_s_status_is_told_after_its_report(kernel: Kernel, folder: Path) -> None:
    (folder / "script.py").write_text(f"{LAUNCH}launch('of_a_script')\nraise SystemExit(3)\n")
    cell = kernel.run("%kcoral ncu script.py")
    assert "exit status 3: python script.py" in cell.traceback
    assert any("of_a_script" in text for text in cell.shown())


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 11)"])
def test_a_cell_that_left_its_process_fails_after_its_report(kernel: Kernel, end: str) -> None:
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}launch('k')\nimport os; {end}")
    assert "the cell's process ended before the cell did" in cell.traceback
    assert any("1 launched, 1 captured" in text for text in cell.shown())


def test_a_report_that_cannot_be_kept_is_shown_and_wrong_words_are_told_before_the_cell_runs(kernel: Kernel) -> None:
    cell = kernel.run(f"%%kcoral ncu --save .\n{LAUNCH}launch('k')")
    assert any("1 launched, 1 captured" in text for text in cell.shown())
    assert "cannot be written" in cell.text("stderr")
    for words in ("--expect nonsense", "--baseline a/b", "--baseline nosuch.ncu-rep"):
        cell = kernel.run(f"%%kcoral ncu {words}\nprint('ran')")
        assert "UsageError" in cell.text("stderr")
        assert "ran" not in cell.text()


def test_what_is_no_report_is_refused_without_a_gateway(kernel: Kernel, folder: Path) -> None:
    (folder / "junk.ncu-rep").write_bytes(b"junk")
    assert "begins with b'junk'" in kernel.run("%kcoral ncu view junk.ncu-rep").traceback
    assert "No such file" in kernel.run("%kcoral ncu view nosuch.ncu-rep").text("stderr")


def test_a_thousand_threads_with_one_fault_are_one_row_and_fail_the_cell(kernel: Kernel) -> None:
    cell = kernel.run(f"%%kcoral sanitize\n{LAUNCH}print('ran')\nlaunch('put', fault='oob')")
    assert cell.text() == "ran\n"
    assert cell.ename == "FaultsFound"
    assert (
        "1,000 errors, 1 different; the first: Invalid __global__ write of size 4 in put(float *, int)"
        in cell.traceback
    )
    (display,) = [content for content in cell.of("display_data") if "memcheck" in content["data"]["text/plain"]]
    assert display["data"]["application/vnd.kcoral.sanitizer+json"]["findings"][0]["count"] == 1000
    assert "kernel.cu:12" in display["data"]["text/html"]


def test_a_race_is_found_by_its_tool_and_by_no_other(kernel: Kernel) -> None:
    body = f"{LAUNCH}launch('sum', fault='race')"
    clean = kernel.run(f"%%kcoral sanitize\n{body}")
    assert "memcheck: nothing found" in clean.of("execute_result")[0]["data"]["text/plain"]
    assert "Race between Write and Read" in kernel.run(f"%%kcoral sanitize --tool racecheck\n{body}").traceback


def test_a_cell_without_cuda_has_nothing_to_check(kernel: Kernel) -> None:
    assert "used no CUDA" in kernel.run("%%kcoral sanitize\n1 + 1").traceback


CUDA = """__global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_a_kernel_is_shown_as_source_ptx_and_sass_for_each_architecture(kernel: Kernel) -> None:
    cell = kernel.run(f"%%kcoral asm --arch sm_80,sm_90a,120 --block 1024\n{CUDA}", seconds=120)
    (result,) = cell.of("execute_result")
    data = result["data"]
    assert "sm_90a saxpy: 10 registers, 0 B shared, 0 B spilled, occupancy 100 %" in data["text/plain"]
    targets = data["application/vnd.kcoral.asm+json"]["targets"]
    assert [target["arch"] for target in targets] == ["sm_80", "sm_90a", "sm_120"]
    assert "ld.global.f32" in data["text/html"]
    assert "background:rgba(" in data["text/html"]
    assert kernel.run("print(_.cubin('sm_80')[:4])").text() == "b'\\x7fELF'\n"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_what_does_not_compile_has_the_compiler_s_words(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral asm\n__global__ void k() { nonsense; }", seconds=60)
    assert cell.ename == "ToolFailed"
    assert 'identifier "nonsense" is undefined' in cell.traceback
    assert "a kernel was expected" in kernel.run("%%kcoral asm\nint x;").text("stderr")
    triton = "import triton\n@triton.jit\ndef k(x): pass"
    assert "--signature" in kernel.run(f"%%kcoral asm\n{triton}").text("stderr")


def test_a_cell_is_timed_with_its_method_and_interval_beside_the_number(kernel: Kernel) -> None:
    kernel.run("%%kcoral\ndef work(n):\n    return sum(range(n))")
    cell = kernel.run("%%kcoral bench --check 'result == 499500' --flops 1000 --seconds 1\nwork(1000)")
    (result,) = cell.of("execute_result")
    text = result["data"]["text/plain"]
    assert text.startswith("bench: host clock")
    assert "FLOP/s" in text
    assert kernel.run("print(_.verdict, 1e-7 < _.median_s < 1e-2)").text() == "None True\n"


def test_a_wrong_result_is_not_timed(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral bench --check 'result == 1'\n2")
    assert cell.ename == "ExpectationFailed"
    assert "--check result == 1 does not hold: the result is 2" in cell.traceback


def test_an_exception_named_as_one_of_ours_is_the_cell_s(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral bench --method host\nclass NotRight(Exception): ...\nraise NotRight('mine')")
    assert cell.ename == "RemoteError"
    assert "NotRight: mine" in cell.traceback


def test_a_baseline_takes_turns_with_the_candidate_and_gives_a_verdict(kernel: Kernel, folder: Path) -> None:
    spin = "end = time.perf_counter() + s\n    while time.perf_counter() < end: pass\n    return 1"
    kernel.run(f"%%kcoral\nimport time\ndef spin(s):\n    {spin}")
    first = kernel.run("%%kcoral bench --baseline spin_test --seconds 1\nspin(0.002)")
    assert first.of("execute_result")
    faster = kernel.run("%%kcoral bench --baseline spin_test --check same --seconds 1\nspin(0.001)")
    data = faster.of("execute_result")[0]["data"]
    assert data["application/vnd.kcoral.bench+json"]["verdict"] == "FASTER"
    assert data["application/vnd.kcoral.bench+json"]["interleaved"] is True
    assert data["application/vnd.kcoral.bench+json"]["points"][0]["comparison"]["ratio"] == pytest.approx(0.5, abs=0.1)
    assert "2 kept" in kernel.run("%kcoral bench log spin_test").shown()[0]
    assert len((folder / ".kcoral" / "bench" / "spin_test.jsonl").read_text().splitlines()) == 2


def test_a_function_stays_the_baseline_and_a_name_that_is_none_is_told(kernel: Kernel, folder: Path) -> None:
    kernel.run("%%kcoral\ndef slow():\n    return sum([n * n for n in range(3000)])")
    for _ in range(2):
        cell = kernel.run("%%kcoral bench --baseline slow --seconds 1\n0")
        assert any("FASTER than slow" in text for text in cell.shown())
    assert not (folder / ".kcoral/bench/slow.jsonl").exists()
    cell = kernel.run("%%kcoral bench --baseline slaw --seconds 0.2\n0")
    assert any("nothing is kept as 'slaw'" in text for text in cell.shown())


def test_what_timed_calls_print_is_dropped_and_counted(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral bench --seconds 0.2\nprint('once')")
    assert cell.text() == "once\n"
    assert any("what the timed calls printed is dropped" in text for text in cell.shown())
    assert not kernel.run("%%kcoral bench --seconds 0.2\nimport sys\nsys.stdout.fileno()").of("error")


def test_a_function_of_the_session_can_be_the_baseline(kernel: Kernel) -> None:
    kernel.run("%%kcoral\ndef reference():\n    return sum([n * n for n in range(2000)])")
    cell = kernel.run(
        "%%kcoral bench --baseline reference --check same --seconds 1\nsum(n * n for n in range(200)) and 0"
    )
    assert "the result is not the baseline's: 0 instead of 2664667000" in cell.traceback


def test_a_sweep_has_a_row_for_each_value_and_leaves_the_name_as_it_was(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nn = 'mine'")
    cell = kernel.run("%%kcoral bench --sweep n=1000,100000 --seconds 0.5\nsum(range(n))")
    points = cell.of("execute_result")[0]["data"]["application/vnd.kcoral.bench+json"]["points"]
    assert [point["at"]["n"] for point in points] == [1000, 100000]
    assert points[1]["median_s"] > 20 * points[0]["median_s"]
    assert kernel.run("%%kcoral\nprint(n)").text() == "mine\n"


def test_traps_are_told_beside_the_number(kernel: Kernel) -> None:
    lazy = "if not is_warm:\n        is_warm.append(1); time.sleep(0.2)\n    return float('nan')"
    kernel.run(f"%%kcoral\nimport time\nis_warm = []\ndef lazy():\n    {lazy}")
    text = kernel.run("%%kcoral bench --seconds 0.5\nlazy()").of("execute_result")[0]["data"]["text/plain"]
    assert "warning: the result holds NaN" in text
    assert "warning: the first call took" in text
    assert "needs a CUDA GPU and torch" in kernel.run("%%kcoral bench --method event\n1").traceback


def test_an_error_in_the_timed_body_is_the_cell_s(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral bench\nx = 1\nx / 0")
    assert cell.ename == "ZeroDivisionError"
    assert "x / 0" in cell.traceback


JUDGE = """
import numpy as np

peak_byte_per_s = 100e9


def inputs(rng):
    return (np.frombuffer(rng.randbytes(80_000), np.uint8).astype(np.float64),)


def reference(x):
    return np.sort(x)


def bytes(x):
    return 2 * x.nbytes
"""
PATCHED = """
import sys, time
import numpy as np
def slow(x):
    time.sleep(0.001)
    return np.sort(x)
frame = sys._getframe()
while frame.f_code.co_name != "serve":
    frame = frame.f_back
side = frame.f_globals
"""
CHEATS = {
    "computes while inputs come": (
        PATCHED + "made, receive = {}, side['_receive']\ndef received(*given, **options):\n"
        "    asked = receive(*given, **options)\n    if asked['verb'] == 'load':\n"
        "        made.update({id(x): (x, slow(x)) for x, in asked['value']})\n    return asked\n"
        "side['_receive'] = received\ndef solution(x): return made.pop(id(x))[1]",
        "SUSPECT",
        "it computed while its inputs came",
    ),
    "computes whenever results go": (
        PATCHED + "send = side['_send']\ndef sent(to, said, **options):\n    v = said.get('value')\n"
        "    send(to, {**said, 'value': [slow(x) for x in v] if isinstance(v, list) else v}, **options)\n"
        "side['_send'] = sent\ndef solution(x): return x",
        "SUSPECT",
        "it computed after it had said that it was done",
    ),
    "looks ahead": (
        PATCHED + "import time\nmade = {}\ndef solution(x):\n    if id(x) not in made:\n        time.sleep(0.003)\n"
        "        given = sys._getframe(1).f_locals['inputs']\n        made.clear()\n"
        "        made.update({id(one): np.sort(one) for one, in given})\n    return made[id(x)]",
        "SUSPECT",
        "it looked ahead in its inputs",
    ),
    "gives what cannot be compared": ("def solution(x): return [[1], [1, 2]]", "WRONG", "the check does not take"),
    "right": ("import numpy as np\ndef solution(x): return np.sort(x)", "RIGHT", "a call"),
    "wrong": ("def solution(x): return x", "WRONG", "instead of"),
    "replays": (
        "import numpy as np\nlast = []\ndef solution(x):\n    last.append(np.sort(x))\n    return last[0]",
        "WRONG",
        "an earlier call's result: it was replayed",
    ),
    "patches the timer": (
        "import time, numpy as np\ntime.perf_counter = lambda: 0.0\n"
        "def solution(x):\n    time.sleep(0.003)\n    return np.sort(x)",
        "SUSPECT",
        "a timer was patched",
    ),
    "raises": ("def solution(x): return x.nosuch", "FAILED", "no attribute 'nosuch'"),
    "defines nothing": ("x = 1", "FAILED", "must define solution"),
    "exits": ("import os\ndef solution(x): os._exit(0)", "FAILED", "went away"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_judge_sees_through_a_solution(kernel: Kernel, folder: Path, cheat: str) -> None:
    source, verdict, words = CHEATS[cheat]
    (folder / "rules.py").write_text(JUDGE.replace("80_000", "4_000") if source.startswith(PATCHED) else JUDGE)
    cell = kernel.run(f"%%kcoral bench --judge rules.py --seconds 1\n{source}", seconds=90)
    shown = next(text for text in cell.shown() if text.startswith("judge: "))
    assert shown.startswith(f"judge: {verdict}")
    assert words in shown
    assert bool(cell.of("error")) == (verdict != "RIGHT")


def test_a_solution_cannot_put_a_module_in_the_judge_s_way(kernel: Kernel, folder: Path) -> None:
    lazy = "import colorsys\n    return np.sort(x) if hasattr(colorsys, 'rgb_to_hls') else x"
    (folder / "rules.py").write_text(JUDGE.replace("return np.sort(x)", lazy))
    solution = "open('colorsys.py', 'w').write('')\ndef solution(x): return x"
    cell = kernel.run(f"%%kcoral bench --judge rules.py --seconds 1\n{solution}", seconds=90)
    assert any(text.startswith("judge: WRONG") for text in cell.shown())


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("bench\nx = 1\nx / 0", "----> 2 x / 0"),
        ("bench\nx = = 1", "x = = 1"),
        ("bench --method event\n1", "needs a CUDA GPU and torch"),
        ("bench --check nosuch\n1", "nosuch"),
        ("bench --judge rules.py\ndef solution(x): return x", "rng.nosuch"),
    ],
)
def test_a_mistake_is_shown_without_our_own_lines(kernel: Kernel, folder: Path, cell: str, words: str) -> None:
    (folder / "rules.py").write_text("def inputs(rng):\n    return rng.nosuch\n\ndef reference(x):\n    return x\n")
    shown = kernel.run(f"%%kcoral {cell}").traceback
    assert words in shown
    for ours in ("__kcoral", "__import__", "kcoral_gateway", "interactiveshell"):
        assert ours not in shown


def test_a_time_below_the_roofline_is_suspect(kernel: Kernel, folder: Path) -> None:
    (folder / "rules.py").write_text(JUDGE.replace("100e9", "1e3"))
    cell = kernel.run("%%kcoral bench --judge rules.py --seconds 1\nimport numpy as np\nsolution = np.sort", seconds=90)
    assert "SUSPECT" in cell.traceback
    assert "below the roofline: bytes alone take" in cell.traceback


def test_events_inside_kernels_are_ranges_and_lanes_and_the_trace_is_kept(kernel: Kernel, folder: Path) -> None:
    cell = kernel.run(f"%%kcoral iket\n{LAUNCH}launch('gemm')")
    data = cell.of("execute_result")[0]["data"]
    assert "mma" in data["text/plain"]
    assert "<svg" in data["text/html"]
    assert list((folder / ".kcoral" / "reports").glob("iket-*.pftrace"))
    assert "no event was traced" in kernel.run("%%kcoral iket\npass").traceback


def test_torch_s_profiler_runs_in_the_session_as_it_is(kernel: Kernel, folder: Path) -> None:
    pytest.importorskip("torch")
    kernel.run("%%kcoral\nimport torch\na = torch.ones(64, 64)", seconds=90)
    cell = kernel.run("%%kcoral profile\nb = a @ a\nprint('done')", seconds=90)
    assert cell.text() == "done\n"
    data = cell.of("execute_result")[0]["data"]
    assert "aten::mm" in data["text/plain"]
    assert "no kernel ran" in data["text/plain"]
    assert any(row["name"] == "aten::mm" for row in data["application/vnd.kcoral.torch+json"]["operators"])
    assert list((folder / ".kcoral" / "reports").glob("torch-*.json.gz"))
    assert kernel.run("%%kcoral\nprint(b.shape[0])").text() == "64\n"
    assert kernel.run("%%kcoral profile\nb / 0\n1 / 0", seconds=60).ename == "ZeroDivisionError"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_the_profiling_notebook_runs_as_it_is_shipped(
    gateway: GatewayProcess, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebooks = STANDIN.parent
    shutil.copytree(notebooks, tmp_path / "notebooks")
    notebook = nbformat.read(notebooks / "profiling.ipynb", as_version=4)
    monkeypatch.setenv("KCORAL_MAGIC_URL", gateway.url)
    monkeypatch.setenv("KCORAL_MAGIC_TOKEN", token)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path / "notebooks")}}).execute()
    shown = "".join(str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code")
    for words in ("Roofline", "-22.8 % better", "2 launched, 2 captured", "FaultsFound", "sm_90a", "FASTER", "1 kept"):
        assert words in shown
    if folder := os.environ.get("KCORAL_KEEP"):
        nbformat.write(notebook, Path(folder) / "profiling.ipynb")


def test_a_tool_says_what_it_takes_and_tab_offers_it(kernel: Kernel) -> None:
    assert "--launch-count N" in kernel.run("%kcoral ncu --help").text()
    offered = kernel.run(
        "c = get_ipython().magics_manager.registry['KCoral'].completer\n"
        "print(c.candidates('%%kcoral n'), c.candidates('%%kcoral ncu --ex'), c.candidates('%kcoral ncu v'))"
    )
    assert offered.text() == "['ncu'] ['--expect'] ['view']\n"


def test_tensors_that_share_memory_share_it_in_the_copy_too(kernel: Kernel) -> None:
    pytest.importorskip("torch")
    kernel.run(
        "%%kcoral\nimport torch\na = torch.arange(6.0)\nhead = a[:2]\nlayer = torch.nn.Linear(2, 1)\n"
        "optimiser = torch.optim.SGD(layer.parameters(), 0.1)\nflat = a.view(2, 3).t()",
        seconds=90,
    )
    body = (
        "a[0] = 5\nprint(head[0].item(), flat[0, 0].item(), tuple(flat.shape))\n"
        "print(optimiser.param_groups[0]['params'][0] is layer.weight)\nlaunch('k')"
    )
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}{body}", seconds=60)
    assert cell.text() == "5.0 5.0 (3, 2)\nTrue\n"


def test_a_name_that_cannot_be_rebuilt_is_named_and_loses_no_other(kernel: Kernel) -> None:
    kernel.run(
        "%%kcoral\nimport os\nclass Picky:\n    def __setstate__(self, state):\n"
        "        if os.environ.get('NCU_PROFILE'): raise ValueError('not under a profiler')\n"
        "picky = Picky()\npicky.x = 1\nother = 7"
    )
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}print(other)\nlaunch('k')\nif False: picky")
    assert cell.text() == "7\n"
    assert any("picky could not be rebuilt: ValueError: not under a profiler" in text for text in cell.shown())


def test_a_thread_that_goes_on_does_not_keep_the_tool(kernel: Kernel) -> None:
    body = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nlaunch('k')"
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}{body}", seconds=30)
    assert cell.of("execute_result")
    assert "a thread of the cell went on after it and was ended" in cell.text("stderr")


def test_the_workspace_goes_along_wherever_the_session_stands(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nimport os\nopen('data.txt', 'w').write('mine')\nos.chdir('/usr')")
    cell = kernel.run(f"%%kcoral ncu\n{LAUNCH}print(open('data.txt').read())\nlaunch('k')")
    assert cell.text() == "mine\n"


def test_a_body_that_only_makes_a_generator_is_not_timed(kernel: Kernel) -> None:
    assert "gives a generator, so nothing of it ran" in kernel.run("%%kcoral bench\n(k for k in range(9))").traceback
    assert "names the same thing twice" in kernel.run("%%kcoral bench --sweep n=1 --sweep n=2\nn").text("stderr")
