"""Executions by id: whose they are, what a repeat means, and what a reader that comes back is told."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from kcoral_gateway.config import Config
from kcoral_gateway.execution.records import Records
from kcoral_magic.errors import ExecutionLost, KCoralError, NotFoundError, ProtocolError
from kcoral_magic.protocol import messages as m

ID = "execution-1"
EXECUTE = m.Execute(ID, m.SessionAsk(""))


def records(state: Path) -> Records:
    """Those of one run of a gateway; another one on the same folder is its successor."""
    return Records(Config(state))


async def test_a_repeat_is_the_same_execution_and_another_body_under_its_id_is_refused(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, is_new = one.new("ana", EXECUTE, b"1")
    assert is_new
    assert one.new("ana", EXECUTE, b"1") == (execution, False)
    with pytest.raises(ProtocolError, match="another body"):
        one.new("ana", EXECUTE, b"2")


async def test_an_execution_is_its_principal_s_alone(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.finish("ok")
    for gateway in (one, records(tmp_path)):
        with pytest.raises(NotFoundError):
            gateway.attach("ben", ID, 0)
        one.close()


async def test_using_another_principal_s_id_takes_nothing_from_them(tmp_path: Path) -> None:
    one = records(tmp_path)
    running, _ = one.new("ana", EXECUTE, b"1")
    with contextlib.suppress(KCoralError):
        one.new("ben", EXECUTE, b"1")
    assert one.by_id(ID) is running  # where what ana's worker sends goes
    assert one.attach("ana", ID, 0) is running


async def test_a_reader_that_has_everything_of_a_finished_execution_may_come_back(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.emit(m.Stream("stdout"), (b"x",))
    execution.finish("ok")
    assert one.attach("ana", ID, 2) is execution
    one.close()
    assert records(tmp_path).attach("ana", ID, 2).journal.last == 2


async def test_a_reader_that_has_more_than_a_dead_gateway_had_written_is_told_that_it_is_lost(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.emit(m.Stream("stdout"), (b"written",))
    execution.journal.flush()
    for _ in range(3):
        execution.emit(m.Stream("stdout"), (b"not written",))
    successor = records(tmp_path)
    for after in (2, 3, 4):
        with pytest.raises(ExecutionLost, match="restarted"):
            successor.attach("ana", ID, after)
    again = successor.attach("ana", ID, 1)
    assert (again.journal.last, again.journal.is_finished) == (2, True)


async def test_late_text_that_a_dead_gateway_had_not_written_does_not_break_its_reader_s_connection(
    tmp_path: Path,
) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.finish("ok")
    execution.journal.flush()
    execution.emit(m.Stream("stdout", True), (b"late",))
    successor = records(tmp_path)
    try:
        assert successor.attach("ana", ID, 2).journal.is_finished
    except ExecutionLost:  # also an answer; a ProtocolError would end the connection, at each of its attempts
        pass


async def test_a_reader_cannot_have_what_was_never_sent(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.emit(m.Stream("stdout"), (b"x",))
    with pytest.raises(ProtocolError, match="event 2 was attached after, 1 is the newest"):
        one.attach("ana", ID, 2)


async def test_what_grew_is_written_soon_and_at_the_end(tmp_path: Path) -> None:
    one = records(tmp_path)
    execution, _ = one.new("ana", EXECUTE, b"1")
    execution.finish("ok")
    assert execution.journal.is_dirty
    one.close()
    assert not execution.journal.is_dirty
    assert records(tmp_path).attach("ana", ID, 0).journal.is_finished
