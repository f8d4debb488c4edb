"""An execution's journal as one answer: its text up to a limit, its error, and where its returned values lie."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcoral_gateway.execution.journal import Gap
from kcoral_gateway.execution.sessions import Execution
from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol import framing, outcome, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.protocol.connection import Reader

_NOT_ENDED = m.Finished("failed", 0.0, "internal", "it has not ended")


@dataclass
class Text:
    """The beginning of a stream. A limit of 0 means that nobody wants it: then nothing is cut."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    is_cut: bool = False

    def add(self, data: framing.Buffer) -> None:
        """The next bytes."""
        room = self.limit - len(self.data)
        self.is_cut = self.is_cut or (len(data) > room and self.limit > 0)
        self.data += memoryview(data)[: max(room, 0)]

    @property
    def shown(self) -> str:
        """The text."""
        return self.data.decode("utf-8", "replace")


@dataclass
class Watched:
    """What an execution has said. ``inline`` and ``blobs`` are its returned values, in the order of ``order``."""

    text: dict[str, Text]
    finished: m.Finished = _NOT_ENDED
    gpus: tuple[m.Gpu, ...] = ()
    failed: steps.Failed | None = None
    traceback: str = ""
    returned: list[tuple[t.Returned, bytes]] = field(default_factory=list)

    @property
    def blobs(self) -> list[str]:
        """Digests of the values that lie on disk."""
        return [told.blob for told, _ in self.returned if told.blob is not None]

    def take(self, body: m.EventBody, buffers: Sequence[framing.Buffer]) -> None:
        """The next event."""
        match body:
            case m.Stream(name=name):
                self.text[name].add(buffers[0])
            case m.Placed(gpus=gpus):
                self.gpus = gpus
            case steps.Failed():
                self.failed = body
            case m.Error():
                self.traceback = bytes(buffers[1]).decode("utf-8", "replace")
            case t.Returned():
                self.returned.append((body, bytes(buffers[0]) if buffers else b""))
            case m.Finished():
                self.finished = body
            case _:
                pass

    def error(self) -> dict[str, Any]:
        """Why it failed, attributed to the instruction, as KCoral's clients expect it."""
        failed = self.failed or steps.Failed("engine", 0, "", "", self.finished.message)
        return {
            "kind": failed.kind,
            "message": failed.message,
            "instruction_index": failed.index,
            "instruction_op": failed.op,
            "instruction_id": failed.instruction_id or None,
            "traceback": self.traceback,
        }

    def outcome(self, folder: Path) -> outcome.Outcome:
        """The returned values; ``folder`` holds the large ones.

        Raises:
            ProtocolError: What the worker says of them is not so.
            OSError: They are not there.
        """
        made = outcome.Outcome()
        for told, inline in self.returned:
            if told.problems:
                raise ProtocolError(told.problems[0][1])
            if told.blob is None:
                made.add(outcome.unpack(inline, len(inline)), inline)
                continue
            path = folder / told.blob
            if self.finished.status != "ok" and not path.exists():
                continue  # its worker was lost while it wrote this one
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                foot = os.pread(file.fileno(), outcome.FOOT_BYTES, max(0, size - outcome.FOOT_BYTES))
                length = outcome.tail_bytes(foot)
                tail = os.pread(file.fileno(), length, max(0, size - length))
                made.add(outcome.unpack(tail, size), path)
        return made


async def watch(execution: Execution, limit: int) -> Watched:
    """Read an execution to its end, keeping the first ``limit`` bytes of each stream."""
    watched = Watched({"stdout": Text(limit), "stderr": Text(limit)})
    reader = Reader(m.View())
    decoder = framing.Decoder[m.ToClient](m.ToClient)
    grew = asyncio.Event()
    execution.watchers.add(grew.set)
    try:
        while True:
            grew.clear()
            while (piece := execution.journal.next(reader)) is not None:
                if isinstance(piece, Gap):
                    reader.sent(piece.to, 0)
                    for text in watched.text.values():
                        text.is_cut = text.limit > 0
                    continue
                reader.sent(piece.number, 0)
                for frame in piece.frames:
                    message = decoder.decode(frame)
                    if message is not None and isinstance(message.body, m.Event):
                        watched.take(message.body.body, message.buffers)
            if execution.journal.is_finished and reader.next > execution.journal.last:
                return watched
            await grew.wait()
    finally:
        execution.watchers.discard(grew.set)
