"""What the endpoints ask for: executions, sessions, and who is there. Rules on principals and names live here.

What a client sees of an execution is its journal only; running it is the ``Runner``'s.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from logging import getLogger

import msgspec

from kcoral_gateway.config import Config
from kcoral_gateway.engines.base import Engine
from kcoral_gateway.execution.records import Records
from kcoral_gateway.execution.runner import Runner
from kcoral_gateway.execution.sessions import Execution, Session, gpu_message
from kcoral_gateway.execution.workers import Link
from kcoral_gateway.storage.artifacts import Artifacts
from kcoral_magic.errors import CapacityExceeded, KCoralError, NotFoundError, PlacementInfeasible, ProgramInvalid
from kcoral_magic.protocol import framing, program, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.protocol.wire import Gpus

_log = getLogger(__name__)
_SWEEP_S = 5.0
_BLOCK_BYTES = 4096  # of most file systems
_PRUNE_S = 600.0
_SPARE_S = 600.0  # a coffee break


class Service:
    """Everything behind the endpoints."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self.artifacts = Artifacts(config.artifacts_dir, limit_bytes=config.artifact_bytes, block_bytes=_BLOCK_BYTES)
        self._records = Records(config)
        self._runner = Runner(config, engine, self._records, self.artifacts, lambda s: self._end(s, "it has run"))
        self._sessions: dict[tuple[str, str], Session] = {}
        self._alone: dict[str, list[int]] = {}  # bytes of what runs and waits without a session, by principal
        self._clients: Counter[tuple[str, str]] = Counter()  # (principal, client_id) -> open connections
        self._seen_s: dict[tuple[str, str], float] = {}  # when a session's client was last there
        self._here_s: dict[str, float] = {}  # when a principal last had a connection or a session
        self._sweeper = asyncio.create_task(self._sweep())

    # ── clients and hosts ──

    @property
    def is_idle(self) -> bool:
        """Whether no client is connected and no session is open."""
        return not self._sessions and not self._clients

    def client_came(self, principal: str, client_id: str, instance: str) -> None:
        """A client connected. Another instance of the same client (a restarted kernel) leaves its session behind."""
        own = self._sessions.get((principal, f"~{client_id}"))
        if own is not None and own.instance != instance:
            self._end(own, "its notebook kernel was restarted")
        self._clients[principal, client_id] += 1

    def client_went(self, principal: str, client_id: str) -> None:
        """A connection closed (another of the same client may be open by now); its sessions stay for a while."""
        self._clients[principal, client_id] -= 1
        if self._clients[principal, client_id] <= 0:
            del self._clients[principal, client_id]
        now = time.monotonic()
        for key, session in self._sessions.items():
            if key[0] == principal and (session.is_named or session.client_id == client_id):
                self._seen_s[key] = now

    def host_spoke(self, ticket: str, link: Link, message: framing.Message[m.FromHost]) -> None:
        """A worker host's message; ``ticket`` is the one it introduced itself with."""
        self._runner.workers.spoke(ticket, link, message)

    def host_left(self, ticket: str) -> None:
        """A worker host's connection has ended."""
        self._runner.workers.left(ticket)

    # ── executions ──

    def execute(
        self,
        principal: str,
        client: m.Hello,
        message: m.Execute,
        source: bytes,
        manifest: bytes = b"",
        parcel: bytes = b"",
        *,
        returns: steps.Format = "values",
        parsed: program.Program | None = None,
    ) -> Execution:
        """Take a new execution, or find the one a repeat means. ``parsed`` is the program in ``source``.

        Raises:
            ProtocolError: The id is another body's, or the manifest cannot be read.
        """
        asked = t.read_manifest(manifest)
        along = len(manifest) + len(parcel)
        execution, is_new = self._records.new(principal, message, source, along, client.product)
        if not is_new:
            return execution
        execution.manifest, execution.parcel, execution.wants = manifest, parcel, asked.wants
        execution.format, execution.times.taken_s = returns, time.monotonic()
        try:
            if message.kind == "program":
                made = self._checked(principal, parsed or program.parse(source))
                execution.title, execution.turns_left = made.title, 2 * len(made.instructions) + 2
                unpin = self.artifacts.pin(principal, [f"sha256-{blob}" for blob in made.blobs])
                execution.done.add_done_callback(lambda _: unpin())
                if made.needs_no_gpu:
                    ask = msgspec.structs.replace(message.session, gpus=message.session.gpus or 0)
                    message = msgspec.structs.replace(message, session=ask)
            self._check_files(principal, asked)
            if execution.is_alone:
                self._count_alone(execution)
            session = self._session(principal, client, message)
        except KCoralError as error:
            execution.finish("failed", error.code, str(error))
            return execution
        if len(session.queue) >= self._config.max_queued:
            text = f"{len(session.queue)} cells wait in this session already: let some of them end first"
            execution.finish("failed", CapacityExceeded.code, text)
            return execution
        execution.session = session.name
        if ahead := len(session.queue) + (session.current is not None):
            execution.emit(m.Behind(ahead))
        session.queue.append(execution)
        session.wake.set()
        return execution

    def _count_alone(self, execution: Execution) -> None:
        """Bound what one principal's executions without a session keep in memory.

        Raises:
            CapacityExceeded: It has as many, or as large ones.
        """
        held, size = self._alone.setdefault(execution.principal, []), execution.sent_bytes
        if len(held) >= self._config.max_queued or sum(held) + size > self._config.max_queued_bytes:
            text = f"{len(held)} of your programs and calls ({sum(held) >> 20} MiB) run or wait already"
            raise CapacityExceeded(f"{text}: let some of them end first")
        held.append(size)
        execution.done.add_done_callback(lambda _: held.remove(size))

    def supply(self, principal: str, message: t.Supply, files: framing.Buffer, parcel: framing.Buffer) -> None:
        """What an execution waits for; nothing happens if it does not.

        Raises:
            NotFoundError: There is no such execution, or the blob is not here.
        """
        path = str(self.artifacts.path(principal, message.digest)) if message.digest is not None else ""
        deliver = m.Deliver(message.execution_id, path, message.size, message.problem)
        self._check_files(principal, t.read_manifest(files))
        self._to_worker(principal, message.execution_id, deliver, (bytes(files), bytes(parcel)))

    def _checked(self, principal: str, made: program.Program) -> program.Program:
        """A program whose blobs are here and fit.

        Raises:
            ProgramInvalid, NotFoundError: They do not, or are not.
        """
        for instruction in made.instructions:
            if (blob := getattr(instruction, "blob", None)) is None:
                continue
            size = self.artifacts.path(principal, f"sha256-{blob}").stat().st_size
            if isinstance(instruction, program.UploadTensor) and size != instruction.size:
                due = f"{instruction.size} bytes by its dtype and shape"
                raise ProgramInvalid(f"tensor {instruction.id!r:.80} has {due}, its blob has {size}")
        return made

    def _check_files(self, principal: str, manifest: t.Manifest) -> None:
        for file in manifest.files:
            if file.digest is not None:
                try:
                    self.artifacts.path(principal, file.digest)
                except NotFoundError as error:
                    raise NotFoundError(f"{file.path}: {error}") from None

    def reply(self, principal: str, message: t.InputReply, text: framing.Buffer) -> None:
        """The line that an execution has asked for.

        Raises:
            NotFoundError: There is no such execution.
        """
        self._to_worker(principal, message.execution_id, message, (bytes(text),))

    def _to_worker(self, principal: str, execution_id: str, body: object, buffers: tuple[bytes, ...]) -> None:
        execution = self._records.find(principal, execution_id)
        if execution is None:
            raise NotFoundError(f"this gateway knows no execution {execution_id}")
        session = self._sessions.get((principal, execution.session))
        if session is not None:
            self._runner.pass_on(session, execution, body, buffers)

    def attach(self, principal: str, execution_id: str, after: int = 0) -> Execution:
        """As ``Records.attach``."""
        return self._records.attach(principal, execution_id, after)

    def interrupt(self, principal: str, execution_id: str, *, kill: bool) -> None:
        """One press of stop, or the end of the worker.

        Raises:
            NotFoundError: There is no such execution.
        """
        execution = self._records.find(principal, execution_id)
        if execution is None:
            raise NotFoundError(f"this gateway knows no execution {execution_id}")
        session = self._sessions.get((principal, execution.session))
        if not execution.journal.is_finished and session is not None:
            self._runner.interrupt(session, execution, kill=kill)

    # ── sessions ──

    def _session(self, principal: str, client: m.Hello, message: m.Execute) -> Session:
        ask = message.session
        name = ask.name or f"~{client.client_id}"
        capacity = len(self._engine.devices)
        gpus = self._count(ask.gpus)
        python = self._python(ask.python)
        is_for_programs = message.kind == "program"
        is_alone = message.is_alone or is_for_programs
        if is_alone:
            name = f"~{client.client_id}/{message.execution_id}"
        session = self._sessions.get((principal, name))
        if session is None:
            mine = sum(s.principal == principal and not s.is_alone for s in self._sessions.values())
            if not is_alone and mine >= self._config.max_sessions:
                raise CapacityExceeded(f"you have {mine} sessions, this gateway gives {mine}: %kcoral close one")
            session = Session(principal, name, client.instance, gpus, time.time())
            session.is_alone, session.is_for_programs = is_alone, is_for_programs
            if self._config.is_embedded and client.executable:
                session.python = client.executable  # the map: on the user's own gateway, the kernel's interpreter
            session.python = python or session.python
            self._sessions[principal, name] = session
            self._runner.open(session)
        elif session.reshape(gpus, python):
            self._runner.unplace(session)
        if session.gpus is None:
            session.gpus = min(1, capacity)
        return session

    def has_python(self, name: str) -> bool:
        """Whether there is an interpreter environment of this name."""
        return name in dict(self._config.pythons)

    def _python(self, name: str) -> str:
        """The interpreter that a name means; empty for none asked for."""
        known = dict(self._config.pythons)
        if not name or name in known:
            return known.get(name, "")
        if self._config.is_embedded and os.path.isabs(name):
            if os.access(name, os.X_OK) and not os.path.isdir(name):
                return name
            raise NotFoundError(f"{name} is no interpreter that can be run")
        has = ", ".join(known) or "only its own; kcoral-gateway --python NAME=PATH adds one"
        raise NotFoundError(f"there is no interpreter environment {name!r:.80}, this gateway has {has}")

    def _count(self, gpus: Gpus) -> int | None:
        """How many GPUs an ask means; what can never be is refused before anything is thrown away for it."""
        capacity = len(self._engine.devices)
        if isinstance(gpus, int) and gpus > capacity:
            has = f"{capacity} GPU{'s' if capacity != 1 else ''}"
            remedy = "ask for fewer with --gpus"
            if not capacity:
                remedy = "--gpus 0 runs without one; a gateway started with --simulate-gpus N pretends to have some"
            raise PlacementInfeasible(f"{gpus} GPUs were asked for, this gateway has {has}: {remedy}")
        return capacity if gpus == "all" else gpus

    def _own(self, principal: str, client: m.Hello, name: str) -> Session:
        session = self._sessions.get((principal, name or f"~{client.client_id}"))
        if session is None:
            what = f"no session {name!r}" if name else "no session of this notebook"
            known = ", ".join(s.name for s in self._sessions.values() if s.principal == principal and s.is_named)
            raise NotFoundError(f"there is {what}; named sessions of yours: {known or 'none'}")
        return session

    def close_session(self, principal: str, client: m.Hello, name: str) -> None:
        """End a session: its worker, its queue, its placement.

        Raises:
            NotFoundError: There is none of that name.
        """
        self._end(self._own(principal, client, name), "its session was closed")

    def restart(self, principal: str, client: m.Hello, ask: m.SessionAsk) -> None:
        """Throw the session's worker and state away; the next cell begins anew, on ``ask.gpus`` if given.

        Raises:
            NotFoundError: There is none of that name.
        """
        session = self._own(principal, client, ask.name)
        gpus = self._count(ask.gpus)
        self._runner.stop_all(session, "its session was restarted")
        if gpus is not None and gpus != session.gpus:
            session.gpus = gpus
            self._runner.unplace(session)
        else:
            self._runner.discard_worker(session)
        session.has_state, session.lost, session.state = False, None, "idle"

    def _end(self, session: Session, reason: str) -> None:
        self._sessions.pop((session.principal, session.name), None)
        self._seen_s.pop((session.principal, session.name), None)
        self._runner.close(session, reason)
        _log.info("session ended", extra={"session": session.name, "reason": reason})

    # ── what people ask ──

    def sessions(self, principal: str) -> tuple[m.SessionInfo, ...]:
        """The principal's sessions."""
        now = time.monotonic()
        mine = [s for s in self._sessions.values() if s.principal == principal and not s.is_alone]
        return tuple(session.info(now) for session in mine)

    def gpus(self, principal: str) -> tuple[tuple[m.Gpu, ...], int, int]:
        """All GPUs (with the principal's own sessions on them), how many are free, how many asks wait."""
        held = {
            device.uuid: s.shown_name or "(this notebook)"
            for s in self._sessions.values()
            if s.principal == principal
            for device in s.devices or ()
        }
        gpus = tuple(gpu_message(device, held.get(device.uuid, "")) for device in self._engine.devices)
        admission = self._runner.gpus.admission
        return gpus, len(admission.free), admission.waiting

    def load(self) -> tuple[int, int, int]:
        """Places for programs (and others alone), how many of them are taken, and how many executions wait."""
        places = self._runner.places.admission
        taken = places.capacity - len(places.free)
        return places.capacity, taken, places.waiting

    def executions(self, principal: str, client: m.Hello, name: str) -> tuple[m.ExecutionInfo, ...]:
        """The newest executions of a session, newest first."""
        return self._records.of_session(principal, name or f"~{client.client_id}", name)

    def records(self, principal: str, ask: m.ListRecords) -> tuple[m.Record, ...]:
        """The principal's executions: those that run and wait, or those that have ended."""
        return self._records.live(principal, ask) if ask.is_live else self._records.ended(principal, ask)

    # ── upkeep ──

    async def _sweep(self) -> None:
        pruned_s = float("-inf")
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                self._end_abandoned()
                self._drop_spares()
                live = {e.execution_id for s in self._sessions.values() for e in (*s.queue, s.current) if e}
                self._records.tidy(live)
                if time.monotonic() - pruned_s > _PRUNE_S:
                    pruned_s = time.monotonic()
                    self._records.prune(live)
                    self.artifacts.prune(time.time())
            except Exception:  # noqa: BLE001 - upkeep goes on: a full disk, say, is mended by the next pruning
                _log.exception("upkeep failed")

    def _drop_spares(self) -> None:
        """A principal without connection and session keeps a spare worker for a while only."""
        now = time.monotonic()
        here = {who for who, _ in (*self._clients, *self._sessions)}
        for who in here:
            self._here_s[who] = now
        for who, seen_s in list(self._here_s.items()):
            if now - seen_s > _SPARE_S:
                del self._here_s[who]
                self._engine.drop_spare(who)

    def _end_abandoned(self) -> None:
        now = time.monotonic()
        for (principal, name), session in list(self._sessions.items()):
            if session.is_named:
                is_here = any(who == principal for who, _ in self._clients)
                limit_s = self._config.disconnect_named_s
            else:
                is_here = (principal, session.client_id) in self._clients
                limit_s = self._config.disconnect_s
            if not is_here and now - self._seen_s.get((principal, name), now) > limit_s:
                self._end(session, f"its client was gone for {limit_s:g} s")

    async def close(self) -> None:
        """End every session; what still runs ends as lost."""
        self._sweeper.cancel()
        for session in list(self._sessions.values()):
            self._end(session, "the gateway was shut down")
        self._records.close()
