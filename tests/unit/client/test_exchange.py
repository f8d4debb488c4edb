"""What a session is believed to have: it saves bytes, and where it is wrong the session asks."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from kcoral_magic.client import exchange
from kcoral_magic.client.exchange import INLINE_BYTES, PYTHON, Belief, Outgoing, outgoing
from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values import codec
from kcoral_magic.values.digest import digest


def bound(*names: str, what: Any = "new") -> list[t.BoundName]:
    return [t.BoundName(name, what) for name in names]


def unpacked(data: bytes) -> dict[str, Any]:
    return {entry.name: value for entry, value in codec.Unpacked(data, takes_pickles=True).values()} if data else {}


class Plain:
    pass


# ── looking ──


def test_every_value_gets_digest_and_size_and_one_that_cannot_travel_gets_a_reason() -> None:
    out = outgoing({"f": 1}, {"a": [1, 2], "bad": [threading.Lock()], "f": 2})
    assert out.values == {"a": [1, 2], "f": 1}
    assert out.digests == {"a": digest([1, 2])[0], "f": digest(1)[0]}
    assert out.sizes.keys() == {"a", "f"}
    assert out.forced == {"f"}
    assert out.problems["bad"].startswith("bad[0] is a _thread.lock")


@pytest.mark.parametrize("value", [slice(0, 2**70), 2**20_000], ids=["slice", "int"])
def test_looking_at_an_odd_value_stops_nothing(value: Any) -> None:
    out = outgoing({}, {"a": 1, "odd": value})
    assert "a" in out.values
    Belief().offers(out)


# ── belief ──


def test_a_new_session_lacks_everything_and_one_that_took_it_lacks_nothing() -> None:
    belief, out = Belief(python=PYTHON), outgoing({}, {"a": 1, "b": [2]})
    assert belief.lacking(out) == {"a": 1, "b": [2]}
    belief.bound(out, bound("a", "b"))
    assert belief.lacking(out) == {}
    assert belief.lacking(outgoing({}, {"a": 1, "b": [3]})) == {"b": [3]}


@pytest.mark.parametrize(("what", "has"), [("new", True), ("changed", True), ("kept", False), ("missing", False)])
def test_only_what_was_taken_is_believed_to_be_there(what: Any, has: bool) -> None:
    belief, out = Belief(), outgoing({}, {"a": 1})
    belief.bound(out, [*bound("a", what=what), *bound("stranger")])
    assert belief.has("a", out.digests["a"]) is has
    assert "stranger" not in belief.sent


def test_small_values_go_along_all_or_none() -> None:
    belief = Belief(python=PYTHON)
    small, large = {"a": 1}, {"a": 1, "b": bytes(INLINE_BYTES)}
    assert unpacked(exchange.inline(belief, outgoing({}, small))) == small
    assert exchange.inline(belief, outgoing({}, large)) == b""
    belief.bound(outgoing({}, large), bound("b"))
    assert unpacked(exchange.inline(belief, outgoing({}, large))) == small


def test_until_its_python_is_known_only_what_any_python_takes_goes_along() -> None:
    belief = Belief()
    assert unpacked(exchange.inline(belief, outgoing({}, {"a": [1], "m": np}))) == {"a": [1], "m": np}
    assert exchange.inline(belief, outgoing({}, {"a": [1], "p": Plain})) == b""
    belief.python = PYTHON
    assert unpacked(exchange.inline(belief, outgoing({}, {"p": Plain}))) == {"p": Plain}


def test_another_namespace_has_nothing_and_the_same_one_keeps_all() -> None:
    out = outgoing({}, {"a": 1})
    belief = Belief(files={"f": t.FileIn("f", None)}, synced={"f"}, modules={"m"}, names=("n",), python="3.0")
    belief.bound(out, bound("a"))
    belief.moved_to("one")
    belief.moved_to("one")
    belief.moved_to("")
    assert (belief.has("a", out.digests["a"]), belief.namespace, belief.python) == (True, "one", "3.0")
    belief.moved_to("two")
    assert not belief.has("a", out.digests["a"])
    assert (belief.files, belief.synced, belief.names, belief.python, belief.namespace) == ({}, set(), (), "", "two")
    assert belief.modules == {"m"}  # what it is to follow is the user's wish, not the session's state


def test_files_that_come_anew_leave_only_the_names_forgotten() -> None:
    belief = Belief("one", {"a": "v1"}, {"b": ("v1", "v2")}, files={"f": t.FileIn("f", None)}, synced={"f"})
    belief.forget_names()
    assert (belief.sent, belief.received, belief.namespace) == ({}, {}, "")
    assert (belief.files.keys(), belief.synced) == ({"f"}, {"f"})


def test_a_value_that_came_from_the_session_and_is_unchanged_goes_by_the_sessions_digest() -> None:
    """Its own pickle of the value may differ from ours, and the value need not go back."""
    belief, out = Belief(python=PYTHON), outgoing({}, {"a": [1], "b": 2})
    belief.received = {"a": (out.digests["a"], "ptheirs"), "b": ("vother", "ptheirs")}
    assert [(o.name, o.digest) for o in belief.offers(out)] == [("a", "ptheirs"), ("b", out.digests["b"])]
    assert belief.lacking(out) == {"b": 2}
    changed = outgoing({}, {"a": [1, 2]})
    assert belief.offers(changed)[0].digest == changed.digests["a"]
    belief.bound(changed, bound("a", what="changed"))
    assert belief.received.keys() == {"b"}


def test_offers_are_small_and_say_what_is_forced() -> None:
    out = outgoing({"f": 1}, {"long": "x" * 10_000, "many": ["y"] * 1000})
    offers = {offer.name: offer for offer in Belief().offers(out)}
    assert [offers[name].is_forced for name in ("f", "long", "many")] == [True, False, False]
    assert offers["many"].shown == "list of 1,000"
    assert len(msgspec.msgpack.encode(tuple(offers.values()))) < 400


def test_the_basis_is_that_of_the_worker() -> None:
    belief = Belief(files={"b": t.FileIn("b", "sha256-" + "0" * 64), "a": t.FileIn("a", "sha256-" + "1" * 64)})
    assert belief.basis == t.tree_digest({"a": "sha256-" + "1" * 64, "b": "sha256-" + "0" * 64})
    assert Belief().basis == ""


# ── packing ──


def test_the_session_gets_what_it_asks_for_and_nothing_that_was_not_offered() -> None:
    out = outgoing({}, {"a": 1, "b": 2})
    assert unpacked(exchange.packed(out, ["b"]).parcel.joined()) == {"b": 2}
    for offered, names in ((out, ["b", "secret"]), (None, ["a"])):
        with pytest.raises(ValueRefused, match="not offered"):
            exchange.packed(offered, names)
    assert unpacked(exchange.packed(None, []).parcel.joined()) == {}


def test_what_can_no_longer_be_packed_is_told_before_anything_is_sent() -> None:
    out = Outgoing(values={"a": threading.Lock(), "b": 1}, digests={"a": "p0", "b": "v0"}, sizes={"a": 1, "b": 1})
    with pytest.raises(ValueRefused, match=r"a is a _thread\.lock"):
        exchange.packed(out, ["a", "b"])
    other = Outgoing(values={"a": lambda: 1}, digests={"a": "p0"}, sizes={"a": 1})
    with pytest.raises(ValueRefused, match=r"3\.99 there"):
        exchange.packed(other, ["a"], "3.99")


# ── wishes ──


@pytest.mark.parametrize(
    ("want", "name", "expression"),
    [
        ("c", "c", "c"),
        (" c ", "c", "c"),
        ("w=model.state_dict()", "w", "model.state_dict()"),
        ("w = a == b", "w", "a == b"),
        ("f=g(x=1)", "f", "g(x=1)"),
        ("c=", "c", "c"),
        (("w", "a + b"), "w", "a + b"),
        ("ü=1", "ü", "1"),
    ],
)
def test_a_wish_is_a_name_or_a_name_with_an_expression(want: Any, name: str, expression: str) -> None:
    assert exchange.wanted([want]) == (t.Wanted(name, expression),)


@pytest.mark.parametrize("want", ["", "=1", "a.b", "a b", "1a=2", "model.state_dict()", ("", "x"), "a-b=1"])
def test_a_wish_without_a_name_is_refused_with_an_example(want: Any) -> None:
    with pytest.raises(UsageError, match=r"as in c or w=model\.state_dict"):
        exchange.wanted([want])
