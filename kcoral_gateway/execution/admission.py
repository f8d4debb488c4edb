"""Who gets GPUs, and when: first come, first served, a set together or not at all.

Pure: asks and ``now`` (monotonic seconds) in, instructions out. Nobody overtakes: a large ask at the head is not
starved by small ones behind it, at the price of GPUs that wait with it. One exception delays nobody: asks that name
their devices stand in one line for each device. Asks for no GPU never wait. Held to these rules by Hypothesis
(tests/unit/execution/test_admission.py). The same rules hand out the places of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """``gpu_count`` GPUs for ``principal``; ``deadline_s`` is when to give up (``None``: never).

    ``devices``: these and no others; there are ``gpu_count`` of them.
    """

    ask_id: str
    principal: str
    gpu_count: int
    deadline_s: float | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Granted:
    """The ask holds ``devices`` until ``release``."""

    ask_id: str
    devices: tuple[str, ...] = ()


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
Choose = Callable[[Ask, tuple[str, ...]], tuple[str, ...]]


def in_order(ask: Ask, free: tuple[str, ...]) -> tuple[str, ...]:
    """The first free devices, so that equal asks get equal sets."""
    return free[: ask.gpu_count]


class Admission:
    """The line for the GPUs of one gateway.

    Args:
        devices: What there is, by name.
        choose: Which of the free devices an ask gets that names none: ``gpu_count`` of those it is shown.
    """

    def __init__(self, devices: Sequence[str], choose: Choose = in_order) -> None:
        self._devices = tuple(devices)
        self._choose = choose
        self._held: dict[str, tuple[str, ...]] = {}
        self._line: list[Ask] = []
        self._told: dict[str, Waiting] = {}

    @property
    def capacity(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    @property
    def free(self) -> tuple[str, ...]:
        """Devices that nobody holds, in their order."""
        held = {device for devices in self._held.values() for device in devices}
        return tuple(device for device in self._devices if device not in held)

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
        if ask.gpu_count > len(self._devices) or not set(ask.devices) <= set(self._devices):
            count = len(self._devices)
            has = f"{count} GPU{'s' if count != 1 else ''}"
            return [Refused(ask.ask_id, f"{ask.gpu_count} GPUs were asked for, this gateway has {has}")]
        if ask.gpu_count == 0:
            self._held[ask.ask_id] = ()
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
        if late:
            self._line = [ask for ask in self._line if ask not in late]
        out += [Expired(ask.ask_id) for ask in late]
        out += self._grant()
        told: dict[str, Waiting] = {}
        ahead: tuple[str, ...] = ()
        for place, ask in enumerate(self._line):
            told[ask.ask_id] = waiting = Waiting(ask.ask_id, place, ahead)
            if self._told.get(ask.ask_id) != waiting:
                out.append(waiting)
            if ask.principal not in ahead:
                ahead = (*ahead, ask.principal)
        self._told = told
        return out

    def _grant(self) -> list[Granted]:
        granted: list[Granted] = []
        usable = list(self.free)  # and not waited for by an earlier ask that names it
        for ask in list(self._line):
            if ask.devices:
                wanted = ask.devices
                if not set(wanted) <= set(usable):
                    usable = [device for device in usable if device not in wanted]
                    continue
            elif ask.gpu_count <= len(usable):
                wanted = self._choose(ask, tuple(usable))
            else:
                break
            self._line.remove(ask)
            self._held[ask.ask_id] = wanted
            granted.append(Granted(ask.ask_id, wanted))
            usable = [device for device in usable if device not in wanted]
        return granted
