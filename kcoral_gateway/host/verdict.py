"""Why a worker has ended, in words for people. Pure: exit codes and faulthandler's text in, sentences out."""

from __future__ import annotations

import os
import re
import signal

_FRAME = re.compile(r'File "([^"]{1,300})", line (\d{1,9}) in (.{1,200})')
_CELL = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_HINTS = {
    "SIGKILL": "by itself, or by the system when memory ran out",
    "SIGSEGV": "a crash in native code",
    "SIGABRT": "native code gave up",
    "SIGBUS": "a crash in native code, or a full /dev/shm",
}


def where(fault_text: str) -> str:
    """The innermost line of the user's own code in faulthandler's text, as the notebook names it; "" if none."""
    frames = _FRAME.findall(fault_text)
    for path, line, function in frames:
        if cell := _CELL.fullmatch(path):
            inside = "" if function == "<module>" else f", in {function}"
            return f"Cell In[{cell[1]}], line {line}{inside}"
    if not frames:
        return ""
    path, line, function = frames[0]
    return f"{os.path.basename(path)}, line {line}, in {function}"


def cause(exit_code: int, fault_text: str, *, is_ready: bool, said: str = "") -> str:
    """What an exit code (negative, or 128 and more, for a signal) says of the end of a worker.

    ``said`` is what a worker that did not start wrote to its stderr; the last line of a traceback says most.
    """
    place = where(fault_text)
    at = f" at {place}" if place else ""
    if not is_ready:
        lines = said.strip().splitlines()
        why = f": {lines[-1][:300]}" if lines else ""
        return f"the worker did not start (exit code {exit_code}){why}"
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < 65:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = f" ({_HINTS[name]})" if name in _HINTS else ""
        return f"the worker was ended by {name}{hint}{at}"
    return f"the worker ended itself with exit code {exit_code}{at}"
