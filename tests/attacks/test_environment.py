"""Environment and descriptors: nothing of the gateway's is inherited, readable or named inside."""

from __future__ import annotations

import contextlib
import os

import pytest

from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway

pytestmark = pytest.mark.attack
# What kcoral_gateway.host.sandbox sets, and what bubblewrap and C libraries add.
EXPECTED = frozenset(
    "PATH LANG TERM USER HOME PWD PYTHONDONTWRITEBYTECODE MPLBACKEND IPYTHONDIR MPLCONFIGDIR XDG_CACHE_HOME "
    "CUDA_VISIBLE_DEVICES LC_CTYPE TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH".split()
)


def test_the_secrets_are_where_a_careless_gateway_would_leak_them(gateway: BoxedGateway) -> None:
    with open(f"/proc/{gateway.pid}/environ") as file:
        assert gateway.secrets.token in file.read()
    assert os.readlink(f"/proc/{gateway.pid}/fd/9") == str(gateway.secrets.folder)


def test_the_environment_has_known_names_only(gateway: BoxedGateway, attacker: Cell) -> None:
    inside = attacker.ask("answer = dict(os.environ)")
    assert set(inside) <= EXPECTED
    shown = " ".join(inside.values())
    assert gateway.secrets.token not in shown
    assert str(gateway.state) not in shown
    child = attacker.ask("answer = subprocess.run(['env', '-0'], capture_output=True, text=True).stdout.split('\\0')")
    assert {line.partition("=")[0] for line in child if line} <= EXPECTED | {"OLDPWD", "SHLVL", "_"}


def test_no_process_inside_holds_or_shows_a_secret(gateway: BoxedGateway, attacker: Cell, other_token: str) -> None:
    shown = attacker.ask(
        "answer = ''\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    for name in ('environ', 'cmdline', 'comm', 'mountinfo', 'maps', 'cgroup'):\n"
        "        try: answer += open(f'/proc/{pid}/{name}', errors='replace').read()\n"
        "        except OSError: pass"
    )
    assert "kcoral_gateway.worker" in shown
    for secret in (gateway.secrets.token, other_token, str(gateway.state), str(gateway.state.parent), "hosts.sock"):
        assert secret not in shown


def test_process_1_has_no_environment_and_no_path_of_the_gateway(gateway: BoxedGateway, attacker: Cell) -> None:
    environment = attacker.refusal("open('/proc/1/environ').read()")
    assert environment in ("done: ''", "EACCES")
    line = attacker.ask("answer = open('/proc/1/cmdline').read().split('\\0')")
    for argument in line:  # what it names exists inside: the interpreter and its packages, at the same place
        if argument.startswith("/"):
            assert attacker.refusal(f"os.stat({argument!r}).st_size").startswith("done")


def test_the_worker_holds_its_pipes_and_its_channel_only(cell: Cell) -> None:
    held = cell.ask(
        "answer = {}\n"
        "for number in os.listdir('/proc/self/fd'):\n"
        "    try: answer[number] = os.readlink(f'/proc/self/fd/{number}')\n"
        "    except FileNotFoundError: pass"  # the listing's own
    )
    assert held.pop("0") == "/dev/null"
    assert held.pop("1").startswith("pipe:")
    assert held.pop("2").startswith("pipe:")
    assert sorted(target.partition(":")[0] for target in held.values()) == ["pipe", "socket"]


def test_process_1_holds_nothing_that_leads_outside(attacker: Cell) -> None:
    held = attacker.ask(
        "try: answer = [os.readlink(f'/proc/1/fd/{number}') for number in os.listdir('/proc/1/fd')]\n"
        "except PermissionError: answer = []"
    )
    assert [target for target in held if not target.startswith(("pipe:", "anon_inode:[eventfd]", "/dev/null"))] == []


def test_programs_that_a_cell_starts_inherit_neither_channel_nor_fault_pipe(attacker: Cell) -> None:
    held = attacker.ask(
        "answer = subprocess.run(['ls', '-l', '/proc/self/fd'], close_fds=False, stdout=subprocess.PIPE, text=True)"
        ".stdout.count(' -> ')"
    )
    assert held == 4  # 0, 1, 2 and the listing's own


def test_a_forked_child_has_no_channel(attacker: Cell) -> None:
    held = attacker.ask(
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    found = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.lexists(f'/proc/self/fd/{n}')]\n"
        "    os.write(writer, _json.dumps(found).encode())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "answer = _json.loads(os.read(reader, 65536))\n"
        "os.close(reader); os.close(writer)"
    )
    assert len(held) >= 4
    assert [target for target in held if target.startswith("socket:")] == []


def test_the_machine_s_name_is_not_told(attacker: Cell) -> None:
    assert attacker.ask("answer = [socket.gethostname(), os.uname().nodename]") == ["kcoral", "kcoral"]


def test_the_user_s_program_is_no_part_of_a_host_s_command_line(gateway: BoxedGateway, attacker: Cell) -> None:
    # A host's ticket lets in whoever has it, and anybody on the machine may read command lines.
    for host in gateway.hosts():
        assert host.cmdline()[1:] == ["-m", "kcoral_gateway.host"]
        for number in range(3, 32):
            with contextlib.suppress(FileNotFoundError):  # not open, or the host, a spare, is being replaced
                assert os.readlink(f"/proc/{host.pid}/fd/{number}") != str(gateway.secrets.folder)
