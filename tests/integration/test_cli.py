"""``kcoral-magic`` as people type it: a process of its own, with the gateway named by the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoral_magic.protocol import messages as m
from tests.support import GatewayProcess, until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 2


@pytest.fixture
def environment(gateway: GatewayProcess, token: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("KCORAL_")}
    return {**own, "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    def made(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        command = [sys.executable, "-m", "kcoral_magic.cli", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False, **given
        )

    return made


def test_a_script_runs_there_with_what_it_imports_and_its_arguments(run: Run, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "helper.py").write_text("answer = 42")
    (tmp_path / "app" / "script.py").write_text(
        "import os, sys, helper\nprint(helper.answer, os.getcwd(), sys.argv[1:])",
    )
    done = run("run", "python", "app/script.py", "--arg", "a b")
    assert (done.stdout, done.stderr, done.returncode) == ("42 /workspace ['--arg', 'a b']\n", "", 0)
    refused = run("run", "python", "--no-sync", "app/script.py")
    assert "No module named 'helper'" in refused.stderr
    assert refused.returncode == 1


@pytest.mark.parametrize(
    ("words", "stdout", "status"),
    [
        (("shell", "echo one; echo two >&2; exit 3"), "one\n", 3),
        (("shell", "kill -9 $$"), "", 137),
        (("shell", "printf", "%s|", "a b", "c"), "a b|c|", 0),
        (("python", "--", "-c", "import sys; sys.exit(7)"), "", 7),
        (("python", "-c", "print(6 * 7)"), "42\n", 0),
        (("python", "--gpus=1", "-X", "utf8", "-c", "print(7)"), "7\n", 0),
        (("python", "-m", "calendar", "2026", "1"), None, 0),
        (("shell", "-e", "COLOUR=deep blue", "--", "echo $COLOUR"), "deep blue\n", 0),
        (("ncu", "--", "python", "x.py"), "", 127),
        (("compute-sanitizer", "--", "python", "x.py"), "", 127),
        (("iket", "profile", "--", "python", "x.py"), "", 127),
        (("run-iket", "profile", "--", "python", "x.py"), "", 127),
        (("compute-sanitizer", "--tool", "memcheck", "python", "x.py"), "", 127),
    ],
)
def test_its_output_and_its_status_are_ours(run: Run, words: tuple[str, ...], stdout: str | None, status: int) -> None:
    done = run("run", *words)
    assert done.returncode == status, done.stderr
    assert stdout in (None, done.stdout)
    if status == 127:
        assert "there is no such program where the worker runs" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run", "python"), "python script.py, python -c CODE or python -m MODULE"),
        (("run", "ncu", "--", "--export", "x", "python", "a.py"), "--export is set by kcoral"),
        (("run", "shell", "--send", "nowhere", "ls"), "there is no nowhere here"),
        (("run", "shell", "--gpus", "9", "ls"), "9 GPUs were asked for, this gateway has 2"),
        (("run", "shell", "--python", "3.13", "ls"), "there is no interpreter environment '3.13'"),
    ],
)
def test_what_cannot_be_says_so_in_a_line(run: Run, words: tuple[str, ...], text: str) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("kcoral-magic: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_code_and_modules_bring_what_lies_beside_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("answer = 42")
    (tmp_path / "tool.py").write_text("import helper, sys\nprint(helper.answer, sys.argv[1:])")
    assert run("run", "python", "-c", "import helper; print(helper.answer)").stdout == "42\n"
    assert run("run", "python", "-m", "tool", "x").stdout == "42 ['x']\n"


def test_a_script_outside_of_the_folder_is_named_as_that(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "script.py").write_text("print(1)")
    done = run("run", "python", str(tmp_path / "script.py"))
    assert done.returncode == 1
    assert "lies outside of this folder" in done.stderr


def test_fetched_files_keep_their_places_and_replace_nothing_unasked(run: Run, tmp_path: Path) -> None:
    line = "mkdir -p a b; echo A > a/log; echo B > b/log; ln -s a/log link; echo new > mine"
    (tmp_path / "mine").write_text("old")
    fetch = ("--fetch", "a/log", "--fetch", "b/log", "--fetch", "mine")
    done = run("run", "shell", *fetch, line)
    assert [(tmp_path / name / "log").read_text() for name in ("a", "b")] == ["A\n", "B\n"]
    assert (tmp_path / "mine").read_text() == "old"
    assert done.returncode == 1
    assert "mine: is there already: --overwrite replaces it" in done.stderr
    assert run("run", "shell", *fetch, "--overwrite", line).returncode == 0
    assert (tmp_path / "mine").read_text() == "new\n"
    link = run("run", "shell", "--fetch", "link", line)
    assert link.returncode == 1
    assert "is a link, a pipe or a device" in link.stderr
    (tmp_path / "elsewhere").write_text("safe")
    (tmp_path / "a" / "log").unlink()
    (tmp_path / "a" / "log").symlink_to(tmp_path / "elsewhere")
    assert run("run", "shell", "--fetch", "a/log", "--overwrite", line).returncode == 0
    assert (tmp_path / "elsewhere").read_text() == "safe"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_runs_ends_with_its_terminal(
    environment: dict[str, str], gateway: GatewayProcess, token: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "kcoral_magic.cli", "run", "shell", "echo on; sleep 60"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    with gateway.client(token) as client:
        until(lambda: not client.jobs(), 10, "it ends there")


def test_a_job_is_stopped_by_its_id_and_a_session_closed_by_its_name(
    run: Run, gateway: GatewayProcess, token: str
) -> None:
    with gateway.client(token) as client:
        running = client.session("busy", gpus=0).execute("import time\nprint(1)\ntime.sleep(60)")
        next(output for output in running if isinstance(output.body, m.Stream))
        assert run("interrupt", running.execution_id).returncode == 0
        with pytest.raises(KeyboardInterrupt):
            running.result()
        assert run("interrupt", running.execution_id).stderr.count("does not run or wait") == 1
        assert run("close", "busy").returncode == 0
        assert run("close", "busy").returncode == 1


@pytest.mark.parametrize("limit", ["0", "1001"])
def test_a_number_that_cannot_be_is_an_error_not_a_wait(run: Run, limit: str) -> None:
    done = run("records", "--limit", limit)
    assert done.returncode == 1
    assert f"limit: expected int {'>= 1' if limit == '0' else '<= 1000'}; got {limit}" in done.stderr


def test_input_is_forwarded_to_its_end_and_a_program_that_does_not_read_it_ends_without(run: Run) -> None:
    text = "line\n" * 200_000
    assert run("run", "shell", "wc -c", stdin=text).stdout == f"{len(text)}\n"
    assert run("run", "shell", "echo done", stdin=text).stdout == "done\n"


def test_files_go_and_come_and_come_also_when_it_ran_too_long(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("in")
    line = "mkdir -p out/deep; cp data/in.txt out/deep/; echo printed; sleep 60"
    done = run(
        "run", "shell", "--send", "data", "--fetch", "out", "--fetch", "none", "--out", "got", "--timeout", "1", line
    )
    assert (done.stdout, done.returncode) == ("printed\n", 124)
    assert "longer than 1 s" in done.stderr
    assert "nothing in the workspace is called 'none'" in done.stderr
    assert (tmp_path / "got" / "out" / "deep" / "in.txt").read_text() == "in"


def test_a_tool_s_report_comes_back_by_its_name(run: Run, tmp_path: Path) -> None:
    fake = tmp_path / "ncu"
    fake.write_text('#!/bin/bash\nwhile [ "$1" != --export ]; do shift; done\necho report > "$2"; exit 9\n')
    fake.chmod(0o755)
    done = run(
        "run", "ncu", "--send", "ncu", "-e", "PATH=/workspace:/usr/bin:/bin", "--out", "got", "--", "python", "a.py"
    )
    assert done.returncode == 9, done.stderr
    assert (tmp_path / "got" / "capture.ncu-rep").read_text() == "report\n"


def test_ctrl_c_is_the_program_s_and_it_may_end_well(environment: dict[str, str], gateway: GatewayProcess) -> None:
    line = "trap 'echo caught; exit 5' INT; echo on; sleep 60 & wait"
    command = [sys.executable, "-m", "kcoral_magic.cli", "run", "shell", line]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "caught\n"
    assert process.wait(20) == 5
    until(lambda: not [p for p in gateway.me.children(recursive=True) if p.name() == "sleep"], 10)


def test_a_named_session_keeps_its_workspace(run: Run) -> None:
    run("run", "shell", "--session", "kept", "echo 1 > a")
    assert run("run", "shell", "--session", "kept", "cat a").stdout == "1\n"
    assert run("run", "shell", "cat a").returncode == 1
    listed = json.loads(run("sessions", "--json").stdout)
    assert [session["name"] for session in listed["sessions"]] == ["kept"]


def test_lists_are_tables_for_people_and_documents_for_programs(run: Run, gateway: GatewayProcess, token: str) -> None:
    run("run", "shell", "--", "echo listed")
    records = json.loads(run("records", "--json", "--limit", "1").stdout)
    assert records["schema"] == 1
    (record,) = records["records"]
    assert record["status"] == "ok"
    assert "echo listed" in record["first_line"]
    assert record["text_bytes"] == len("listed\n")
    assert record["ran_s"] > 0
    assert len(record["digest"]) == 64
    assert "echo listed" in run("records").stdout
    run("run", "shell", "exit 3")
    assert json.loads(run("records", "--json", "--limit", "1").stdout)["records"][0]["exit_code"] == 3
    assert "exit 3" in run("records", "--limit", "1").stdout
    with gateway.client(token) as client:
        running = client.session("busy", gpus=0).execute("import time\nprint(1)\ntime.sleep(60)")
        next(output for output in running if isinstance(output.body, m.Stream))
        (job,) = json.loads(run("jobs", "--json").stdout)["jobs"]
        assert (job["status"], job["session"], job["first_line"]) == ("running", "busy", "import time")
        client.close_session("busy")
    client_status = json.loads(run("status", "--json").stdout)
    assert client_status["welcome"]["principal"] == "tester"
    assert len(client_status["gpus"]["gpus"]) == 2
    assert json.loads(run("cache", "--json").stdout)["cache"]["limit_bytes"] > 0
    assert run("jobs").stdout == "nothing runs or waits\n"
    with gateway.client(gateway.token("stranger")) as stranger:
        assert stranger.records() == ()
