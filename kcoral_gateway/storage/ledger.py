"""Records of ended executions: a line of JSON each, one file for a principal, the oldest forgotten.

A line is appended when an execution ends, whatever becomes of its journal. A torn last line (the gateway was killed) is
passed over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from logging import getLogger
from pathlib import Path

import msgspec

from kcoral_magic.protocol import messages as m

_log = getLogger(__name__)
_decoder = msgspec.json.Decoder(m.Record)


class Ledger:
    """The records of all principals below ``folder``: of each the newest ``count``, at most ``days`` old."""

    def __init__(self, folder: Path, *, days: float, count: int) -> None:
        self._folder = folder
        self._days = days
        self._count = count

    def add(self, principal: str, record: m.Record) -> None:
        """Keep a record. A full disk costs the record, not the execution."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._path(principal), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab", buffering=0) as file:
                file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            _log.error("a record cannot be written", extra={"execution": record.execution_id, "error": str(error)})

    def read(self, principal: str) -> Iterator[m.Record]:
        """A principal's records, newest first."""
        try:
            lines = self._path(principal).read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in reversed(lines):
            try:
                yield _decoder.decode(line)
            except msgspec.MsgspecError:  # torn, or of another version
                continue

    def prune(self, now_s: float) -> None:
        """Forget what is too old or too much, of everybody."""
        for path in self._folder.glob("*.jsonl"):
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines[-self._count :] if self._is_young(line, now_s)]
            if len(kept) < len(lines):
                fresh = path.with_suffix(".new")
                fresh.write_bytes(b"".join(kept))
                fresh.chmod(0o600)
                fresh.replace(path)

    def _is_young(self, line: bytes, now_s: float) -> bool:
        try:
            return now_s - _decoder.decode(line).started_s < self._days * 86400
        except msgspec.MsgspecError:
            return False

    def _path(self, principal: str) -> Path:
        # A principal's name may hold what a file name may not.
        return self._folder / f"{hashlib.sha256(principal.encode()).hexdigest()[:16]}.jsonl"
