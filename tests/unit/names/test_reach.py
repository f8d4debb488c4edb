"""What a name leads to: all that its functions and classes read, wherever the value holds them, and nothing of others."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import builtins
from typing import Any

import pytest

from kcoral_magic.names.reach import code_names, codes_of, imported, reached


def notebook(source: str) -> dict[str, Any]:
    """A namespace as a notebook has it: its classes say that they are of ``__main__``."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile("from __future__ import annotations\n" + source, "<cell>", "exec", dont_inherit=True), namespace)
    return namespace


HELPERS = "a = 1\nb = 2\nc = 3\ndef helper():\n    return a\n"


def leads_to(source: str, name: str = "x") -> set[str]:
    namespace = notebook(HELPERS + source)
    found = reached([name], namespace)
    assert all(found[key] is namespace[key] for key in found)
    return found.keys() - {name}


CASES = [
    ("x = 5", ""),
    ("x = [1, 'a']", ""),
    ("x = helper", "a"),
    ("def x():\n    return helper() + b", "a b helper"),
    ("def x():\n    return x() or y()\ndef y():\n    return x() + c", "c y"),
    ("def x():\n    def inner():\n        return [b for _ in range(2)]\n    return inner", "b"),
    ("x = lambda: helper", "a helper"),
    ("def x(f=helper):\n    return f()", "a"),
    ("def x(*, f=helper):\n    return f()", "a"),
    ("def make():\n    h = helper\n    return lambda: h()\nx = make()", "a"),
    ("def x():\n    global made\n    made = b", "b"),
    ("def x():\n    return missing", ""),
    ("def x():\n    return print(len)", ""),
    ("def x(v):\n    return v.helper", ""),
    ("def x():\n    pass\nx.note = helper", "a"),
    ("x = [1, {'k': (helper,)}]", "a"),
    ("x = {helper}", "a"),
    ("class x:\n    def m(self):\n        return helper", "a helper"),
    (
        "class x:\n    @staticmethod\n    def s():\n        return b\n    @classmethod\n    def k(cls):\n        return c",
        "b c",
    ),
    (
        "class x:\n    @property\n    def p(self):\n        return b\n    @p.setter\n    def p(self, v):\n        return c",
        "b c",
    ),
    ("class B:\n    def m(self):\n        return b\nclass x(B):\n    pass", "b"),
    ("class x:\n    field = helper", "a"),
    ("class x:\n    class D:\n        def m(self):\n            return b", "b"),
    ("class K:\n    def m(self):\n        return b\nx = K()", "b"),
    ("class K:\n    def m(self):\n        return b\nx = [K()]", "b"),
    ("class K:\n    def m(self):\n        return b\nx = K().m", "b"),
    ("class K:\n    pass\nx = K()\nx.f = helper", "a"),
    ("class K:\n    pass\nx = K()\nx.deep = {'a': [K()]}\nx.deep['a'][0].f = helper", "a"),
    ("class M(type):\n    pass\nclass x(metaclass=M):\n    def m(self):\n        return b", "b"),
    ("import functools\nx = functools.partial(helper)", "a"),
    ("import functools\n@functools.lru_cache\ndef x():\n    return helper", "a helper"),
    ("import functools\n@functools.wraps(helper)\ndef x():\n    return b", "a b"),
    ("import functools\nclass x:\n    @functools.cached_property\n    def p(self):\n        return b", "b"),
    ("import enum\nclass x(enum.Enum):\n    A = 1\n    def m(self):\n        return b", "b"),
    ("import json\nx = json.dumps", ""),
    ("import threading\nx = threading.Thread", ""),
    ("import json as x", ""),
    ("def x():\n    return json.dumps\nimport json", "json"),
    ("x = []\nx.append(x)\nx.append(helper)", "a"),
    ("x = [0] * 1000 + [helper]", ""),  # the limit: a long list is taken for data
]
HIDDEN = [
    ("import contextlib\n@contextlib.contextmanager\ndef x():\n    yield b", "b", "what a library's decorator wraps"),
    ("import torch\n@torch.no_grad()\ndef x():\n    return helper()", "a helper", "what torch.no_grad() wraps"),
    ("import functools\nx = functools.partial(map, helper)", "a", "arguments of a partial"),
    ("import functools\nx = functools.partial(map, key=helper)", "a", "keywords of a partial"),
    ("class K:\n    pass\nk = K()\nk.f = helper\nK.m = lambda self: self.f()\nx = k.m", "a", "the instance of a bound method"),
    ("class K:\n    __slots__ = ('f',)\nx = K()\nx.f = helper", "a", "slots of an instance"),
    ("import collections\nx = collections.defaultdict(helper)", "a", "the factory of a defaultdict"),
    ("import collections\nx = collections.deque([helper])", "a", "items of a deque"),
    ("class M(type):\n    def m(cls):\n        return b\nclass x(metaclass=M):\n    pass", "b", "the metaclass"),
    ("x = {helper: 1}", "a", "keys of a dict"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *CASES,
        *(pytest.param(source, expected, id=what) for source, expected, what in HIDDEN),
    ],
)
def test_a_value_leads_to_what_its_code_reads(source: str, expected: str) -> None:
    assert leads_to(source) == set(expected.split())


def test_names_that_are_not_there_lead_nowhere() -> None:
    assert reached(["no", "x"], {"x": 1}) == {"x": 1}
    assert reached([], {"x": 1}) == {}


def test_functions_of_another_namespace_are_not_looked_into() -> None:
    """They are a module's: the session imports that."""
    other = notebook("secret = 1\ndef f():\n    return secret")
    assert reached(["f"], {"f": other["f"], "secret": 2}).keys() == {"f"}


def test_a_chain_of_any_length_is_followed() -> None:
    """By a loop: a thousand helpers, each of which calls the next, are no deep recursion."""
    namespace = notebook("".join(f"def f{n}():\n    return f{n + 1}()\n" for n in range(3000)) + "f3000 = 1")
    assert len(reached(["f0"], namespace)) == 3001


def test_looking_runs_no_code_of_the_value() -> None:
    namespace = notebook(
        "ran = []\nclass K:\n    @property\n    def p(self):\n        ran.append(1)\n    def __len__(self):\n        ran.append(2)\n"
        "    def __iter__(self):\n        ran.append(3)\n    def __eq__(self, other):\n        ran.append(4)\n"
        "    def __hash__(self):\n        ran.append(5)\n        return 1\nx = [K(), {1: K()}]"
    )
    reached(["x"], namespace)
    assert namespace["ran"] == []


def test_looking_runs_no_getattr_of_the_value() -> None:
    namespace = notebook(
        "ran = []\nclass K:\n    def __getattr__(self, name):\n        ran.append(name)\n        raise AttributeError(name)\nx = K()"
    )
    reached(["x"], namespace)
    assert namespace["ran"] == []


def test_modules_that_functions_import_when_they_run_are_found() -> None:
    namespace = notebook(
        "def f():\n    import a.b\n    from c import d\nclass K:\n    def m(self):\n        import e\n"
    )
    assert imported([namespace["f"], namespace["K"], [1]], namespace) == {"a.b", "c", "e"}


def test_a_code_object_is_read_with_those_inside_it_and_only_once() -> None:
    code = notebook("def f():\n    import m\n    return lambda: (g, [h for _ in x.attribute])")["f"].__code__
    names = code_names(code)
    assert names == (frozenset(("g", "h", "x")), frozenset(("m",)))
    assert code_names(code) is names


def test_the_codes_of_a_value_are_the_namespaces_own() -> None:
    namespace = notebook(
        "import json\ndef f():\n    pass\nclass K:\n    def m(self):\n        pass\nx = [f, json.dumps, K, f]"
    )
    assert sorted(code.co_name for code in codes_of(namespace["x"], namespace)) == ["f", "m"]
