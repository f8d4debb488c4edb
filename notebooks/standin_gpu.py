"""Where no GPU is: says what a program would have launched, to the stand-in profilers of the tests."""

from __future__ import annotations

import json
import os


def launch(name: str, duration_ns: float = 12_345.0, memory_pct: float = 88.4, fault: str = "") -> None:
    """Say that a kernel of this name was launched and took so long, or had a fault: oob, race, uninitialized."""
    path = os.environ.get("STANDIN_LAUNCHES")
    if path is None:  # no stand-in profiler listens
        return
    told = {"name": name, "duration_ns": duration_ns, "memory_pct": memory_pct, "fault": fault}
    with open(path, "a") as file:
        file.write(json.dumps(told) + "\n")
