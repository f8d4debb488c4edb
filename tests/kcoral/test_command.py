"""``kcoral run …``, unmodified, against our gateway."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kcoral.environment import Kcoral
from tests.support import GatewayProcess, until

# What stands for the profilers that this machine lacks: they check how KCoral calls them, and run the program.
_NCU = """#!/bin/sh
[ "$NCU_PROFILE" = 1 ] || exit 90
[ "$1 $2 $3" = "--config-file 0 --export" ] || exit 91
report=$4; shift 4
case $1 in --set) shift 2;; esac
"$@" || exit
echo a report > "$report"
"""
_IKET = """#!/bin/sh
[ "$1" = --output-dir ] && [ ! -e "$2" ] && [ "$3 $4" = "profile --" ] || exit 91
folder=$2; shift 4
mkdir -p "$folder/deep"
"$@" || exit
echo a timeline > "$folder/deep/timeline.json"
"""
_SANITIZER = """#!/bin/sh
[ "$1 $2" = "--tool memcheck" ] || exit 91
shift 2
echo ========= COMPUTE-SANITIZER
"$@"
"""


@pytest.fixture
def tools(kcoral: Kcoral) -> list[str]:
    """Options that bring stand-ins along and put them on the worker's ``PATH``."""
    folder = kcoral.folder / "tools"
    folder.mkdir()
    for name, text in (("ncu", _NCU), ("run-iket", _IKET), ("compute-sanitizer", _SANITIZER)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    where = kcoral.run("shell", "--", "pwd").stdout.strip()
    assert where.endswith("/inputs")
    return ["--send", "tools", "--env", f"PATH={where}/tools:/usr/bin:/bin"]


def test_python_runs_and_prints(kcoral: Kcoral) -> None:
    ran = kcoral.run("python", "--", "-c", "import sys; print(1); print(2, file=sys.stderr)")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "2\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("python", "--", "-c", "raise SystemExit(3)"), 3),
        (("python", "--", "-c", "1 / 0"), 1),
        (("shell", "--", "sh", "-c", "exit 42"), 42),
        (("shell", "--", "sh", "-c", "kill -9 $$"), 137),
        (("shell", "--", "true"), 0),
    ],
)
def test_the_exit_status_is_the_program_s(kcoral: Kcoral, arguments: tuple[str, ...], status: int) -> None:
    assert kcoral.run(*arguments).returncode == status


def test_files_go_and_come_and_the_environment_is_set(kcoral: Kcoral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPIED", "from here")
    (kcoral.folder / "main.py").write_text(
        "import os, sys, data.inner\n"
        "os.makedirs('made/empty')\n"
        "with open('made/out.txt', 'w') as file:\n"
        "    print(data.inner.VALUE, os.environ['GIVEN'], os.environ['COPIED'], sys.argv[1:], file=file)\n"
    )
    (kcoral.folder / "data").mkdir()
    (kcoral.folder / "data" / "inner.py").write_text("VALUE = 'sent'\n")
    options = [
        "--send",
        "main.py",
        "--send",
        "data",
        "--fetch",
        "made",
        "--out",
        "got",
        "-e",
        "GIVEN=a b",
        "-e",
        "COPIED",
    ]
    ran = kcoral.run("python", *options, "--", "main.py", "--flag", "-x")
    assert ran.returncode == 0, ran.stderr
    assert "saved artifacts to got" in ran.stderr
    got = kcoral.folder / "got" / "made"
    assert (got / "out.txt").read_text() == "sent a b from here ['--flag', '-x']\n"
    assert (got / "empty").is_dir()


def test_a_sent_program_can_be_executed_and_has_no_input(kcoral: Kcoral) -> None:
    program = kcoral.folder / "tool.sh"
    program.write_text("#!/bin/sh\ncat\necho read nothing\n")
    program.chmod(0o755)
    ran = kcoral.run("shell", "--send", "tool.sh", "--", "./tool.sh")
    assert (ran.returncode, ran.stdout) == (0, "read nothing\n"), ran.stderr


def test_what_was_to_be_fetched_and_is_not_there_is_named(kcoral: Kcoral) -> None:
    ran = kcoral.run("shell", "--fetch", "none", "--out", "got", "--", "true")
    assert ran.returncode == 1
    assert "missing artifacts: none" in ran.stderr


def test_long_output_is_cut_and_that_is_said(kcoral: Kcoral) -> None:
    ran = kcoral.run("shell", "--output-limit-bytes", "10", "--", "seq", "100")
    assert (ran.returncode, ran.stdout) == (0, "1\n2\n3\n4\n5\n")
    assert "truncated" in ran.stderr
    ran = kcoral.run("shell", "--", "seq", "300000")  # by default as much as the gateway gives
    assert (len(ran.stdout), ran.stderr) == (1988895, "")


def test_a_time_limit_ends_it(kcoral: Kcoral) -> None:
    ran = kcoral.run("shell", "--timeout", "1", "--", "sleep", "60")
    assert ran.returncode == 1
    assert "HTTP 504" in ran.stderr
    assert "1 s" in ran.stderr


def test_a_wrong_token_is_said(kcoral: Kcoral, address_of: Callable[[str], str]) -> None:
    ran = kcoral.run("shell", "--", "true", url=address_of("kcoral_wrong"))
    assert ran.returncode == 1
    assert "HTTP 401" in ran.stderr
    assert "token" in ran.stderr


def test_who_leaves_ends_what_runs(kcoral: Kcoral, gateway: GatewayProcess) -> None:
    def running() -> bool:
        return any(process.name() == "sleep" for process in gateway.me.children(recursive=True))

    command = kcoral.command("shell", "--", "sleep", "1000")
    process = subprocess.Popen(command, env=kcoral.environment(), cwd=kcoral.folder, stderr=subprocess.DEVNULL)
    until(running, 20, "it runs")
    process.terminate()
    process.wait(10)
    until(lambda: not running(), 20, "it ends with its client")


def test_compute_sanitizer_runs_from_the_path(kcoral: Kcoral, tools: list[str]) -> None:
    ran = kcoral.run("compute-sanitizer", *tools, "--", "--tool", "memcheck", "sh", "-c", "echo app; exit 5")
    assert (ran.returncode, ran.stdout) == (5, "========= COMPUTE-SANITIZER\napp\n"), ran.stderr


def test_ncu_s_report_comes_back(kcoral: Kcoral, tools: list[str]) -> None:
    ran = kcoral.run("ncu", *tools, "--out", "got", "--", "--set", "full", "--", "sh", "-c", "echo app")
    assert (ran.returncode, ran.stdout) == (0, "app\n"), ran.stderr
    assert _files(kcoral.folder / "got") == {"capture.ncu-rep": "a report\n"}


def test_ncu_without_a_report_fails(kcoral: Kcoral, tools: list[str]) -> None:
    ran = kcoral.run("ncu", *tools, "--out", "got", "--", "--set", "full", "--", "sh", "-c", "exit 9")
    assert ran.returncode == 9
    assert "missing artifacts: capture.ncu-rep" in ran.stderr


def test_run_iket_s_timelines_come_back(kcoral: Kcoral, tools: list[str]) -> None:
    ran = kcoral.run("run-iket", *tools, "--out", "got", "--", "profile", "--", "sh", "-c", "echo app")
    assert (ran.returncode, ran.stdout) == (0, "app\n"), ran.stderr
    assert _files(kcoral.folder / "got") == {"deep/timeline.json": "a timeline\n"}


@pytest.mark.parametrize(
    ("tool", "options"), [("ncu", ("--out", "got")), ("run-iket", ("--out", "got")), ("compute-sanitizer", ())]
)
def test_a_tool_that_is_not_there_is_named(kcoral: Kcoral, tool: str, options: tuple[str, ...]) -> None:
    # The worker's own PATH may well lead to it on a machine with CUDA: an empty one does not.
    ran = kcoral.run(tool, *options, "-e", "PATH=/nowhere", "--", "profile", "--", "true")
    assert ran.returncode == 1
    assert f"{tool} is not installed in the remote server environment" in ran.stderr


def _files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
