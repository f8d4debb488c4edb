"""The names in magics and ``!commands``, which IPython's transformer has made calls of ``get_ipython()``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

# Line and cell magics whose argument or body is Python, run in the namespace of the cell.
_CODE_MAGICS = frozenset(("time", "timeit", "prun", "capture", "memit", "mprun", "lprun", "debug"))
_RUNS = {"run_line_magic": "line", "run_cell_magic": "cell", "system": "shell", "getoutput": "shell", "magic": "line"}
# IPython's interpolation: $name, $$ for a dollar, {expression} with {{ for a brace.
_DOLLAR = re.compile(r"(?<!\$)\$(\w+)")
_BRACES = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")
# Options of code magics that are followed by a word of their own.
_TAKES_WORD = {"timeit": "nrp", "prun": "lsTD", "lprun": "fmTDsu", "mprun": "fTc", "memit": "rti", "debug": "b"}
_TAKES_NAME = {"lprun": "fm", "mprun": "f"}


@dataclass(frozen=True)
class MagicText:
    """What a magic's or command's text holds: names that are put into it, and Python that runs in the namespace."""

    names: tuple[str, ...]
    codes: tuple[str, ...]


def magic_text(node: ast.Call) -> MagicText | None:
    """The text of a call that stands for a magic or a command; ``None`` for any other call."""
    match node.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=attr) if attr in _RUNS:
            pass
        case _:
            return None
    words = [str(part.value) if isinstance(part, ast.Constant) else "" for part in node.args] + ["", "", ""]
    kind = _RUNS[attr]
    if kind == "shell":
        return _text("", words[0], "", is_shell=True)
    if attr == "magic":
        name, _, line = words[0].partition(" ")
        return _text(name, line, "")
    return _text(words[0], words[1], words[2] if kind == "cell" else "")


def _text(magic: str, line: str, body: str, *, is_shell: bool = False) -> MagicText:
    codes = [f"f{'{' + inner + '}'!r}" for inner in _BRACES.findall(line)]  # with !r and :.2f, as in an f-string
    if not is_shell and magic in _CODE_MAGICS:
        codes += _code_of(magic, line)
        if body:
            codes.append(body)
    return MagicText(tuple(_DOLLAR.findall(line)), tuple(codes))


def _code_of(magic: str, line: str) -> list[str]:
    """The Python behind a magic's options; an option's own argument may be a name too (``%lprun -f function``)."""
    words = line.split()
    codes: list[str] = []
    while words and words[0].startswith("-") and len(words[0]) > 1 and words[0][1].isalpha():
        option = words.pop(0)
        if len(option) == 2 and option[1] in _TAKES_WORD.get(magic, "") and words:
            word = words.pop(0)
            if option[1] in _TAKES_NAME.get(magic, ""):
                codes.append(word)
    if magic == "capture":  # its line holds names to assign
        return []
    rest = " ".join(words)
    return [*codes, rest] if rest else codes
