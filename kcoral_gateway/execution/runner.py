"""Runs sessions: gives them GPUs and workers, sends them bodies one after the other, and says how each ended.

One task for each session. Whatever goes wrong, every execution ends with exactly one ``Finished``.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from logging import getLogger
from typing import Any, TypeVar

import msgspec

from kcoral_gateway.config import Config, Device
from kcoral_gateway.engines.base import Engine, Lease, Shape
from kcoral_gateway.execution import admission as a
from kcoral_gateway.execution.lines import Line
from kcoral_gateway.execution.records import Records
from kcoral_gateway.execution.sessions import Clock, Execution, Session, gpu_message
from kcoral_gateway.execution.workers import Worker, Workers
from kcoral_gateway.storage.artifacts import CACHE_BYTES, Artifacts
from kcoral_magic.errors import ExecutionLost, KCoralError
from kcoral_magic.protocol import framing, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_log = getLogger(__name__)
_SPARE_AFTER_S = 0.03  # what runs now first: a start takes a core for longer
_OTHER_BYTES = 256 * 1024 * 1024  # of one execution's displays and results: a bound on abuse, told when met
_INLINE_BYTES = 32 * 1024 * 1024  # of a program's returned values beside the events; the rest are blobs
_SUPPLY_S = 3600.0  # as long as a client may be away; what it sends goes on meanwhile
_SUPPLY_LOOK_S = 5.0
_SUPPLY_ALONE_LOOKS = 24  # two minutes with nobody connected who could send
T = TypeVar("T")


class _Stopped(Exception):
    """The execution was interrupted before its body began."""


class Runner:
    """The sessions of one gateway at work."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        records: Records,
        artifacts: Artifacts,
        on_end: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """``on_end`` is called with a session that was an execution's own, when that has ended."""
        self._artifacts = artifacts
        self._config = config
        self._engine = engine
        self._records = records
        self._on_end = on_end
        self.gpus = Line(a.Admission([device.uuid for device in engine.devices], self._choose), "GPUs")
        count = config.cpu_workers + config.gpu_workers * len(engine.devices)
        self.places = Line(a.Admission([f"place-{number}" for number in range(count)]), "worker")
        self.workers = Workers(self._take, self._worker_gone, self._turn, engine.drop)
        self._ask_numbers = itertools.count(1)
        self._sessions: set[Session] = set()
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
        self.places.release(session.place_id)

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
        session.devices, session.ask_id = None, ""
        if worker is None or not devices:
            self.gpus.release(ask_id)
            return
        task = asyncio.create_task(self._release_after(worker.ticket, ask_id))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release_after(self, ticket: str, ask_id: str) -> None:
        await self._engine.ended(ticket)
        self.gpus.release(ask_id)

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
            if session.is_alone:
                session.task = None
                self._on_end(session)
                return

    async def _run(self, session: Session, execution: Execution) -> None:
        if session.worker is not None and session.worker.gone is not None:
            self._lose(session, session.worker)
        if (why := session.why_lost(execution.message.namespace)) is not None:
            execution.emit(m.Notice("state_lost", f"the session's state was lost: {why}"))
        worker = session.worker
        if session.is_alone:
            await self._take_place(session, execution)
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
        execution.gpus = tuple(device.uuid for device in session.devices or ())
        execution.times.sent_s = time.monotonic()
        worker.send(*self._order(session, execution))
        execution.forget_source()
        execution.clock = Clock(execution.message.timeout_s, lambda: self._time_out(worker, execution))
        execution.clock.go()
        try:
            await execution.done
        finally:
            execution.clock.stop()
            execution.times.turn_ends(time.monotonic())
        worker.gone = worker.gone or worker.poison
        if worker.gone is not None and worker is session.worker:
            self._lose(session, worker)

    def _order(self, session: Session, execution: Execution) -> tuple[object, tuple[bytes, ...]]:
        """What the worker is told, with its buffers."""
        message = execution.message
        if message.kind == "program":
            peer, takes_turns = message.peer, bool(session.devices)
            return steps.RunProgram(
                execution.execution_id, execution.format, takes_turns, peer.takes_pickles, peer.python
            ), (execution.source,)
        with_body = (execution.manifest, execution.parcel) if execution.manifest else ()
        return m.Run(execution.execution_id, message.place, message.peer), (execution.source, *with_body)

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
        free = self.gpus.admission.free
        session.state = "queued"
        if session.is_for_programs:  # bound to its GPUs, and holds them while an instruction needs them
            free = free if len(free) >= count else tuple(device.uuid for device in self._engine.devices)
            uuids = self._engine.choose(session.principal, count, free, is_for_programs=True)
            session.devices = self._devices(uuids)
            return
        session.ask_id = self._new_ask_id(session)
        granted = self.gpus.ask(
            session.ask_id,
            session.principal,
            count,
            limit_s=execution.message.queue_timeout_s,
            on_waiting=lambda waiting: _tell_waiting(execution, session.principal, count, waiting),
        )
        try:
            session.devices = self._devices(await _unless_stopped(execution, granted))
        except _Stopped:
            self.gpus.release(session.ask_id)
            raise
        execution.emit(m.Placed(tuple(gpu_message(device) for device in session.devices)))

    async def _take_place(self, session: Session, execution: Execution) -> None:
        """Executions with sessions of their own run so many at once."""
        session.state = "queued"
        session.place_id = self._new_ask_id(session)
        granted = self.places.ask(
            session.place_id,
            session.principal,
            1,
            limit_s=execution.message.queue_timeout_s,
            on_waiting=lambda waiting: _tell_waiting(execution, session.principal, 0, waiting),
        )
        try:
            await _unless_stopped(execution, granted)
        finally:
            if not granted.done() or granted.cancelled():
                self.places.release(session.place_id)

    def _new_ask_id(self, session: Session) -> str:
        return f"{session.principal}/{session.name}#{next(self._ask_numbers)}"

    def _choose(self, ask: a.Ask, free: tuple[str, ...]) -> tuple[str, ...]:
        return self._engine.choose(ask.principal, ask.gpu_count, free, is_for_programs=False)

    def _devices(self, uuids: tuple[str, ...]) -> tuple[Device, ...]:
        return tuple(device for device in self._engine.devices if device.uuid in uuids)

    def _turn(self, execution_id: str, is_wanted: bool) -> None:
        """A program needs its GPUs from here on, or does not. Waiting for them is not charged to its time."""
        execution = self._records.by_id(execution_id)
        session = None if execution is None else self._session_of(execution)
        if execution is None or session is None or not session.is_for_programs or is_wanted == bool(session.ask_id):
            return
        execution.turns_left -= 1
        if execution.turns_left < 0 and session.worker is not None:  # more than its instructions can need
            session.worker.send(m.Stop(execution.execution_id, kill=True))
            return
        if not is_wanted:
            execution.clock.go()  # it may have been waiting for the turn that it gives back
            execution.times.turn_ends(time.monotonic())
            ask_id, session.ask_id = session.ask_id, ""
            self.gpus.release(ask_id)
            return
        devices = session.devices or ()
        session.ask_id = self._new_ask_id(session)
        execution.clock.stop()
        execution.times.turn_asked(time.monotonic())
        granted = self.gpus.ask(
            session.ask_id,
            session.principal,
            len(devices),
            devices=tuple(device.uuid for device in devices),
            on_waiting=lambda waiting: _tell_waiting(execution, session.principal, len(devices), waiting),
        )
        ask_id = session.ask_id
        granted.add_done_callback(lambda future: self._turn_granted(session, execution, ask_id, future))

    def _turn_granted(
        self, session: Session, execution: Execution, ask_id: str, granted: asyncio.Future[tuple[str, ...]]
    ) -> None:
        worker = session.worker
        if granted.cancelled() or session.ask_id != ask_id or session.current is not execution:
            return  # it was given back meanwhile, or its program has ended
        if worker is None or worker.gone is not None:
            return  # whoever ended it gives the GPUs back
        execution.times.turn_begins(time.monotonic())
        if not execution.is_placed:  # its GPUs stay the same from turn to turn
            execution.is_placed = True
            execution.emit(m.Placed(tuple(gpu_message(device) for device in session.devices or ())))
        worker.send(steps.TurnGranted(execution.execution_id))
        execution.clock.go()

    async def _start(self, session: Session, execution: Execution) -> Worker:
        """A ready worker on the session's GPUs, and a spare for the next session like it.

        Raises:
            ExecutionLost: It did not start; the message says why.
        """
        folder = str(self._artifacts.folder(session.principal))
        shape = Shape(session.principal, session.devices or (), session.python, folder, session.is_for_programs)
        session.state = "starting"
        began = time.monotonic()
        starting = asyncio.ensure_future(self._engine.start(shape))
        try:
            lease = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the session was closed: what is on its way is nobody's
            starting.add_done_callback(self._drop_started)
            raise
        except OSError as error:
            raise ExecutionLost(f"no worker host could be started: {error.strerror or error}") from None
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
        asyncio.get_running_loop().call_later(_SPARE_AFTER_S, self._keep_spare, shape)
        return worker

    def _keep_spare(self, shape: Shape) -> None:
        free = self.gpus.admission.free
        count = 1
        if shape.is_for_programs:
            free = tuple(device.uuid for device in self._engine.devices)
            busy = sum(s.is_for_programs and s.principal == shape.principal for s in self._sessions)
            count = min(max(1, busy), self._config.cpu_workers)
        self._engine.keep_spare(shape, free, count)

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
                    text = _timeout_text(execution, killed=True)
                    execution.blame("timeout", text)
                    execution.finish("failed", "timeout", text)
                else:
                    execution.blame("runtime", f"the worker ended while it executed the instruction: {worker.gone}")
                    execution.finish("failed", "lost", f"{worker.gone}; {_what_is_lost(execution)}")

    def _take(self, execution_id: str, body: m.EventBody, buffers: tuple[framing.Buffer, ...]) -> None:
        execution = self._records.by_id(execution_id)
        if execution is None:
            return
        if isinstance(body, m.Finished):
            self._finish(execution, body)
            return
        if isinstance(body, t.Want):
            self._watch_want(execution)
        elif isinstance(body, steps.Step):
            execution.step = body
        elif isinstance(body, steps.Failed):
            if execution.has_failed:
                return  # one instruction fails
            execution.has_failed = True
        elif isinstance(body, t.InputRequest) and (session := self._session_of(execution)) is not None:
            session.waits_since_s = time.monotonic()
        if isinstance(body, t.Returned) and body.is_cache:
            self._keep_caches(execution, body, buffers)
            return
        if isinstance(body, t.Returned):
            execution.result_bytes += body.size
        if isinstance(body, t.Returned) and body.blob is not None:
            try:
                self._artifacts.take_in(execution.principal, body.blob, body.size)
            except KCoralError as error:
                names = tuple((wanted.name, str(error)) for wanted in execution.wants)
                body = t.Returned(body.digest, 0, names or (("results", str(error)),))
        if not isinstance(body, m.Stream):
            execution.other_bytes += len(msgspec.msgpack.encode(body)) + 100 + sum(map(len, buffers))
            is_first_error = isinstance(body, m.Error) and not execution.has_error
            execution.has_error = execution.has_error or is_first_error
            if execution.other_bytes > _OTHER_BYTES and not is_first_error:
                execution.displays_cut += 1
                return
            if isinstance(body, t.Returned) and execution.message.kind == "program":
                execution.inline_bytes += sum(map(len, buffers))
                if execution.inline_bytes > _INLINE_BYTES:
                    return
        execution.emit(body, buffers)

    def _keep_caches(self, execution: Execution, body: t.Returned, buffers: tuple[framing.Buffer, ...]) -> None:
        """What compilers made in a program's worker, for the next one of its principal; once, and of limited size."""
        if not execution.is_alone or execution.caches or body.size > CACHE_BYTES:
            if body.blob is not None:
                self._artifacts.drop(execution.principal, body.blob)
            return
        execution.caches = body.blob or "inline"
        try:
            if body.blob is None:
                self._artifacts.keep_caches(execution.principal, b"".join(bytes(buffer) for buffer in buffers))
            else:
                self._artifacts.take_in(execution.principal, body.blob, body.size)
        except (KCoralError, OSError) as error:
            _log.info("caches not kept", extra={"execution": execution.execution_id, "error": str(error)})

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
        if execution.inline_bytes > _INLINE_BYTES:  # our own workers send as much as that by another way
            body = m.Finished("failed", body.elapsed_ms, "capacity", "its worker returned too much in small pieces")
        if execution.has_timed_out and body.status == "interrupted":
            text = _timeout_text(execution, killed=False)
            execution.blame("timeout", text)
            body = m.Finished("failed", body.elapsed_ms, "timeout", text)
        elif body.status == "interrupted":
            execution.blame("runtime", "the program was interrupted")
        if execution.caches.startswith("xxh3-"):
            self._artifacts.adopt_caches(execution.principal, execution.caches)
        execution.emit(body)
        if not execution.done.done():
            execution.done.set_result(None)


async def _unless_stopped(execution: Execution, wanted: asyncio.Future[T]) -> T:
    both: set[asyncio.Future[Any]] = {wanted, execution.stopped}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if execution.stopped.done():  # also when both came in one turn of the loop
        raise _Stopped
    return wanted.result()


def _tell_waiting(execution: Execution, principal: str, gpu_count: int, waiting: a.Waiting) -> None:
    others = tuple(name for name in waiting.principals if name != principal)
    execution.emit(m.Queued(waiting.ahead, gpu_count, others))


def _what_is_lost(execution: Execution) -> str:
    if execution.message.is_fresh or execution.is_alone:
        return "nothing else was in its worker"
    return "the session's state is gone"


def _timeout_text(execution: Execution, *, killed: bool) -> str:
    if execution.is_alone:
        return f"it ran longer than {execution.message.timeout_s:g} s and was ended"
    text = f"the cell ran longer than {execution.message.timeout_s:g} s (--timeout)"
    if not killed:
        return f"{text} and was interrupted; the session's state is kept"
    return f"{text} and did not end on an interrupt: its worker was killed, the session's state is gone"
