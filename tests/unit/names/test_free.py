"""The names that a cell reads before it assigns them, and its imports: one cell a line.

Too many names cost a look at a value; one too few is a NameError far away. So a name that Python may read on any path
is in the list, and one that it can never read is not.
"""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import sys

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from kcoral_magic.names.free import CellNames, cell_names


def reads(source: str) -> str:
    return " ".join(sorted(cell_names(source).reads))


STATEMENTS = [
    ("", ""),
    ("x", "x"),
    ("y = x", "x"),
    ("x = 1\nx", ""),
    ("x = x", "x"),
    ("x = y = x + y", "x y"),
    ("a, (b, *c) = d\na, b, c", "d"),
    ("[a, b] = a", "a"),
    ("x += 1", "x"),
    ("x = 1\nx += y", "y"),
    ("x.a = y", "x y"),
    ("x[i] = y\nx[j:k]", "i j k x y"),
    ("x.a += 1", "x"),
    ("x[i], y.b = 1, 2", "i x y"),
    ("x: int = 1\nx", "int"),
    ("x: int\nx", "int x"),
    ("x = 1\ndel x\nx", "x"),
    ("del x, y[i]", "i x y"),
    ("assert x, y", "x y"),
    ("raise E from cause", "E cause"),
    ("pass", ""),
    ("global x\nx", "x"),
    ("if a:\n    x = 1\nelse:\n    x = 2\nx", "a"),
    ("if a:\n    x = 1\nx", "a x"),
    ("if a:\n    x = 1\nelif b:\n    x = 2\nx", "a b x"),
    ("if a:\n    x = 1\nelif b:\n    x = 2\nelse:\n    x = 3\nx", "a b"),
    ("for i in it:\n    x = i\ni, x", "i it x"),
    ("for i in it:\n    i", "it"),
    ("for i in i:\n    pass", "i"),
    ("for x.a in it:\n    pass", "it x"),
    ("for i in it:\n    break\nelse:\n    y = 1\ny", "it y"),
    ("while a:\n    x = 1\n    x\nelse:\n    b\nx", "a b x"),
    ("while (n := f()):\n    n\nn", "f"),
    ("async for i in it:\n    i\nawait x", "it x"),
    ("with a as b, b as c:\n    c", "a"),
    ("with a as (b, c):\n    b, c", "a"),
    ("async with a as b:\n    x = b\nx", "a"),
    ("try:\n    x = 1\nexcept E as e:\n    e\n    x = 2\nx", "E"),
    ("try:\n    x = 1\nexcept E:\n    pass\nx", "E x"),
    ("try:\n    x = 1\nexcept E:\n    raise\nx", "E"),
    ("try:\n    import a\nexcept E:\n    a = None\na", "E"),
    ("try:\n    pass\nexcept E as e:\n    pass\ne", "E e"),
    ("try:\n    x = f()\nexcept E:\n    x\nelse:\n    x\nfinally:\n    y", "E f x y"),
    ("try:\n    x = 1\nexcept* E as e:\n    e\nx", "E x"),
    ("try:\n    pass\nfinally:\n    x = 1\nx", ""),
    ("match a:\n    case 1:\n        x = 1\n    case _:\n        x = 2\nx", "a x"),
    ("match a:\n    case [b, *c]:\n        b, c\n    case {'k': d, **e}:\n        d, e\n    case C(x=f) as g if f > h:\n        g", "C a h"),
    ("match a:\n    case C.D | None:\n        pass", "C a"),
    ("match a:\n    case {K.X: v}:\n        v", "K a"),  # keys of a mapping pattern
    ("try:\n    x = f()\nfinally:\n    x", "f x"),  # finally runs after half a body, too
    ("try:\n    x = f()\nexcept E:\n    raise\nfinally:\n    x", "E f x"),  # so it does before a raise
    ("with suppress(E):\n    x = f()\nx", "E f suppress x"),  # a with may swallow what its body raises
    ("obj.a: int", "int obj"),  # the object of a target without value is evaluated
]  # fmt: skip
EXPRESSIONS = [
    ("f(a, *b, c=d, **e)", "a b c d e f".replace("c ", "")),
    ("a if b else c", "a b c"),
    ("a and (b := 1)\nb", "a b"),
    ("(b := 1) and b\nb", ""),
    ("(y := x)\ny", "x"),
    ("(a := 1) if c else a\na", "a c"),
    ("a[b:c, ...], {d: e, **f}, {g}", "a b c d e f g"),
    ("not -a < b <= c", "a b c"),
    ("f'{a:{b}} {c!r} {d[\"k\"]} {{e}}'", "a b c d"),
    ("f'{f\"{a}\"}'", "a"),
    ("await a\n(yield_ for yield_ in b)", "a b"),
    ("[x for x in xs]", "xs"),
    ("[x for x in x]", "x"),
    ("[x for xs in xss for x in xs if x > y]", "xss y"),
    ("[[a for a in b] for b in c]", "c"),
    ("{k: v for k, v in d}, {s for s in t}", "d t"),
    ("[x for x in xs]\nx", "x xs"),
    ("[(last := x) for x in xs]\nlast", "last xs"),
    ("[y for x in xs for y in x if (z := y)]", "xs"),
    ("any((hit := n) > 3 for n in ns)", "any ns"),
    ("[await a async for a in b]", "b"),
    ("[f(x) for x in xs]\ndef f(v): return v", "f xs"),
    ("lambda a, b=c, *d, **e: a + b + f", "c f"),
    ("g = lambda: x\nx = 1", "x"),
    ("x = 1\ng = lambda: x", ""),
    ("sorted(xs, key=lambda v: v.name + y)", "sorted xs y"),
    ("lambda: (lambda a: a + b)(c)", "b c"),
]  # fmt: skip
FUNCTIONS = [
    ("def f(a, *b, c=d, **e):\n    return a, b, c, e, g", "d g"),
    ("def f():\n    x = 1\n    return x", ""),
    ("def f():\n    return x\n    x = 1", ""),
    ("def f():\n    x += 1", ""),
    ("def f():\n    global x\n    x += 1\nf()", "x"),
    ("def f():\n    global x\n    x = 1\nf()\nx", "x"),
    ("def f():\n    def g():\n        nonlocal_ = x\n        return y\n    y = 1\n    return g", "x"),
    ("def f():\n    y = 1\n    def g():\n        nonlocal y\n        y += 1\n    return g", ""),
    ("def f(n):\n    return f(n - 1)", ""),
    ("def f():\n    return g()\ndef g():\n    return x\nx = 1\nf()", ""),
    ("def f():\n    return x\nf()\nx = 1", "x"),
    ("def f():\n    return x\nx = 1\nf()", ""),
    ("def f():\n    return x\ng = f\nx = 1", "x"),
    ("def f():\n    return g()\nf()\ndef g():\n    return x", "g x"),
    ("@d(a)\ndef f():\n    return x\nx = 1", "a d x"),
    ("def f(a: A = b) -> R:\n    y: Y = 1", "A R Y b"),
    ("def f(a, b=a):\n    pass", "a"),
    ("async def f():\n    async with a as b:\n        return await b", "a"),
    ("def f():\n    for i in it:\n        pass\n    with a as b:\n        pass\n    try:\n        pass\n    except E as e:\n        e\n    return i, b", "E a it"),
    ("def f():\n    import a.b, c as d\n    from e import g\n    return a, d, g", ""),
    ("def f():\n    [x for x in xs]\n    return (y := 1), y", "xs"),
    ("def f():\n    class C(B):\n        z = 1\n        def m(self):\n            return w\n    return C", "B w"),
    ("def f():\n    match a:\n        case {K.X: [b, *c], **d}:\n            return b, c, d", "K a"),
    ("def f():\n    return x\ndef f():\n    return y", "y"),
    ("if c:\n    def f():\n        return a\nelse:\n    def f():\n        return b\nf()", "a b c"),  # the second branch's f takes the place of the first's
    ("def f():\n    return a\nif c:\n    f = 1\nf()", "a c"),  # on one branch only, f is forgotten on all
    ("def f():\n    return x\nif c:\n    x = 1\n    f()\nelse:\n    f()", "c x"),  # the first use pops f's reads, another path's use finds none
    ("def f():\n    return x\nfor i in f2:\n    x = 1\n    f()\nf()", "f2 x"),  # the same after a loop that may not run
    ("def f():\n    global x\n    x += 1", "x"),  # what a function that nobody has called yet writes counts as assigned
    ("def f():\n    return x\ndel f", ""),
    ("def f():\n    def g(a: T) -> R:\n        pass\n    return g", "R T"),  # a nested def evaluates its annotations (until 3.14)
    ("def f():\n    x = 1\n    def g():\n        global x\n        return x\n    return g", "x"),  # global of an inner def, local of the outer
]  # fmt: skip
CLASSES = [
    ("class C(B, metaclass=M):\n    x = y\n    z = x", "B M y"),
    ("@d\nclass C:\n    pass\nC", "d"),
    ("class C:\n    x = x", "x"),
    ("class C:\n    x = 1\n    def m(self):\n        return x", "x"),
    ("class C:\n    x = 1\n    @property\n    def m(self):\n        return x", "property x"),
    ("class C:\n    def m(self):\n        return y, C\ny = 1", ""),
    ("class C:\n    def m(self):\n        return y\nC()\ny = 1", "y"),
    ("class C:\n    class D(E):\n        def m(self):\n            return F", "E F"),
    ("class C:\n    def f():\n        return x\n    y = f()\nx = 1", "x"),
    ("class C:\n    a: A = b", "A b"),
    ("def f():\n    return x\nclass C:\n    y = f()\nx = 1", "x"),  # a body that runs a function of the cell
    ("class C:\n    k = 1\n    f = lambda self: k", "k"),  # a lambda in a class body does not see the class's names
    ("class C:\n    k = 1\n    v = [k for _ in w]", "k w"),  # nor does a comprehension
    ("def f():\n    class C:\n        k = 1\n        @d\n        def m(self):\n            return k", "d k"),  # a decorated method of a class in a function
    ("@d\nclass C:\n    def m(self):\n        return x\nx = 1", "d x"),  # a class decorator may run its methods, as a function's may run it
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), [*STATEMENTS, *EXPRESSIONS, *FUNCTIONS, *CLASSES])
def test_a_cell_reads_what_it_has_not_assigned_on_every_path(source: str, expected: str) -> None:
    assert reads(source) == " ".join(sorted(expected.split()))


IMPORTS = [
    ("import a, b.c", "a b.c", "b c", "c"),
    ("import a.b as c", "a.b", "c a", "a"),
    ("from a import b, c as d", "a a.b a.c", "b d a", "a"),
    ("from a.b import *", "a.b", "x", "x"),
    ("from . import a\nfrom .b import c", "", "a c", ""),
    ("def f():\n    import a\n    from b import c", "a b b.c", "", ""),
    ("class C:\n    import a\n    def m(self):\n        import b.c", "a b.c", "", ""),
    ("try:\n    import a\nexcept E:\n    import b as a\na", "a b", "", "E"),
    ("if x:\n    import a\na", "a", "", "a x"),
    ("f = lambda: __import__('a')", "", "", "__import__"),
    ("import a\nimport a", "a", "", ""),
    ("async def f():\n    async with x:\n        import a", "a", "", "x"),
    ("def f():\n    def g():\n        class C:\n            def m(self):\n                import deep", "deep", "", ""),
    ("match x:\n    case 1:\n        import a", "a", "", "x"),
    ("while x:\n    with y:\n        import a", "a", "", "x y"),
]


@pytest.mark.parametrize(("source", "modules", "use", "expected"), IMPORTS)
def test_imports_anywhere_in_a_cell_are_found_and_bind_their_names(
    source: str, modules: str, use: str, expected: str
) -> None:
    found = cell_names(source + "".join(f"\n{name}" for name in use.split()))
    assert sorted(found.imports) == modules.split()
    assert sorted(found.reads) == sorted(expected.split())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a:\n    x = 1\nfor y in b:\n    z = 1", "x y z"),
        ("def f():\n    global g\n    g = inner = 1", "f g"),
        ("class C:\n    x = 1", "C"),
        ("[(w := x) for x in xs]", "w"),
        ("import a.b, c as d\nfrom e import g", "a d g"),
        ("x.y = x[0] = 1", ""),
        ("with a as b:\n    pass\ntry:\n    pass\nexcept E as e:\n    h = 1", "b e h"),
        ("match a:\n    case [b, *c] | {'k': b, **c}:\n        pass", "b c"),
    ],
)
def test_what_a_cell_may_bind_is_known(source: str, expected: str) -> None:
    assert cell_names(source).assigns == set(expected.split())


# ── magics and commands ──

MAGICS = [
    ("%time y = f(x)\ny", "f x"),
    ("%timeit -n 10 -r 3 f(x)", "f x"),
    ("%timeit -n10 -qo f(x)", "f x"),
    ("%time\nx", "x"),
    ("r = %time f(x)\nr", "f x"),
    ("%%time\ny = f(x)\ny", "f x"),
    ("%%timeit setup = x\nf(setup)", "f x"),
    ("%%capture out\nprint(x)", "print x"),
    ("%prun f(x)", "f x"),
    ("!echo $x {y + z} $$w {{v}}", "x y z"),
    ("files = !ls {folder}\nfiles", "folder"),
    ("%cd {path}", "path"),
    ("%env A=$x", "x"),
    ("%matplotlib inline", ""),
    ("%%bash -s $x\necho $HOME {y}", "x"),
    ("%%writefile a.py\nimport b\nx", ""),
    ("def f():\n    y = 1\n    !echo $x $y\n    return 1", "x"),
    ("x = 1\n!echo $x", ""),
    ("!echo {d['a'] + f(b)}", "b d f"),
    ("x?", ""),
    ("!echo {x:.2f}", "x"),  # {name:format} is no Python
    ("!echo {x:5}", "x"),  # {name:5} is parsed as an annotation
    ("!echo {x!r}", "x"),  # {name!r} is no Python
    ("%prun -s cumulative f(x)", "f x"),
    ("%lprun -f g g(x)", "g x"),  # -f takes a word, which is a name besides
]


@pytest.mark.parametrize(("cell", "expected"), MAGICS)
def test_the_names_in_magics_and_commands_count(cell: str, expected: str) -> None:
    """As IPython's own transformer makes calls of them, so that a change of its forms is seen here."""
    assert reads(TransformerManager().transform_cell(cell)) == " ".join(sorted(expected.split()))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("get_ipython().run_line_magic('time', 'f(x)')", "f x"),
        ("get_ipython().run_cell_magic('timeit', '', 'f(x)\\n')", "f x"),
        ("get_ipython().system('echo $x {y}')", "x y"),
        ("z = get_ipython().getoutput('echo $x {y}')\nz", "x y"),
        ("get_ipython().magic('time f(x)')", "f x"),
        ("get_ipython().run_line_magic('time', code)", ""),
        ("get_ipython().other(x)", "get_ipython x"),
    ],
)
def test_the_forms_that_the_transformer_has_today(source: str, expected: str) -> None:
    assert reads(source) == expected


# ── no Python, deep Python, other Pythons ──


@pytest.mark.parametrize("source", ["x = ", "def f(", "%%time\nx", "x\0", "\ud800", "  x", "return x y", "(" * 500])
def test_what_is_no_python_has_no_names(source: str) -> None:
    assert cell_names(source) == CellNames()


@pytest.mark.parametrize(
    "source",
    [
        "x\n" + "".join(" " * n + "if a:\n" for n in range(90)) + " " * 90 + "b",
        "x\n" + "+".join(["y"] * 20_000),
        "x\n" + "-" * 20_000 + "1",
        "x\n" + "f(" * 150 + ")" * 150,
        "x\n" + "y" + ".a" * 20_000,
        "x\n" + "y if z else " * 5000 + "w",
        "x\n" + "lambda: " * 5000 + "w",
        "x\n" + "[" * 150 + "]" * 150,
    ],
    ids=["if", "sum", "minus", "calls", "attributes", "ifexp", "lambdas", "lists"],
)
def test_source_of_any_depth_ends_in_an_answer(source: str) -> None:
    """What was found counts, nothing is fatal: Python itself may say that the cell is too deep."""
    try:
        compile(source, "<cell>", "exec")
    except (RecursionError, SyntaxError, MemoryError):
        cell_names(source)
    else:
        assert "x" in cell_names(source).reads


def test_a_long_cell_takes_time_that_grows_with_its_length() -> None:
    source = "".join(f"def f{n}(a):\n    return f{n - 1}(a) + g{n}\nx{n} = f{n}(y)\n" for n in range(1, 1500))
    assert len(cell_names(source).reads) == 1499 + 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are of Python 3.12")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f[T](a: T) -> T:\n    return a, T", ""),
        *(
            pytest.param(source, expected, id=why)
            for source, expected, why in (
                ("class C[T]:\n    def m(self) -> T:\n        return T", "", "class_(): T counts as read in the body"),
                ("class C[T](B[T]):\n    pass", "B", "class_(): T counts as read in the bases"),
                (
                    "def f[T](a: T, b: Other):\n    pass",
                    "Other",
                    "function(): annotations are left out beside parameters",
                ),
                ("type A = B\nA", "B", "ast.TypeAlias is unknown: its name is not bound"),
            )
        ),
    ],
)
def test_type_parameters_are_names_of_their_own_scope(source: str, expected: str) -> None:
    assert reads(source) == expected
