"""A digest changes with what a function does and with nothing else; a value in one line runs nobody's code."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import collections
import dataclasses
import math
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values.digest import digest, shown


@pytest.fixture
def function() -> Iterator[Callable[..., Any]]:
    """Defines ``f`` as a cell of the notebook would, and gives it."""
    main = vars(sys.modules["__main__"])
    before = dict(main)

    def define(source: str, file: str = "<cell 1>") -> Any:
        exec(compile(source, file, "exec"), main)
        return main["f"]

    yield define
    main.clear()
    main.update(before)


def mark(value: Any) -> str:
    return digest(value)[0]


BASE = "def f(a, b=1, *, c=2):\n    'doc'\n    return a + b + c + len((1, 'x'))\n"


@pytest.mark.parametrize(
    "source",
    [
        BASE.replace("a + b", "a - b"),
        BASE.replace("b=1", "b=3"),
        BASE.replace("b=1", "b=1.0"),
        BASE.replace("b=1", "b=True"),
        BASE.replace("b=1", "b"),
        BASE.replace("c=2", "c=3"),
        BASE.replace("*, c", "c"),
        BASE.replace("(1, 'x')", "(1, 'y')"),
        BASE.replace("(1, 'x')", "(1.0, 'x')"),
        BASE.replace("(1, 'x')", "(True, 'x')"),
        BASE.replace("(1, 'x')", "(1, b'x')"),
        BASE.replace("len", "sum"),
        BASE.replace("a", "z").replace("zz", "a"),
        BASE.replace("'doc'", "'other'"),
        BASE.replace("def", "async def"),
        BASE + "f.note = 1\n",
        BASE + "f.__qualname__ = 'g'\n",
    ],
)
def test_another_function_has_another_digest(function: Any, source: str) -> None:
    assert mark(function(BASE)) != mark(function(source))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f():\n    return 0.0", "def f():\n    return -0.0"),
        ("def f():\n    return lambda: 1", "def f():\n    return lambda: 2"),
        ("def f():\n    def g():\n        def h():\n            return 'x'\n", "def f():\n    def g():\n        def h():\n            return 'y'\n"),
        ("def f(x):\n    return x in {1, 2}", "def f(x):\n    return x in {1, 3}"),
        ("def f(x):\n    return x.one", "def f(x):\n    return x.two"),
        ("def f():\n    return 1e999", "def f():\n    return -1e999"),
        ("def make(n):\n    return lambda: n\nf = make(1)", "def make(n):\n    return lambda: n\nf = make(2)"),
        ("def make(n):\n    return lambda: n\nf = make([1])", "def make(n):\n    return lambda: n\nf = make((1,))"),
        ("def f(g=lambda: 1):\n    return g", "def f(g=lambda: 2):\n    return g"),
        ("def f():\n    x = 1\n    return lambda: x", "def f():\n    x = 1\n    return lambda: y"),
        ("def f(x):\n    with x:\n        a()\n        b()", "def f(x):\n    with x:\n        a()\n    b()"),
        ("def f(b=[1]):\n    return b", "def f(b=[1, 2]):\n    return b"),
        ("def f():\n    try: a(); b()\n    except E: pass\n", "def f():\n    a()\n    try: b()\n    except E: pass\n"),
        ("def f(x: int):\n    return x", "def f(x: str):\n    return x"),
    ],
)  # fmt: skip
def test_a_difference_in_one_place_is_seen(function: Any, one: str, other: str) -> None:
    assert mark(function(one)) != mark(function(other))


@pytest.mark.parametrize(
    "source",
    [
        BASE,
        "def make(n):\n    def f(k):\n        return n if k == 0 else f(k - 1)\n    return f\nf = make([1, {2}])",
        "def f(x):\n    return x in {'a', 'b', 'c', 'd', 'e'}",
        "f = lambda x=[1]: x",
        "def g():\n    return 1\ndef f(h=g):\n    return h()",
        "def make():\n    def a():\n        return b()\n    def b():\n        return a()\n    return a\nf = make()",
        "def make():\n    def f():\n        return late\n    return f\n    late = 1\nf = make()",
    ],
)
def test_running_the_same_cell_again_gives_the_same_digest(function: Any, source: str) -> None:
    first = mark(function(source))
    again = mark(function("\n\n\n# moved\n" + source, "<cell 2>"))
    assert first == again
    assert first[0] == "f"


def test_the_digest_of_a_function_does_not_change_when_it_has_run(function: Any) -> None:
    """Specialised bytecode (PEP 659) is another run of bytes for the same code."""
    f = function("def f(n):\n    t = 0\n    for i in range(n):\n        t += i * 2\n    return t")
    before = mark(f)
    for _ in range(200):
        f(50)
    assert mark(f) == before


def test_the_digest_of_a_value_is_the_same_in_a_process_with_another_hash_seed() -> None:
    """``v`` and ``f`` digests are compared between two interpreters."""
    code = (
        "import sys\nfrom kcoral_magic.values.digest import digest\n"
        "def f(x, d={'k'}):\n    return x in {'a', 'b', 'c'}, ('t', d)\n"
        "print(digest({'a': {'x', 'y', 'z', 1, 2.5}, 'b': frozenset(('p', 'q'))})[0], digest(f)[0])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout[0] == "v"
    assert " f" in runs[0].stdout


def test_a_constant_of_any_size_has_a_digest(function: Any) -> None:
    assert mark(function("def f():\n    return 0x" + "f" * 5000))[0] == "f"


class Thing:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


def test_the_first_letter_says_what_is_compared(function: Any) -> None:
    kinds = [[1], np.zeros(1), function(BASE), math, Thing(), Thing, math.sqrt, threading.Thread, ...]
    assert "".join(mark(value)[0] for value in kinds) == "vvfmppppv"
    assert mark(math) == "mmath"


def test_a_change_in_place_is_seen_and_an_untouched_value_keeps_its_digest() -> None:
    for value, change in (
        ([1], lambda v: v.append(2)),
        ({"a": {1}}, lambda v: v["a"].add(2)),
        (Thing(a=[1]), lambda v: v.a.append(2)),
        (np.zeros(3), lambda v: v.__setitem__(0, 1)),
        (torch.zeros(3), lambda v: v.add_(1)),
        (torch.nn.Linear(2, 2), lambda v: v.weight.data.add_(1)),
        (pd.DataFrame({"a": [1]}), lambda v: v.insert(0, "b", 2)),
        (bytearray(3), lambda v: v.extend(b"x")),
    ):
        before = mark(value)
        assert mark(value) == before
        change(value)  # type: ignore[no-untyped-call]
        assert mark(value) != before


@pytest.mark.parametrize("value", [[1], "x" * 10_000, bytes(10_000), np.zeros(1000), torch.zeros(1000), Thing(a=np.zeros(1000))], ids=lambda v: type(v).__name__)  # fmt: skip
def test_the_size_is_about_what_travels(value: Any) -> None:
    least = getattr(value, "nbytes", None) or (8000 if isinstance(value, Thing) else len(value))
    assert least <= digest(value)[1] <= least + 300


def test_what_cannot_travel_is_named_with_the_part_that_cannot(function: Any) -> None:
    with pytest.raises(ValueRefused, match=r"^x\.a\[1\] is a _thread\.lock"):
        digest(Thing(a=[1, threading.Lock()]), "x")
    f = function("import threading\ndef f(lock=threading.Lock()):\n    return lock")
    with pytest.raises(ValueRefused, match=r"^f's default is a _thread\.lock"):
        digest(f, "f")


class Loud:
    """Says so if anybody looks at it."""

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __len__ = __hash__ = __format__ = __repr__  # type: ignore[assignment]


@dataclasses.dataclass
class Data:
    x: int = 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "None"), (1, "1"), (True, "True"), (1.5, "1.5"), (1j, "1j"), ("short", "'short'"), (b"b", "b'b'")),
        ("x" * 50, "'" + "x" * 40 + "…' (50 long)"),
        (b"x" * 5000, "b'" + "x" * 40 + "…' (5,000 long)"),
        *(([1, 2.5, True], "[1, 2.5, True]"), ((1,), "(1,)"), ([], "[]"), ([1, "a"], "list of 2"), ([1] * 5000, "list of 5,000")),
        *(({"a": 1}, "dict of 1"), ({1}, "set of 1"), (frozenset(), "frozenset of 0"), (collections.OrderedDict(), "OrderedDict of 0")),
        *((np.zeros((2, 3), "f4"), "float32 [2, 3]"), (np.int8(3), "3"), (np.array(2.5), "2.5"), (np.array([]), "float64 [0]")),
        *((torch.zeros(2, dtype=torch.bfloat16), "bfloat16 [2]"), (torch.tensor(1), "int64 []")),
        *((pd.DataFrame({"a": [1, 2]}), "DataFrame [2, 1]"), (pd.Series([1]), "Series [1]"), (pl.DataFrame({"a": [1]}), "DataFrame [1, 1]")),
        *((lambda: 1, "function"), (int, "class"), (Thing, "class"), (math, "module math"), (Thing(), "Thing"), (Data(), "Data")),
        *((Loud(), "Loud"), ([Loud()], "list of 1"), ({"a": Loud()}, "dict of 1"), (types.SimpleNamespace(a=1), "SimpleNamespace")),
    ],
    ids=lambda part: part if isinstance(part, str) and len(part) < 30 else "",
)  # fmt: skip
def test_a_value_in_a_few_words(value: Any, text: str) -> None:
    assert shown(value) == text


class Deceiving(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError("a __len__ of the user's ran")


def test_the_few_words_about_a_subclass_run_nothing_of_it() -> None:
    assert shown(Deceiving()).startswith("Deceiving")
