"""The way of results out of the worker: small ones in a message, large ones through a pipe that the host counts."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable

from kcoral_gateway.worker.inbox import Inbox
from kcoral_gateway.worker.output import Output
from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import transfers as t

INLINE_BYTES = 256 * 1024  # a larger parcel of results goes in pieces beside the events
_PART_BYTES = 1024 * 1024  # after each, an interrupt is taken


def send(
    output: Output,
    inbox: Inbox,
    digest: str,
    size: int,
    segments: Iterable[memoryview],
    problems: tuple[tuple[str, str], ...] = (),
    *,
    is_cache: bool = False,
    inline_bytes: int = INLINE_BYTES,
) -> None:
    """Send ``segments``, ``size`` bytes in all, one after the other, as what a body returns.

    Raises:
        ValueRefused: The gateway's disk takes no results.
    """
    if size <= inline_bytes:
        output.send(t.Returned(digest, size, problems, None, is_cache), (b"".join(segments),))
        return
    output.send(t.Returned(digest, size, problems, None, is_cache))
    while not isinstance(inbox.next().body, t.Spool):
        inbox.drop_descriptors()  # of a body that has been interrupted before
    descriptor = inbox.descriptor()
    if descriptor is None:
        raise ValueRefused("the gateway's disk takes no results")
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb", buffering=0) as spool:
        for segment in segments:  # refused ones break off: the gateway has said why
            for start in range(0, segment.nbytes, _PART_BYTES):
                _write_all(spool, segment[start : start + _PART_BYTES])
    output.send(t.Written())


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]
