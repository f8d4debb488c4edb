"""The raw parts of a value: what a writer gathers without copying, and what a reader may take, each once checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcoral_magic.errors import ValueRefused

Buffer = bytes | bytearray | memoryview


class NotSafe(Exception):
    """A value has no safe format; ``path`` leads to the part that has none, ``why`` says what it is."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.path = path


class Writer:
    """Gathers buffers. ``notes`` are for people: what arrives otherwise than it left.

    ``objects`` are those that keep their identity in what was written. ``may_track``: the reader takes no pickles, so
    that it has a class of the notebook already, or cannot have it.
    """

    def __init__(self, *, may_track: bool = False) -> None:
        self.may_track = may_track
        self.objects: list[Any] = []
        self.buffers: list[memoryview] = []
        self.notes: list[str] = []

    def add(self, data: Buffer) -> int:
        """The number under which the reader finds ``data``; it is not copied and must not change before it is sent."""
        view = memoryview(data)
        self.buffers.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
        return len(self.buffers) - 1


class Reader:
    """Gives buffers out against what a head says of them; whoever wrote the head is a stranger."""

    def __init__(self, buffers: Sequence[Buffer], *, is_trusted_writer: bool = False) -> None:
        self._buffers: list[Buffer | None] = list(buffers)
        self.is_trusted_writer = is_trusted_writer  # the worker's side: it may import what its own client names
        self.notes: list[str] = []

    def take(self, number: object, size: int | None = None) -> memoryview:
        """Buffer ``number``, which has ``size`` bytes.

        Raises:
            ValueRefused: There is none, or it has another size.
        """
        if type(number) is not int or not 0 <= number < len(self._buffers):
            raise ValueRefused(f"the value names buffer {number!r:.40}, it came with {len(self._buffers)}")
        buffer, self._buffers[number] = self._buffers[number], None
        if buffer is None:  # a writer adds each part once; a stranger could make gigabytes of one
            raise ValueRefused(f"the value names buffer {number} twice")
        view = memoryview(buffer)
        if size is not None and view.nbytes != size:
            raise ValueRefused(f"a buffer of {size} bytes was announced, {view.nbytes} came")
        return view


def refuse_unless(fact: bool, text: str) -> None:
    """What a stranger's head says must hold.

    Raises:
        ValueRefused: It does not.
    """
    if not fact:
        raise ValueRefused(text)


def number_in(value: object, low: int, high: int) -> int:
    """``value`` as an int between ``low`` and ``high``.

    Raises:
        ValueRefused: It is none.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueRefused(f"a number between {low} and {high} was due, got {value!r:.40}")
    return value


def shape_in(value: object) -> tuple[int, ...]:
    """``value`` as a shape: at most 64 axes (numpy 2's limit), each of 0 elements or more.

    Raises:
        ValueRefused: It is none.
    """
    if type(value) is not list or len(value) > 64:
        raise ValueRefused(f"a shape was due, got {value!r:.60}")
    return tuple(number_in(axis, 0, 1 << 48) for axis in value)
