"""Who gets GPUs, and when: the rules, held against random asks, releases and deadlines."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kcoral_gateway.execution.admission import Admission, Ask, Expired, Granted, Instruction, Refused, Waiting


class Line(RuleBasedStateMachine):
    """Follows the instructions as the service does, and knows what must be true after each."""

    @initialize(capacity=st.integers(0, 8))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.admission = Admission(gpus(capacity))
        self.now = 0.0
        self.count = 0
        self.line: list[Ask] = []  # asks that have had no answer but Waiting, in the order they came
        self.holders: dict[str, Ask] = {}
        self.told: dict[str, Waiting] = {}
        self.sets: dict[str, tuple[str, ...]] = {}

    def follow(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            ask = next((ask for ask in self.line if ask.ask_id == instruction.ask_id), None)
            assert ask is not None, f"{instruction} answers nobody who waits"
            match instruction:
                case Granted(devices=devices):
                    earlier = self.line[: self.line.index(ask)]
                    assert ask.gpu_count == 0 or all(
                        other.devices and not set(other.devices) & set(devices) for other in earlier
                    ), "granted before an earlier asker whom it delays"
                    assert len(set(devices)) == ask.gpu_count
                    assert not ask.devices or devices == ask.devices
                    held = [device for others in self.sets.values() for device in others]
                    assert not set(held) & set(devices), "granted twice"
                    self.holders[ask.ask_id], self.sets[ask.ask_id] = ask, devices
                    self.line.remove(ask)
                case Waiting():
                    assert self.told.get(ask.ask_id) != instruction, "the same thing was told twice"
                    self.told[ask.ask_id] = instruction
                case Refused(reason=reason):
                    assert ask.gpu_count > self.capacity or not set(ask.devices) <= set(gpus(self.capacity))
                    assert f"{ask.gpu_count} GPUs were asked for" in reason
                    assert f"has {self.capacity} GPU" in reason
                    self.line.remove(ask)
                case Expired():
                    assert ask.deadline_s is not None
                    assert ask.deadline_s <= self.now
                    self.line.remove(ask)

    @rule(gpu_count=st.integers(0, 9), principal=st.sampled_from("abc"), patience_s=st.none() | st.floats(0.1, 20))
    def somebody_asks(self, gpu_count: int, principal: str, patience_s: float | None) -> None:
        self.count += 1
        deadline_s = None if patience_s is None else self.now + patience_s
        ask = Ask(f"ask-{self.count}", principal, gpu_count, deadline_s)
        self.line.append(ask)
        self.follow(self.admission.add(ask, self.now))
        if gpu_count > self.capacity:
            assert ask not in self.line, "an ask that can never be granted was not refused at once"
        if gpu_count == 0:
            assert ask.ask_id in self.holders, "an ask for no GPU waits"

    @rule(data=st.data(), principal=st.sampled_from("abc"), patience_s=st.none() | st.floats(0.1, 20))
    def somebody_asks_for_certain_ones(self, data: st.DataObject, principal: str, patience_s: float | None) -> None:
        wanted = data.draw(st.lists(st.sampled_from(gpus(8)), min_size=1, max_size=3, unique=True))
        self.count += 1
        deadline_s = None if patience_s is None else self.now + patience_s
        ask = Ask(f"ask-{self.count}", principal, len(wanted), deadline_s, tuple(wanted))
        self.line.append(ask)
        self.follow(self.admission.add(ask, self.now))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def a_holder_releases(self, data: st.DataObject) -> None:
        ask_id = data.draw(st.sampled_from(sorted(self.holders)))
        del self.holders[ask_id], self.sets[ask_id]
        self.follow(self.admission.release(ask_id, self.now))

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def somebody_leaves_the_line(self, data: st.DataObject) -> None:
        ask = data.draw(st.sampled_from(self.line))
        self.line.remove(ask)
        self.follow(self.admission.release(ask.ask_id, self.now))

    @rule(passed_s=st.floats(0, 10))
    def time_passes(self, passed_s: float) -> None:
        self.now += passed_s
        due = self.admission.next_deadline_s
        if due is not None and due <= self.now:
            self.follow(self.admission.expire(self.now))

    @invariant()
    def never_more_is_granted_than_there_is(self) -> None:
        held = sum(ask.gpu_count for ask in self.holders.values())
        assert held <= self.capacity
        assert len(self.admission.free) == self.capacity - held
        assert self.admission.waiting == len(self.line)

    @invariant()
    def the_first_in_the_line_waits_for_gpus_only(self) -> None:
        if self.line:
            first, free = self.line[0], set(self.admission.free)
            assert first.gpu_count > len(free) or not set(first.devices) <= free

    @invariant()
    def everybody_in_the_line_knows_who_is_ahead(self) -> None:
        for place, ask in enumerate(self.line):
            told = self.told[ask.ask_id]
            assert told.ahead == place
            principals = [other.principal for other in self.line[:place]]
            assert list(told.principals) == sorted(set(principals), key=principals.index)

    @invariant()
    def nobody_waits_beyond_a_deadline_once_time_was_told(self) -> None:
        deadlines = [ask.deadline_s for ask in self.line if ask.deadline_s is not None]
        assert self.admission.next_deadline_s == min(deadlines, default=None)
        assert all(deadline_s > self.now for deadline_s in deadlines)

    def teardown(self) -> None:
        """When all who hold release, everybody who still waits is granted, in order."""
        if not hasattr(self, "admission"):
            return
        for _ in range(len(self.line) + len(self.holders)):
            for ask_id in list(self.holders):
                del self.holders[ask_id], self.sets[ask_id]
                self.follow(self.admission.release(ask_id, self.now))
        assert self.line == []
        assert len(self.admission.free) == self.capacity


def gpus(count: int) -> tuple[str, ...]:
    return tuple(f"g{number}" for number in range(count))


TestLine = Line.TestCase
TestLine.settings = settings(settings.default, max_examples=150, stateful_step_count=30)


def ask(ask_id: str, gpu_count: int, principal: str = "ana", deadline_s: float | None = None) -> Ask:
    return Ask(ask_id, principal, gpu_count, deadline_s)


def test_a_set_is_granted_whole_or_waits_whole_and_nobody_small_overtakes_it() -> None:
    admission = Admission(gpus(4))
    assert admission.add(ask("one", 3), 0) == [Granted("one", ("g0", "g1", "g2"))]
    assert admission.add(ask("two", 2, "ben"), 0) == [Waiting("two", 0, ())]
    assert admission.add(ask("small", 1, "cy"), 0) == [Waiting("small", 1, ("ben",))]
    assert len(admission.free) == 1
    assert admission.release("one", 0) == [Granted("two", ("g0", "g1")), Granted("small", ("g2",))]
    assert len(admission.free) == 1


def test_the_line_is_told_when_it_moves_and_only_those_for_whom_it_did() -> None:
    admission = Admission(gpus(1))
    admission.add(ask("one", 1), 0)
    for name in ("two", "three", "four"):
        admission.add(ask(name, 1, name), 0)
    assert admission.release("three", 0) == [Waiting("four", 1, ("two",))]
    assert admission.release("one", 0) == [Granted("two", ("g0",)), Waiting("four", 0, ())]
    assert admission.expire(1) == []


def test_an_ask_that_can_never_be_granted_is_refused_with_the_reason_even_when_others_wait() -> None:
    admission = Admission(gpus(1))
    admission.add(ask("one", 1), 0)
    admission.add(ask("two", 1), 0)
    assert admission.add(ask("three", 2), 0) == [Refused("three", "2 GPUs were asked for, this gateway has 1 GPU")]
    assert Admission(gpus(0)).add(ask("one", 1), 0) == [
        Refused("one", "1 GPUs were asked for, this gateway has 0 GPUs")
    ]
    assert admission.waiting == 1


def test_asks_for_no_gpu_never_wait() -> None:
    admission = Admission(gpus(0))
    assert admission.add(ask("one", 0), 0) == [Granted("one")]
    assert admission.release("one", 0) == []


def test_a_deadline_takes_an_ask_out_of_the_line_and_lets_the_next_one_in() -> None:
    admission = Admission(gpus(2))
    admission.add(ask("one", 1), 0)
    admission.add(ask("large", 2, deadline_s=10.0), 0)
    admission.add(ask("small", 1, deadline_s=30.0), 0)
    assert admission.next_deadline_s == 10.0
    assert admission.expire(9.9) == []
    assert admission.expire(10.0) == [Expired("large"), Granted("small", ("g1",))]
    assert admission.next_deadline_s is None


def test_a_release_after_the_deadline_does_not_grant_what_has_expired() -> None:
    admission = Admission(gpus(1))
    admission.add(ask("one", 1), 0)
    admission.add(ask("two", 1, deadline_s=10.0), 0)
    assert admission.release("one", 11.0) == [Expired("two")]
    assert len(admission.free) == 1


def test_a_holder_keeps_its_gpus_whatever_its_deadline_was() -> None:
    admission = Admission(gpus(1))
    assert admission.add(ask("one", 1, deadline_s=10.0), 0) == [Granted("one", ("g0",))]
    assert admission.expire(20.0) == []
    assert len(admission.free) == 0


def test_an_id_that_holds_or_waits_cannot_ask_again_and_one_that_left_can() -> None:
    admission = Admission(gpus(1))
    admission.add(ask("one", 1), 0)
    admission.add(ask("two", 1), 0)
    for name in ("one", "two"):
        with pytest.raises(ValueError, match="is here already"):
            admission.add(ask(name, 1), 0)
    admission.release("two", 0)
    assert admission.add(ask("two", 1), 0) == [Waiting("two", 0, ())]
    assert admission.release("nobody", 0) == []


def test_asks_that_name_their_gpus_stand_in_one_line_for_each() -> None:
    admission = Admission(gpus(3))
    admission.add(Ask("zero", "ana", 1, None, ("g0",)), 0)
    assert admission.add(Ask("again", "ben", 2, None, ("g0", "g1")), 0) == [Waiting("again", 0, ())]
    assert admission.add(Ask("other", "cy", 1, None, ("g2",)), 0) == [Granted("other", ("g2",))]
    assert admission.add(Ask("behind", "cy", 1, None, ("g1",)), 0) == [Waiting("behind", 1, ("ben",))]
    assert admission.release("zero", 0) == [Granted("again", ("g0", "g1")), Waiting("behind", 0, ())]


def test_an_ask_for_certain_gpus_does_not_overtake_one_for_any() -> None:
    admission = Admission(gpus(2))
    admission.add(Ask("one", "ana", 1, None, ("g0",)), 0)
    admission.add(ask("both", 2, "ben"), 0)
    assert admission.add(Ask("free", "cy", 1, None, ("g1",)), 0) == [Waiting("free", 1, ("ben",))]


def test_the_engine_chooses_among_the_free_ones() -> None:
    admission = Admission(gpus(3), lambda ask, free: free[-ask.gpu_count :])
    assert admission.add(ask("two", 2), 0) == [Granted("two", ("g1", "g2"))]
    assert admission.free == ("g0",)
