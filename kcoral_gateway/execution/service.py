"""The orchestrator: takes executions, gives their sessions GPUs and workers, and says how each ended.

One task for each session runs its executions in turn. Whatever goes wrong, every execution ends with exactly one
``Finished``, and what a client sees of it is its journal only.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar, assert_never

from kcoral_gateway.config import Config
from kcoral_gateway.engines.base import Engine, Shape
from kcoral_gateway.execution import admission as a
from kcoral_gateway.execution.journal import FLUSH_S, Journal, prune
from kcoral_gateway.execution.sessions import Execution, Link, Session, Worker, gpu_message
from kcoral_magic.errors import (
    ExecutionLost,
    KCoralError,
    NotFoundError,
    PlacementInfeasible,
    ProtocolError,
    QueueTimeout,
)
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)
_SWEEP_S = 5.0
_PRUNE_S = 600.0
_KEPT = 2000  # finished executions whose index stays in memory; older ones are read from disk when asked for
_OTHER_BYTES = 256 * 1024 * 1024  # of one execution's displays
_RESTARTED = "the gateway was restarted while this cell ran: its session is gone"
T = TypeVar("T")


class _Stopped(Exception):
    """The execution was interrupted before its body began."""


class Service:
    """Everything behind the endpoints."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._admission = a.Admission(len(engine.devices))
        self._asks: dict[str, tuple[asyncio.Future[None], Execution]] = {}
        self._sessions: dict[tuple[str, str], Session] = {}
        self._executions: dict[str, Execution] = {}
        self._workers: dict[str, Worker] = {}
        self._clients: dict[tuple[str, str], set[str]] = {}  # (principal, client_id) -> live instances
        self._seen_s: dict[tuple[str, str], float] = {}
        self._flush_timer: asyncio.TimerHandle | None = None
        self._dirty: set[str] = set()
        self._folders: dict[str, Path] = {}
        self._on_disk: set[str] = set()  # executions whose journals former gateways (or sweeps) left to the disk
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closing = False
        engine.on_host_exit(self._host_exited)
        self._sweeper = asyncio.create_task(self._sweep())

    # ── clients ──

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected and no session is open."""
        return not self._sessions and not any(self._clients.values())

    def client_came(self, principal: str, client_id: str, instance: str) -> None:
        """A client connected. Another instance of the same client (a restarted kernel) leaves its session behind."""
        known = self._clients.setdefault((principal, client_id), set())
        own = self._sessions.get((principal, f"~{client_id}"))
        if own is not None and instance not in known and self._instance_of(own) != instance:
            self._end(own, "its notebook kernel was restarted")
        known.add(instance)
        self._seen_s[principal, f"~{client_id}"] = time.monotonic()

    def client_went(self, principal: str, client_id: str, instance: str) -> None:
        """A connection closed; the session stays for ``disconnect_s``."""
        self._clients.get((principal, client_id), set()).discard(instance)
        now = time.monotonic()
        for key in self._sessions:
            if key[0] == principal:
                self._seen_s[key] = now

    def _instance_of(self, session: Session) -> str:
        return session.client_id.partition("/")[2]

    # ── executions ──

    def execute(self, principal: str, client: m.Hello, message: m.Execute, source: bytes) -> Execution:
        """Take a new execution, or find the one a repeat means.

        Raises:
            ProtocolError: The id is another body's.
        """
        digest = hashlib.sha256(source).digest()
        known = self._find(principal, message.execution_id)
        if known is not None:
            if known.digest and known.digest != digest:
                raise ProtocolError(f"execution id {message.execution_id} was used for another body: make a new id")
            return known
        folder = self._folder(principal)
        loop = asyncio.get_running_loop()
        execution = Execution(
            execution_id=message.execution_id,
            principal=principal,
            session="",
            journal=Journal(
                folder / f"{message.execution_id}.events",
                message.execution_id,
                stream_bytes=self._config.stream_bytes,
                tail_bytes=self._config.tail_bytes,
            ),
            digest=digest,
            message=message,
            source=source,
            started_s=time.time(),
            done=loop.create_future(),
            stopped=loop.create_future(),
        )
        execution.watchers.add(lambda: self._journal_grew(execution))
        self._executions[execution.execution_id] = execution
        try:
            session = self._session(principal, client, message.session)
        except KCoralError as error:
            execution.finish("failed", error.code, str(error))
            return execution
        execution.session = session.name
        if ahead := len(session.queue) + (session.current is not None):
            execution.emit(m.Behind(ahead))
        session.queue.append(execution)
        session.wake.set()
        return execution

    def _folder(self, principal: str) -> Path:
        folder = self._folders.get(principal)
        if folder is None:
            self._config.journals_dir.mkdir(mode=0o700, exist_ok=True)
            # A principal's name may hold what a file name may not.
            folder = self._config.journals_dir / hashlib.sha256(principal.encode()).hexdigest()[:16]
            folder.mkdir(mode=0o700, exist_ok=True)
            self._folders[principal] = folder
            self._on_disk.update(path.stem for path in folder.glob("*.events"))
        return folder

    def attach(self, principal: str, execution_id: str, after: int = 0) -> Execution:
        """An execution of this principal, running or journaled, for a reader that has event ``after``.

        Raises:
            NotFoundError: There is none.
            ExecutionLost: A former gateway died with its newest events: there is nothing after what the reader has.
            ProtocolError: Event ``after`` was never sent.
        """
        execution = self._find(principal, execution_id)
        if execution is None:
            raise NotFoundError(
                f"this gateway knows no execution {execution_id}: it never arrived, or its journal has been removed"
            )
        if execution.journal.is_finished and after >= execution.journal.last:
            raise ExecutionLost(_RESTARTED)
        if after > execution.journal.last:
            raise ProtocolError(f"event {after} was attached after, {execution.journal.last} is the newest")
        return execution

    def _find(self, principal: str, execution_id: str) -> Execution | None:
        execution = self._executions.get(execution_id)
        if execution is not None:
            return execution if execution.principal == principal else None
        path = self._folder(principal) / f"{execution_id}.events"
        if execution_id not in self._on_disk or not path.exists():
            return None
        journal = Journal.load(
            path, execution_id, stream_bytes=self._config.stream_bytes, tail_bytes=self._config.tail_bytes
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        message = m.Execute(execution_id, m.SessionAsk(""))
        execution = Execution(execution_id, principal, "", journal, b"", message, b"", path.stat().st_mtime, done, done)
        execution.watchers.add(lambda: self._journal_grew(execution))
        if not journal.is_finished:
            execution.finish("failed", "lost", _RESTARTED)
        self._executions[execution_id] = execution
        return execution

    def interrupt(self, principal: str, execution_id: str, *, kill: bool) -> None:
        """One press of stop. Executions that this session's client queued behind it end with it.

        Raises:
            NotFoundError: There is no such execution.
        """
        execution = self.attach(principal, execution_id)
        session = self._sessions.get((principal, execution.session))
        if execution.journal.is_finished or session is None:
            return
        for waiting in list(session.queue):
            if waiting is execution or session.current is execution:
                session.queue.remove(waiting)
                waiting.finish("interrupted")
        if session.current is not execution:
            return
        worker = session.side_worker or session.worker
        if execution.is_sent and worker is not None and worker.ready.done():
            worker.ready.result().send(m.Stop(execution_id, kill))
        elif not execution.stopped.done():
            execution.stopped.set_result(None)

    # ── sessions ──

    def _session(self, principal: str, client: m.Hello, ask: m.SessionAsk) -> Session:
        name = ask.name or f"~{client.client_id}"
        capacity = len(self._engine.devices)
        gpus = capacity if ask.gpus == "all" else ask.gpus
        session = self._sessions.get((principal, name))
        if session is None:
            session = Session(principal, name, f"{client.client_id}/{client.instance}", gpus, time.time())
            if self._config.is_embedded and client.executable:
                session.python = client.executable  # the map: on the user's own gateway, the kernel's interpreter
            self._sessions[principal, name] = session
            session.task = asyncio.create_task(self._serve(session))
        elif session.reshape(gpus):
            self._unplace(session)
        if session.gpus is None:
            session.gpus = min(1, capacity)
        return session

    def own_session(self, principal: str, client: m.Hello, name: str) -> Session:
        """A session by the name its client uses.

        Raises:
            NotFoundError: There is none.
        """
        session = self._sessions.get((principal, name or f"~{client.client_id}"))
        if session is None:
            what = f"no session {name!r}" if name else "no session of this notebook"
            known = ", ".join(s.name for s in self._sessions.values() if s.principal == principal and s.is_named)
            raise NotFoundError(f"there is {what}; named sessions of yours: {known or 'none'}")
        return session

    def close_session(self, principal: str, client: m.Hello, name: str) -> None:
        """End a session: its worker, its queue, its placement."""
        self._end(self.own_session(principal, client, name), "its session was closed")

    def restart(self, principal: str, client: m.Hello, ask: m.SessionAsk) -> None:
        """Throw the session's worker and state away; the next cell begins anew, on ``ask.gpus`` if given."""
        session = self.own_session(principal, client, ask.name)
        gpus = len(self._engine.devices) if ask.gpus == "all" else ask.gpus
        self._stop_all(session, "its session was restarted")
        if gpus is not None and gpus != session.gpus:
            session.gpus = gpus
            self._unplace(session)
        else:
            self._discard_worker(session)
        session.has_state, session.lost, session.state = False, None, "idle"

    def _end(self, session: Session, reason: str) -> None:
        self._sessions.pop((session.principal, session.name), None)
        self._seen_s.pop((session.principal, session.name), None)
        self._stop_all(session, reason)
        if session.task is not None:
            session.task.cancel()
        self._unplace(session)
        _log.info("session ended", extra={"session": session.name, "reason": reason})

    def _stop_all(self, session: Session, reason: str) -> None:
        while session.queue:
            session.queue.popleft().finish("failed", "lost", reason)
        if session.current is not None:
            if not session.current.is_sent and not session.current.stopped.done():
                session.current.stopped.set_result(None)
            session.current.finish("failed", "lost", reason)

    def _unplace(self, session: Session) -> None:
        self._discard_worker(session)
        self._asks.pop(_ask_id(session), None)
        if session.devices is not None:
            self._engine.release(session.devices)
            session.devices = None
        self._follow(self._admission.release(_ask_id(session), time.monotonic()))

    def _discard_worker(self, session: Session) -> None:
        worker, session.worker = session.worker, None
        if worker is not None:
            self._discard(worker)

    def _discard(self, worker: Worker) -> None:
        worker.is_ending = True
        self._workers.pop(worker.ticket, None)
        if worker.ready.done() and not worker.ready.cancelled() and worker.ready.exception() is None:
            worker.ready.result().close()
        else:
            worker.ready.cancel()
        self._engine.drop(worker.ticket)

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
                session.idle_since_s = time.monotonic()
                if session.state != "lost":
                    session.state = "idle"

    async def _run(self, session: Session, execution: Execution) -> None:
        if session.worker is not None and session.worker.gone is not None:
            self._lose(session, session.worker)
        if session.lost is not None:
            execution.emit(m.Notice("state_lost", f"the session's state was lost: {session.lost}"))
            session.lost = None
        worker = session.worker
        if session.devices is None:
            await self._place(session, execution)
        start_ms = 0.0
        if execution.message.is_fresh:
            worker = session.side_worker = await self._start(session, execution)
            start_ms = worker.start_ms
        elif worker is None:
            session.worker = worker = await self._start(session, execution)
            start_ms = worker.start_ms
        assert worker is not None
        try:
            await self._run_in(session, worker, execution, start_ms)
        finally:
            if session.side_worker is not None:
                self._discard(session.side_worker)
                session.side_worker = None

    async def _run_in(self, session: Session, worker: Worker, execution: Execution, start_ms: float) -> None:
        session.state = "running"
        session.executions += 1
        if worker is session.worker:
            session.has_state = True
        if execution.journal.last:  # else nobody has been told of a wait: that it is over is no news
            execution.emit(m.Started(start_ms))
        link = worker.ready.result()
        execution.is_sent = True
        link.send(m.Run(execution.execution_id, execution.message.place), (execution.source,))
        timer = None
        if execution.message.timeout_s is not None:
            timer = asyncio.get_running_loop().call_later(
                execution.message.timeout_s, self._time_out, worker, execution
            )
        try:
            await execution.done
        finally:
            if timer is not None:
                timer.cancel()
        worker.gone = worker.gone or worker.poison
        if worker.gone is not None and worker is session.worker:
            self._lose(session, worker)

    def _time_out(self, worker: Worker, execution: Execution) -> None:
        execution.has_timed_out = True
        if worker.gone is None:
            worker.ready.result().send(m.Stop(execution.execution_id))
            asyncio.get_running_loop().call_later(self._config.kill_after_s, self._kill_late, worker, execution)

    def _kill_late(self, worker: Worker, execution: Execution) -> None:
        if worker.gone is None and not execution.journal.is_finished:
            worker.ready.result().send(m.Stop(execution.execution_id, kill=True))

    def _lose(self, session: Session, worker: Worker) -> None:
        session.lost = worker.gone
        session.worker = None
        session.has_state = False
        session.state = "lost"
        self._discard(worker)

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
        ask_id = _ask_id(session)
        self._asks[ask_id] = (granted, execution)
        self._follow(
            self._admission.add(a.Ask(ask_id, session.principal, count, None if wait_s is None else now + wait_s), now)
        )
        try:
            await self._unless_stopped(execution, granted)
        except _Stopped:
            self._follow(self._admission.release(ask_id, time.monotonic()))
            raise
        finally:
            self._asks.pop(ask_id, None)
        session.devices = self._engine.reserve(session.principal, count)
        execution.emit(m.Placed(tuple(gpu_message(device) for device in session.devices)))

    def _follow(self, instructions: list[a.Instruction]) -> None:
        for instruction in instructions:
            granted, execution = self._asks.get(instruction.ask_id, (None, None))
            if granted is None or execution is None or granted.done():
                continue
            match instruction:
                case a.Granted():
                    granted.set_result(None)
                case a.Waiting(ahead=ahead, principals=principals):
                    session = self._sessions.get((execution.principal, execution.session))
                    count = session.gpus if session is not None and session.gpus else 0
                    others = tuple(p for p in principals if p != execution.principal)
                    execution.emit(m.Queued(ahead, count, others))
                case a.Refused(reason=reason):
                    granted.set_exception(PlacementInfeasible(f"{reason}: ask for fewer with --gpus"))
                case a.Expired():
                    limit = execution.message.queue_timeout_s
                    granted.set_exception(QueueTimeout(f"no GPUs within {limit:g} s (--queue-timeout); nothing ran"))
                case _:
                    assert_never(instruction)
        deadline = self._admission.next_deadline_s
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            asyncio.get_running_loop().call_later(delay, lambda: self._follow(self._admission.expire(time.monotonic())))

    async def _start(self, session: Session, execution: Execution) -> Worker:
        """A ready worker on the session's GPUs, and a spare for the next session like it.

        Raises:
            ExecutionLost: It did not start; the message says why.
        """
        shape = Shape(session.principal, session.devices or (), session.python)
        session.state = "starting"
        began = time.monotonic()
        lease = await self._engine.start(shape)
        worker = self._expect(lease.ticket)
        if not worker.ready.done():
            execution.emit(m.Starting())
            try:
                await self._unless_stopped(execution, worker.ready)
            except _Stopped:
                self._discard(worker)
                raise
            worker.start_ms = (time.monotonic() - began) * 1000
        if worker.gone is not None:
            raise ExecutionLost(f"no worker could be started: {worker.gone}")
        asyncio.get_running_loop().call_soon(self._engine.keep_spare, shape)
        return worker

    async def _unless_stopped(self, execution: Execution, wanted: asyncio.Future[T]) -> T:
        both: set[asyncio.Future[Any]] = {wanted, execution.stopped}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        raise _Stopped

    # ── worker hosts ──

    def _expect(self, ticket: str) -> Worker:
        worker = self._workers.get(ticket)
        if worker is None:
            worker = Worker(ticket, asyncio.get_running_loop().create_future())
            self._workers[ticket] = worker
        return worker

    def host_spoke(self, ticket: str, link: Link, message: framing.Message[m.FromHost]) -> None:
        """A host's message; ``ticket`` is the one it introduced itself with."""
        worker = self._expect(ticket)
        match message.body:
            case m.HostHello():
                pass
            case m.HostReady(start_ms=start_ms):
                if worker.is_ending or worker.ready.done():
                    link.close()
                else:
                    worker.start_ms = start_ms
                    worker.ready.set_result(link)
            case m.Emit(execution_id=execution_id, body=body):
                execution = self._executions.get(execution_id)
                if execution is not None:
                    self._take(execution, body, message.buffers)
            case m.Replace(message=text):
                worker.poison = text
            case m.Gone(message=text):
                self._worker_gone(worker, text)
            case _:
                assert_never(message.body)

    def host_left(self, ticket: str) -> None:
        """A host's connection has ended."""
        if (worker := self._workers.get(ticket)) is not None:
            self._worker_gone(worker, "its worker host went away")

    def _host_exited(self, ticket: str) -> None:
        worker = self._workers.get(ticket)
        if worker is None:
            return
        self._worker_gone(worker, "its worker host ended")
        if not any(session.worker is worker for session in self._sessions.values()):
            self._workers.pop(ticket, None)

    def _worker_gone(self, worker: Worker, cause: str) -> None:
        if worker.gone is not None:
            return
        worker.gone = cause
        if worker.is_ending:
            return
        if not worker.ready.done():
            worker.ready.set_exception(ExecutionLost(f"no worker could be started: {cause}"))
            worker.ready.exception()
        for session in self._sessions.values():
            execution = session.current
            if worker not in (session.worker, session.side_worker):
                continue
            if execution is not None and execution.is_sent and not execution.journal.is_finished:
                _log.info("worker lost", extra={"execution": execution.execution_id, "cause": cause})
                if execution.has_timed_out:
                    execution.finish("failed", "timeout", self._timeout_text(execution, killed=True))
                else:
                    what = "this cell's worker only" if execution.message.is_fresh else "the session's state is gone"
                    execution.finish("failed", "lost", f"{cause}; {what}")

    def _take(self, execution: Execution, body: m.EventBody, buffers: tuple[framing.Buffer, ...]) -> None:
        if isinstance(body, m.Finished):
            if execution.displays_cut:
                execution.emit(
                    m.Notice("displays_cut", f"{execution.displays_cut} displays were left out: over 256 MiB")
                )
            if execution.has_timed_out and body.status == "interrupted":
                body = m.Finished("failed", body.elapsed_ms, "timeout", self._timeout_text(execution, killed=False))
            if not execution.journal.is_finished:
                execution.emit(body)
            if not execution.done.done():
                execution.done.set_result(None)
            return
        if not isinstance(body, m.Stream):
            execution.other_bytes += 100 + sum(map(len, buffers))
            if execution.other_bytes > _OTHER_BYTES and isinstance(body, m.Display | m.ClearOutput):
                execution.displays_cut += 1
                return
        execution.emit(body, buffers)

    def _timeout_text(self, execution: Execution, *, killed: bool) -> str:
        text = f"the cell ran longer than {execution.message.timeout_s:g} s (--timeout)"
        if not killed:
            return f"{text} and was interrupted; the session's state is kept"
        return f"{text} and did not end on an interrupt: its worker was killed, the session's state is gone"

    # ── what people ask ──

    def sessions(self, principal: str) -> tuple[m.SessionInfo, ...]:
        """The principal's sessions."""
        now = time.monotonic()
        return tuple(
            m.SessionInfo(
                s.shown_name,
                s.state,
                tuple(gpu_message(device) for device in s.devices or ()),
                len(s.queue),
                s.executions,
                s.created_s,
                None if s.current is not None else max(0.0, now - (s.idle_since_s or now)),
            )
            for s in self._sessions.values()
            if s.principal == principal
        )

    def gpus(self, principal: str) -> tuple[tuple[m.Gpu, ...], int, int]:
        """All GPUs (with the principal's own sessions on them), how many are free, how many asks wait."""
        held = {
            device.uuid: s.shown_name or "(this notebook)"
            for s in self._sessions.values()
            if s.principal == principal
            for device in s.devices or ()
        }
        gpus = tuple(gpu_message(device, held.get(device.uuid, "")) for device in self._engine.devices)
        return gpus, self._admission.free, self._admission.waiting

    def executions(self, principal: str, client: m.Hello, name: str) -> tuple[m.ExecutionInfo, ...]:
        """The newest executions of a session, newest first."""
        wanted = name or f"~{client.client_id}"
        found = [e for e in self._executions.values() if e.principal == principal and e.session == wanted]
        return tuple(
            m.ExecutionInfo(
                e.execution_id,
                name,
                "finished" if e.journal.is_finished else "running",
                e.started_s,
                e.journal.stream_bytes,
                (e.source.decode("utf-8", "replace").strip().splitlines() or [""])[0][:80],
            )
            for e in reversed(found[-100:])
        )

    # ── upkeep ──

    def _journal_grew(self, execution: Execution) -> None:
        self._dirty.add(execution.execution_id)
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        dirty, self._dirty = self._dirty, set()
        for execution_id in dirty:
            if (execution := self._executions.get(execution_id)) is not None:
                try:
                    execution.journal.flush()
                except OSError as error:  # a full disk must not end the gateway; what is pending stays in memory
                    _log.error("a journal cannot be written", extra={"execution": execution_id, "error": str(error)})

    def _prune(self) -> None:
        live = {e.execution_id for s in self._sessions.values() for e in (*s.queue, s.current) if e}
        for folder in self._config.journals_dir.glob("*"):
            removed = prune(
                folder,
                now=time.time(),
                days=self._config.journal_days,
                total_bytes=self._config.journal_bytes,
                keep=live,
            )
            for execution_id in removed:
                self._on_disk.discard(execution_id)
                self._executions.pop(execution_id, None)

    async def _sweep(self) -> None:
        pruned_s = float("-inf")
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._end_abandoned()
            if time.monotonic() - pruned_s > _PRUNE_S:
                pruned_s = time.monotonic()
                self._prune()
            if len(self._executions) > _KEPT:
                live = {e.execution_id for s in self._sessions.values() for e in (*s.queue, s.current) if e}
                for execution_id in list(self._executions)[: len(self._executions) - _KEPT]:
                    execution = self._executions[execution_id]
                    if execution_id not in live and len(execution.watchers) == 1 and execution.journal.is_finished:
                        execution.journal.flush()
                        self._on_disk.add(execution_id)
                        del self._executions[execution_id]

    def _end_abandoned(self) -> None:
        now = time.monotonic()
        for (principal, name), session in list(self._sessions.items()):
            if session.is_named:
                here = any(live for (who, _), live in self._clients.items() if who == principal)
                limit = self._config.disconnect_named_s
            else:
                here = bool(self._clients.get((principal, name[1:])))
                limit = self._config.disconnect_s
            if not here and now - self._seen_s.get((principal, name), now) > limit:
                self._end(session, f"its client was gone for {limit:g} s")

    async def close(self) -> None:
        """End every session; what still runs ends as lost."""
        self._is_closing = True
        self._sweeper.cancel()
        for session in list(self._sessions.values()):
            self._end(session, "the gateway was shut down")
        self._flush()
        if self._flush_timer is not None:
            self._flush_timer.cancel()


def _ask_id(session: Session) -> str:
    return f"{session.principal}/{session.name}"
