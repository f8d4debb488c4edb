"""Files to and from a session: by the Python API, by ``%kcoral put|get|…``, and code beside the notebook.

Public fault 16. Cuts and deaths in the middle of a transfer: it resumes or says why it cannot, and never hangs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kcoral_magic import Client
from kcoral_magic.client.files import Digests, FileSet, to_send
from kcoral_magic.client.results import Progress
from kcoral_magic.client.sync import Execution, Session
from kcoral_magic.errors import KCoralError
from tests.integration.test_reconnect import Path as Wire
from tests.notebooks.kernels import Cell, Kernel
from tests.support import GatewayProcess, until

MIB = 1024 * 1024
ODD = ["with space.txt", "ünïcode-🐍.txt", "new\nline.txt", "-dash.txt", "'quote\".txt", "$(id) %s {x}.txt", ".hidden"]
ASK = "__import__('kcoral_gateway.worker.files', fromlist=['files'])"
TREE = """
import hashlib, os
from pathlib import Path
tree = {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode & 0o777)
        for path in Path('.').rglob('*') if path.is_file()}
"""


def put(session: Session, *patterns: Path | str, to: str = "", is_sync: bool = False) -> int:
    """Send files; how many bytes of them the gateway lacked."""
    files = FileSet(to_send(map(str, patterns), to, Digests()), is_sync=is_sync)
    return _sent(session.execute("", files=files))


def _sent(execution: Execution) -> int:
    told = [o.body.size for o in execution if isinstance(o.body, Progress) and o.body.what == "sending files"]
    execution.result()
    return max(told, default=0)


def tree(session: Session) -> dict[str, tuple[str, int]]:
    """All files of the workspace with what they hold and their modes."""
    found: dict[str, tuple[str, int]] = session.run(TREE, wants=["tree"]).values["tree"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files of all kinds, ``project``."""
    project = tmp_path / "project"
    (project / "deep" / "deeper").mkdir(parents=True)
    (project / "a.txt").write_text("a")
    (project / "empty.txt").write_bytes(b"")
    (project / "deep" / "deeper" / "b.bin").write_bytes(os.urandom(3 * MIB + 7))
    (project / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (project / "run.sh").chmod(0o755)
    (project / "private.txt").write_text("p")
    (project / "private.txt").chmod(0o600)
    for name in ODD:
        (project / name).write_text(name)
    (project / "link").symlink_to("/etc/passwd")
    return project


def held(data: bytes, mode: int = 0o644) -> tuple[str, int]:
    """A file as ``tree`` has it."""
    return hashlib.sha256(data).hexdigest(), mode


def _local(project: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(project.parent)): held(path.read_bytes(), path.stat().st_mode & 0o777)
        for path in project.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# ── the Python API ──


def test_a_folder_arrives_with_all_its_names_bytes_and_modes(client: Client, folder: Path) -> None:
    session = client.session()
    put(session, folder)
    arrived = tree(session)
    private = arrived.pop("project/private.txt")
    assert private[0] == held(b"p")[0]
    assert private[1] & 0o077 == 0
    assert arrived == {path: what for path, what in _local(folder).items() if path != "project/private.txt"}
    assert session.run("import subprocess; subprocess.check_output('./project/run.sh')").text == "b'ran\\n'"


def test_files_and_globs_go_where_they_are_told_to(client: Client, folder: Path) -> None:
    session = client.session()
    put(session, folder / "*.txt", folder / "deep" / "**" / "*.bin", to="data/in")
    names = {path.name for path in folder.glob("*.txt")} | {"b.bin"}
    assert set(tree(session)) == {f"data/in/{name}" for name in names}
    with pytest.raises(KCoralError, match=r"there is no .*nothing"):
        put(session, folder / "nothing*")


def test_what_is_there_is_not_sent_again_and_what_changed_is(client: Client, folder: Path) -> None:
    session = client.session()
    assert put(session, folder) > 3 * MIB
    assert put(session, folder) == 0
    (folder / "a.txt").write_text("another")
    assert put(session, folder) == len("another")
    assert tree(session)["project/a.txt"] == held(b"another")
    (folder / "a.txt").chmod(0o755)
    put(session, folder)
    assert tree(session)["project/a.txt"] == held(b"another", 0o755)


def test_another_session_gets_the_same_files_from_the_gateway_s_cache(client: Client, folder: Path) -> None:
    put(client.session(), folder)
    second = client.session("second-files", gpus=0)
    try:
        assert put(second, folder) == 0
        assert tree(second) == _local(folder)
    finally:
        second.close()


def test_a_file_that_left_a_synced_folder_goes_there_too(client: Client, folder: Path) -> None:
    session = client.session()
    put(session, folder, is_sync=True)
    session.run("open('made-there.txt', 'w').write('kept')")
    (folder / "a.txt").unlink()
    put(session, folder, is_sync=True)
    assert set(tree(session)) == {*_local(folder), "made-there.txt"}


def test_a_cell_runs_in_the_folder_it_asks_for(client: Client, folder: Path) -> None:
    session = client.session()
    put(session, folder)
    assert session.run("import os; os.listdir('.')", cwd="project/deep").text == "['deeper']"
    assert session.run("os.getcwd()", cwd="made/now").text == "'/workspace/made/now'"
    assert session.run("os.getcwd()").text == "'/workspace'"
    with pytest.raises(KCoralError, match="must lie below the workspace"):
        session.run("1", cwd="../etc")


def _lose(session: Session) -> None:
    with pytest.raises(KCoralError):
        session.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


@pytest.mark.parametrize("way", ["killed", "restarted"])
def test_files_come_again_by_themselves_after_a_worker_is_lost(client: Client, folder: Path, way: str) -> None:
    session = client.session()
    put(session, folder)
    if way == "killed":
        _lose(session)
        assert tree(session) == _local(folder)
        assert put(session, folder) == 0
        return
    session.restart()
    assert tree(session) == {}  # we said so ourselves: files come with the next cell that brings them
    assert put(session, folder) == 0
    assert tree(session) == _local(folder)


def test_a_file_that_left_the_cache_is_sent_again_after_a_loss_or_its_absence_is_said(
    client: Client, gateway: GatewayProcess, folder: Path
) -> None:
    session = client.session()
    put(session, folder / "a.txt")
    for blob in (gateway.state / "artifacts").glob("*/sha256-*"):
        blob.unlink()
    _lose(session)
    try:
        found = tree(session)
    except KCoralError as error:
        found = {"a.txt": held(b"a")} if "a.txt" in str(error) else {}
    assert found == {"a.txt": held(b"a")}


@pytest.mark.parametrize("size", [1, 3 * MIB, 3 * MIB + 1], ids=["shorter", "as-long", "longer"])
def test_a_file_that_changes_between_look_and_sending_is_refused_and_goes_at_the_next_try(
    client: Client, tmp_path: Path, size: int
) -> None:
    (file := tmp_path / "moving.bin").write_bytes(bytes(3 * MIB))
    session = client.session()
    files = FileSet(to_send([str(file)], "", Digests()))
    file.write_bytes(b"x" * size)
    with pytest.raises(KCoralError, match=r"changed|damaged"):
        session.run("1", files=files)
    assert put(session, file) == size
    assert tree(session)["moving.bin"] == held(b"x" * size)


@pytest.mark.parametrize("size", [1, 3 * MIB], ids=["shorter", "as-long"])
def test_a_file_that_changes_and_changes_back_goes_at_the_next_try(client: Client, tmp_path: Path, size: int) -> None:
    (file := tmp_path / "moving.bin").write_bytes(before := os.urandom(3 * MIB))
    session = client.session()
    files = FileSet(to_send([str(file)], "", Digests()))
    file.write_bytes(b"x" * size)
    with pytest.raises(KCoralError):
        session.run("1", files=files)
    file.write_bytes(before)
    put(session, file)
    assert tree(session)["moving.bin"] == held(before)


def test_a_file_that_changes_between_look_and_sending_is_named(client: Client, tmp_path: Path) -> None:
    (file := tmp_path / "moving.bin").write_bytes(os.urandom(100))
    files = FileSet(to_send([str(file)], "", Digests()))
    file.write_bytes(b"x" * 100)
    with pytest.raises(KCoralError, match=r"moving\.bin"):
        client.session().run("1", files=files)


def test_a_file_that_has_gone_before_it_is_sent_is_named(client: Client, tmp_path: Path) -> None:
    (file := tmp_path / "gone.bin").write_bytes(os.urandom(100))
    files = FileSet(to_send([str(file)], "", Digests()))
    file.unlink()
    session = client.session()
    with pytest.raises(KCoralError, match=r"gone\.bin cannot be read any more"):
        session.run("1", files=files)
    assert session.run("1").text == "1"


# ── cuts and deaths ──


@pytest.fixture
def wire(gateway: GatewayProcess) -> Iterator[Wire]:
    relay = Wire(int(gateway.url.rpartition(":")[2]))
    yield relay
    relay.close()


@pytest.fixture
def roaming(gateway: GatewayProcess, token: str, wire: Wire) -> Iterator[Client]:
    target = replace(gateway.target(token), url=f"ws://127.0.0.1:{wire.port}")
    with Client(target=target, ping_after_s=0.2, dead_after_s=0.6) as client:
        yield client


def _cut_at_first_progress(execution: Execution, client: Client, wire: Wire) -> None:
    next(output for output in execution if isinstance(output.body, Progress))
    wire.cut()
    until(lambda: not client.aio.is_connected, 10, "the client gives the path up")
    wire.mend()


@pytest.mark.parametrize("is_sync", [False, True], ids=["put", "sync"])
def test_an_upload_goes_on_after_a_cut(roaming: Client, wire: Wire, tmp_path: Path, is_sync: bool) -> None:
    (tmp_path / "many").mkdir()
    for number in range(40):
        (tmp_path / "many" / f"{number}.bin").write_bytes(os.urandom(2 * MIB))
    session = roaming.session()
    session.run("1")
    files = FileSet(to_send([str(tmp_path / "many")], "", Digests()), is_sync=is_sync)
    execution = session.execute("", files=files)
    _cut_at_first_progress(execution, roaming, wire)
    execution.result()
    assert wire.connections >= 2
    asked = session.run("", wants=[("found", f"{ASK}.digests(['many'])")]).values["found"]
    assert {path: digest for path, _, _, _, digest in asked} == {
        path: file.digest for path, file in files.files.items()
    }


def test_a_value_goes_in_over_a_cut(roaming: Client, wire: Wire) -> None:
    session = roaming.session()
    session.run("import hashlib")
    value = os.urandom(96 * MIB)
    execution = session.execute("hashlib.sha256(value).hexdigest()", send={"value": value})
    _cut_at_first_progress(execution, roaming, wire)
    assert execution.result().text == repr(hashlib.sha256(value).hexdigest())
    assert wire.connections >= 2


def test_a_download_goes_on_after_a_cut(roaming: Client, wire: Wire) -> None:
    session = roaming.session()
    session.run(
        f"import os\ndata = os.urandom({96 * MIB})\nopen('big.bin', 'wb').write(data)\nopen('empty', 'w').close()"
    )
    execution = session.execute("", wants=[("found", f"{ASK}.contents(['big.bin', 'empty'])"), "data"])
    _cut_at_first_progress(execution, roaming, wire)
    values = execution.result().values
    assert wire.connections >= 2
    assert [(path, len(data)) for path, data in values["found"]] == [("big.bin", 96 * MIB), ("empty", 0)]
    assert bytes(values["found"][0][1]) == values["data"]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway for a test that kills it."""
    process = GatewayProcess(tmp_path / "mortal")
    yield process
    process.stop()


def _end(execution: Execution, seconds: float = 30.0) -> KCoralError | None:
    """How it ends; it must end."""
    until(lambda: _has_ended(execution), seconds, "the execution ends")
    error = execution.exception()
    assert error is None or isinstance(error, KCoralError)
    return error


def _has_ended(execution: Execution) -> bool:
    import queue

    try:
        while True:
            execution.take(output := execution.outputs.get_nowait())
            if type(output.body).__name__ == "Finished":
                return True
    except queue.Empty:
        execution.check_sent()
    return False


def _kill_at_first_progress(execution: Execution, gateway: GatewayProcess) -> None:
    next(output for output in execution if isinstance(output.body, Progress))
    below = gateway.me.children(recursive=True)
    gateway.kill()
    psutil.wait_procs(below, 10)
    gateway.restart()


def test_an_upload_outlives_a_killed_gateway_or_says_why_not(mortal: GatewayProcess, tmp_path: Path) -> None:
    big = tmp_path / "big.bin"
    big.write_bytes(os.urandom(192 * MIB))
    with mortal.client() as client:
        session = client.session()
        session.run("1")
        execution = session.execute("1", files=FileSet(to_send([str(big)], "", Digests())))
        _kill_at_first_progress(execution, mortal)
        error = _end(execution)
        if error is not None:
            put(session, big)
        asked = session.run("", wants=[("found", f"{ASK}.digests(['big.bin'])")]).values["found"]
        assert asked[0][4] == Digests().look(big).digest


@pytest.mark.parametrize("way", ["in", "out"])
def test_values_on_their_way_end_clearly_when_the_gateway_is_killed(mortal: GatewayProcess, way: str) -> None:
    with mortal.client() as client:
        session = client.session()
        session.run(f"big = bytes({192 * MIB})")
        options: dict[str, Any] = {"send": {"value": bytes(192 * MIB)}} if way == "in" else {"wants": ["big"]}
        execution = session.execute("done = 1", **options)
        _kill_at_first_progress(execution, mortal)
        error = _end(execution)
        assert error is not None
        assert "gateway" in str(error) or "lost" in str(error)
        assert session.run("1 + 1").text == "2"


# ── in a kernel ──


@pytest.fixture(scope="module")
def _kernel(gateway: GatewayProcess, token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home, far = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("far")
    dropped = ("PYTHONUNBUFFERED", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"HOME": str(home), "KCORAL_MAGIC_URL": gateway.url, "KCORAL_MAGIC_TOKEN": token, "PYTHONPATH": str(far)}
    started = Kernel(str(home), env)
    assert started.run("%load_ext kcoral_magic").shown() == []
    yield started
    started.close()


@pytest.fixture
def kernel(_kernel: Kernel) -> Iterator[Kernel]:
    yield _kernel
    _kernel.run("%kcoral use --clear\ntry: get_ipython().run_line_magic('kcoral', 'close')\nexcept Exception: pass")


@pytest.fixture
def write(kernel: Kernel) -> Callable[..., Path]:
    """Writes files beside the notebook, or elsewhere on its path."""
    home, far = (Path(p) for p in eval(kernel.run("import os\nos.getcwd(), os.environ['PYTHONPATH']").shown()[0]))

    def make(name: str, text: str = "", *, is_far: bool = False) -> Path:
        path = (far if is_far else home) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return make


def output(cell: Cell) -> list[str]:
    """What a cell shows, but for our own lines."""
    return [text for text in cell.shown() if not text.startswith("kcoral: ")]


def listing(kernel: Kernel) -> set[str]:
    source = (
        "from pathlib import Path\nsorted(str(p) for p in Path('.').rglob('*') if p.is_file() and p.suffix != '.pyc')"
    )
    return set(eval(output(kernel.run(f"%%kcoral\n{source}"))[-1]))


def test_put_ls_get_and_rm_in_a_kernel(kernel: Kernel, write: Callable[..., Path]) -> None:
    home = write("in/one.txt", "1").parents[1]
    write("in/sub/two words.txt", "2").chmod(0o755)
    shown = kernel.run("%kcoral put in 'in/sub/two words.txt' --to there").shown()[0]
    assert "3 files" in shown
    assert listing(kernel) == {"there/in/one.txt", "there/in/sub/two words.txt", "there/two words.txt"}
    assert "were there already" in kernel.run("%kcoral put in --to there").shown()[0]
    assert "in/" in kernel.run("%kcoral ls there").shown()[0]
    assert "one.txt" in kernel.run("%kcoral ls 'there/**/*.txt'").shown()[0]
    kernel.run("%%kcoral\nopen('there/in/one.txt', 'w').write('from there')")
    assert "2 files" in kernel.run("%kcoral get there/in --to back").shown()[0]
    assert (home / "back/in/one.txt").read_text() == "from there"
    assert (home / "back/in/sub/two words.txt").stat().st_mode & 0o111
    again = kernel.run("%kcoral get there/in --to back").shown()[0]
    assert "0 B fetched" in again
    assert "2 of them were here already" in again
    kernel.run("%kcoral rm there/in 'there/*.txt'")
    assert listing(kernel) == set()
    for line in ("get", "rm", "ls"):
        missing = kernel.run(f"%kcoral {line} nothing-there")
        assert missing.ename == "NotFoundError"
        assert "nothing-there" in missing.traceback
    assert "free" in kernel.run("%kcoral df").shown()[0]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_go_and_come_back(kernel: Kernel, write: Callable[..., Path], name: str) -> None:
    sent = write(f"odd/{name}", name)
    home = sent.parents[1]
    kernel.run("%kcoral put odd")
    kernel.run("%kcoral get odd --to odd-back")
    assert (home / "odd-back" / "odd" / name).read_text() == name
    sent.unlink()


def test_code_beside_the_notebook_comes_with_an_import_and_edits_are_seen(
    kernel: Kernel, write: Callable[..., Path]
) -> None:
    write("helper.py", "import helper_two\ndef value(): return helper_two.number()\n")
    write("helper_two.py", "from helper_three import three\ndef number(): return three()\n")
    write("helper_three.py", "def three(): return 1\n")
    first = kernel.run("%%kcoral\nimport helper\nfrom helper import value\nhelper.value(), value()")
    assert output(first) == ["(1, 1)"]
    assert any("synced" in text for text in first.shown())
    assert kernel.run("%%kcoral\nvalue()").shown() == ["1"]  # not sent, and nothing said
    write("helper.py", "import helper_two\ndef value(): return helper_two.number() + 100\n")
    assert output(kernel.run("%%kcoral\nhelper.value(), value()")) == ["(101, 101)"]
    write("helper_three.py", "def three(): return 2  # more\n")
    assert output(kernel.run("%%kcoral\nhelper.value(), value()")) == ["(102, 102)"]


def test_a_constant_that_another_module_took_by_from_import_follows_the_edit(
    kernel: Kernel, write: Callable[..., Path]
) -> None:
    write("taker.py", "from giver import RATE\ndef rate(): return RATE\n")
    write("giver.py", "RATE = 1\n")
    assert output(kernel.run("%%kcoral\nimport taker\ntaker.rate()")) == ["1"]
    write("giver.py", "RATE = 22\n")
    assert output(kernel.run("%%kcoral\ntaker.rate()")) == ["22"]


def test_quick_edits_of_the_same_length_are_all_seen(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("quick.py", "N = 0\n")
    seen = [output(kernel.run("%%kcoral\nimport quick\nquick.N"))]
    for number in range(1, 9):
        write("quick.py", f"N = {number}\n")
        seen.append(output(kernel.run("%%kcoral\nquick.N")))
    assert seen == [[str(number)] for number in range(9)]


def test_a_broken_edit_is_said_and_the_mended_one_works(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("fragile.py", "def f(): return 1\n")
    assert output(kernel.run("%%kcoral\nimport fragile\nfragile.f()")) == ["1"]
    write("fragile.py", "def f(: return 2\n")
    broken = kernel.run("%%kcoral\nfragile.f()")
    assert "fragile could not be reloaded: SyntaxError" in broken.text("stderr")
    write("fragile.py", "def f(): return 3  # mended\n")
    assert output(kernel.run("%%kcoral\nfragile.f()")) == ["3"]


def test_an_instance_of_changed_code_is_named(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("shapes.py", "class Box:\n  size = 1\n")
    kernel.run("%%kcoral\nfrom shapes import Box\nold = Box()")
    write("shapes.py", "class Box:\n  size = 2  # more\n")
    cell = kernel.run("%%kcoral\nprint(Box.size, old.size)")
    assert "old (a shapes.Box)" in cell.text("stderr")
    assert cell.text() == "2 1\n"


def test_ignored_files_stay_and_removed_ones_go(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("pkg/__init__.py")
    write("pkg/part.py", "P = 1\n")
    write("pkg/gone.py", "G = 1\n")
    write("pkg/settings.yaml", "a: 1\n")
    write("pkg/scratch/try.py", "T = 1\n")
    write("pkg/large.ckpt", "x")
    write("pkg/.gitignore", "scratch/\n")
    write("pkg/mine.json", "{}")
    write("pkg/.kcoralignore", "mine.json\n")
    kernel.run("%%kcoral\nimport pkg.part")
    arrived = {path for path in listing(kernel) if path.startswith("pkg/")}
    assert arrived == {f"pkg/{n}" for n in ("__init__.py", "part.py", "gone.py", "settings.yaml")}
    write("pkg/gone.py").unlink()
    assert "pkg/gone.py" not in listing(kernel)
    assert kernel.run("%%kcoral\nimport pkg.gone").ename in ("ModuleNotFoundError", "ImportError")


def test_a_module_elsewhere_on_the_path_comes_too(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("far_away.py", "import far_helper\nF = far_helper.H\n", is_far=True)
    write("far_helper.py", "H = 1\n", is_far=True)
    assert output(kernel.run("%%kcoral\nimport far_away\nfar_away.F")) == ["1"]
    write("far_helper.py", "H = 22\n", is_far=True)
    assert output(kernel.run("%%kcoral\nfar_away.F")) == ["22"]


def test_code_is_there_again_after_a_loss_and_a_restart(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("durable.py", "D = 5\n")
    kernel.run("%%kcoral\nimport durable")
    assert kernel.run("%%kcoral\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)").ename == "ExecutionLost"
    assert output(kernel.run("%%kcoral\nimport durable\ndurable.D"))[-1] == "5"
    kernel.run("%kcoral restart")
    assert output(kernel.run("%%kcoral\nimport durable\ndurable.D")) == ["5"]


def test_no_sync_brings_nothing_and_cwd_runs_below(kernel: Kernel, write: Callable[..., Path]) -> None:
    write("unsent.py", "U = 1\n")
    assert kernel.run("%%kcoral --no-sync\nimport unsent").ename == "ModuleNotFoundError"
    assert kernel.run("%%kcoral --cwd some/where\nimport os\nos.getcwd()").shown() == ["'/workspace/some/where'"]
    assert "must lie below" in kernel.run("%%kcoral --cwd /etc\n1").traceback


def test_a_watched_folder_follows_before_every_cell(kernel: Kernel, write: Callable[..., Path]) -> None:
    data = write("watched/data.csv", "1")
    assert "1 file" in kernel.run("%kcoral sync watched --watch").shown()[0]
    assert output(kernel.run("%%kcoral\nopen('data.csv').read()")) == ["'1'"]
    data.write_text("22")
    assert output(kernel.run("%%kcoral\nopen('data.csv').read()")) == ["'22'"]
    data.unlink()
    cell = kernel.run("%%kcoral\nopen('data.csv')")
    assert cell.ename == "FileNotFoundError"


def test_large_code_is_not_sent_unasked_and_the_largest_files_are_named(
    kernel: Kernel, write: Callable[..., Path]
) -> None:
    write("heavy.py", f"H = 1  # {'x' * 5000}\n")
    kernel.run("%config KCoral.sync_bytes = 4000")
    try:
        sent = Cell(msg_id=kernel.client.execute("%%kcoral\nimport heavy", allow_stdin=False))
        text = kernel.wait(sent).text("stderr")
        for word in ("heavy.py", ".kcoralignore", "KCoral.sync_bytes", "--no-sync"):
            assert word in text
    finally:
        kernel.run("%config KCoral.sync_bytes = 10**8")


def test_a_stop_while_files_go_in_ends_the_cell_at_once(kernel: Kernel, write: Callable[..., Path]) -> None:
    big = write("bulk/big.bin")
    with big.open("wb") as file:
        file.truncate(768 * MIB)
    kernel.run("%config KCoral.quiet_s = 0.01")
    cell = kernel.send("%kcoral put bulk")
    kernel.wait(cell, until=lambda c: "sending files" in str(c.of("display_data", "update_display_data")))
    pressed = time.monotonic()
    kernel.interrupt()
    cell = kernel.wait(cell)
    assert time.monotonic() - pressed < 3.0
    assert cell.ename == "KeyboardInterrupt"
    kernel.run("%config KCoral.quiet_s = 2.0")
    assert kernel.run("%%kcoral\n1 + 1").shown() == ["2"]
    big.unlink()


def test_a_module_that_the_notebook_imported_comes_along_with_what_uses_it(
    kernel: Kernel, write: Callable[..., Path]
) -> None:
    write("outside.py", "def scale(x): return x * 1000\n")
    kernel.run("import outside\nfrom outside import scale\ndef mine(x): return outside.scale(x)")
    assert output(kernel.run("%%kcoral\noutside.scale(3), scale(4), mine(5)"))[-1] == "(3000, 4000, 5000)"


def test_a_put_that_leads_out_of_the_workspace_is_refused_here_and_harms_no_later_cell(
    kernel: Kernel, write: Callable[..., Path]
) -> None:
    write("a.txt", "a")
    assert "files go to folders of the workspace" in kernel.run("%kcoral put a.txt --to ../x").text("stderr")
    assert output(kernel.run("%%kcoral\n'alive'")) == ["'alive'"]


def test_no_gpus_is_a_default_too(kernel: Kernel) -> None:
    try:
        kernel.run("%kcoral use --gpus 0 --session none")
        assert output(kernel.run("%%kcoral\nimport os\nos.environ.get('CUDA_VISIBLE_DEVICES')")) == ["''"]
    finally:
        kernel.run("%kcoral close none\n%kcoral use --clear")
