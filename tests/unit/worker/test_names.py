"""Offers that the session takes: what it lacks and what only the notebook has changed, never what it made itself."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_gateway.worker.names import SessionNames
from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values import codec
from kcoral_magic.values.digest import digest, shown


class Side:
    """A session with its namespace, and what a client would say and send."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {}
        self.hidden: set[str] = set()
        self.names = SessionNames(self.space, lambda: self.hidden, lambda name, cell: None)

    def offer(self, *, force: bool = False, **values: Any) -> dict[str, str]:
        """What becomes of each value, as a body's start does it; names of which nothing is told are left out."""
        offers = [t.Offer(name, digest(value)[0], shown(value), force) for name, value in values.items()]
        needed, kept = self.names.sort(offers)
        wanted = {bound.name: values[bound.name] for bound in needed}
        done = self.names.bind(codec.pack(wanted, may_pickle=True).parcel.joined(), needed) if needed else []
        return {bound.name: bound.what for bound in (*done, *kept)}


@pytest.fixture
def side() -> Side:
    return Side()


class Thing:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


# ── one name through its life ──


@pytest.mark.parametrize(("old", "new"), [(1, 2), ([1], [2]), ("a", "a" * 500), (Thing(a=1), Thing(a=2)), (math, sys)])
def test_a_new_value_is_taken_the_same_one_is_not_told_and_an_edited_one_is_taken_again(
    side: Side, old: Any, new: Any
) -> None:
    assert side.offer(x=old) == {"x": "new"}
    assert side.offer(x=old) == {}
    assert side.offer(x=new) == {"x": "changed"}
    assert side.offer(x=new) == {}
    assert digest(side.space["x"])[0] == digest(new)[0]


def test_what_the_session_had_before_is_shown(side: Side) -> None:
    side.offer(x=[1, 2])
    (needed,), kept = side.names.sort([t.Offer("x", "vother", "…")])
    assert (needed, kept) == (t.BoundName("x", "changed", "[1, 2]"), [])
    side.space["y"] = "made there"
    needed, (kept_one,) = side.names.sort([t.Offer("y", "vother")])
    assert (needed, kept_one) == ([], t.BoundName("y", "kept", "'made there'"))


@pytest.mark.parametrize(
    "change",
    [
        lambda space: space["x"].append(3),
        lambda space: space.__setitem__("x", [5]),
        lambda space: space.__setitem__("x", [1, 2]),  # equal, but another object: the session's own
        lambda space: space.__setitem__("x", None),
    ],
    ids=["in place", "rebound", "rebound equal", "rebound None"],
)
def test_what_the_session_has_changed_is_kept_and_that_is_said_once(side: Side, change: Any) -> None:
    side.offer(x=[1, 2])
    change(side.space)
    its = side.space["x"]
    assert side.offer(x=[1, 2, 4]) == {"x": "kept"}
    assert side.offer(x=[1, 2, 4]) == {}
    assert side.offer(x=[1, 2, 5]) == {"x": "kept"}  # another value of the notebook: said again, once
    assert side.offer(x=[1, 2, 5]) == {}
    assert side.space["x"] is its
    assert side.offer(x=[1, 2, 5], force=True) == {"x": "changed"}
    assert side.space["x"] == [1, 2, 5]
    assert side.offer(x=[1, 2, 6]) == {"x": "changed"}  # it is the notebook's again


def test_a_name_that_the_session_made_is_kept_and_nothing_is_said_where_both_agree(side: Side) -> None:
    side.space.update(x=[1], m=math)
    assert side.offer(x=[1], m=math) == {}
    assert side.offer(x=[2]) == {"x": "kept"}
    assert side.offer(x=[1]) == {}


def test_a_name_that_the_session_has_deleted_is_new_again(side: Side) -> None:
    side.offer(x=1)
    del side.space["x"]
    assert side.offer(x=1) == {"x": "new"}


def test_a_forced_value_that_the_session_has_already_is_not_sent_again(side: Side) -> None:
    side.offer(x=[1], force=True)
    assert side.offer(x=[1], force=True) == {}
    side.space["x"].append(2)
    assert side.offer(x=[1], force=True) == {"x": "changed"}
    assert side.space["x"] == [1]


def test_a_value_that_cannot_be_looked_at_there_is_the_sessions_own(side: Side) -> None:
    side.space["x"] = (n for n in ())
    assert side.offer(x=1) == {"x": "kept"}


@pytest.mark.parametrize("value", [slice(0, 2**70), 2**20_000], ids=["slice", "int"])
def test_an_odd_value_of_the_session_stops_nothing(side: Side, value: Any) -> None:
    side.space["x"] = value
    assert side.offer(x=1) == {"x": "kept"}


# ── any history ──

steps = st.lists(
    st.tuples(st.sampled_from(("edit", "offer", "force", "there: change", "there: rebind", "there: delete")), st.integers(0, 3)),
    max_size=14,
)  # fmt: skip


@given(steps)
def test_the_session_never_loses_what_it_changed_and_always_gets_what_only_the_notebook_changed(
    history: list[tuple[str, int]],
) -> None:
    side, here = Side(), [0]
    is_theirs = False  # changed there since it last came from here
    told: set[str] = set()
    for what, number in history:
        there = side.space.get("x")
        if what == "edit":
            here = [number]
        elif what == "there: change" and there is not None:
            there.append(number)
            is_theirs = True
        elif what == "there: rebind":
            side.space["x"], is_theirs = [number, "there"], True
        elif what == "there: delete":
            side.space.pop("x", None)
            is_theirs = False
        elif what in ("offer", "force"):
            before = list(there) if there is not None else None
            outcome = side.offer(x=here, force=what == "force").get("x")
            if before is None:
                assert outcome == "new"
            elif before == here:
                assert outcome in (None, "changed", "kept") if is_theirs else outcome is None
            elif is_theirs and what == "offer":
                assert side.space["x"] == before
                assert outcome == (None if digest(here)[0] in told else "kept")
                told = {digest(here)[0]}
            else:
                assert outcome == "changed"
            if outcome in ("new", "changed"):
                assert side.space["x"] == here
                is_theirs, told = False, set()


# ── parcels ──


def test_one_value_that_cannot_be_read_is_missing_with_a_reason_and_the_others_are_bound(side: Side) -> None:
    data = codec.pack({"a": 1, "bad": Fails(), "b": 2}, may_pickle=True).parcel.joined()
    done = side.names.bind(data, [t.BoundName(name, "new") for name in ("a", "bad", "b")])
    assert {bound.name: bound.what for bound in done} == {"a": "new", "bad": "missing", "b": "new"}
    assert ["bad cannot be read here" in bound.was for bound in done if bound.name == "bad"] == [True]
    assert side.space == {"a": 1, "b": 2}


class Fails:
    def __reduce__(self) -> Any:
        return math.sqrt, (-1,)


def test_what_was_not_wanted_is_not_bound(side: Side) -> None:
    data = codec.pack({"a": 1, "b": 2}, may_pickle=True).parcel.joined()
    assert side.names.bind(data, [t.BoundName("b", "new")]) == [t.BoundName("b", "new")]
    assert side.space == {"b": 2}


def test_bytes_that_are_no_parcel_are_refused(side: Side) -> None:
    with pytest.raises(ValueRefused):
        side.names.bind(b"nonsense", [t.BoundName("a", "new")])


# ── out ──


def test_what_was_asked_for_comes_back_and_each_problem_is_its_names_own(side: Side) -> None:
    side.space.update(a=[1, 2], g=(n for n in ()))
    wants = [t.Wanted("a", "a"), t.Wanted("n", "len(a)"), t.Wanted("bad", "a[9]"), t.Wanted("g", "g")]
    packed, problems = side.names.returned(
        wants, m.Peer(python=codec.VERSION, takes_pickles=True), lambda text: eval(text, side.space)
    )
    back = {entry.name: value for entry, value in codec.Unpacked(packed.parcel.joined(), takes_pickles=True).values()}
    assert back == {"a": [1, 2], "n": 2}
    assert problems.keys() == {"bad", "g"}
    assert "IndexError" in problems["bad"]
    assert "generator" in problems["g"]


def test_a_client_that_takes_no_pickles_gets_placeholders(side: Side) -> None:
    packed, problems = side.names.returned(
        [t.Wanted("t", "t")], m.Peer(python=codec.VERSION, takes_pickles=False), lambda text: Thing()
    )
    ((_, value),) = codec.Unpacked(packed.parcel.joined(), takes_pickles=False).values()
    assert isinstance(value, codec.Opaque)
    assert problems == {}


def test_the_names_of_a_session_are_told_when_they_have_changed(side: Side) -> None:
    side.space.update(b=1, a=2, _private=3, shell_thing=4)
    side.hidden.add("shell_thing")
    assert side.names.changed() == t.Names(("a", "b"))
    assert side.names.changed() is None
    side.space["a"] = 5
    assert side.names.changed() is None
    del side.space["a"]
    assert side.names.changed() == t.Names(("b",))
    side.space.update({f"n{n}": n for n in range(5000)}, **{"x" * 500: 1})
    told = side.names.changed()
    assert told is not None
    assert len(told.names) < 2000
    assert max(map(len, told.names)) <= 60


def test_a_module_is_the_same_by_its_name(side: Side) -> None:
    module = types.ModuleType("math")
    side.space["m"] = module
    assert side.offer(m=math) == {}
    assert side.space["m"] is module
