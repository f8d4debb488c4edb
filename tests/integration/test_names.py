"""Names that both sides have: the session decides, the client is told, and what was lost comes again by itself."""

from __future__ import annotations

import statistics
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcoral_magic import Client
from kcoral_magic.client.files import Digests, FileSet, to_send
from kcoral_magic.client.sync import Execution, Session
from kcoral_magic.errors import ExecutionLost, KCoralError, RemoteError
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from tests.support import GatewayProcess

MIB = 1024 * 1024


def told(execution: Execution) -> dict[str, tuple[str, str]]:
    """What became of each offer that the session has a word on: the verdict, and what it had."""
    found = [bound for o in execution if isinstance(o.body, t.Bound) for bound in o.body.names]
    execution.result()
    return {bound.name: (bound.what, bound.was) for bound in found}


def offered(session: Session, **values: Any) -> dict[str, tuple[str, str]]:
    return told(session.execute("", offer=values))


def forced(session: Session, **values: Any) -> dict[str, tuple[str, str]]:
    return told(session.execute("", send=values))


def value(session: Session, name: str) -> str | None:
    return session.run(name).text


# ── one client ──


def test_a_new_name_is_taken_and_an_unchanged_one_is_not_spoken_of(client: Client) -> None:
    session = client.session()
    assert offered(session, x=1, y=[2]) == {"x": ("new", ""), "y": ("new", "")}
    assert offered(session, x=1, y=[2]) == {}
    assert forced(session, x=1) == {}
    assert session.run("x, y").text == "(1, [2])"


def test_what_changed_here_replaces_what_was_sent(client: Client) -> None:
    session = client.session()
    offered(session, lr=0.001, items=[1])
    assert offered(session, lr=0.0001, items=[1, 2]) == {"lr": ("changed", "0.001"), "items": ("changed", "[1]")}
    assert session.run("lr, items").text == "(0.0001, [1, 2])"
    assert offered(session, lr=0.001) == {"lr": ("changed", "0.0001")}
    assert value(session, "lr") == "0.001"


@pytest.mark.parametrize(
    "change", ["x.append(9)", "x = [1, 9]", "x = [*x, 9]", "x[:] = [1, 9]"], ids=["append", "rebound", "copy", "slice"]
)
def test_what_changed_there_is_kept_and_that_is_said_once(client: Client, change: str) -> None:
    session = client.session()
    offered(session, x=[1])
    session.run(change)
    assert offered(session, x=[1]) == {"x": ("kept", "[1, 9]")}
    assert offered(session, x=[1]) == {}
    assert value(session, "x") == "[1, 9]"
    assert offered(session, x=[5]) == {"x": ("kept", "[1, 9]")}  # another value of the notebook's: said once more
    assert offered(session, x=[5]) == {}
    assert forced(session, x=[5]) == {"x": ("changed", "[1, 9]")}
    assert value(session, "x") == "[5]"
    assert offered(session, x=[6]) == {"x": ("changed", "[5]")}  # it came from here, so it follows again


def test_an_array_changed_in_place_on_either_side_is_noticed(client: Client) -> None:
    session = client.session()
    array = np.zeros(MIB)
    assert offered(session, a=array)["a"][0] == "new"
    array[5] = 1
    assert offered(session, a=array)["a"][0] == "changed"
    assert value(session, "float(a.sum())") == "1.0"
    session.run("a[0] = 10")
    assert offered(session, a=array)["a"][0] == "kept"
    assert value(session, "float(a.sum())") == "11.0"


def test_what_the_session_made_is_its_own_and_an_equal_value_is_no_news(client: Client) -> None:
    session = client.session()
    session.run("made, equal = {'n': 1}, [1, 2]")
    assert offered(session, made={"n": 2}, equal=[1, 2]) == {"made": ("kept", "dict of 1")}
    assert value(session, "made") == "{'n': 1}"
    assert forced(session, made={"n": 2}) == {"made": ("changed", "dict of 1")}
    assert value(session, "made") == "{'n': 2}"


def test_a_name_that_was_deleted_there_is_new_again(client: Client) -> None:
    session = client.session()
    offered(session, x=[1])
    session.run("del x")
    assert offered(session, x=[1]) == {"x": ("new", "")}
    assert value(session, "x") == "[1]"


def test_what_came_back_unchanged_does_not_go_again(client: Client) -> None:
    session = client.session()
    back = session.run("table = {'a': list(range(1000))}", wants=["table"]).values["table"]
    assert offered(session, table=back) == {}
    back["a"].append(1)
    assert offered(session, table=back)["table"][0] == "kept"  # it is the session's: only -i replaces it


def test_a_cell_that_fails_has_still_taken_its_values(client: Client) -> None:
    session = client.session()
    with pytest.raises(ZeroDivisionError):
        session.run("1 / 0", offer={"x": 1})
    assert offered(session, x=1) == {}
    assert value(session, "x") == "1"


def test_what_cannot_be_read_there_is_missing_and_a_forced_one_fails_the_cell(client: Client, tmp_path: Path) -> None:
    session = client.session()
    here = types.ModuleType("only_here")
    assert offered(session, only_here=here, x=1) == {
        "only_here": ("missing", "module only_here cannot be imported there: No module named 'only_here'"),
        "x": ("new", ""),
    }
    with pytest.raises((RemoteError, KCoralError), match="only_here cannot be imported"):
        session.run("ran = True", send={"only_here": here})
    assert value(session, "'ran' in globals()") == "False"


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs cells in a ``__main__`` of the test's own; gives its namespace."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)

    def run(source: str) -> dict[str, Any]:
        exec(compile(source, "<a cell>", "exec"), vars(module))
        return vars(module)

    return run


def test_a_function_goes_again_when_its_code_changes_not_when_its_cell_runs_again(
    client: Client, cell: Callable[[str], dict[str, Any]]
) -> None:
    session = client.session()
    source = "def f(n, by=2):\n    return n * by\n"
    assert offered(session, f=cell(source)["f"])["f"][0] == "new"
    assert offered(session, f=cell("\n\n" + source)["f"]) == {}
    assert offered(session, f=cell(source.replace("by=2", "by=3"))["f"])["f"][0] == "changed"
    assert value(session, "f(2)") == "6"
    assert offered(session, f=cell(source.replace("*", "+"))["f"])["f"][0] == "changed"
    session.run("def f(n): return 'theirs'")
    assert offered(session, f=cell(source)["f"])["f"][0] == "kept"
    assert value(session, "f(2)") == "'theirs'"


def test_an_object_goes_again_when_it_changes(client: Client, cell: Callable[[str], dict[str, Any]]) -> None:
    session = client.session()
    cells = cell("class Model: pass\nmodel = Model()\nmodel.layers = [1, 2]")
    assert offered(session, model=cells["model"])["model"][0] == "new"
    assert offered(session, model=cells["model"]) == {}
    cells["model"].layers.append(3)
    assert offered(session, model=cells["model"])["model"][0] == "changed"
    assert value(session, "model.layers") == "[1, 2, 3]"
    session.run("model.layers.append(4)")
    assert offered(session, model=cells["model"])["model"][0] == "kept"


def test_a_standard_library_s_value_and_odd_names_are_names_like_others(client: Client) -> None:
    session = client.session()
    values = {"größe": 1, "__name": 4, "np": np, "statistics": statistics, "none": None, "print": 5}
    assert set(offered(session, **values)) == set(values)
    assert session.run("größe, print, np.pi > 3, statistics.mean([1, 3]), none").text == "(1, 5, True, 2, None)"


@pytest.mark.parametrize("size", [1, 100], ids=["inline", "beside"])
def test_thousands_of_names_go_with_one_cell(client: Client, size: int) -> None:
    session = client.session()
    values = {f"a_rather_long_name_for_a_variable_{n}": "v" * size for n in range(2000)}
    session.run("n = sum(name.startswith('a_rather') for name in globals())", offer=values)
    assert value(session, "n") == "2000"
    assert offered(session, **values) == {}


def test_a_fresh_worker_takes_its_own_and_the_session_s_is_not_touched(client: Client) -> None:
    session = client.session()
    offered(session, x=1)
    assert session.run("x, 'y' in globals()", is_fresh=True, offer={"x": 1}).text == "(1, False)"
    session.run("x = 99", is_fresh=True, offer={"x": 2})
    assert offered(session, x=1) == {}
    assert value(session, "x") == "1"


def test_the_client_knows_which_session_has_a_name(client: Client) -> None:
    session, named = client.session(), client.session("names-named", gpus=0)
    try:
        session.run("only_own = 1")
        named.run("only_named = 1")
        assert client.aio.where_is("only_own") == ""
        assert client.aio.where_is("only_named") == "names-named"
        assert client.aio.where_is("nowhere") is None
        named.run("del only_named")
        assert client.aio.where_is("only_named") is None
    finally:
        named.close()


# ── two clients ──


@pytest.fixture
def pair(client: Client, gateway: GatewayProcess, token: str) -> Iterator[tuple[Session, Session]]:
    """One named session as two clients have it."""
    with gateway.client(token) as second:
        mine, theirs = client.session("names-shared", gpus=0), second.session("names-shared", gpus=0)
        mine.run("pass")
        yield mine, theirs
        mine.close()


@pytest.mark.parametrize("size", [1, MIB], ids=["small", "large"])
def test_what_another_client_made_of_a_name_is_kept(pair: tuple[Session, Session], size: int) -> None:
    mine, theirs = pair
    assert offered(mine, x="m" * size)["x"][0] == "new"
    theirs.run("x = 'theirs'")
    assert offered(mine, x="m" * size) == {"x": ("kept", "'theirs'")}
    assert value(mine, "x") == "'theirs'"
    assert forced(mine, x="m" * size) == {"x": ("changed", "'theirs'")}
    assert value(theirs, "len(x), x[0]") == f"({size}, 'm')"


@pytest.mark.parametrize("size", [1, MIB], ids=["small", "large"])
def test_what_another_client_sent_meanwhile_is_replaced_and_that_is_said(
    pair: tuple[Session, Session], size: int
) -> None:
    mine, theirs = pair
    offered(mine, x="m" * size)
    offered(theirs, x="t" * size)
    verdict, was = offered(mine, x="m" * size)["x"]
    assert verdict == "changed"
    assert "t" in was
    assert value(mine, "x[0]") == "'m'"


def test_a_restart_by_another_client_makes_every_name_new(pair: tuple[Session, Session]) -> None:
    mine, theirs = pair
    large = np.arange(MIB)
    offered(mine, x=1, large=large)
    theirs.restart()
    assert {name: what for name, (what, _) in offered(mine, x=1, large=large).items()} == {"x": "new", "large": "new"}
    assert value(mine, "x, int(large[-1])") == f"(1, {MIB - 1})"


# ── what was lost ──


def _lose(session: Session) -> None:
    with pytest.raises(ExecutionLost):
        session.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


def test_values_and_files_are_wanted_again_after_a_worker_was_lost(client: Client, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("from here")
    (tmp_path / "code.py").write_text("N = 7\n")
    session = client.session()
    values = {"small": [1], "large": np.arange(MIB)}
    files = FileSet(to_send([str(tmp_path / "*")], "", Digests()))
    session.run("", offer=values, files=files)
    _lose(session)
    execution = session.execute("import code\nopen('data.txt').read(), small, int(large[-1])", offer=values)
    outputs = list(execution)
    result = execution.result()
    assert result.text == f"('from here', [1], {MIB - 1})"
    assert len(result.notices) == 1
    (want,) = (o.body for o in outputs if isinstance(o.body, t.Want))
    assert (set(want.names), want.files) == ({"small", "large"}, True)
    assert offered(session, **values) == {}


def test_values_come_again_after_the_gateway_was_killed(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "state")
    (tmp_path / "data.txt").write_text("from here")
    values = {"small": [1], "large": np.arange(MIB)}
    try:
        with gateway.client() as client:
            session = client.session()
            session.run("", offer=values, files=FileSet(to_send([str(tmp_path / "data.txt")], "", Digests())))
            gateway.kill()
            gateway.restart()
            result = session.run("open('data.txt').read(), small, int(large[-1])", offer=values)
            assert result.text == f"('from here', [1], {MIB - 1})"
            assert "state was lost" in " ".join(result.notices)
    finally:
        gateway.stop()


# ── one cell behind another ──


def test_cells_behind_a_running_one_see_each_its_own_values(client: Client) -> None:
    session = client.session()
    session.run("seen = []")
    gate = session.execute("print('on', flush=True)\ninput()", allows_input=True)
    next(output for output in gate if isinstance(output.body, t.InputRequest))
    values = [{"n": number, "large": np.full(MIB // 4, number)} for number in range(4)]
    waiting = [session.execute("seen.append((n, int(large[0])))", offer=each) for each in values]
    gate.answer("go")
    gate.result()
    for execution in waiting:
        execution.result()
    assert value(session, "seen") == "[(0, 0), (1, 1), (2, 2), (3, 3)]"
    assert offered(session, **values[-1]) == {}


def test_a_stopped_cell_behind_another_leaves_no_belief_in_values_that_never_arrived(client: Client) -> None:
    session = client.session()
    session.run("pass")
    gate = session.execute("input()", allows_input=True)
    next(output for output in gate if isinstance(output.body, t.InputRequest))
    waiting = session.execute("ran = x", offer={"x": 1})
    assert isinstance(next(iter(waiting)).body, m.Behind)
    waiting.interrupt()
    with pytest.raises(KeyboardInterrupt):
        waiting.result()
    gate.answer("go")
    gate.result()
    assert offered(session, x=1) == {"x": ("new", "")}
    assert session.run("x, 'ran' in globals()").text == "(1, False)"
