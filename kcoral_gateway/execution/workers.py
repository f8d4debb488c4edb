"""Worker hosts as they dial in: which worker is ready, and which has gone and why."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from kcoral_magic.errors import ExecutionLost
from kcoral_magic.protocol import framing, steps
from kcoral_magic.protocol import messages as m

_CAUSE_CHARS = 1000  # it is told inside longer sentences


class Link(Protocol):
    """The gateway's end of one worker host's connection."""

    def send(self, body: object, buffers: Sequence[framing.Buffer] = ()) -> None:
        """Send a message."""

    def close(self) -> None:
        """End the host: it ends its worker when its gateway hangs up."""


@dataclass(eq=False)
class Worker:
    """A worker as the gateway sees it: on its way, ready, or gone with a cause."""

    ticket: str
    ready: asyncio.Future[Link]
    start_ms: float = 0.0
    gone: str | None = None
    poison: str | None = None  # why it will be gone once its running execution has ended
    is_ending: bool = False
    namespace: str = field(default_factory=lambda: secrets.token_hex(6))  # the ticket is a secret of its host's

    def send(self, body: object, buffers: tuple[framing.Buffer, ...] = ()) -> None:
        """To its host; it must be ready."""
        self.ready.result().send(body, buffers)


class Workers:
    """Workers by the ticket their hosts introduce themselves with.

    Args:
        on_emit: An execution's id, what it produced and its buffers.
        on_turn: An execution's id, and whether it needs its GPUs.
        on_gone: A worker that has gone (``gone`` says why) without being told to.
        drop: Ends a host process by its ticket.
    """

    def __init__(
        self,
        on_emit: Callable[[str, m.EventBody, tuple[framing.Buffer, ...]], None],
        on_gone: Callable[[Worker], None],
        on_turn: Callable[[str, bool], None],
        drop: Callable[[str], None],
    ) -> None:
        self._on_emit = on_emit
        self._on_gone = on_gone
        self._on_turn = on_turn
        self._drop = drop
        self._by_ticket: dict[str, Worker] = {}

    def expect(self, ticket: str) -> Worker:
        """The worker with this ticket, whether its host has dialled in or not."""
        worker = self._by_ticket.get(ticket)
        if worker is None:
            worker = self._by_ticket[ticket] = Worker(ticket, asyncio.get_running_loop().create_future())
        return worker

    def discard(self, worker: Worker) -> None:
        """End a worker that is no longer wanted."""
        worker.is_ending = True
        self._by_ticket.pop(worker.ticket, None)
        if worker.ready.done() and not worker.ready.cancelled() and worker.ready.exception() is None:
            worker.ready.result().close()
        else:
            worker.ready.cancel()
        self._drop(worker.ticket)

    def spoke(self, ticket: str, link: Link, message: framing.Message[m.FromHost]) -> None:
        """A host's message; ``ticket`` is the one it introduced itself with."""
        match message.body:
            case m.HostHello():
                self.expect(ticket)
            case m.HostReady(start_ms=start_ms):
                worker = self.expect(ticket)
                if worker.is_ending or worker.ready.done():
                    link.close()
                else:
                    worker.start_ms = start_ms
                    worker.ready.set_result(link)
            case m.Emit(execution_id=execution_id, body=body):
                self._on_emit(execution_id, body, message.buffers)
            case steps.TurnAsked(execution_id=execution_id, is_wanted=is_wanted):
                self._on_turn(execution_id, is_wanted)
            case m.Replace(message=text):
                self.expect(ticket).poison = text[:_CAUSE_CHARS]
            case m.Gone(message=text):
                self._gone(ticket, text)
            case _:
                assert_never(message.body)

    def left(self, ticket: str) -> None:
        """A host's connection has ended."""
        self._gone(ticket, "its worker host went away")

    def exited(self, ticket: str) -> None:
        """A host's process has ended: nothing more can come with this ticket."""
        self._gone(ticket, "its worker host ended")
        self._by_ticket.pop(ticket, None)

    def _gone(self, ticket: str, cause: str) -> None:
        worker = self._by_ticket.get(ticket)
        if worker is None or worker.gone is not None:
            return
        worker.gone = cause[:_CAUSE_CHARS]
        if worker.is_ending:
            return
        if not worker.ready.done():
            worker.ready.set_exception(ExecutionLost(f"no worker could be started: {cause}"))
            worker.ready.exception()  # it may be nobody's: a spare that did not start
        self._on_gone(worker)
