"""The kernel's surface: calls, devices and settings that no notebook needs are refused, by whatever way they come."""

from __future__ import annotations

import platform

import pytest

from tests.attacks.cells import Cell

pytestmark = pytest.mark.attack
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x00020000, 0x20000000, 0x40000000
# Calls by name: the numbers on x86_64 and aarch64, and arguments that would be good ones.
CALLS: dict[str, tuple[int, int, str]] = {
    "unshare": (272, 97, str(NEWUSER)),
    "unshare-mount": (272, 97, str(NEWNS)),
    "setns": (308, 268, "os.open('/proc/self/ns/mnt', 0), 0"),
    "clone": (56, 220, f"{NEWUSER | 17}, 0, 0, 0, 0"),
    "clone-all": (56, 220, f"{NEWUSER | NEWNS | NEWPID | NEWNET | 17}, 0, 0, 0, 0"),
    "clone-high-bits": (56, 220, f"{(1 << 40) | NEWUSER | 17}, 0, 0, 0, 0"),
    "mount": (165, 40, "b'none', b'/tmp', b'tmpfs', 0, 0"),
    "umount2": (166, 39, "b'/tmp', 2"),
    "pivot_root": (155, 41, "b'/tmp', b'/tmp'"),
    "move_mount": (429, 429, "-100, b'/tmp', -100, b'/workspace', 0"),
    "open_tree": (428, 428, "-100, b'/', 1"),
    "fsopen": (430, 430, "b'tmpfs', 0"),
    "mount_setattr": (442, 442, "-100, b'/', 0, 0, 0"),
    "chroot": (161, 51, "b'/tmp'"),
    "keyctl": (250, 219, "0, -3, 0"),
    "add_key": (248, 217, "b'user', b'a', b'b', 1, -3"),
    "request_key": (249, 218, "b'user', b'a', 0, 0"),
    "bpf": (321, 280, "0, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0"),
    "io_uring_setup": (425, 425, "1, b'0' * 120"),
    "io_uring_enter": (426, 426, "0, 0, 0, 0, 0"),
    "io_uring_register": (427, 427, "0, 0, 0, 0"),
    "userfaultfd": (323, 282, "1"),
    "ptrace": (101, 117, "0, 0, 0, 0"),  # PTRACE_TRACEME: even of oneself
    "process_vm_readv": (310, 270, "os.getpid(), 0, 0, 0, 0, 0"),
    "process_vm_writev": (311, 271, "os.getpid(), 0, 0, 0, 0, 0"),
    "process_madvise": (440, 440, "0, 0, 0, 0, 0"),
    "kcmp": (312, 272, "os.getpid(), os.getpid(), 0, 0, 0"),
    "kexec_load": (246, 104, "0, 0, 0, 0"),
    "init_module": (175, 105, "0, 0, b''"),
    "finit_module": (313, 273, "0, b'', 0"),
    "swapon": (167, 224, "b'/tmp/x', 0"),
    "syslog": (103, 116, "2, 0, 0"),
    "acct": (163, 89, "0"),
    "quotactl": (179, 60, "0, 0, 0, 0"),
    "fanotify_init": (300, 262, "0, 0"),
    "settimeofday": (170, 170, "0, 0"),
    "reboot": (169, 142, "0, 0, 0, 0"),
}


def _number(call: str) -> int:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no table of system calls for {platform.machine()}")
    return CALLS[call][platform.machine() == "aarch64"]


@pytest.mark.parametrize("call", CALLS)
def test_a_system_call_that_leads_out_or_deep_is_refused(call: str, attacker: Cell) -> None:
    assert attacker.refusal(f"syscall({_number(call)}, {CALLS[call][2]})") == "EPERM"


def test_clone3_does_not_exist_so_that_its_flags_cannot_hide(attacker: Cell) -> None:
    assert attacker.refusal("syscall(435, struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)") == "ENOSYS"


@pytest.mark.parametrize("command", [0x5412, 0x541C, (1 << 32) | 0x5412])
def test_input_cannot_be_pushed_into_a_terminal(command: int, attacker: Cell) -> None:
    number = 16 if platform.machine() == "x86_64" else 29
    assert attacker.refusal(f"syscall({number}, os.openpty()[1], {command}, b'x')") == "EPERM"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other system call tables are x86's")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        # unshare(CLONE_NEWUSER) as a 32-bit call: another table, another numbering.
        ("i386", "b8 36 01 00 00  bb 00 00 00 10  cd 80  c3"),
        # The same with the x32 bit set: the 64-bit table under other numbers.
        ("x32", "b8 10 01 00 40  bf 00 00 00 10  0f 05  c3"),
    ],
)
def test_another_system_call_table_is_no_way_around_the_filter(name: str, code: str, attacker: Cell) -> None:
    # In a child: the filter ends the caller.
    ended = attacker.ask(
        f"program = '''\n"
        f"import ctypes, mmap\n"
        f"page = mmap.mmap(-1, 4096, prot=7)\n"
        f"page.write(bytes.fromhex('{code}'))\n"
        f"print('result', ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())\n"
        f"'''\n"
        f"done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)\n"
        f"answer = [done.returncode, done.stdout]"
    )
    assert ended == [-31, ""]  # SIGSYS


@pytest.mark.parametrize(
    "family",
    [
        "AF_PACKET",
        "AF_VSOCK",
        "AF_ALG",
        "AF_CAN",
        "AF_KEY",
        "AF_TIPC",
        "AF_RDS",
        "AF_BLUETOOTH",
        "AF_QIPCRTR",
        "AF_XDP",
    ],
)
def test_sockets_of_families_no_notebook_needs_are_refused(family: str, attacker: Cell) -> None:
    # vsock knows no network namespaces: it reaches the hypervisor's host from inside any of them.
    numbers = {"AF_KEY": 15, "AF_XDP": 44}
    number = numbers.get(family, f"socket.{family}")
    codes = {
        attacker.refusal(f"socket.socket({number}, socket.{kind})")
        for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW", "SOCK_SEQPACKET")
    }
    refused = {"EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"}
    assert {code for code in codes if not code.startswith("AttributeError")} <= refused


def test_raw_internet_sockets_are_refused(attacker: Cell) -> None:
    for family in ("AF_INET", "AF_INET6"):
        assert attacker.refusal(f"socket.socket(socket.{family}, socket.SOCK_RAW, 1)") in ("EPERM", "EAFNOSUPPORT")


def test_the_devices_are_harmless_ones(attacker: Cell) -> None:
    nodes = attacker.ask(
        "import stat\n"
        "answer = [os.path.join(top, name) for top, _, names in os.walk('/dev') for name in names\n"
        "          if not stat.S_ISLNK(os.lstat(os.path.join(top, name)).st_mode)\n"
        "          and not stat.S_ISREG(os.lstat(os.path.join(top, name)).st_mode)]"
    )
    # Simulated GPUs have no nodes; other machines' /dev/nvidia* must not show either.
    expected = {f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero", "pts/ptmx", "console")}
    assert {node for node in nodes if not node.removeprefix("/dev/pts/").isdigit()} <= expected


@pytest.mark.parametrize(
    "node", ["/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/kvm", "/dev/fuse", "/dev/nvidia0"]
)
def test_the_machine_s_devices_do_not_exist(node: str, attacker: Cell) -> None:
    assert attacker.refusal(f"os.open({node!r}, os.O_RDONLY)") == "ENOENT"


def test_no_device_can_be_made_and_none_made_would_open(attacker: Cell) -> None:
    for place in ("/workspace", "/tmp", "/dev/shm"):
        # 195:0 is /dev/nvidia0, 1:1 /dev/mem.
        for device in ("os.makedev(195, 0)", "os.makedev(1, 1)"):
            assert attacker.refusal(f"os.mknod('{place}/node', 0o20666, {device})") == "EPERM"
    options = attacker.ask("answer = [line.split()[4:6] for line in open('/proc/self/mountinfo')]")
    allowed = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts", "console")}
    assert {place for place, option in options if "nodev" not in option.split(",")} <= allowed


# Settings of the sandbox's own IPC and (since Linux 6.14) process namespaces, and ns_last_pid, which looks writable and
# asks for a capability when it is written.
OWN_SETTINGS = tuple(
    "fs/mqueue/ kernel/msg kernel/sem kernel/shm kernel/auto_msgmni kernel/pid_max kernel/ns_last_pid".split()
)


def test_no_setting_of_the_kernel_can_be_written(attacker: Cell) -> None:
    writable = attacker.ask(
        "answer = [os.path.join(top, name) for root in ('/proc/sys', '/sys', '/proc/irq', '/proc/bus')\n"
        "          for top, _, names in os.walk(root) for name in names if os.access(os.path.join(top, name), os.W_OK)]"
    )
    assert [path for path in writable if not path.removeprefix("/proc/sys/").startswith(OWN_SETTINGS)] == []
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/kcore", "/proc/kmsg"):
        assert attacker.refusal(f"os.open({path!r}, os.O_WRONLY)") in ("EACCES", "EPERM", "EROFS", "ENOENT")


def test_limits_cannot_be_raised(attacker: Cell) -> None:
    for name in ("RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_CORE"):
        outcome = attacker.refusal(
            f"(r := __import__('resource')).setrlimit(r.{name}, (r.getrlimit(r.{name})[1] + 1,) * 2)"
        )
        assert outcome.startswith("ValueError: not allowed to raise"), outcome
