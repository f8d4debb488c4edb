"""What an ``AsyncExecution`` makes of its outputs, without a connection."""

from __future__ import annotations

import asyncio

import pytest

from kcoral_magic.client.aio import AsyncClient
from kcoral_magic.client.exchange import Belief
from kcoral_magic.client.execution import AsyncExecution, Own, is_last
from kcoral_magic.client.results import Output
from kcoral_magic.config import Target
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m


def client() -> AsyncClient:
    return AsyncClient(target=Target("ws://nowhere:1"))


@pytest.mark.parametrize("name", ["ValueError", "StopIteration", "StopAsyncIteration"])
async def test_whatever_a_body_raises_shows_its_remote_traceback(name: str) -> None:
    execution = AsyncExecution(client(), "execution-1", None, Own(Belief()))
    execution.deliver(Output(1, m.Error(name, "builtins", name), (b"why", b"line 1\nline 2", b'["why"]')))
    execution.deliver(Output(2, m.Finished("error")))
    with pytest.raises(Exception, match="why") as caught:
        await execution.result()
    assert caught.value._render_traceback_() == ["line 1", "line 2"]


def test_an_own_execution_is_read_to_its_end_and_a_journal_until_it_is_caught_up() -> None:
    finished, caught_up = Output(7, m.Finished("ok")), Output(0, m.CaughtUp("execution-1"))
    given_up = Output(0, m.Finished("failed", 0.0, "lost", "why"))
    assert [is_last(output, is_own=True) for output in (finished, given_up)] == [True, True]
    assert [is_last(output, is_own=False) for output in (finished, caught_up, given_up)] == [False, True, True]


async def test_a_journal_that_is_lost_between_its_end_and_the_word_that_it_is_all_does_not_hang_its_reader() -> None:
    reading = client()
    execution = AsyncExecution(reading, "execution-1", None)
    reading._executions["execution-1"] = execution
    execution.deliver(Output(1, m.Finished("ok")))
    reading._on_message(framing.Message(m.Problem("lost", "the gateway was restarted", "execution-1")))
    async with asyncio.timeout(1):
        await execution.result()
