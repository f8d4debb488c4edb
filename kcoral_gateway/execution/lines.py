"""An admission at work: asks as futures, their deadlines by the loop's timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

from kcoral_gateway.execution import admission as a
from kcoral_magic.errors import PlacementInfeasible, QueueTimeout

OnWaiting = Callable[[a.Waiting], None]


class Line:
    """Who waits for what ``admission`` gives, and who is told."""

    def __init__(self, admission: a.Admission, what: str) -> None:
        self.admission = admission
        self._what = what
        self._asks: dict[str, tuple[asyncio.Future[tuple[str, ...]], OnWaiting, float | None]] = {}
        self._expiry: asyncio.TimerHandle | None = None

    def ask(
        self,
        ask_id: str,
        principal: str,
        count: int,
        *,
        devices: tuple[str, ...] = (),
        limit_s: float | None = None,
        on_waiting: OnWaiting = lambda waiting: None,
    ) -> asyncio.Future[tuple[str, ...]]:
        """Join the line. The future ends with what was granted, which is held until ``release``.

        It raises ``PlacementInfeasible`` if there is less than that, ``QueueTimeout`` after ``limit_s``.
        """
        now = time.monotonic()
        granted: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._asks[ask_id] = (granted, on_waiting, limit_s)
        deadline_s = None if limit_s is None else now + limit_s
        self._follow(self.admission.add(a.Ask(ask_id, principal, count, deadline_s, devices), now))
        return granted

    def release(self, ask_id: str) -> None:
        """Give back, or leave the line."""
        if (asked := self._asks.pop(ask_id, None)) is not None:
            asked[0].cancel()
        self._follow(self.admission.release(ask_id, time.monotonic()))

    def _follow(self, instructions: list[a.Instruction]) -> None:
        for instruction in instructions:
            if (asked := self._asks.get(instruction.ask_id)) is None:
                continue
            granted, on_waiting, limit_s = asked
            if isinstance(instruction, a.Waiting):
                on_waiting(instruction)
                continue
            del self._asks[instruction.ask_id]
            if granted.done():
                continue
            match instruction:
                case a.Granted(devices=devices):
                    granted.set_result(devices)
                case a.Refused(reason=reason):
                    granted.set_exception(PlacementInfeasible(f"{reason}: ask for fewer with --gpus"))
                case a.Expired():
                    text = f"no {self._what} within {limit_s:g} s (--queue-timeout); nothing ran"
                    granted.set_exception(QueueTimeout(text))
                case _:
                    assert_never(instruction)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if (deadline := self.admission.next_deadline_s) is not None:
            delay = max(0.0, deadline - time.monotonic())
            self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._follow(self.admission.expire(time.monotonic()))
