"""``AsyncSession``: bodies, with the values and files that go with them, for a named execution context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kcoral_magic.client import exchange
from kcoral_magic.client.execution import AsyncExecution, Own, new_id
from kcoral_magic.client.files import FileSet
from kcoral_magic.client.results import Output, Progress, Result
from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

if TYPE_CHECKING:
    from kcoral_magic.client.aio import AsyncClient

EVERYTHING = m.View()
# What a notebook shows of a flood; %kcoral output fetches the rest.
NOTEBOOK = m.View(1024 * 1024, 256 * 1024)


class AsyncSession:
    """A named execution context; its worker starts with its first execution."""

    def __init__(self, client: AsyncClient, ask: m.SessionAsk) -> None:
        self._client = client
        self._ask = ask

    @property
    def name(self) -> str:
        """Its name; empty for the client's own."""
        return self._ask.name

    async def execute(
        self,
        source: str,
        *,
        place: m.Place | None = None,
        view: m.View = EVERYTHING,
        timeout_s: float | None = None,
        queue_timeout_s: float | None = None,
        is_fresh: bool = False,
        is_alone: bool = False,
        execution_id: str | None = None,
        sink: Callable[[Output], None] | None = None,
        send: Mapping[str, Any] | None = None,
        offer: Mapping[str, Any] | None = None,
        wants: Sequence[str | tuple[str, str]] = (),
        files: FileSet | None = None,
        cwd: str | None = None,
        allows_input: bool = False,
        out: exchange.Outgoing | None = None,
    ) -> AsyncExecution:
        """Send a body; its events can be read while it runs.

        Args:
            source: What a cell may hold: Python, magics, ``!commands``, top-level ``await``.
            place: Where it stands in a notebook, for its tracebacks.
            timeout_s: Interrupt it then, kill it 5 s later; counted from its start.
            queue_timeout_s: Give up if no GPUs are free by then.
            is_fresh: Run in a new worker on the session's GPUs that is thrown away after.
            is_alone: Run in a session of its own, of the shape of this one, that ends with it; many run at once.
            execution_id: A new id of the caller's making; sent twice, it runs once.
            send: Values by name that the session takes in any case.
            offer: Values that it takes if it lacks them, or has them from here and unchanged.
            wants: Names whose values come back, or ``name=expression``.
            files: What has changed of the files that the session was sent.
            cwd: The folder below the workspace to run in.
            allows_input: ``input()`` is answered, by ``AsyncClient.answer``.
            out: ``exchange.outgoing`` of ``send`` and ``offer``, already made.

        Raises:
            UsageError: A name is none.
            ValueRefused: A value of ``send`` cannot travel; the message names the part that cannot.
        """
        client = self._client
        belief = exchange.Belief() if is_fresh or is_alone else client.belief(self.name)
        wished = exchange.wanted(wants)
        if out is None and (send or offer):
            out = await asyncio.to_thread(exchange.outgoing, send or {}, offer or {})
        if out is not None and (refused := [text for name, text in out.problems.items() if name in out.forced]):
            raise ValueRefused("; ".join(refused))
        with_body: tuple[bytes, ...] = ()
        if out is not None or wished or files is not None or belief.files or cwd is not None:
            basis = belief.basis
            if files is not None and sink is not None:
                files.progress = lambda done, size: sink(Output(0, Progress("sending files", done, size)))
            changes = await files.bring(client.blobs, belief) if files is not None else ()
            offers = belief.offers(out) if out is not None else ()
            manifest = msgspec.msgpack.encode(t.Manifest(offers, wished, changes, basis, cwd))
            with_body = (manifest, exchange.inline(belief, out) if out is not None else b"")
        message = m.Execute(
            execution_id or new_id(),
            self._ask,
            place or m.Place(),
            view,
            timeout_s,
            queue_timeout_s,
            is_fresh,
            belief.namespace,
            m.Peer(exchange.PYTHON, client.target.is_trusted, allows_input),
            is_alone=is_alone,
        )
        execution = AsyncExecution(
            client,
            message.execution_id,
            sink,
            Own(belief, out, frozenset(want.name for want in wished), files is not None),
        )
        await client._submit(execution, message, source.encode("utf-8", "surrogatepass"), *with_body)
        return execution

    async def run(self, source: str, **options: Any) -> Result:
        """Run a body to its end.

        Raises:
            Exception: What the body raised, by its own type where that is loaded here.
            KCoralError: The system could not run it.
        """
        return await (await self.execute(source, **options)).result()

    async def restart(self) -> None:
        """A new, empty worker."""
        await self._client.restart(self.name)

    async def close(self) -> None:
        """End it."""
        await self._client.close_session(self.name)
