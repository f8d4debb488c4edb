"""Every execution this gateway knows: running, finished, or left on disk by a former gateway."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection
from itertools import islice
from logging import getLogger
from pathlib import Path

from kcoral_gateway.config import Config
from kcoral_gateway.execution.journal import FLUSH_S, Journal, prune
from kcoral_gateway.execution.sessions import Execution
from kcoral_gateway.storage.ledger import Ledger
from kcoral_magic.errors import ExecutionLost, NotFoundError, ProtocolError
from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)
_KEPT = 2000  # finished executions whose index stays in memory; older ones are read from disk when asked for
_LISTED = 100
_RESTARTED = "the gateway was restarted while this cell ran: its session is gone"


class Records:
    """Executions by id, their journals and when those are written and removed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._known: dict[str, Execution] = {}
        self._on_disk: set[str] = set()  # whose journals former gateways (or ``tidy``) left to the disk
        self._folders: dict[str, Path] = {}
        self._dirty: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._unwritten: list[Execution] = []  # ended, without a record on disk yet
        self._ledger = Ledger(config.records_dir, days=config.record_days, count=config.record_count)

    def new(
        self, principal: str, message: m.Execute, source: bytes, sent_bytes: int = 0, client: str = ""
    ) -> tuple[Execution, bool]:
        """The execution a message means, and whether it is new.

        Raises:
            ProtocolError: The id is another body's, or another principal's.
        """
        digest = hashlib.sha256(source).digest()
        found = self.find(principal, message.execution_id)
        if found is not None:
            if found.digest and found.digest != digest:
                raise ProtocolError(f"execution id {message.execution_id} was used for another body: make a new id")
            return found, False
        if message.execution_id in self._known:  # somebody else's: what its worker sends goes by this id
            raise ProtocolError(f"execution id {message.execution_id} is in use: make a new id")
        loop = asyncio.get_running_loop()
        execution = Execution(
            execution_id=message.execution_id,
            principal=principal,
            session="",
            journal=Journal(
                self._path(principal, message.execution_id),
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
            sent_bytes=len(source) + sent_bytes,
            client=client,
        )
        execution.done.add_done_callback(lambda _: self._ended(execution))
        self._keep(execution)
        return execution, True

    def find(self, principal: str, execution_id: str) -> Execution | None:
        """An execution of this principal."""
        execution = self._known.get(execution_id)
        if execution is not None:
            return execution if execution.principal == principal else None
        path = self._path(principal, execution_id)
        if execution_id not in self._on_disk or not path.exists():
            return None
        return self._load(principal, execution_id, path)

    def by_id(self, execution_id: str) -> Execution | None:
        """An execution in memory, whoever's: for what its worker sends."""
        return self._known.get(execution_id)

    def attach(self, principal: str, execution_id: str, after: int) -> Execution:
        """An execution for a reader that has event ``after``.

        Raises:
            NotFoundError: There is none of this principal's.
            ExecutionLost: A former gateway died with its newest events: there is nothing after what the reader has.
            ProtocolError: Event ``after`` was never sent.
        """
        execution = self.find(principal, execution_id)
        if execution is None:
            raise NotFoundError(
                f"this gateway knows no execution {execution_id}: it never arrived, or its journal has been removed"
            )
        newest = execution.journal.last
        if (execution.is_cut and after >= newest) or (execution.journal.is_finished and after > newest):
            raise ExecutionLost(_RESTARTED)
        if after > newest:
            raise ProtocolError(f"event {after} was attached after, {execution.journal.last} is the newest")
        return execution

    def of_session(self, principal: str, session: str, shown: str) -> tuple[m.ExecutionInfo, ...]:
        """The newest executions of a session, newest first."""
        found = [e for e in self._known.values() if e.principal == principal and e.session == session]
        return tuple(
            m.ExecutionInfo(
                e.execution_id,
                shown,
                "finished" if e.journal.is_finished else "running",
                e.started_s,
                e.journal.stream_bytes,
                (e.source.decode("utf-8", "replace").strip().splitlines() or [""])[0][:80],
            )
            for e in reversed(found[-_LISTED:])
        )

    def ended(self, principal: str, ask: m.ListRecords) -> tuple[m.Record, ...]:
        """What has ended since ``ask.since_s``, newest first."""
        self._write_records()
        found = (r for r in self._ledger.read(principal) if r.started_s >= ask.since_s)
        mine = (r for r in found if ask.session in (None, r.session))
        return tuple(islice(mine, ask.limit))

    def live(self, principal: str, ask: m.ListRecords) -> tuple[m.Record, ...]:
        """What runs or waits, newest first."""
        now = time.monotonic()
        mine = [e for e in self._known.values() if e.principal == principal and not e.done.done()]
        found = (e.record(now) for e in reversed(mine))
        return tuple(islice((r for r in found if ask.session in (None, r.session)), ask.limit))

    def tidy(self, live: Collection[str]) -> None:
        """Leave old finished executions to the disk."""
        for execution_id in list(self._known)[: max(0, len(self._known) - _KEPT)]:
            execution = self._known[execution_id]
            if execution_id not in live and len(execution.watchers) == 1 and execution.journal.is_finished:
                execution.journal.flush()
                self._on_disk.add(execution_id)
                del self._known[execution_id]

    def prune(self, live: Collection[str]) -> None:
        """Remove journals that are too old or too many, but none that runs or is being read."""
        read = {execution_id for execution_id, execution in self._known.items() if len(execution.watchers) > 1}
        for folder in self._config.journals_dir.glob("*"):
            removed = prune(
                folder,
                now=time.time(),
                days=self._config.journal_days,
                total_bytes=self._config.journal_bytes,
                keep={*live, *read},
            )
            for execution_id in removed:
                self._on_disk.discard(execution_id)
                self._known.pop(execution_id, None)
        self._ledger.prune(time.time())

    def close(self) -> None:
        """Write everything."""
        self._flush()
        if self._timer is not None:
            self._timer.cancel()

    def _load(self, principal: str, execution_id: str, path: Path) -> Execution:
        journal = Journal.load(
            path, execution_id, stream_bytes=self._config.stream_bytes, tail_bytes=self._config.tail_bytes
        )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        message = m.Execute(execution_id, m.SessionAsk(""))
        started_s = path.stat().st_mtime
        execution = Execution(execution_id, principal, "", journal, b"", message, b"", started_s, done, done)
        self._keep(execution)
        if journal.is_finished:
            done.set_result(None)
        else:
            execution.is_cut = True
            execution.finish("failed", "lost", _RESTARTED)
        return execution

    def _keep(self, execution: Execution) -> None:
        execution.watchers.add(lambda: self._grew(execution.execution_id))
        self._known[execution.execution_id] = execution

    def _path(self, principal: str, execution_id: str) -> Path:
        folder = self._folders.get(principal)
        if folder is None:
            self._config.journals_dir.mkdir(mode=0o700, exist_ok=True)
            # A principal's name may hold what a file name may not.
            folder = self._config.journals_dir / hashlib.sha256(principal.encode()).hexdigest()[:16]
            folder.mkdir(mode=0o700, exist_ok=True)
            self._folders[principal] = folder
            self._on_disk.update(path.stem for path in folder.glob("*.events"))
        return folder / f"{execution_id}.events"

    def _ended(self, execution: Execution) -> None:
        self._unwritten.append(execution)
        self._flush_later()

    def _write_records(self) -> None:
        ended, self._unwritten = self._unwritten, []
        for execution in ended:
            self._ledger.add(execution.principal, execution.record(time.monotonic()))

    def _grew(self, execution_id: str) -> None:
        self._dirty.add(execution_id)
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._write_records()
        dirty, self._dirty = self._dirty, set()
        for execution_id in dirty:
            if (execution := self._known.get(execution_id)) is not None:
                try:
                    execution.journal.flush()
                except OSError as error:  # a full disk must not end the gateway; what is pending stays in memory
                    _log.error("a journal cannot be written", extra={"execution": execution_id, "error": str(error)})
