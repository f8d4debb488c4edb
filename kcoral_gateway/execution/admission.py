"""Who gets GPUs, and when: first come, first served, a set together or not at all.

Pure: asks and ``now`` (monotonic seconds) in, instructions out; the engine then finds which GPUs. Nobody overtakes: a
large ask at the head is not starved by small ones behind it, at the price of GPUs that wait with it. Asks for no GPU
never wait. Held to these rules by Hypothesis (tests/unit/execution/test_admission.py).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """``gpu_count`` GPUs for ``principal``; ``deadline_s`` is when to give up (``None``: never)."""

    ask_id: str
    principal: str
    gpu_count: int
    deadline_s: float | None = None


@dataclass(frozen=True)
class Granted:
    """The ask holds its GPUs until ``release``."""

    ask_id: str


@dataclass(frozen=True)
class Waiting:
    """The ask's place in the line: how many are ahead, and whose they are (each once, in order)."""

    ask_id: str
    ahead: int
    principals: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The ask can never be granted here."""

    ask_id: str
    reason: str


@dataclass(frozen=True)
class Expired:
    """The deadline passed in the line."""

    ask_id: str


Instruction = Granted | Waiting | Refused | Expired


class Admission:
    """The line for the GPUs of one gateway."""

    def __init__(self, gpu_count: int) -> None:
        self._capacity = gpu_count
        self._held: dict[str, int] = {}
        self._line: list[Ask] = []
        self._told: dict[str, Waiting] = {}

    @property
    def free(self) -> int:
        """GPUs that nobody holds."""
        return self._capacity - sum(self._held.values())

    @property
    def waiting(self) -> int:
        """Asks in the line."""
        return len(self._line)

    @property
    def next_deadline_s(self) -> float | None:
        """When ``expire`` must be called next."""
        return min((ask.deadline_s for ask in self._line if ask.deadline_s is not None), default=None)

    def add(self, ask: Ask, now: float) -> list[Instruction]:
        """A new ask joins the end of the line."""
        if ask.ask_id in self._held or any(ask.ask_id == other.ask_id for other in self._line):
            raise ValueError(f"ask {ask.ask_id} is here already")
        if ask.gpu_count > self._capacity:
            has = f"{self._capacity} GPU{'s' if self._capacity != 1 else ''}"
            return [Refused(ask.ask_id, f"{ask.gpu_count} GPUs were asked for, this gateway has {has}")]
        if ask.gpu_count == 0:
            self._held[ask.ask_id] = 0
            return [Granted(ask.ask_id)]
        self._line.append(ask)
        return self._settle(now)

    def release(self, ask_id: str, now: float) -> list[Instruction]:
        """An ask gives its GPUs back, or leaves the line."""
        self._held.pop(ask_id, None)
        self._line = [ask for ask in self._line if ask.ask_id != ask_id]
        return self._settle(now)

    def expire(self, now: float) -> list[Instruction]:
        """Drop the asks whose deadline has passed."""
        return self._settle(now)

    def _settle(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        late = [ask for ask in self._line if ask.deadline_s is not None and ask.deadline_s <= now]
        self._line = [ask for ask in self._line if ask not in late]
        out += [Expired(ask.ask_id) for ask in late]
        while self._line and self._line[0].gpu_count <= self.free:
            ask = self._line.pop(0)
            self._held[ask.ask_id] = ask.gpu_count
            out.append(Granted(ask.ask_id))
        told: dict[str, Waiting] = {}
        for place, ask in enumerate(self._line):
            ahead = dict.fromkeys(other.principal for other in self._line[:place])
            told[ask.ask_id] = waiting = Waiting(ask.ask_id, place, tuple(ahead))
            if self._told.get(ask.ask_id) != waiting:
                out.append(waiting)
        self._told = told
        return out
