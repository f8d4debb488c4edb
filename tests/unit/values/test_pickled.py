"""Pickles: functions read the receiver's names, parts that were one stay one, and what cannot be pickled is named."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import functools
import inspect
import io
import linecache
import pickle
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values.buffers import Writer
from kcoral_magic.values.pickled import Pickler, Unpickler, explain, main_globals

Cell = Callable[..., dict[str, Any]]


@pytest.fixture
def cell() -> Iterator[Cell]:
    """Runs source as a cell of the notebook: a function is the notebook's if its globals are ``__main__``'s."""
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


def written(*values: Any, **options: Any) -> tuple[bytes, list[memoryview]]:
    writer = Writer()
    pickler = Pickler(writer, **options)
    return b"".join([pickler.pickled(value) for value in values]), writer.buffers


def travelled(*values: Any) -> list[Any]:
    data, buffers = written(*values)
    unpickler = Unpickler(data, iter([memoryview(bytearray(buffer)) for buffer in buffers]))
    return [unpickler.load() for _ in values]


# ── functions ──


def test_a_function_reads_the_receivers_names_and_takes_none_of_its_own_along(cell: Cell) -> None:
    main = cell("def f():\n    return text, helper()\ndef helper():\n    return 1")
    main["text"] = "not to be sent"
    data, _ = written(main["f"])
    assert b"not to be sent" not in data
    (back,) = travelled(main["f"])
    assert back is not main["f"]
    assert back.__globals__ is main_globals()
    cell("text = 'theirs'\ndef helper():\n    return 2")
    assert back() == ("theirs", 2)


def test_a_function_writes_globals_where_everybody_sees_them(cell: Cell) -> None:
    main = cell("count = 0\ndef more():\n    global count\n    count += 1")
    (back,) = travelled(main["more"])
    back()
    back()
    assert main["count"] == 2


@pytest.mark.parametrize(
    ("source", "call", "result"),
    [
        ("def f(n):\n    return 1 if n == 0 else n * f(n - 1)", "f(5)", 120),
        ("def make():\n    a = [1]\n    def g(n):\n        return a[0] if n == 0 else g(n - 1)\n    return g\nf = make()", "f(3)", 1),
        ("f = lambda x, *, y=2, **more: (x, y, more)", "f(1, z=3)", (1, 2, {"z": 3})),
        ("def f(a, b=[4]):\n    return a, b", "f(1)", (1, [4])),
        ("async def f():\n    return 1", "f().close()", None),
        ("def f():\n    yield from (1, 2)", "list(f())", [1, 2]),
        ("def f():\n    import math\n    return math.floor(1.5)", "f()", 1),
        ("import functools\ndef g(a, b):\n    return a + b\nf = functools.partial(g, 1)", "f(2)", 3),
        ("import functools\n@functools.lru_cache\ndef f(x):\n    return x", "f(2)", 2),
        ("def make(n):\n    if n:\n        late = 1\n    return lambda: late\nf = make(1)", "f()", 1),
        ("class C:\n    n = 3\n    def m(self):\n        return super().__repr__()[:1], self.n\nf = C().m", "f()", ("<", 3)),
    ],
)  # fmt: skip
def test_functions_of_all_kinds_still_work(cell: Cell, source: str, call: str, result: Any) -> None:
    main = cell(source)
    (back,) = travelled(main["f"])
    assert eval(call, {**main, "f": back}) == result


def test_a_variable_of_a_closure_without_a_value_yet_stays_without(cell: Cell) -> None:
    main = cell("def make():\n    def f():\n        return late\n    return f\n    late = 1\nf = make()")
    (back,) = travelled(main["f"])
    with pytest.raises(NameError):
        back()


def test_attributes_names_and_documentation_of_a_function_travel(cell: Cell) -> None:
    main = cell("def f(a: int = 1, *, b: int = 2) -> str:\n    'says'\nf.note = [1]\nf.__qualname__ = 'other.f'")
    (back,) = travelled(main["f"])
    assert (back.__doc__, back.note, back.__qualname__, back.__module__) == ("says", [1], "other.f", "__main__")
    assert (back.__defaults__, back.__kwdefaults__, set(back.__annotations__)) == ((1,), {"b": 2}, {"a", "b", "return"})


def test_a_function_of_a_module_travels_by_its_name() -> None:
    assert travelled(np.linalg.norm, threading.Thread, explain) == [np.linalg.norm, threading.Thread, explain]


FILE = "cloudpickle 3.1 writes co_filename as <dynamic-code>; pickled.Pickler._function does not put the cell's back"


def test_the_text_of_a_functions_cell_arrives_for_tracebacks(cell: Cell) -> None:
    main = cell("def f():\n    1 / 0  # the line\n", "<cell 7>")
    told: list[tuple[str, int]] = []
    data, buffers = written(main["f"], main["f"], cell_of=lambda name: 7 if name == "<cell 7>" else None)
    del linecache.cache["<cell 7>"]
    back = Unpickler(data, iter(buffers), lambda name, number: told.append((name, number))).load()
    assert told == [("<cell 7>", 7)]
    with pytest.raises(ZeroDivisionError) as caught:
        back()
    assert "the line" in "".join(traceback.format_exception(caught.value))


def test_functions_of_two_cells_show_each_its_own_text(cell: Cell) -> None:
    cell("def f():\n    return 'first'\n", "<cell 1>")
    main = cell("def g():\n    return 'second'\n", "<cell 2>")
    data, buffers = written(main["f"], main["g"])
    linecache.cache.clear()
    unpickler = Unpickler(data, iter(buffers))
    f, g = unpickler.load(), unpickler.load()
    assert "'first'" in inspect.getsource(f)
    assert "'second'" in inspect.getsource(g)


def test_the_text_of_a_cell_is_sent_once_for_all_its_functions(cell: Cell) -> None:
    main = cell("".join(f"def f{n}():\n    return {n}\n" for n in range(20)) + "# " + "x" * 5000)
    data, _ = written(*(main[f"f{n}"] for n in range(20)))
    assert data.count(b"x" * 5000) == 1


def test_a_plain_unpickler_makes_no_functions_of_these_pickles(cell: Cell) -> None:
    data, buffers = written(cell("def f():\n    return 1")["f"])
    with pytest.raises(TypeError, match="Unpickler"):
        pickle.Unpickler(io.BytesIO(data), buffers=iter(buffers)).load()  # noqa: S301 - our own bytes


# ── classes ──


def test_instances_and_members_find_the_class_that_the_receiver_has(cell: Cell) -> None:
    main = cell(
        "import enum\nclass K:\n    def __init__(self):\n        self.me = self\n    def m(self):\n        return base\n"
        "class Colour(enum.Enum):\n    RED = 1\nk = K()\nbase = 1"
    )
    cls, k, red = travelled(main["K"], main["k"], main["Colour"].RED)
    assert cls is main["K"]
    assert type(k) is main["K"]
    assert k is not main["k"]
    assert k.me is k
    assert red is main["Colour"].RED
    main["base"] = 2
    assert k.m() == 2


def test_a_class_that_was_defined_again_is_another_class(cell: Cell) -> None:
    source = "class K:\n    pass\nk = K()"
    main = cell(source)
    old = main["k"]
    cell(source)
    back_old, back_new = travelled(old, main["k"])
    assert type(back_new) is main["K"]
    assert type(back_old) is type(old) is not main["K"]


# ── one memo, no copies ──


def test_an_optimizer_holds_its_models_parameters_on_the_other_side() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model2, optimizer2 = travelled(model, optimizer)
    assert [id(p) for p in optimizer2.param_groups[0]["params"]] == [id(p) for p in model2.parameters()]
    assert type(model2.weight) is torch.nn.Parameter
    assert torch.equal(model2.weight, model.weight)


def test_parts_of_several_values_stay_one() -> None:
    shared = [1]
    one, other = travelled({"a": shared, "f": len}, (shared, len))
    assert one["a"] is other[0]


def test_arrays_and_tensors_travel_beside_the_pickle_without_a_copy() -> None:
    array, tensor = np.arange(1000.0), torch.arange(1000.0)
    data, buffers = written([array, tensor, len])
    assert len(data) < 1000
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), array)
    tensor[0] = 5
    assert np.frombuffer(buffers[1], np.float32)[0] == 5


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(12.0).reshape(3, 4).t()[1], torch.empty(0, 3), torch.tensor(2.5), torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, requires_grad=True)],
    ids=["view", "empty", "0-d", "bf16", "grad"],
)  # fmt: skip
def test_tensors_inside_of_a_pickle_come_back_with_only_their_own_part(tensor: Any) -> None:
    data, buffers = written([tensor, len])
    assert len(data) < 1000
    assert sum(buffer.nbytes for buffer in buffers) == tensor.numel() * tensor.element_size()
    back = travelled([tensor, len])[0][0]
    assert (back.dtype, back.shape, back.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert torch.equal(back, tensor)


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.arange(6).reshape(2, 3)[:, ::2], np.asfortranarray(np.eye(3))])
def test_arrays_of_any_layout_come_back_from_a_pickle(array: Any) -> None:
    back, _ = travelled([array, len])[0]
    assert np.array_equal(back, array)
    assert back.dtype == array.dtype


# ── what cannot be pickled ──


class Config:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Slotted:
    __slots__ = ("lock",)

    def __init__(self, lock: Any) -> None:
        self.lock = lock


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "x"),
        (Config(cfg={"log": Config(lock=LOCK)}), "x.cfg['log'].lock"),
        ([1, (2, {"a": LOCK})], "x[1][1]['a']"),
        (Slotted([LOCK]), "x.lock[0]"),
        ({LOCK}, "x item"),
        ({LOCK: 1}, "x key"),
        (Config(a=1, b=(n for n in ())), "x.b"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_the_part_that_cannot_be_pickled_is_named_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(TypeError) as caught:
        written(value)
    error = explain(value, "x", caught.value)
    assert isinstance(error, ValueRefused)
    assert str(error).startswith(f"{path} is a ")
    assert "cannot" in str(error)


def test_a_closure_that_holds_what_cannot_be_pickled_is_named_by_its_variable(cell: Cell) -> None:
    main = cell("import threading\ndef make():\n    lock = threading.Lock()\n    return lambda: lock\nf = make()")
    with pytest.raises(TypeError) as caught:
        written(main["f"])
    assert str(explain(main["f"], "f", caught.value)).startswith("f's lock is a _thread.lock")


def test_explaining_a_large_value_ends_soon_and_a_cyclic_one_at_all() -> None:
    looped: list[Any] = [*range(10_000), LOCK]
    looped.append(looped)
    text = str(explain({"a": looped}, "x", TypeError("cannot pickle")))
    assert text.startswith("x['a']")


def test_a_partial_whose_function_is_the_notebooks_gets_the_receivers_globals_too(cell: Cell) -> None:
    main = cell("def f(a):\n    return scale * a\nscale = 2")
    (back,) = travelled(functools.partial(main["f"], 5))
    main["scale"] = 3
    assert back() == 15
    assert isinstance(back.func, types.FunctionType)
