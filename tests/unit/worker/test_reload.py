"""Edited modules: new everywhere they were taken, and what could not be renewed is named."""

# ruff: noqa: E501 - tables read best with one case a line
from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoral_gateway.worker.reload import Modules

_ages = itertools.count(1_000_000_000, 10)


class Project:
    """Modules on the path, a namespace that imports them, and edits that Python's caches cannot overlook."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.space: dict[str, Any] = {}
        self.modules = Modules(root, self.space)

    def write(self, **texts: str) -> list[str]:
        changed = []
        for name, text in texts.items():
            path = self.root / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            age = next(_ages)  # a pyc is as old as its source, in whole seconds
            os.utime(path, (age, age))
            changed.append(path.relative_to(self.root).as_posix())
        importlib.invalidate_caches()
        return changed

    def run(self, source: str) -> None:
        exec(source, self.space)

    def edit(self, **texts: str) -> list[str]:
        return self.modules.update(self.write(**texts))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path.resolve()))
    yield Project(tmp_path.resolve())
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_edited_module_is_new_for_those_who_hold_it(project: Project) -> None:
    project.write(r_a="def f():\n    return 1\nlimit = 1")
    project.run("import r_a, r_a as other\nfrom r_a import f")
    assert project.edit(r_a="def f():\n    return 2\nlimit = 2\nmore = 3") == []
    project.run("result = r_a.f(), other.limit, f(), r_a.more")
    assert project.space["result"] == (2, 2, 2, 3)


def test_a_module_that_did_not_change_or_is_not_loaded_is_left_alone(project: Project) -> None:
    project.write(r_a="import r_b\nruns = []", r_b="")
    project.run("import r_a\nr_a.mark = 1")
    module = project.space["r_a"]
    assert project.modules.update([]) == []
    assert project.edit(r_c="raise RuntimeError", data="x = 1") == []
    assert project.modules.update(["data.csv", "no/such.py"]) == []
    assert module.mark == 1
    assert "r_c" not in sys.modules


def test_classes_and_functions_are_rebound_under_any_name_and_other_values_are_not(project: Project) -> None:
    project.write(r_a="class K:\n    n = 1\ndef f():\n    return 1\nlimit = [1]")
    project.run("from r_a import K as Mine, f as g, limit\nown = len\nkept = Mine, g")
    assert project.edit(r_a="class K:\n    n = 2\ndef f():\n    return 2\nlimit = [2]") == []
    project.run("result = Mine.n, g(), limit, kept[0].n")
    assert project.space["result"] == (2, 2, [1], 1)


def test_what_other_modules_took_is_taken_again(project: Project) -> None:
    project.write(
        r_a="def f():\n    return 1", r_b="from r_a import f\ndef g():\n    return f()", r_c="from r_b import g"
    )
    project.run("from r_c import g\nimport r_c")
    assert project.edit(r_a="def f():\n    return 2") == []
    project.run("result = g(), r_c.g()")
    assert project.space["result"] == (2, 2)


def test_a_package_and_its_modules_are_reloaded(project: Project) -> None:
    project.write(r_p__in____init__="from .deep import f", r_p__in__deep="def f():\n    return 1")
    project.run("import r_p\nfrom r_p import f")
    assert project.edit(r_p__in__deep="def f():\n    return 2") == []
    project.run("result = r_p.f(), r_p.deep.f(), f()")
    assert project.space["result"] == (2, 2, 2)


def test_modules_are_run_after_those_that_they_take_from(project: Project) -> None:
    project.write(r_a="x = 1", r_b="import r_a\ndef f():\n    return 1", r_c="from r_b import f")
    project.run("import r_c")
    project.edit(r_a="x = 2", r_b="import r_a\ndef f():\n    return 2")
    assert project.space["r_c"].f() == 2


def test_those_who_hold_an_instance_of_the_old_class_are_named(project: Project) -> None:
    project.write(r_a="class K:\n    def m(self):\n        return 1\nclass Sub(K):\n    pass")
    project.run("from r_a import K, Sub\nmodel, other, third = K(), Sub(), 5")
    (line,) = project.edit(r_a="class K:\n    def m(self):\n        return 2\nclass Sub(K):\n    pass")
    assert line == "kcoral: still of the code before the change: model (a r_a.K), other (a r_a.Sub)"
    project.run("result = model.m(), K().m()")
    assert project.space["result"] == (1, 2)
    project.run("del model, other")
    assert project.edit(r_a="class K:\n    pass\nclass Sub(K):\n    pass") == []


def test_many_holders_are_counted(project: Project) -> None:
    project.write(r_a="class K:\n    pass")
    project.run("from r_a import K\n" + "".join(f"k{n} = K()\n" for n in range(11)))
    (line,) = project.edit(r_a="class K:\n    x = 1")
    assert "k7 (a r_a.K) and 3 more" in line


@pytest.mark.parametrize(("text", "error"), [("def broken(:", "SyntaxError"), ("1 / 0", "ZeroDivisionError"), ("import no_such_module", "ModuleNotFoundError")])  # fmt: skip
def test_a_module_that_cannot_be_reloaded_is_told_and_the_others_are(project: Project, text: str, error: str) -> None:
    project.write(r_a="def f():\n    return 1", r_b="x = 1")
    project.run("import r_a, r_b")
    (line,) = project.edit(r_a=text, r_b="x = 2")
    assert line.startswith(f"kcoral: r_a could not be reloaded: {error}")
    assert (project.space["r_a"].f(), project.space["r_b"].x) == (1, 2)
    assert project.edit(r_a="def f():\n    return 3") == []
    assert project.space["r_a"].f() == 3


def test_a_module_whose_file_has_gone_is_told(project: Project) -> None:
    project.write(r_a="x = 1")
    project.run("import r_a")
    (project.root / "r_a.py").unlink()
    importlib.invalidate_caches()
    (line,) = project.modules.update(["r_a.py"])
    assert line.startswith("kcoral: r_a could not be reloaded")


def test_modules_that_take_from_each_other_are_reloaded_once_each(project: Project) -> None:
    project.write(r_a="import r_b\ndef f():\n    return 1", r_b="import r_a\ndef g():\n    return r_a.f()")
    project.run("import r_a, r_b")
    assert project.edit(r_a="import r_b\ndef f():\n    return 2") == []
    assert project.space["r_b"].g() == 2


def test_modules_outside_of_the_workspace_are_never_reloaded(project: Project) -> None:
    project.run("import json")
    assert (
        project.modules.update([os.path.relpath(project.space["json"].__file__, project.root), "/etc/passwd", ""]) == []
    )


def test_an_odd_module_in_the_way_does_not_matter(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.modules holds what people put there: objects, None, modules without a file."""

    class Odd:
        __file__ = 5

    for name, odd in (("odd_one", Odd()), ("odd_two", None), ("odd_three", object())):
        monkeypatch.setitem(sys.modules, name, odd)  # type: ignore[arg-type]
    project.write(r_a="x = 1")
    project.run("import r_a")
    assert project.edit(r_a="x = 2") == []
    assert project.space["r_a"].x == 2
