"""The sandbox's policy as bubblewrap's options: what is inside, what never is, and in which order it is mounted."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

import pytest

from kcoral_gateway.config import Device, HostSpec, Level, Limits
from kcoral_gateway.host import devices, sandbox

ARGUMENTS = {
    **dict.fromkeys(["--die-with-parent", "--new-session", "--disable-userns"], 0),
    **dict.fromkeys(["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"], 0),
    "--unshare-user": 0,
    **dict.fromkeys(["--hostname", "--cap-drop", "--cap-add", "--uid", "--gid", "--perms", "--size", "--chdir"], 1),
    **dict.fromkeys(["--proc", "--dev", "--tmpfs", "--dir"], 1),
    **dict.fromkeys(["--ro-bind", "--dev-bind", "--symlink", "--setenv"], 2),
}
Option = tuple[str, ...]

TICKET = "ticket-0123456789abcdef"
GPUS = tuple(Device(f"GPU-{index}", "NVIDIA H200", index, 1 << 37, minor=index) for index in range(4))
SYSTEM = ["/usr/bin/python3", "/bin/python3", "/usr/local/bin/python3.12", sys.executable]


class Machine:
    """A user's folders: an environment, the interpreter behind it with links in ~, and the gateway's state."""

    def __init__(self, root: Path) -> None:
        self.socket = str(root / "home" / ".local" / "state" / "kcoral-gateway" / "hosts.sock")
        self.private = [self.socket, str(root / "home" / ".ssh"), str(root / "home" / "code"), "/etc/shadow", "/var"]
        real = root / "home" / ".local" / "share" / "uv" / "cpython-3.12" / "bin" / "python3.12"
        env = root / "work" / "env"
        for folder in (real.parent, env / "bin", root / "home" / ".local" / "bin", root / "home" / "bin"):
            folder.mkdir(parents=True)
        real.touch()
        (env / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
        self.real, self.venv = str(real), str(env / "bin" / "python")
        self.linked = [str(root / "home" / ".local" / "bin" / "python3.12"), str(root / "home" / "bin" / "python")]
        for link in (self.venv, *self.linked):
            Path(link).symlink_to(real)

    def spec(
        self, level: Level = "user", *, python: str | None = None, gpus: tuple[Device, ...] = (), uid: int = 300_007
    ) -> HostSpec:
        limits = Limits(workspace_bytes=1001, tmp_bytes=1002, shm_bytes=1003, processes=104, open_files=105)
        return HostSpec(self.socket, TICKET, level, limits, gpus, uid, python or self.venv)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(params=[*SYSTEM, "venv", "real", "~/.local/bin", "~/bin"])
def python(request: pytest.FixtureRequest, machine: Machine) -> str:
    """Every way in which people have an interpreter."""
    own = {"venv": machine.venv, "real": machine.real, "~/.local/bin": machine.linked[0], "~/bin": machine.linked[1]}
    return own.get(request.param, request.param)


def parsed(of: HostSpec) -> list[Option]:
    """Bubblewrap's options one by one; an option it does not know is an error here too."""
    left = sandbox.options(of)
    found = []
    while left:
        count = ARGUMENTS[left[0]]
        assert len(left) > count
        found.append(tuple(left[: count + 1]))
        del left[: count + 1]
    return found


def mounts(options: list[Option]) -> list[tuple[int, str]]:
    """Place in the options and path inside of each thing that is mounted or made."""
    return [(place, option[-1]) for place, option in enumerate(options) if option[0] in MAKES]


MAKES = ("--ro-bind", "--dev-bind", "--proc", "--dev", "--tmpfs", "--dir", "--symlink")


def is_in(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


@pytest.fixture
def gpu_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs, as far as its /dev can tell."""
    there = {"/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{index}" for index in range(4))}

    class Dev(PurePosixPath):
        def exists(self) -> bool:
            return str(self) in there

    monkeypatch.setattr(devices, "Path", Dev)


# ── What is never inside ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("level", ["strict", "user"])
def test_nothing_inside_tells_of_the_gateway(machine: Machine, level: Level, python: str) -> None:
    of = machine.spec(level, python=python)
    text = "\0".join([*sandbox.options(of), *sandbox.command(of, 7, 8), *sandbox.environment(of).values()])
    for secret in (TICKET, machine.socket, os.path.dirname(machine.socket)):
        assert secret not in text


def test_no_folder_that_is_bound_holds_the_gateway_s_files_or_other_things_of_a_home(
    machine: Machine, python: str
) -> None:
    sources = [option[1] for option in parsed(machine.spec(python=python)) if option[0] == "--ro-bind"]
    for private in machine.private:
        assert [source for source in sources if is_in(private, source)] == []


def test_the_gateway_s_environment_is_not_the_worker_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCORAL_MAGIC_TOKEN", "kcoral_SECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    env = sandbox.environment(machine.spec())
    assert "SECRET" not in str(env)
    assert set(env) == {
        *("PATH", "LANG", "TERM", "USER", "HOME", "PYTHONDONTWRITEBYTECODE", "MPLBACKEND"),
        *("IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES"),
        *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"),
    }
    assert env["PATH"].startswith(f"{os.path.dirname(machine.venv)}:")
    assert [option[1:] for option in parsed(machine.spec()) if option[0] == "--setenv"] == [
        (n, v) for n, v in env.items()
    ]


def test_without_a_sandbox_home_and_caches_stay_the_user_s(machine: Machine) -> None:
    own = {"HOME", "IPYTHONDIR", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES"}
    assert own.isdisjoint(sandbox.environment(machine.spec("none")))


# ── How it is mounted ───────────────────────────────────────────────────────────────────────────────────────────────


def test_everything_of_the_machine_is_read_only(machine: Machine, python: str) -> None:
    options = parsed(machine.spec(python=python))
    assert {option[0] for option in options if "bind" in option[0]} == {"--ro-bind"}


def test_every_folder_above_a_bind_is_made_open_before_it(machine: Machine, python: str) -> None:
    options = parsed(machine.spec(python=python))
    made: set[str] = set()
    roots = {option[-1] for option in options if option[0] == "--ro-bind" and option[-1].count("/") == 1}
    for place, option in enumerate(options):
        if option[0] == "--dir":
            assert options[place - 1] == ("--perms", "0755")
            assert os.path.dirname(option[1]) in {"/", *made}
            made.add(option[1])
        if option[0] == "--tmpfs":
            made.add(option[1])
        if option[0] == "--ro-bind" and not any(is_in(option[2], root) for root in roots):
            above = {str(parent) for parent in PurePosixPath(option[2]).parents} - {"/"}
            assert above <= made
    assert {"/etc", "/run", "/run/kcoral", "/run/kcoral/lib"} <= made


def test_no_mount_hides_an_earlier_one(machine: Machine, python: str) -> None:
    options = parsed(machine.spec(python=python))
    made = mounts(options)
    for place, path in made:
        if options[place][0] == "--ro-bind":
            assert [later for at, later in made if at > place and is_in(path, later) and later != path] == []


def test_the_interpreter_that_is_started_and_what_it_is_a_link_to_are_inside(machine: Machine, python: str) -> None:
    of = machine.spec(python=python)
    targets = [option[-1] for option in parsed(of) if option[0] in ("--ro-bind", "--symlink")]
    started = sandbox.command(of, 7, 8)[0]
    for path in (started, os.path.realpath(started)):
        assert any(is_in(path, target) for target in targets)
    for package in ("kcoral_gateway", "kcoral_magic"):
        assert f"{sandbox.LIBRARY}/{package}" in targets


def test_what_may_be_written_is_in_memory_and_has_its_limit(machine: Machine) -> None:
    options = parsed(machine.spec())
    found = {}
    for place, option in enumerate(options):
        if option[0] == "--tmpfs":
            assert options[place - 2] == ("--perms", "1777")
            found[option[1]] = options[place - 1]
    assert found == {
        "/workspace": ("--size", "1001"),
        "/tmp": ("--size", "1002"),
        "/dev/shm": ("--size", "1003"),
    }
    assert options[-1] == ("--chdir", "/workspace")
    assert options.index(("--dev", "/dev")) < options.index(("--tmpfs", "/dev/shm"))


@pytest.mark.parametrize("level", ["strict", "user"])
def test_every_namespace_is_new_and_the_sandbox_ends_with_its_host(machine: Machine, level: Level) -> None:
    options = parsed(machine.spec(level))
    for name in ("ipc", "pid", "net", "uts", "cgroup-try"):
        assert (f"--unshare-{name}",) in options
    for wanted in (("--die-with-parent",), ("--new-session",), ("--hostname", "kcoral"), ("--cap-drop", "ALL")):
        assert wanted in options


def test_the_strict_layout_keeps_what_setpriv_needs_and_no_user_namespace(machine: Machine) -> None:
    options = parsed(machine.spec("strict"))
    added = [option[1] for option in options if option[0] == "--cap-add"]
    assert added == ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"]
    assert options.index(("--cap-drop", "ALL")) < options.index(("--cap-add", "CAP_SETUID"))
    assert ("--unshare-user",) not in options


def test_the_user_layout_has_a_user_namespace_and_no_further_ones(machine: Machine) -> None:
    options = parsed(machine.spec("user"))
    for wanted in (("--unshare-user",), ("--disable-userns",), ("--uid", "1000"), ("--gid", "1000")):
        assert wanted in options
    assert [option for option in options if option[0] == "--cap-add"] == []


# ── GPUs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("gpu_nodes")
@pytest.mark.parametrize("placed", [(0,), (3,), (1, 2)])
def test_only_the_placed_gpus_nodes_are_inside(machine: Machine, placed: tuple[int, ...]) -> None:
    options = parsed(machine.spec(gpus=tuple(GPUS[index] for index in placed)))
    nodes = [option[1:] for option in options if option[0] == "--dev-bind"]
    wanted = ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{index}" for index in placed)]
    assert nodes == [(node, node) for node in wanted]  # nvidia-uvm-tools is not on this machine
    assert options.index(("--dev", "/dev")) < options.index(("--dev-bind", *nodes[0]))
    assert ("--ro-bind", "/sys", "/sys") in options
    assert ("--setenv", "CUDA_VISIBLE_DEVICES", ",".join(f"GPU-{index}" for index in placed)) in options


@pytest.mark.usefixtures("gpu_nodes")
@pytest.mark.parametrize("gpus", [(), (Device("GPU-simulated-0", "Simulated GPU", 0, 1 << 34),)])
def test_without_a_real_gpu_no_node_is_inside(machine: Machine, gpus: tuple[Device, ...]) -> None:
    options = parsed(machine.spec(gpus=gpus))
    assert "nvidia" not in str([option for option in options if option[0] != "--setenv"])
    assert ("--ro-bind", "/sys", "/sys") not in options
    assert ("--setenv", "CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus)) in options


# ── The worker's own command ────────────────────────────────────────────────────────────────────────────────────────


def test_the_strict_layout_drops_to_a_user_of_its_own(machine: Machine) -> None:
    command = sandbox.command(machine.spec("strict", uid=300_007), 7, 8)
    assert command[:3] == ["/usr/bin/setpriv", "--reuid", "300007"]
    assert {"--clear-groups", "--bounding-set=-all", "--inh-caps=-all"} <= set(command)
    assert command[command.index("--regid") + 1] == "300007"
    assert command[command.index(machine.venv) :] == sandbox.command(machine.spec("user"), 7, 8)


def test_the_worker_starts_isolated_with_its_limits(machine: Machine) -> None:
    python, flag, _, code = sandbox.command(machine.spec("user"), 7, 8)
    assert (python, flag) == (machine.venv, "-I")
    assert "main(7, 8, {'RLIMIT_CORE': 0, 'RLIMIT_NOFILE': 105, 'RLIMIT_NPROC': 104})" in code
    assert repr(sandbox.LIBRARY) in code


def test_without_a_sandbox_the_user_s_other_processes_do_not_count(machine: Machine) -> None:
    assert "RLIMIT_NPROC" not in sandbox.command(machine.spec("none"), 7, 8)[-1]


@pytest.mark.parametrize(("level", "uid"), [("strict", 300_007), ("user", 1000)])
def test_the_list_of_users_names_root_and_the_worker_s_own(machine: Machine, level: Level, uid: int) -> None:
    users, groups = sandbox.passwd(machine.spec(level))
    assert [line.split(":")[0] for line in users.decode().splitlines()] == ["root", "kcoral"]
    assert f"kcoral:x:{uid}:{uid}:kcoral:/workspace:/bin/sh" in users.decode()
    assert groups.decode().splitlines() == ["root:x:0:", f"kcoral:x:{uid}:"]


def test_the_system_call_filter_is_a_bpf_program() -> None:
    pytest.importorskip("pyseccomp")
    program = sandbox.filter_program()
    assert len(program) > 100
    assert len(program) % 8 == 0  # struct sock_filter
