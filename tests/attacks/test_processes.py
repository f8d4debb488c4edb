"""Processes: a session sees, signals and traces its own only, and gains no rights by running others' programs."""

from __future__ import annotations

import psutil
import pytest

from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway

pytestmark = pytest.mark.attack


@pytest.fixture
def strangers(gateway: BoxedGateway, attacker: Cell, other: Cell) -> list[int]:
    """The process ids, as the machine knows them, of gateway, a host, the workers and the test itself."""
    inside = attacker.ask("answer = [int(p) for p in os.listdir('/proc') if p.isdigit()]")
    workers = [worker.pid for worker in gateway.interpreters()]
    assert len(workers) >= 2
    found = [gateway.pid, gateway.hosts()[0].pid, *workers[:2], psutil.Process().pid]
    return [pid for pid in found if pid not in inside]


def test_only_the_session_s_own_processes_are_visible(strangers: list[int], attacker: Cell) -> None:
    seen = attacker.ask(
        "answer = {}\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: answer[pid] = open(f'/proc/{pid}/cmdline').read()\n"
        "    except FileNotFoundError: pass"
    )
    assert 1 <= len(seen) <= 3, seen
    assert all("kcoral_gateway.worker" in line for line in seen.values()), seen
    shown = attacker.session.run("!ps -e 2>/dev/null || true").stdout
    assert len(shown.splitlines()) <= 8, shown


@pytest.mark.parametrize(
    ("attempt", "codes"),
    [
        ("os.kill({pid}, signal.SIGKILL)", ("ESRCH",)),
        ("os.kill({pid}, 0)", ("ESRCH",)),
        ("os.killpg({pid}, signal.SIGKILL)", ("ESRCH",)),
        ("os.pidfd_open({pid})", ("ESRCH", "EINVAL")),  # EINVAL: Linux < 6.15
        ("os.sched_setaffinity({pid}, [0])", ("ESRCH",)),
        ("os.setpriority(os.PRIO_PROCESS, {pid}, 19)", ("ESRCH",)),
        ("call(_libc.prlimit({pid}, 7, None, None))", ("ESRCH",)),
        ("syscall(101 if os.uname().machine == 'x86_64' else 117, 16, {pid}, 0, 0)", ("EPERM",)),  # PTRACE_ATTACH
        ("open('/proc/{pid}/environ', 'rb').read()", ("ENOENT",)),
        ("open('/proc/{pid}/mem', 'rb').read(1)", ("ENOENT",)),
    ],
)
def test_other_people_s_processes_cannot_be_reached(
    attempt: str, codes: tuple[str, ...], strangers: list[int], attacker: Cell
) -> None:
    for pid in strangers:
        assert attacker.refusal(attempt.format(pid=pid)) in codes


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/proc/1/mem', 'rb').read(1)",
        "syscall(101 if os.uname().machine == 'x86_64' else 117, 16, 1, 0, 0)",
        "syscall(310 if os.uname().machine == 'x86_64' else 270, 1, 0, 0, 0, 0, 0)",
        "syscall(438, os.pidfd_open(1), 0, 0)",  # pidfd_getfd: takes what the other process holds
        "os.write(os.open('/proc/sys/kernel/ns_last_pid', os.O_WRONLY), b'1')",
        "os.write(os.open('/proc/1/oom_score_adj', os.O_WRONLY), b'-1000')",
        "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')",
        "os.setpriority(os.PRIO_PROCESS, 0, -5)",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))",
    ],
)
def test_the_sandbox_s_own_process_and_the_worker_s_standing_are_out_of_reach(attempt: str, attacker: Cell) -> None:
    assert attacker.refusal(attempt) in ("EACCES", "EPERM", "ENOENT", "EIO")


def test_the_sandbox_s_own_process_survives_being_killed_from_inside(attacker: Cell) -> None:
    for number in ("SIGKILL", "SIGSTOP", "SIGTERM", "SIGSEGV"):
        attacker.refusal(f"os.kill(1, signal.{number})")
    assert attacker.ask("answer = open('/proc/1/stat').read().rpartition(')')[2].split()[0]") in ("S", "R")


def test_killing_all_one_may_kill_ends_the_own_session_only(cell: Cell, other: Cell) -> None:
    from kcoral_magic.errors import ExecutionLost

    with pytest.raises(ExecutionLost):
        cell.session.run("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os; os.kill(-1, 9)'])")
    assert cell.session.run("1").text == "1"


@pytest.mark.parametrize(
    "attempt", ["os.setuid(0)", "os.setreuid(0, 0)", "os.setresgid(0, 0, 0)", "os.setgroups([0])", "os.chroot('/tmp')"]
)
def test_no_identity_can_be_taken(attempt: str, attacker: Cell) -> None:
    assert attacker.refusal(attempt) in ("EPERM", "EINVAL")  # EINVAL: an id the user namespace does not map


def test_setuid_programs_give_nothing(attacker: Cell) -> None:
    # Both are looked at from inside; su while it waits for a password, since refusing one takes seconds.
    mine, copied, su = attacker.ask(
        "shutil.copy('/usr/bin/env', '/tmp/env')\n"
        "os.chmod('/tmp/env', 0o6755)\n"
        "copied = subprocess.run(['/tmp/env', 'id', '-u'], capture_output=True, text=True).stdout.strip()\n"
        "su = ''\n"
        "if path := shutil.which('su'):\n"
        "    with subprocess.Popen([path, '-c', 'id'], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as started:\n"
        "        started.stderr.read(1)\n"  # it asks: it has been started
        "        su = open(f'/proc/{started.pid}/status').read().partition('Uid:')[2].split()[1]\n"
        "        started.kill()\n"
        "answer = [str(os.getuid()), copied, su]"
    )
    assert copied == mine
    assert su in (mine, "")


def test_every_mount_ignores_setuid_bits(attacker: Cell) -> None:
    mounts = attacker.ask("answer = [line.split()[4:6] for line in open('/proc/self/mountinfo')]")
    assert len(mounts) > 5
    assert [place for place, options in mounts if "nosuid" not in options.split(",")] == []


def test_no_process_inside_has_a_capability_or_can_gain_one(attacker: Cell) -> None:
    fields = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    status = attacker.ask(
        "lines = subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout.splitlines()\n"
        "lines += open('/proc/self/status').read().splitlines()\n"
        f"answer = [line.split() for line in lines if line.split(':')[0] in {fields}]"
    )
    assert len(status) == 2 * len(fields)
    for name, value in status:
        assert int(value, 16) == {"NoNewPrivs:": 1, "Seccomp:": 2}.get(name, 0), name
