"""The rules of an ``.ncu-rep`` file: what ncu advises of a kernel, how sure it is, and which metrics made it say so."""

from __future__ import annotations

import math
from dataclasses import replace

from kcoral_magic.reports.fields import inside, number, text
from kcoral_magic.reports.ncu import Focus, Rule, RuleKind, Speedup

_KINDS: tuple[RuleKind, ...] = ("none", "ok", "warning", "error", "optimization")


def rules(data: bytes, at: int, end: int) -> list[Rule]:
    """What a rule said, a message each; one that had nothing to say has no body."""
    texts = {1: "", 2: "", 4: ""}
    items: list[tuple[int, int]] = []
    for key, a, b in inside(data, at, end):
        if key in texts:
            texts[key] = text(data, a, b)
        elif key == 3:
            items += [(c, d) for item, c, d in inside(data, a, b) if item == 1]
    made = [_message(data, a, b, Rule(texts[1], texts[2], texts[4], "")) for a, b in items]
    return [rule for rule in made if rule.text] or [Rule(texts[1], texts[2], texts[4], "")]


def _message(data: bytes, at: int, end: int, rule: Rule) -> Rule:
    message, title, kind = "", "", 0
    speedup: Speedup | None = None
    focus: list[Focus] = []
    for what, a, b in inside(data, at, end):
        if what == 1:
            for part, c, d in inside(data, a, b):
                if part == 1:
                    message = text(data, c, d)
                elif part == 2:
                    kind = c
                elif part == 4:
                    title = text(data, c, d)
        elif what == 8:
            focus.append(_focus(data, a, b))
        elif what == 10:
            speedup = _speedup(data, a, b)
    word = _KINDS[kind] if 0 <= kind < len(_KINDS) else "none"
    return replace(rule, text=message, title=title, kind=word, speedup=speedup, focus=tuple(focus))


def _speedup(data: bytes, a: int, b: int) -> Speedup | None:
    is_global, percent = True, None
    for key, c, d in inside(data, a, b):
        if key == 1:
            is_global = c == 1
        elif key == 2:
            percent = number(data, c, d)
    return None if percent is None or not math.isfinite(percent) else ("global" if is_global else "local", percent)


def _focus(data: bytes, a: int, b: int) -> Focus:
    metric, value, info = "", 0.0, ""
    for key, c, d in inside(data, a, b):
        if key == 2:
            metric = text(data, c, d)
        elif key == 3:
            value = number(data, c, d)
        elif key == 5:
            info = text(data, c, d)
    return Focus(metric, value, info)
