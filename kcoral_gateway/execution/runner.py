"""Runs sessions: gives them GPUs and workers, sends them bodies one after the other, and says how each ended.

One task for each session. Whatever goes wrong, every execution ends with exactly one ``Finished``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from logging import getLogger
from typing import Any, TypeVar, assert_never

import msgspec

from kcoral_gateway.config import Config, Device
from kcoral_gateway.engines.base import Engine, Lease, Shape
from kcoral_gateway.execution import admission as a
from kcoral_gateway.execution.records import Records
from kcoral_gateway.execution.sessions import Execution, Session, gpu_message
from kcoral_gateway.execution.workers import Worker, Workers
from kcoral_gateway.storage.artifacts import Artifacts
from kcoral_magic.errors import ExecutionLost, KCoralError, PlacementInfeasible, QueueTimeout
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_log = getLogger(__name__)
_OTHER_BYTES = 256 * 1024 * 1024  # of one execution's displays and results: a bound on abuse, told when met
_SUPPLY_S = 3600.0  # as long as a client may be away; what it sends goes on meanwhile
_SUPPLY_LOOK_S = 5.0
_SUPPLY_ALONE_LOOKS = 24  # two minutes with nobody connected who could send
T = TypeVar("T")


class _Stopped(Exception):
    """The execution was interrupted before its body began."""


class Runner:
    """The sessions of one gateway at work."""

    def __init__(self, config: Config, engine: Engine, records: Records, artifacts: Artifacts) -> None:
        self._artifacts = artifacts
        self._config = config
        self._engine = engine
        self._records = records
        self.admission = a.Admission(len(engine.devices))
        self.workers = Workers(self._take, self._worker_gone, engine.drop)
        self._ask_numbers = itertools.count(1)
        self._asks: dict[str, tuple[asyncio.Future[None], Execution, Session]] = {}
        self._sessions: set[Session] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._releasing: set[asyncio.Task[None]] = set()
        engine.on_host_exit(self.workers.exited)

    # ── what the service asks ──

    def open(self, session: Session) -> None:
        """Begin to run what the session's queue holds."""
        self._sessions.add(session)
        session.task = asyncio.create_task(self._serve(session))

    def close(self, session: Session, reason: str) -> None:
        """End a session: its queue, its worker, its placement."""
        self._sessions.discard(session)
        self.stop_all(session, reason)
        if session.task is not None:
            session.task.cancel()
        self.unplace(session)

    def stop_all(self, session: Session, reason: str) -> None:
        """End everything the session runs or has waiting, as lost for ``reason``."""
        while session.queue:
            session.queue.popleft().finish("failed", "lost", reason)
        if session.current is not None:
            if not session.current.is_sent and not session.current.stopped.done():
                session.current.stopped.set_result(None)
            session.current.finish("failed", "lost", reason)

    def unplace(self, session: Session) -> None:
        """Give the session's GPUs back once its worker, which was bound to them, is dead: it holds their memory."""
        worker, devices, ask_id = session.worker, session.devices, session.ask_id
        self.discard_worker(session)
        self._asks.pop(ask_id, None)
        session.devices = None
        if worker is None or not devices:
            self._release(devices or (), ask_id)
            return
        task = asyncio.create_task(self._release_after(worker.ticket, devices, ask_id))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release_after(self, ticket: str, devices: tuple[Device, ...], ask_id: str) -> None:
        await self._engine.ended(ticket)
        self._release(devices, ask_id)

    def _release(self, devices: tuple[Device, ...], ask_id: str) -> None:
        self._engine.release(devices)
        self._follow(self.admission.release(ask_id, time.monotonic()))

    def discard_worker(self, session: Session) -> None:
        """Throw the session's worker and state away."""
        worker, session.worker = session.worker, None
        if worker is not None:
            self.workers.discard(worker)

    def interrupt(self, session: Session, execution: Execution, *, kill: bool) -> None:
        """One press of stop. What the session had queued behind the execution ends with it."""
        for waiting in list(session.queue):
            if waiting is execution or session.current is execution:
                session.queue.remove(waiting)
                waiting.finish("interrupted")
        if session.current is not execution:
            return
        worker = session.side_worker or session.worker
        if execution.is_sent and worker is not None and worker.gone is None:
            worker.send(m.Stop(execution.execution_id, kill))
        elif not execution.stopped.done():
            execution.stopped.set_result(None)

    def pass_on(self, session: Session, execution: Execution, body: object, buffers: tuple[bytes, ...]) -> None:
        """What a running execution was waiting for; one that does not run any more needs nothing."""
        worker = session.side_worker or session.worker
        if session.current is execution and execution.is_sent and worker is not None and worker.gone is None:
            execution.is_wanting = False
            session.waits_since_s = None
            worker.send(body, buffers)

    # ── one session ──

    async def _serve(self, session: Session) -> None:
        while True:
            while not session.queue:
                session.wake.clear()
                await session.wake.wait()
            execution = session.queue.popleft()
            session.current = execution
            try:
                await self._run(session, execution)
            except _Stopped:
                execution.finish("interrupted")
            except KCoralError as error:
                execution.finish("failed", error.code, str(error))
            except Exception:  # noqa: BLE001 - a fault of ours must end this execution, not the session's task
                _log.exception("internal error", extra={"execution": execution.execution_id})
                execution.finish("failed", "internal", f"a fault of the gateway; its log has {execution.execution_id}")
            finally:
                session.current = None
                session.waits_since_s = None
                session.idle_since_s = time.monotonic()
                if session.state != "lost":
                    session.state = "idle"

    async def _run(self, session: Session, execution: Execution) -> None:
        if session.worker is not None and session.worker.gone is not None:
            self._lose(session, session.worker)
        if (why := session.why_lost(execution.message.namespace)) is not None:
            execution.emit(m.Notice("state_lost", f"the session's state was lost: {why}"))
        worker = session.worker
        if session.devices is None:
            await self._place(session, execution)
        if execution.message.is_fresh:
            worker = session.side_worker = await self._start(session, execution)
        elif worker is None:
            worker = session.worker = await self._start(session, execution)
        assert worker is not None
        try:
            await self._run_in(session, worker, execution)
        finally:
            if session.side_worker is not None:
                self.workers.discard(session.side_worker)
                session.side_worker = None

    async def _run_in(self, session: Session, worker: Worker, execution: Execution) -> None:
        if execution.stopped.done() or execution.journal.is_finished:
            raise _Stopped
        session.state = "running"
        session.executions += 1
        if worker is session.worker:
            session.has_state = True
            execution.namespace = worker.namespace
        if execution.journal.last:  # else nobody has been told of a wait: that it is over is no news
            execution.emit(m.Started(worker.start_ms))
        execution.is_sent = True
        run = m.Run(execution.execution_id, execution.message.place, execution.message.peer)
        with_body = (execution.manifest, execution.parcel) if execution.manifest else ()
        worker.send(run, (execution.source, *with_body))
        execution.forget_source()
        timer = None
        if (limit_s := execution.message.timeout_s) is not None:
            timer = asyncio.get_running_loop().call_later(limit_s, self._time_out, worker, execution)
        try:
            await execution.done
        finally:
            if timer is not None:
                timer.cancel()
        worker.gone = worker.gone or worker.poison
        if worker.gone is not None and worker is session.worker:
            self._lose(session, worker)

    def _lose(self, session: Session, worker: Worker) -> None:
        session.lost = worker.gone
        session.worker = None
        session.has_state = False
        session.state = "lost"
        self.workers.discard(worker)

    def _time_out(self, worker: Worker, execution: Execution) -> None:
        execution.has_timed_out = True
        if worker.gone is None:
            worker.send(m.Stop(execution.execution_id))
            asyncio.get_running_loop().call_later(self._config.kill_after_s, self._kill_late, worker, execution)

    def _kill_late(self, worker: Worker, execution: Execution) -> None:
        if worker.gone is None and not execution.journal.is_finished:
            worker.send(m.Stop(execution.execution_id, kill=True))

    # ── placement ──

    async def _place(self, session: Session, execution: Execution) -> None:
        """Hold the session's GPUs.

        Raises:
            PlacementInfeasible: There are fewer.
            QueueTimeout: They were not free in time.
        """
        count = session.gpus or 0
        now = time.monotonic()
        wait_s = execution.message.queue_timeout_s
        session.state = "queued"
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ask_id = session.ask_id = f"{session.principal}/{session.name}#{next(self._ask_numbers)}"
        self._asks[ask_id] = (granted, execution, session)
        self._follow(
            self.admission.add(a.Ask(ask_id, session.principal, count, None if wait_s is None else now + wait_s), now)
        )
        try:
            await _unless_stopped(execution, granted)
        except _Stopped:
            self._follow(self.admission.release(ask_id, time.monotonic()))
            raise
        finally:
            self._asks.pop(ask_id, None)
        session.devices = self._engine.reserve(session.principal, count)
        execution.emit(m.Placed(tuple(gpu_message(device) for device in session.devices)))

    def _follow(self, instructions: list[a.Instruction]) -> None:
        for instruction in instructions:
            if (asked := self._asks.get(instruction.ask_id)) is None or asked[0].done():
                continue
            granted, execution, session = asked
            match instruction:
                case a.Granted():
                    granted.set_result(None)
                case a.Waiting(ahead=ahead, principals=principals):
                    others = tuple(name for name in principals if name != session.principal)
                    execution.emit(m.Queued(ahead, session.gpus or 0, others))
                case a.Refused(reason=reason):
                    granted.set_exception(PlacementInfeasible(f"{reason}: ask for fewer with --gpus"))
                case a.Expired():
                    limit = execution.message.queue_timeout_s
                    granted.set_exception(QueueTimeout(f"no GPUs within {limit:g} s (--queue-timeout); nothing ran"))
                case _:
                    assert_never(instruction)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        deadline = self.admission.next_deadline_s
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            self._expiry = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._follow(self.admission.expire(time.monotonic()))

    async def _start(self, session: Session, execution: Execution) -> Worker:
        """A ready worker on the session's GPUs, and a spare for the next session like it.

        Raises:
            ExecutionLost: It did not start; the message says why.
        """
        folder = str(self._artifacts.folder(session.principal))
        shape = Shape(session.principal, session.devices or (), session.python, folder)
        session.state = "starting"
        began = time.monotonic()
        starting = asyncio.ensure_future(self._engine.start(shape))
        try:
            lease = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the session was closed: what is on its way is nobody's
            starting.add_done_callback(self._drop_started)
            raise
        worker = self.workers.expect(lease.ticket)
        worker.start_ms = 0.0
        if not worker.ready.done():
            execution.emit(m.Starting())
            try:
                await _unless_stopped(execution, worker.ready)
            except (_Stopped, asyncio.CancelledError):
                self.workers.discard(worker)
                raise
            worker.start_ms = (time.monotonic() - began) * 1000
        worker.ready.result()
        if worker.gone is not None:
            raise ExecutionLost(f"no worker could be started: {worker.gone}")
        asyncio.get_running_loop().call_soon(self._engine.keep_spare, shape)
        return worker

    def _drop_started(self, starting: asyncio.Future[Lease]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self.workers.discard(self.workers.expect(starting.result().ticket))

    # ── what workers say ──

    def _worker_gone(self, worker: Worker) -> None:
        for session in self._sessions:
            execution = session.current
            if worker not in (session.worker, session.side_worker):
                continue
            if execution is not None and execution.is_sent and not execution.journal.is_finished:
                _log.info("worker lost", extra={"execution": execution.execution_id, "cause": worker.gone})
                if execution.has_timed_out:
                    execution.finish("failed", "timeout", _timeout_text(execution, killed=True))
                else:
                    what = "this cell's worker only" if execution.message.is_fresh else "the session's state is gone"
                    execution.finish("failed", "lost", f"{worker.gone}; {what}")

    def _take(self, execution_id: str, body: m.EventBody, buffers: tuple[framing.Buffer, ...]) -> None:
        execution = self._records.by_id(execution_id)
        if execution is None:
            return
        if isinstance(body, m.Finished):
            self._finish(execution, body)
            return
        if isinstance(body, t.Want):
            self._watch_want(execution)
        elif isinstance(body, t.InputRequest) and (session := self._session_of(execution)) is not None:
            session.waits_since_s = time.monotonic()
        if isinstance(body, t.Returned) and body.blob is not None:
            try:
                self._artifacts.take_in(execution.principal, body.blob, body.size)
            except KCoralError as error:
                names = tuple((wanted.name, str(error)) for wanted in execution.wants)
                body = t.Returned(body.digest, 0, names)
        if not isinstance(body, m.Stream):
            execution.other_bytes += 100 + sum(map(len, buffers))
            is_first_error = isinstance(body, m.Error) and not execution.has_error
            execution.has_error = execution.has_error or is_first_error
            if execution.other_bytes > _OTHER_BYTES and not is_first_error:
                execution.displays_cut += 1
                return
        execution.emit(body, buffers)

    def _session_of(self, execution: Execution) -> Session | None:
        return next((session for session in self._sessions if session.current is execution), None)

    def _watch_want(self, execution: Execution) -> None:
        """A worker that waits for its client's values must not wait for a client that is gone."""
        execution.is_wanting = True
        until_s = time.monotonic() + _SUPPLY_S
        loop = asyncio.get_running_loop()

        def look(alone: int) -> None:
            if not execution.is_wanting or execution.journal.is_finished:
                return
            is_alone = len(execution.watchers) <= 1  # the journal's own
            if alone < _SUPPLY_ALONE_LOOKS and time.monotonic() < until_s:
                loop.call_later(_SUPPLY_LOOK_S, look, alone + 1 if is_alone else 0)
                return
            session = self._session_of(execution)
            if session is not None:
                problem = "the values that the cell needs never came: its client is gone"
                self.pass_on(session, execution, m.Deliver(execution.execution_id, "", 0, problem), (b"", b""))

        look(0)

    def _finish(self, execution: Execution, body: m.Finished) -> None:
        if execution.journal.is_finished:  # as lost, say by a restart of its session
            return
        body = msgspec.structs.replace(body, namespace=execution.namespace)
        if execution.displays_cut:
            cut, kept = execution.displays_cut, _OTHER_BYTES >> 20
            text = f"{cut} displays and results were left out: {kept} MiB of them are kept of a cell"
            execution.emit(m.Notice("displays_cut", text))
        if execution.has_timed_out and body.status == "interrupted":
            body = m.Finished("failed", body.elapsed_ms, "timeout", _timeout_text(execution, killed=False))
        execution.emit(body)
        if not execution.done.done():
            execution.done.set_result(None)


async def _unless_stopped(execution: Execution, wanted: asyncio.Future[T]) -> T:
    both: set[asyncio.Future[Any]] = {wanted, execution.stopped}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if execution.stopped.done():  # also when both came in one turn of the loop
        raise _Stopped
    return wanted.result()


def _timeout_text(execution: Execution, *, killed: bool) -> str:
    text = f"the cell ran longer than {execution.message.timeout_s:g} s (--timeout)"
    if not killed:
        return f"{text} and was interrupted; the session's state is kept"
    return f"{text} and did not end on an interrupt: its worker was killed, the session's state is gone"
