"""Parcels of named values: each in its format, an error of one is not the others', versions and trust are kept apart."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import collections
import functools
import json
import linecache
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import codec, parcel
from kcoral_magic.values.codec import VERSION, Opaque
from kcoral_magic.values.digest import digest

Cell = Callable[..., dict[str, Any]]
OTHER = "3.99"


@pytest.fixture
def cell() -> Iterator[Cell]:
    main = vars(sys.modules["__main__"])
    before, files = dict(main), set(linecache.cache)

    def run(source: str, file: str = "<cell 1>") -> dict[str, Any]:
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), main)
        return main

    yield run
    main.clear()
    main.update(before)
    for file in set(linecache.cache) - files:
        del linecache.cache[file]


def sent(values: dict[str, Any], **options: Any) -> bytes:
    packed = codec.pack(values, may_pickle=True, **options)
    assert packed.problems == {}
    return packed.parcel.joined()


def received(data: bytes, **options: Any) -> dict[str, Any]:
    return {entry.name: value for entry, value in codec.Unpacked(data, takes_pickles=True, **options).values()}


def formats(data: bytes) -> dict[str, str]:
    return {entry.name: entry.format for entry in parcel.Opened(data).entries}


class Plain:
    """Has no safe format; ``__reduce__`` may be told to fail on either side."""

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __repr__(self) -> str:
        return vars(self).get("text", "plain")


class FailsThere:
    def __reduce__(self) -> Any:
        return math.sqrt, (-1,)


def test_safe_formats_come_first_and_pickles_only_where_there_is_none() -> None:
    data = sent({"a": [1], "b": np.zeros(2), "c": Plain(), "d": math, "e": len, "f": torch.ones(1)})
    assert formats(data) == {"a": "tree", "b": "tree", "c": "pickle", "d": "module", "e": "pickle", "f": "tree"}
    back = received(data)
    assert (back["a"], back["d"], back["e"]) == ([1], math, len)


def test_an_entry_tells_digest_short_form_and_name_before_anything_is_read() -> None:
    values = {"a": [1, 2], "b": Plain()}
    entries = parcel.Opened(sent(values)).entries
    assert [(e.name, e.digest, e.shown) for e in entries] == [
        ("a", digest([1, 2])[0], "[1, 2]"),
        ("b", digest(values["b"])[0], "Plain"),
    ]
    assert parcel.Opened(sent(values, digests={"a": "vknown"})).entries[0].digest == "vknown"


def test_entries_are_in_the_order_of_the_names() -> None:
    assert [entry.name for entry in parcel.Opened(sent({"a": 1, "b": Plain(), "c": 2})).entries] == ["a", "b", "c"]


def test_all_parts_lie_at_multiples_of_64_so_that_arrays_are_read_where_they_arrived() -> None:
    data = bytearray(sent({"a": [np.zeros(3), np.ones(5, "i1")], "b": np.arange(2.0)}))
    back = received(data)
    whole = np.frombuffer(data, np.uint8)
    assert all(np.shares_memory(array, whole) for array in (*back["a"], back["b"]))
    spans = [span for entry in parcel.Opened(data).entries for span in (entry.head, *entry.buffers)]
    assert all(start % parcel.ALIGN == 0 for start, _ in spans)


def test_a_parcel_can_be_sent_in_pieces_from_any_byte_on() -> None:
    made = codec.pack({"a": np.arange(1000), "b": "x" * 5000}, may_pickle=False).parcel
    whole = made.joined()
    assert made.size == len(whole)
    for size in (1, 63, 64, 1000, len(whole), len(whole) + 1):
        for start in (0, 1, 64, 700, len(whole) - 1, len(whole)):
            pieces = [b"".join(piece) for piece in made.chunks(size, start)]
            assert b"".join(pieces) == whole[start:]
            assert all(len(piece) == size for piece in pieces[:-1])


def test_several_names_share_what_they_share() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    back = received(sent({"a": [1], "model": model, "b": np.zeros(2), "optimizer": optimizer}))
    assert back["optimizer"].param_groups[0]["params"][0] is back["model"].weight


# ── one that cannot ──


def test_a_name_that_cannot_be_pickled_is_told_with_its_path_and_the_others_still_travel() -> None:
    bad = Plain(cfg={"log": Plain(lock=threading.Lock())})
    shared = Plain()
    packed = codec.pack({"a": [shared], "x": bad, "b": (shared, len), "y": [threading.Lock()]}, may_pickle=True)
    assert packed.problems.keys() == {"x", "y"}
    assert packed.problems["x"].startswith("x.cfg['log'].lock is a _thread.lock, which cannot be pickled")
    assert packed.problems["y"].startswith("y[0] is a")
    back = received(packed.parcel.joined())
    assert back.keys() == {"a", "b"}
    assert back["a"][0] is back["b"][0]


def test_a_pickle_that_cannot_be_read_there_is_not_the_others_fault() -> None:
    bad = [FailsThere(), [1], np.arange(3)]
    back = received(sent({"a": functools.partial(print, 1), "bad": bad, "b": Plain(x=[len]), "c": {"y": len}}))
    assert isinstance(back["bad"], ValueRefused)
    assert type(back["a"]) is functools.partial
    assert (back["b"].x, back["c"]) == ([len], {"y": len})


def test_only_what_shares_objects_with_a_broken_pickle_is_refused_with_it_and_told_so() -> None:
    shared = [1]
    back = received(sent({"bad": [FailsThere(), shared], "b": Plain(x=shared), "c": Plain(x=[1])}))
    assert "b shares objects with bad" in str(back["b"])
    assert back["c"].x == [1]


def test_arrays_of_one_dtype_are_nothing_that_two_values_share() -> None:
    back = received(sent({"bad": [FailsThere(), np.arange(3)], "b": Plain(x=[np.arange(3)])}))
    assert np.array_equal(back["b"].x[0], np.arange(3))


def test_a_value_that_cannot_be_read_there_is_told_by_its_name() -> None:
    back = received(sent({"a": [1], "bad": FailsThere(), "z": [2]}))
    assert (back["a"], back["z"]) == ([1], [2])
    assert "bad cannot be read here: ValueError" in str(back["bad"])


@pytest.mark.parametrize("value", [2**20_000, [2**20_000]], ids=["int", "list"])
def test_an_int_of_any_size_travels(value: Any) -> None:
    assert received(sent({"n": value}))["n"] == value


def test_a_module_that_is_not_there_is_told() -> None:
    entry = (parcel.Entry("m", "module", (0, 0)), b"no_such_module", ())
    assert "no_such_module cannot be imported" in str(received(parcel.pack([entry]).joined())["m"])


# ── placeholders ──


def test_without_trust_what_is_not_safe_comes_as_its_type_and_repr() -> None:
    values = {"a": [1], "p": Plain(text="t" * 5000), "f": len, "e": Plain(text=3)}
    packed = codec.pack(values, may_pickle=False)
    assert packed.problems == {}
    data = packed.parcel.joined()
    assert formats(data) == {"a": "tree", "p": "opaque", "f": "opaque", "e": "opaque"}
    back = {entry.name: value for entry, value in codec.Unpacked(data, takes_pickles=False).values()}
    assert isinstance(back["p"], Opaque)
    assert back["p"].kind.endswith("test_codec.Plain")
    assert len(repr(back["p"])) < 600
    assert back["f"].kind == "builtin_function_or_method"
    assert "repr() failed: TypeError" in repr(back["e"])


def test_what_came_as_a_pickle_is_refused_where_pickles_are_not_taken() -> None:
    data = sent({"a": [1], "p": Plain(), "m": math})
    back = {entry.name: value for entry, value in codec.Unpacked(data, takes_pickles=False).values()}
    assert back["a"] == [1]
    assert "p came as a pickle" in str(back["p"])
    assert "m came as a module" in str(back["m"])


# ── another Python ──


def test_towards_another_python_functions_travel_as_source(cell: Cell) -> None:
    main = cell(
        "@staticmethod\ndef deco(f):\n    f.marked = True\n    return f\n\n@deco\ndef f(x, y=2):\n    return x * y * scale\n"
    )
    data = sent({"f": main["f"]}, peer=OTHER)
    assert formats(data) == {"f": "source"}
    main["scale"] = 10
    back = received(data)["f"]
    assert back is not main["f"]
    assert back(3) == 60
    assert back.marked
    assert "return x * y * scale" in "".join(linecache.getlines(back.__code__.co_filename))


def test_towards_another_python_safe_values_and_modules_travel_as_always() -> None:
    data = sent({"a": {"b": [1]}, "n": np.arange(3), "m": math}, peer=OTHER)
    assert formats(data) == {"a": "tree", "n": "tree", "m": "module"}
    assert received(data)["a"] == {"b": [1]}


def test_towards_another_python_classes_of_the_notebook_travel_as_source(cell: Cell) -> None:
    main = cell("class K:\n    def m(self):\n        return 5\n")
    data = sent({"K": main["K"]}, peer=OTHER)
    assert formats(data) == {"K": "source"}
    assert received(data)["K"]().m() == 5


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def make(n):\n    return lambda: n\nx = make(1)", "closure or lambda"),
        ("x = lambda: 1", "closure or lambda"),
        ("def make(n):\n    def g():\n        return n\n    return g\nx = make(1)", "closure or lambda"),
        ("class K:\n    def m(self):\n        pass\nx = K()", "cannot go"),
        ("class K:\n    def m(self):\n        pass\nx = [K().m]", "cannot go"),
        ("exec('def x():\\n    return 1')", "no source"),
    ],
)
def test_what_only_bytecode_could_carry_is_refused_with_both_versions(cell: Cell, source: str, why: str) -> None:
    main = cell(source)
    packed = codec.pack({"a": [1], "x": main["x"]}, may_pickle=True, peer=OTHER)
    assert packed.problems.keys() == {"x"}
    assert why in packed.problems["x"]
    assert f"Python {VERSION} here, {OTHER} there" in packed.problems["x"]
    assert received(packed.parcel.joined()) == {"a": [1]}


@pytest.mark.parametrize("value", [json.dumps, collections.OrderedDict, np.ndarray, len], ids=lambda v: v.__name__)
def test_towards_another_python_what_is_installed_there_travels_by_its_name(value: Any, cell: Cell) -> None:
    packed = codec.pack({"x": value}, may_pickle=True, peer=OTHER)
    assert packed.problems == {}
    assert received(packed.parcel.joined())["x"] is value


def test_a_function_that_came_as_source_under_another_name_leaves_its_own_name_alone(cell: Cell) -> None:
    main = cell("def f():\n    return 1\n")
    data = sent({"alias": main["f"]}, peer=OTHER)
    main["f"] = "the session's own"
    assert received(data)["alias"]() == 1
    assert main["f"] == "the session's own"


def test_a_function_that_came_as_source_under_another_name_makes_no_second_name(cell: Cell) -> None:
    main = cell("def f():\n    return 1\n")
    data = sent({"alias": main.pop("f")}, peer=OTHER)
    assert received(data)["alias"]() == 1
    assert "f" not in main


# ── another process ──

SOURCE = """
import enum, dataclasses
base = 7
def helper(x):
    return base * x
class Colour(enum.Enum):
    RED = 1
@dataclasses.dataclass
class K:
    x: int
    def m(self):
        return helper(self.x)
def make():
    seen = []
    def g(x):
        seen.append(x)
        return len(seen)
    return g
k, g, red = K(3), make(), [Colour.RED, Colour]
"""
READER = """
import sys
from kcoral_magic.values import codec
here = vars(sys.modules["__main__"])
for entry, value in codec.Unpacked(open(sys.argv[1], "rb").read(), takes_pickles=True).values():
    here[entry.name] = value
print(k.m(), g(1), g(1), type(k) is K, red[0] is red[1].RED, helper.__globals__ is here, base)
base = 100
print(k.m())
"""


def test_a_notebooks_functions_classes_and_instances_work_in_another_process(cell: Cell, tmp_path: Path) -> None:
    main = cell(SOURCE)
    (tmp_path / "parcel").write_bytes(sent({name: main[name] for name in ("k", "K", "g", "red", "helper", "base")}))
    command = [sys.executable, "-c", READER, str(tmp_path / "parcel")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.stderr) == ("21 1 2 True True True 7\n300\n", "")
