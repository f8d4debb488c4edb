"""Values in and out by the Python API, through a real gateway. Public faults 12, 14, 15 and 19."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pytest
import torch

from kcoral_magic import Client
from kcoral_magic.client.results import Output, Progress, Reconnecting, Result
from kcoral_magic.client.sync import Execution, Session
from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values.codec import Opaque
from tests.support import GatewayProcess, until

MIB = 1024 * 1024
RAM_BYTES = 12 * 1024 * MIB


class SmallGateway(GatewayProcess):
    """A gateway whose store takes little: no option sets that, so its program is ours, with one setting changed."""

    def __init__(self, folder: Path, artifact_bytes: int) -> None:
        program = folder / "small-gateway"
        program.write_text(
            textwrap.dedent(f"""\
                #!{sys.executable}
                import dataclasses, sys
                from kcoral_gateway import __main__ as program
                made = program.config_of
                program.config_of = lambda options: dataclasses.replace(made(options), artifact_bytes={artifact_bytes})
                program.main(sys.argv[3:])
                """)
        )
        program.chmod(0o755)
        super().__init__(folder / "state", python=str(program))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs cells in a ``__main__`` of the test's own; gives its namespace."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)

    def run(source: str) -> dict[str, Any]:
        exec(compile(textwrap.dedent(source), "<a cell>", "exec"), vars(module))
        return vars(module)

    return run


@pytest.fixture
def stranger(gateway: GatewayProcess, token: str) -> Iterator[Client]:
    """A client that does not trust its gateway."""
    with Client(target=gateway.target(token, is_trusted=False)) as connected:
        yield connected


def outputs_of(execution: Execution) -> list[Output]:
    """All outputs; the connection was never away."""
    found = list(execution)
    assert not any(isinstance(output.body, Reconnecting) for output in found)
    return found


def there_and_back(session: Session, value: Any) -> Any:
    """``value`` after a way in and a way out; the session makes another object of it meanwhile."""
    session.run("import copy; y = copy.copy(x)", send={"x": value})
    execution = session.execute("", wants=["y"])
    outputs_of(execution)
    return execution.result().values["y"]


def parcels(gateway: GatewayProcess) -> list[str]:
    """Blobs of values that a gateway holds."""
    return [path.name for path in (gateway.state / "artifacts").glob("*/*") if path.name.startswith("xxh3-")]


# ── what comes back is what went ──


@pytest.mark.parametrize(
    "value",
    [
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.array([1 + 2j, np.inf], np.complex64),
        np.array(["2026-01-01", "NaT"], "datetime64[D]"),
        np.zeros((0, 5), np.float16),
        np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        np.array(7),
    ],
    ids=["strided", "complex", "dates", "empty", "records", "scalar"],
)
def test_a_numpy_array_comes_back_equal(client: Client, value: Any) -> None:
    back = there_and_back(client.session(), value)
    assert type(back) is np.ndarray
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(back, value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "float8_e4m3fn"])
def test_a_torch_tensor_comes_back_equal(client: Client, dtype: str) -> None:
    value = torch.arange(12).reshape(3, 4).t().to(getattr(torch, dtype))
    back = there_and_back(client.session(), {"inside": [value]})["inside"][0]
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert torch.equal(back.float(), value.float())


def test_a_model_and_its_optimiser_still_share_their_parameters(client: Client) -> None:
    session = client.session()
    model = torch.nn.Linear(4, 2)
    session.run("", send={"model": model, "optimiser": torch.optim.SGD(model.parameters(), lr=0.5)})
    result = session.run(
        "before = model.weight.clone()\nmodel(__import__('torch').ones(1, 4)).sum().backward()\noptimiser.step()",
        wants=["moved=bool((before != model.weight).any())", "model", "optimiser"],
    )
    assert result.values["moved"] is True
    assert result.values["optimiser"].param_groups[0]["params"][0] is result.values["model"].weight


def test_tables_of_three_libraries_come_back_equal(client: Client) -> None:
    session = client.session()
    columns = {"number": [1, None, 3], "text": ["a", None, "ü"], "flag": [True, False, None]}
    table = pa.table(columns)
    frame = pd.DataFrame(columns, index=pd.Index([10, 20, 30], name="key"))
    assert there_and_back(session, table).equals(table)
    assert there_and_back(session, pl.DataFrame(columns)).equals(pl.DataFrame(columns))
    pd.testing.assert_frame_equal(there_and_back(session, frame), frame)
    pd.testing.assert_series_equal(there_and_back(session, frame["text"]), frame["text"])


def test_a_frame_of_a_hundred_thousand_rows_comes_whole(client: Client) -> None:
    source = (
        "import pandas as pd\ndf = pd.DataFrame({'n': range(100_000), 'text': [f'row {n}' for n in range(100_000)]})"
    )
    frame = client.session().run(source, wants=["df"]).values["df"]
    assert frame.shape == (100_000, 2)
    assert frame["n"].sum() == sum(range(100_000))
    assert frame["text"].iloc[-1] == "row 99999"


# ── sizes ──


@pytest.mark.parametrize("size", [MIB - 1, MIB, MIB + 1, 64 * MIB])
def test_a_value_of_any_size_goes_in_and_out_and_the_connection_stays(
    client: Client, gateway: GatewayProcess, size: int
) -> None:
    session = client.session()
    value = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    there = session.execute("import numpy as np; total = int(x.sum()); y = x[::-1].copy()", send={"x": value})
    outputs_of(there)
    back = session.execute("", wants=["total", "y"])
    outputs_of(back)
    result = back.result()
    assert result.values["total"] == int(value.sum())
    np.testing.assert_array_equal(result.values["y"], value[::-1])
    result.values["y"][0] = 1  # it is the notebook's own: it can be written to
    until(lambda: not parcels(gateway), 5, "nothing of it is left at the gateway")


def test_results_that_are_fetched_before_the_worker_says_that_they_are_written_harm_nobody(client: Client) -> None:
    session = client.session()
    session.run(
        "import time, types, kcoral_gateway.worker.execute as execute\nwritten = execute.t.Written\n"
        "late = {**vars(execute.t), 'Written': lambda: (time.sleep(1), written())[1]}\n"
        "execute.t = types.SimpleNamespace(**late)\nbig = bytes(2**21)"
    )
    assert len(session.run("", wants=["big"]).values["big"]) == 2 * MIB
    assert session.run("len(big)").text == str(2 * MIB)


class Peaks:
    """The most memory that each process has at any time, watched from a thread."""

    def __init__(self, *processes: psutil.Process) -> None:
        self.before = {process: process.memory_info().rss for process in processes}
        self._most = dict(self.before)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            for process in self._most:
                self._most[process] = max(self._most[process], process.memory_info().rss)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def growth_mib(self, process: psutil.Process) -> int:
        return int(self._most[process] - self.before[process]) // MIB


@pytest.mark.skipif(psutil.virtual_memory().available < RAM_BYTES, reason="12 GiB of free memory are needed")
def test_more_than_two_gib_go_both_ways_without_a_second_copy_anywhere(client: Client, gateway: GatewayProcess) -> None:
    size = 2150 * MIB  # 2.1 GiB: past what a signed 32-bit length holds
    session = client.session()
    value = np.arange(size // 8, dtype=np.int64)
    session.run("import os, numpy")
    worker = next(p for p in gateway.workers() if p.pid == _worker_pid(session, gateway))
    hosts, me = gateway.hosts(), psutil.Process()
    with Peaks(gateway.me, worker, me, *hosts) as peaks:
        session.run("last = int(x[-1])", send={"x": value})
        assert session.run("last").text == str(size // 8 - 1)
    assert peaks.growth_mib(me) < 256  # the value was here before
    assert peaks.growth_mib(worker) < 2150 + 256
    assert peaks.growth_mib(gateway.me) < 128
    assert all(peaks.growth_mib(host) < 128 for host in hosts)
    with Peaks(gateway.me, worker, me, *hosts) as peaks:
        back = session.run("", wants=["x"]).values["x"]
    assert back.dtype == np.int64
    assert np.array_equal(back, value)
    assert peaks.growth_mib(me) < 2150 + 256
    assert peaks.growth_mib(worker) < 256
    assert peaks.growth_mib(gateway.me) < 128
    assert all(peaks.growth_mib(host) < 128 for host in hosts)
    del back, value
    session.restart()
    until(lambda: not parcels(gateway), 5, "nothing of it is left at the gateway")


def _worker_pid(session: Session, gateway: GatewayProcess) -> int:
    """The session's worker as this machine sees it, by a name that it gives itself."""
    session.run("_ = open('/proc/self/comm', 'w').write('values-worker')")
    return next(p.pid for p in gateway.workers() if p.name() == "values-worker")


@pytest.mark.parametrize("way", ["tensor", "in a dict", "in an object"])
def test_a_view_of_a_large_storage_ships_its_own_part_only(
    client: Client, notebook: Callable[[str], dict[str, Any]], way: str
) -> None:
    cells = notebook("class Box: pass\nbox = Box()")
    view = torch.arange(16 * MIB, dtype=torch.float32)[MIB : MIB + MIB // 2]  # 2 of 64 MiB
    cells["box"].part = view
    value, part = {
        "tensor": (view, "x"),
        "in a dict": ({"part": view}, "x['part']"),
        "in an object": (cells["box"], "x.part"),
    }[way]
    session = client.session()
    sent = session.execute(f"assert {part}.shape == ({MIB // 2},)\nfirst = {part}[0].item()", send={"x": value})
    sizes = {output.body.size for output in outputs_of(sent) if isinstance(output.body, Progress)}
    assert sizes
    assert max(sizes) < 2.1 * MIB
    big = (
        f"import torch\ny = torch.arange({16 * MIB})[{MIB}:{MIB} + 1000]\nz = x\nif isinstance(z, dict): z['part'] = y"
    )
    back = session.execute(big, wants=["y", "z", "first"])
    (returned,) = (output.body for output in outputs_of(back) if isinstance(output.body, t.Returned))
    assert returned.size < 2.2 * MIB
    values = back.result().values
    assert values["first"] == MIB
    assert values["y"].untyped_storage().nbytes() < 2.2 * MIB


# ── code and classes ──


def test_functions_go_by_value_with_closures_and_recursion(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    cells = notebook(
        """
        factor = 3
        def factorial(n): return 1 if n < 2 else n * factorial(n - 1)
        def scaled(n, *, by=2): return factor * by * n
        def counter(start):
            count = start
            def step():
                nonlocal count
                count += 1
                return count
            return step
        step = counter(10)
        """
    )
    session = client.session()
    names = ("factor", "factorial", "scaled", "step")
    source = "factor += 1\nseen = (factorial(20), scaled(1), scaled(1, by=5), step(), step())"
    seen = session.run(source, send={name: cells[name] for name in names}, wants=["seen"]).values["seen"]
    assert seen == (2432902008176640000, 8, 20, 11, 12)
    there = session.run(
        "def adder(n):\n    return lambda m: m + n\nplus = adder(5)\n"
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        wants=["plus", "fib"],
    )
    cells["fib"] = there.values["fib"]
    assert there.values["plus"](1) == 6
    assert there.values["fib"](10) == 55


CLASSES = """
    import dataclasses, enum
    class Point:
        def __init__(self, x): self.x = x
    class Color(enum.Enum):
        RED = 1
    @dataclasses.dataclass
    class Pair:
        left: int
        right: Color
    point, color, pair = Point(1), Color.RED, Pair(1, Color.RED)
"""
CLASS_NAMES = ("Point", "Color", "Pair")


@pytest.mark.parametrize("name", ["point", "color", "pair"])
def test_an_instance_of_a_notebook_s_class_goes_without_its_class_being_named(
    client: Client, notebook: Callable[[str], dict[str, Any]], name: str
) -> None:
    value = notebook(CLASSES)[name]
    back = client.session().run("y = [x]", send={"x": value}, wants=["y"]).values["y"][0]
    assert type(back) is type(value)


@pytest.mark.parametrize("name", ["point", "color", "pair"])
def test_it_goes_to_a_second_session_and_to_a_new_worker_as_well(
    client: Client, notebook: Callable[[str], dict[str, Any]], name: str
) -> None:
    cells = notebook(CLASSES)
    session = client.session()
    session.run("", send={each: cells[each] for each in CLASS_NAMES})
    session.run("", send={"x": cells[name]})
    session.restart()
    assert session.run("type(x).__module__", send={"x": cells[name]}).text == "'__main__'"


SECOND_CLIENT = """
import sys
from kcoral_magic import Client
from kcoral_magic.config import Target
with Client(target=Target(*sys.argv[1:])) as client:
    print(client.session("shared-classes").run("", wants=["mine"]).values["mine"].n)
"""


def test_a_second_client_gets_an_instance_of_a_class_that_the_session_made(
    client: Client, gateway: GatewayProcess, token: str
) -> None:
    source = "import dataclasses\n@dataclasses.dataclass\nclass Mine:\n  n: int = 1\nmine = Mine()"
    session = client.session("shared-classes", gpus=0)
    try:
        assert session.run(source, wants=["mine"]).values["mine"].n == 1
        command = [sys.executable, "-c", SECOND_CLIENT, gateway.url, token]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == "1\n", done.stderr[-500:]
    finally:
        session.close()


def test_what_returns_is_of_the_notebook_s_own_classes(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    cells = notebook(CLASSES)
    session = client.session()
    session.run("", send={name: cells[name] for name in CLASS_NAMES})
    session.run("", send={name: cells[name] for name in ("point", "color", "pair")})
    back = session.run(
        "assert isinstance(point, Point)\nother, colors, pair.left = Point(5), [color, color], 7",
        wants=["other", "colors", "pair"],
    ).values
    assert isinstance(back["other"], cells["Point"])
    assert back["other"].x == 5
    assert back["colors"][0] is cells["Color"].RED
    assert back["colors"][1] is cells["Color"].RED
    assert back["pair"] == cells["Pair"](7, cells["Color"].RED)


def test_after_a_redefinition_old_objects_stay_of_the_old_class(
    client: Client, notebook: Callable[[str], dict[str, Any]]
) -> None:
    cells = notebook(CLASSES)
    old = {name: cells[name] for name in CLASS_NAMES}
    session = client.session()
    session.run("", send=old)
    session.run("", send={name: cells[name] for name in ("point", "color", "pair")})
    cells = notebook(CLASSES.replace("RED = 1", "RED = 2").replace("self.x = x", "self.x = -x"))
    back = session.run("", wants=["point", "color", "pair"])
    assert type(back.values["point"]) is old["Point"]
    assert back.values["color"] is old["Color"].RED
    assert type(back.values["pair"]) is old["Pair"]
    assert back.values["pair"].right is old["Color"].RED
    session.run("", send={"Color": cells["Color"], "point": cells["point"], "kept": old["Point"](3)})
    session.run("", send={"color": cells["color"]})
    mixed = session.run("", wants=["same=type(point) is type(kept)", "point", "color", "x=point.x", "kept"]).values
    assert mixed["same"] is False
    assert type(mixed["point"]) is cells["Point"]
    assert type(mixed["kept"]) is old["Point"]
    assert mixed["color"] is cells["Color"].RED
    assert mixed["x"] == -1


def test_what_cannot_be_pickled_is_named_with_its_path_and_the_others_travel(client: Client) -> None:
    session = client.session()
    bad = {"deep": [0, threading.Lock()]}
    with pytest.raises(ValueRefused, match=r"bad\['deep'\]\[1\] is a _thread\.lock"):
        session.run("1", send={"good": 1, "bad": bad})
    result = session.run("good, 'bad' in globals()", offer={"good": 2, "bad": bad})
    assert result.text == "(2, False)"
    execution = session.execute(
        "import threading\nclass Holder: pass\nheld, fine = Holder(), Holder()\n"
        "held.parts = {'lock': threading.Lock()}",
        wants=["fine", "held", "good", "gone=no_such_name", "both=[fine, held]"],
    )
    with pytest.raises(ValueRefused, match=r"held\.parts\['lock'\] is a _thread\.lock"):
        execution.result()
    got: Result = execution.collected()
    assert set(got.values) == {"fine", "good"}
    assert got.problems["both"].startswith("both[1].parts['lock']")
    assert "no_such_name" in got.problems["gone"]
    assert session.run("good", wants=["good"]).values == {"good": 2}


# ── without trust ──

TRAP = """
import io
class Trap:
    def __reduce__(self): return io.open, ({path!r}, 'w')
trap, safe = Trap(), {{'a': [1, 2.5, 'x'], 'n': None}}
"""


def test_with_trust_a_trap_springs(client: Client, tmp_path: Path) -> None:
    # Or the next two tests would show nothing.
    mark = tmp_path / "mark"
    client.session().run(TRAP.format(path=str(mark)), wants=["trap"]).values["trap"].close()
    assert mark.exists()


def test_without_trust_safe_values_come_and_the_rest_is_a_placeholder(stranger: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    source = (
        TRAP.format(path=str(mark))
        + "import numpy as np, threading\na, lock, f = np.arange(3), threading.Lock(), lambda: 1"
    )
    back = stranger.session().run(source, wants=["trap", "safe", "a", "lock", "f", "inside=[trap]"]).values
    assert back["safe"] == {"a": [1, 2.5, "x"], "n": None}
    assert back["a"].tolist() == [0, 1, 2]
    for name in ("trap", "lock", "f", "inside"):
        assert isinstance(back[name], Opaque), name
    assert back["trap"].kind == "Trap"
    assert not mark.exists()


def test_a_worker_that_pickles_all_the_same_runs_nothing_here(stranger: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    session = stranger.session()
    session.run(
        "from kcoral_gateway.worker import names\npack = names.codec.pack\n"
        "names.codec.pack = lambda values, **options: pack(values, **{**options, 'may_pickle': True})"
    )
    execution = session.execute(TRAP.format(path=str(mark)), wants=["trap", "safe"])
    with pytest.raises(ValueRefused, match="trap came as a pickle, which is taken over a trusted connection only"):
        execution.result()
    assert execution.collected().values == {"safe": {"a": [1, 2.5, "x"], "n": None}}
    assert not mark.exists()


# ── interrupts and limits ──


def _stopped_in(session: Session, value: Any) -> None:
    """Send ``value`` and stop while it is on its way."""
    execution = session.execute("ran = True", send={"x": value})
    next(output for output in execution if isinstance(output.body, Progress))
    execution.interrupt()
    with pytest.raises(KeyboardInterrupt):
        execution.result()


def _stopped_out(session: Session) -> None:
    """Fetch half a GiB and stop while it is on its way."""
    execution = session.execute("import numpy as np; x = np.ones(512 * 2**20, np.uint8)", wants=["x"])
    next(output for output in execution if isinstance(output.body, Progress))
    execution.interrupt()
    with pytest.raises(KeyboardInterrupt):
        execution.result()


def test_an_interrupt_while_a_value_goes_in_leaves_the_session_as_it_was(client: Client) -> None:
    session = client.session()
    session.run("kept = 1")
    value = np.ones(256 * MIB, np.uint8)
    _stopped_in(session, value)
    assert session.run("kept, 'ran' in globals(), 'x' in globals()").text == "(1, False, False)"
    assert session.run("x.nbytes", send={"x": value[: 2 * MIB]}).text == str(2 * MIB)


def test_an_interrupt_while_a_value_comes_out_leaves_the_session_usable(client: Client) -> None:
    session = client.session()
    _stopped_out(session)
    assert session.run("", wants=["y=x[: 2**21]"]).values["y"].nbytes == 2 * MIB


def test_an_interrupt_while_a_value_goes_in_leaves_no_blob(client: Client, gateway: GatewayProcess) -> None:
    session, before = client.session(), set(parcels(gateway))
    _stopped_in(session, np.ones(256 * MIB, np.uint8))
    session.run("1")
    until(lambda: set(parcels(gateway)) <= before, 2, "what was stored of it is dropped")


def test_an_interrupt_while_a_value_comes_out_leaves_no_blob(client: Client, gateway: GatewayProcess) -> None:
    session, before = client.session(), set(parcels(gateway))
    _stopped_out(session)
    session.run("1")
    until(lambda: set(parcels(gateway)) <= before, 2, "what was stored of it is dropped")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that stores a quarter of a GiB for a principal."""
    process = SmallGateway(tmp_path_factory.mktemp("small"), 256 * MIB)
    yield process
    process.stop()


_people = itertools.count()


@pytest.fixture
def limited(small: GatewayProcess) -> Iterator[Client]:
    """A client of a principal of its own there: what one test leaves is not another's."""
    with small.client(small.token(f"limited-{next(_people)}")) as connected:
        yield connected


def test_a_value_over_the_limit_is_refused_and_the_connection_stays(limited: Client) -> None:
    session = limited.session(gpus=0)
    execution = session.execute("ran = True", send={"large": np.zeros(300 * MIB, np.uint8)})
    outputs_of(execution)
    with pytest.raises(Exception, match=r"may take 256\.0 MiB"):
        execution.result()
    assert session.run("'ran' in globals()").text == "False"


def test_a_value_over_the_limit_is_refused_by_its_name(limited: Client) -> None:
    with pytest.raises(Exception, match=r"large.*may take 256\.0 MiB"):
        limited.session(gpus=0).run("1", send={"large": np.zeros(300 * MIB, np.uint8)})


def test_after_a_refusal_a_smaller_value_has_room(limited: Client) -> None:
    session = limited.session(gpus=0)
    with pytest.raises(Exception, match=r"may take 256\.0 MiB"):
        session.run("1", send={"large": np.zeros(300 * MIB, np.uint8)})
    assert session.run("x.nbytes", send={"x": np.zeros(2 * MIB, np.uint8)}).text == str(2 * MIB)


def test_a_result_over_the_limit_is_refused_by_name_and_the_session_stays(limited: Client) -> None:
    session = limited.session(gpus=0)
    execution = session.execute("import numpy as np; large = np.zeros(300 * 2**20, np.uint8)", wants=["large"])
    outputs_of(execution)
    with pytest.raises(ValueRefused, match=r"large.*may take 256\.0 MiB"):
        execution.result()
    assert session.run("", wants=["x=large[: 2**21]"]).values["x"].nbytes == 2 * MIB


def test_values_that_were_delivered_count_no_more(limited: Client) -> None:
    session = limited.session(gpus=0)
    for number in range(6):  # 384 MiB in all
        value = np.full(64 * MIB, number, np.uint8)
        assert session.run("int(x[-1])", send={"x": value}).text == str(number)


def test_results_that_were_fetched_count_no_more(limited: Client) -> None:
    session = limited.session(gpus=0)
    session.run("import numpy as np; x = np.zeros(64 * 2**20, np.uint8)")
    for number in range(6):
        assert session.run("", wants=[f"y=x + {number}"]).values["y"][0] == number
