"""Safe formats: what goes in comes out, what was shared stays shared, and what has no safe format is named by its path."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import os
import re
import sys
import uuid
import zoneinfo
from collections import OrderedDict, deque, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.values import tree
from kcoral_magic.values.buffers import NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest


def travelled(value: Any) -> Any:
    """``value`` as another process would read it; buffers are copied as the wire copies them."""
    writer = Writer()
    head = tree.write(value, writer)
    return tree.read(head, Reader([bytearray(buffer) for buffer in writer.buffers]))


def mark(value: Any) -> str:
    return digest(value)[0]


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any = 0
    y: Any = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    left: Any
    right: Any = None


@dataclasses.dataclass(eq=False)  # hashed by identity, so it may hold what has no hash
class Holder:
    item: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any = None


Old = namedtuple("Old", "a b")


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    ROT = 1  # noqa: PIE796 - an alias is what is tested


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]  # as transformers' ModelOutput is one
    loss: Any = None


class SlotBase:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class OnSlots(SlotBase):
    y: int = 0


# ── properties ──

zones = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.integers(-86_399, 86_399).map(lambda s: datetime.timezone(datetime.timedelta(seconds=s))),
    st.sampled_from(("Europe/Berlin", "America/New_York", "Asia/Kathmandu")).map(zoneinfo.ZoneInfo),
)
moments = st.builds(
    lambda when, zone, fold: when.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, st.sampled_from((0, 1))
)
texts = st.one_of(st.text(max_size=8), st.text(st.characters(categories=["Cs", "Lu", "So"]), max_size=5))
ints = st.one_of(
    st.integers(), st.integers(-(2**200), 2**200), st.sampled_from((2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1))
)
hashables = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), ints, st.floats(allow_nan=False), texts, st.binary(max_size=8)),
        *(
            moments,
            st.dates(),
            st.times(),
            st.timedeltas(),
            st.uuids(),
            st.just(...),
            st.sampled_from([*Colour, *Level]),
        ),
        st.decimals(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.integers(1, 9)),
        st.text("abc/.ü", max_size=9).map(Path),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=5,
)
values = st.recursive(
    st.one_of(
        hashables,
        st.binary(max_size=8).map(bytearray),
        st.builds(slice, st.none() | st.integers(-9, 9), st.integers(0, 9)),
    ),
    lambda inner: st.one_of(
        *(st.lists(inner, max_size=4), st.sets(hashables, max_size=4), st.dictionaries(hashables, inner, max_size=4)),
        st.lists(st.tuples(hashables, inner), max_size=3).map(OrderedDict),
        st.builds(Slotted, inner, inner),
        st.builds(Old, inner, inner),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type and value all the way down: ``1 == True == 1.0`` would hide a change."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one, math.copysign(1, one)) == (
            other,
            math.copysign(1, other),
        )
    if isinstance(one, datetime.datetime | datetime.time):
        return one.isoformat() == other.isoformat() and (one.fold, str(one.tzinfo)) == (other.fold, str(other.tzinfo))
    if isinstance(one, Slotted | Point):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other)


@given(values)
def test_a_value_comes_back_in_type_and_content_and_has_the_digest_that_it_left_with(value: Any) -> None:
    back = travelled(value)
    assert same(back, value)
    assert mark(back) == mark(value)


@given(st.lists(hashables, max_size=8))
def test_sets_that_were_filled_in_another_order_have_the_same_digest(items: list[Any]) -> None:
    # Equal items of two types, as 1 and True or a tuple and a namedtuple: a set keeps the one that came first.
    items = [item for n, item in enumerate(items) if item not in items[:n]]
    backwards = items[::-1]
    assert mark(set(items)) == mark(set(backwards))
    assert mark([frozenset(items)]) == mark([frozenset(backwards)])


@pytest.mark.parametrize(
    "value",
    [
        *(
            math.nan,
            math.inf,
            -math.inf,
            -0.0,
            complex(-0.0, math.inf),
            decimal.Decimal("NaN"),
            decimal.Decimal("-0.00"),
        ),
        *(bytes(5000), bytearray(5000), [1, 2.0, None, "ü", True], [2**64], ["\ud800"], [1, "\udcff"], {"\ud800": 1}),
        *({1: "a", (2, 3): "b"}, {}, (), set(), frozenset(), [[]], Right.READ, Level.LOW, Colour.ROT, [Ellipsis]),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        datetime.time(2, 30, fold=1),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_values_at_the_edges_come_back(value: Any) -> None:
    back = travelled(value)
    assert repr(back) == repr(value)
    assert mark(back) == mark(value)


def test_bytes_of_the_notebook_are_sent_from_where_they_are() -> None:
    data = bytearray(1 << 20)
    writer = Writer()
    tree.write([data, memoryview(data)], writer)
    data[0] = 7
    assert [buffer[0] for buffer in writer.buffers] == [7, 7]


def test_members_of_an_enum_come_back_as_themselves() -> None:
    assert travelled([Colour.RED, Level.LOW, Right.WRITE]) == [Colour.RED, Level.LOW, Right.WRITE]
    assert travelled(Colour.GREEN) is Colour.GREEN


@pytest.mark.parametrize("value", [Right.READ | Right.WRITE, Right(0), re.IGNORECASE | re.MULTILINE], ids=repr)
def test_a_combined_flag_comes_back_or_is_left_to_pickle(value: enum.Flag) -> None:
    try:
        assert travelled(value) == value
    except NotSafe:
        pass


# ── identity ──


@pytest.mark.parametrize("make", [list, dict, set, OrderedDict, bytearray, lambda: Slotted(1), lambda: Point(1)])
def test_what_was_one_object_is_one_object_again(make: Any) -> None:
    one = make()
    back = travelled({"a": one, "b": [one, (one,)], "c": make()})
    assert back["a"] is back["b"][0] is back["b"][1][0]
    assert back["c"] is not back["a"]


def test_cycles_through_every_container_close_again() -> None:
    looped: list[Any] = []
    holder = Holder(looped)
    looped += [
        looped,
        {"me": looped},
        (looped,),
        Slotted(looped),
        Pair(looped),
        OrderedDict(x=looped),
        holder,
        {holder},
    ]
    back = travelled(looped)
    parts = [back[0], back[1]["me"], back[2][0], back[3].left, back[4].first, back[5]["x"], back[6].item]
    assert all(part is back for part in parts)
    assert back[7] == {back[6]}


def test_a_cycle_through_a_set_comes_back_or_is_left_to_pickle() -> None:
    """An item's place in a set is that of its encoding, which a cycle does not have."""
    holder = Holder()
    holder.item = [{holder}]
    try:
        back = travelled(holder)
    except NotSafe:
        return
    assert back.item[0] == {back}


def test_sets_in_sets_do_not_take_twice_as_long_for_each_level() -> None:
    looks: list[int] = []

    def counted(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_sorted":
            looks.append(1)

    value: Any = frozenset()
    for _ in range(10):
        value = frozenset([value])
    sys.setprofile(counted)
    try:
        tree.write(value, Writer())
    finally:
        sys.setprofile(None)
    assert len(looks) < 200


def test_an_object_of_a_set_that_is_met_again_is_the_same_one() -> None:
    for seed in range(20):
        one, other = Point(seed * 7 + 3), Point(seed * 13 + 1)
        assert travelled([{one, other}, one, other])[1:] == [one, other]


def test_sets_that_share_a_part_have_one_digest_whatever_their_order() -> None:
    shared = Point("shared")
    first, second = Point(1, shared), Point(2, shared)
    forward, backward = {0}, {0}
    orders = [mark([{first, second}]), mark([{second, first}])]
    # The order of two items in a table is their hashes'; items that collide keep the order they came in.
    assert hash(first) != hash(second)
    colliding = [Point(-1, shared), Point(-2, shared)]
    assert hash(-1) == hash(-2)
    forward.update(colliding)
    backward.update(colliding[::-1])
    assert [*orders, mark(forward)] == [orders[0], orders[0], mark(backward)]


@pytest.mark.timeout(20)
def test_tuples_that_share_parts_do_not_grow_with_the_number_of_paths() -> None:
    value: tuple[Any, ...] = ()
    for _ in range(14):
        value = (value, value)
    assert len(tree.write(value, Writer())) < 2000


# ── outside ──


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Other:
    pass


class Dicty(dict):  # type: ignore[type-arg]
    pass


def _extra() -> Holder:
    made = Holder()
    made.more = 1  # type: ignore[attr-defined]
    return made


class _Zone(datetime.tzinfo):
    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(0)


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (Other(), "", "Other"),
        ({"cfg": {"log": Other()}}, "['cfg']['log']", "Other"),
        (Point(x=[1, Holder({"log": Other()})]), ".x[1].item['log']", "Other"),
        ((1, Pair(2, Other())), "[1].second", "Other"),
        ({Other(): 1}, " key", "Other"),
        ([{Holder(Other())}], "[0] item.item", "Other"),
        ([Dicty()], "[0]", "Dicty"),
        ([deque()], "[0]", "deque"),
        (lambda: 1, "", "function"),
        ([int], "[0]", "type"),
        (_extra(), "", "its fields"),
        ([datetime.datetime(2024, 1, 1, tzinfo=_Zone())], "[0]", "datetime"),
        ([datetime.time(1, tzinfo=datetime.UTC)], "[0]", "time"),
        ([memoryview(b"abcd")[::2]], "[0]", "memoryview"),
        ([1, (x for x in ())], "[1]", "generator"),
        ([range(2**70)], "[0]", "range"),
    ],
    ids=lambda part: f"{part!r:.24}" if isinstance(part, str) else "",
)
def test_a_value_without_a_safe_format_is_named_with_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(NotSafe, match=why) as caught:
        tree.write(value, Writer())
    assert caught.value.path == path


def test_a_class_that_cannot_be_found_by_name_has_no_safe_format() -> None:
    @dataclasses.dataclass
    class Local:
        x: int = 0

    with pytest.raises(NotSafe, match="cannot be found by its name"):
        tree.write([Local()], Writer())


def test_nesting_stops_at_the_limit_for_writer_and_reader_alike() -> None:
    assert travelled(_nested(tree.MAX_DEPTH)) == _nested(tree.MAX_DEPTH)
    with pytest.raises(NotSafe, match="200 deep"):
        tree.write(_nested(tree.MAX_DEPTH + 1), Writer())


@pytest.mark.parametrize(
    "value",
    [slice(0, 2**70), Path(os.fsdecode(b"a\xff")), {2**20_000: 1}, Output(3)],
    ids=["slice beyond 64 bits", "path that is no text", "key of 6,000 digits", "dataclass that is a dict"],
)
def test_odd_values_travel_or_are_left_to_pickle(value: Any) -> None:
    try:
        assert travelled(value) == value
    except NotSafe:
        pass


def test_a_dataclass_with_state_in_a_slot_of_its_base_does_not_lose_it() -> None:
    made = OnSlots(1)
    made.hidden = 5  # type: ignore[attr-defined]
    try:
        assert travelled(made).hidden == 5
    except NotSafe:
        pass


def test_equality_in_python_is_not_sameness_of_digest() -> None:
    assert len({mark(value) for value in (1, 1.0, True, "1", b"1", [1], (1,), {1}, frozenset({1}), {1: None})}) == 10
    assert mark(uuid.UUID(int=1)) != mark(uuid.UUID(int=2))
