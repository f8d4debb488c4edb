"""A cell's way through gateway, host and sandboxed worker, by the Python API."""

from __future__ import annotations

import pytest

from kcoral_magic import Client, RemoteError
from kcoral_magic.errors import ExecutionLost, PlacementInfeasible, SessionShapeError
from kcoral_magic.protocol import messages as m


def test_output_value_and_state_come_back(client: Client) -> None:
    session = client.session()
    assert session.run("x = 20").value is None
    result = session.run("print('hello'); x + 1")
    assert (result.stdout, result.text) == ("hello\n", "21")


def test_a_remote_error_is_caught_by_its_own_type(client: Client) -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        client.session().run("1 / 0")
    with pytest.raises(KeyError) as caught:
        client.session().run("{}['missing']")
    assert caught.value.args == ("missing",)


def test_an_error_of_an_unknown_type_is_a_remote_error(client: Client) -> None:
    with pytest.raises(RemoteError, match="Mine: why") as caught:
        client.session().run("class Mine(Exception): pass\nraise Mine('why')")
    assert caught.value.ename == "Mine"


def test_a_hundred_thousand_lines_arrive_complete_and_in_few_frames(client: Client) -> None:
    execution = client.session().execute("for i in range(100_000): print(i)")
    frames = sum(isinstance(output.body, m.Stream) for output in execution)
    assert execution.result().stdout == "".join(f"{i}\n" for i in range(100_000))
    assert frames < 10_000


def test_a_session_is_placed_on_what_it_asks_for(client: Client) -> None:
    session = client.session(gpus=2)
    seen = session.run("import os; os.environ['CUDA_VISIBLE_DEVICES']").text
    assert seen == "'GPU-simulated-0,GPU-simulated-1'"
    assert client.gpus().free == 0


def test_more_gpus_than_there_are_is_refused_with_the_reason(client: Client) -> None:
    with pytest.raises(PlacementInfeasible, match="3 GPUs were asked for, this gateway has 2 GPUs"):
        client.session(gpus=3).run("1")


def test_a_session_that_holds_state_keeps_its_shape(client: Client) -> None:
    client.session(gpus=1).run("1")
    with pytest.raises(SessionShapeError, match="restart --gpus 2"):
        client.session(gpus=2).run("1")


def test_a_worker_that_kills_itself_ends_its_cell_as_lost_and_the_next_one_says_so(client: Client) -> None:
    session = client.session()
    session.run("x = 1")
    with pytest.raises(ExecutionLost, match="SIGKILL"):
        session.run("print('before', flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    result = session.run("'x' in globals()")
    assert result.text == "False"
    assert len(result.notices) == 1
    assert "state was lost" in result.notices[0]
    assert session.run("1").notices == []
