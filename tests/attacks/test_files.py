"""Files: what is not mounted does not exist, what is mounted cannot be written, and no session sees another's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway

pytestmark = pytest.mark.attack
ABSENT = ("ENOENT",)
CLOSED = ("EROFS", "ENOENT", "EACCES", "EPERM")


def test_the_gateway_s_files_do_not_exist_inside(gateway: BoxedGateway, attacker: Cell, other: Cell) -> None:
    for path in gateway.secrets.files:
        assert path.stat().st_size > 0
        assert attacker.refusal(f"open({str(path)!r}).read()") in ABSENT
        assert attacker.refusal(f"os.stat({str(path.parent)!r})") in ABSENT


@pytest.mark.parametrize(
    "path",
    ["/etc/shadow", "/etc/gshadow", "/etc/hostname", "/etc/machine-id", "/root/.ssh", "/home", "/var/lib", "/boot"],
)
def test_the_machine_s_private_files_do_not_exist_inside(path: str, attacker: Cell) -> None:
    assert attacker.refusal(f"os.stat({path!r})") in ABSENT


def test_a_file_beside_the_interpreter_s_folders_does_not_exist_inside(attacker: Cell) -> None:
    above = attacker.ask("answer = [str(p) for p in __import__('pathlib').Path(sys.prefix).parents][:-1]")
    for folder in above:
        shown = attacker.ask(f"answer = os.listdir({folder!r})")
        assert folder.startswith("/usr") or len(shown) <= 2, f"{folder} shows {shown}"


@pytest.mark.parametrize(
    "way",
    [
        "os.symlink({target!r}, 'link') or open('link').read()",
        "os.symlink('/proc/1/root' + {target!r}, 'link') or open('link').read()",
        "open('/proc/1/root' + {target!r}).read()",
        "open('/proc/self/root' + {target!r}).read()",
        "open('/proc/1/cwd/../../../../../..' + {target!r}).read()",
        "open('../../../../../..' + {target!r}).read()",
        "os.chdir('/proc/self/cwd/../..') or open('..' + {target!r}).read()",
        "os.open('..' + {target!r}, os.O_RDONLY, dir_fd=os.open('/', os.O_PATH))",
    ],
)
def test_no_detour_leads_out_of_the_mounted_tree(way: str, gateway: BoxedGateway, attacker: Cell) -> None:
    attacker.session.run("import os\nos.chdir('/workspace')\nif os.path.lexists('link'): os.remove('link')")
    for target in (str(gateway.secrets.folder / "outside"), "/etc/shadow"):  # the first is closed by nothing else
        assert attacker.refusal(way.format(target=target)) in ("ENOENT", "EACCES")
        attacker.session.run("if os.path.lexists('link'): os.remove('link')\nos.chdir('/workspace')")


def test_handles_of_files_by_number_are_refused(attacker: Cell) -> None:
    # open_by_handle_at is how containers were left in 2014 ("shocker"): it names inodes, not paths.
    numbers = "(303, 304) if os.uname().machine == 'x86_64' else (264, 265)"
    assert attacker.refusal(f"syscall(({numbers})[0], -100, 0, 0, 0, 0)") == "EPERM"
    assert attacker.refusal(f"syscall(({numbers})[1], -100, 0, 0)") == "EPERM"


@pytest.fixture
def private(other: Cell) -> Iterator[str]:
    """The name of files that the other session has in each of its folders."""
    name = f"private-{secrets.token_hex(4)}"
    folders = ("/workspace", "/tmp", "/dev/shm")
    other.session.run(f"for folder in {folders}: open(f'{{folder}}/{name}', 'w').write('mine')")
    yield name
    other.session.run(f"import os\nfor folder in {folders}: os.remove(f'{{folder}}/{name}')")


def test_another_session_s_workspace_is_invisible(attacker: Cell, other: Cell, private: str) -> None:
    walk = "[f for top in ('/workspace', '/tmp', '/dev') for _, _, files in os.walk(top) for f in files]"
    assert private in other.ask(f"import os\nanswer = {walk}")
    assert private not in attacker.ask(f"answer = {walk}")


def test_the_machine_s_own_tmp_is_invisible_and_untouched(attacker: Cell) -> None:
    name = f"kcoral-attack-{secrets.token_hex(4)}"
    mark = Path("/tmp") / name
    mark.write_text("outside")
    try:
        assert attacker.refusal(f"open('/tmp/{name}').read()") in ABSENT
        attacker.session.run(f"open('/tmp/{name}', 'w').write('inside')")
        assert mark.read_text() == "outside"
        assert not Path("/workspace", name).exists()
    finally:
        mark.unlink()


@pytest.mark.parametrize(
    "place",
    [
        "/usr",
        "/usr/local/bin",
        "/bin",
        "/lib",
        "/etc",
        "/run",
        "/run/kcoral/lib",
        "/",
        "/dev",
        "/proc",
        "/var",
        "/root",
    ],
)
def test_nothing_can_be_written_outside_the_session_s_own_folders(place: str, attacker: Cell) -> None:
    assert attacker.refusal(f"open('{place}/kcoral-attack', 'w')") in CLOSED


@pytest.mark.parametrize(
    "change",
    [
        "open(sys.executable, 'ab')",
        "open(sys.prefix + '/kcoral-attack', 'w')",
        "open(__import__('IPython').__file__, 'a')",
        "open(__import__('kcoral_gateway').__file__, 'a')",
        "os.chmod('/usr/bin/env', 0o777)",
        "os.remove('/etc/passwd')",
        "os.rename('/etc/passwd', '/etc/gone')",
        "os.link('/usr/bin/env', '/workspace/env')",
        "os.rename('/workspace', '/elsewhere')",
        "os.truncate('/etc/group', 0)",
    ],
)
def test_the_runtime_cannot_be_changed(change: str, attacker: Cell) -> None:
    assert attacker.refusal(change) in (*CLOSED, "EBUSY", "EXDEV", "ETXTBSY")


def test_the_list_of_users_names_the_worker_s_own_and_root_only(attacker: Cell) -> None:
    names = attacker.ask("answer = [line.split(':')[0] for line in open('/etc/passwd')]")
    assert names == ["root", "kcoral"]
    assert attacker.ask("import pwd\nanswer = pwd.getpwuid(os.getuid()).pw_name") == "kcoral"


def test_the_gateway_s_own_files_are_closed_to_other_users(gateway: BoxedGateway, other: Cell) -> None:
    for name in (".", "journals", "tokens.json", "gateway.json", "gateway.sock", "hosts.sock"):
        assert os.stat(gateway.state / name).st_mode & 0o077 == 0
