"""A stand-in for ``compute-sanitizer``, where no GPU is: it runs the program, and reports the faults it pretended.

Text and XML have the real one's form. A launch with ``fault`` says which: ``oob``, ``race``, ``uninitialized``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

THREADS = 1000
FAULTS = {
    "oob": ("memcheck", "Invalid __global__ write of size 4 bytes", "write", 12),
    "uninitialized": ("initcheck", "Uninitialized __global__ memory read of size 4 bytes", "read", 9),
    "race": ("racecheck", "", "", 18),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("compute-sanitizer", allow_abbrev=False)
    for option in ("--tool", "--xml", "--save", "--log-file", "--print-limit", "--target-processes", "--leak-check"):
        parser.add_argument(option)
    parser.add_argument("--kernel-name", action="append", default=[])
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    with tempfile.NamedTemporaryFile("r", suffix=".launches") as launches:
        env = {**os.environ, "STANDIN_LAUNCHES": launches.name}
        ended = subprocess.run(options.program, env=env, check=False)
        made = [json.loads(line) for line in launches.read().splitlines()]
    lines = ["========= COMPUTE-SANITIZER"]
    records = []
    if not made:
        lines.append("========= Error: Target application terminated before first instrumented API call")
    for one in made:
        tool, head, direction, line = FAULTS.get(one.get("fault"), ("", "", "", 0))
        if tool != (options.tool or "memcheck"):
            continue
        name = f"{one['name']}(float *, int)"
        if tool == "racecheck":
            lines += [
                f"========= Error: Race reported between Write access at {name}+0x100 in kernel.cu:{line}",
                f"=========     and Read access at {name}+0x170 in kernel.cu:{line + 9} [508 hazards]",
                "========= ",
            ]
            continue
        for thread in range(THREADS):
            lines += [
                f"========= {head}",
                f"=========     at {name}+0x70 in kernel.cu:{line}",
                f"=========     by thread ({thread},0,0) in block (0,0,0)",
                f"=========     Address 0x7f{thread:08x} is out of bounds",
                "========= ",
            ]
            records.append(
                "<record><kind>Precise</kind><level>Error</level>"
                f"<who><threadIdx><x>{thread}</x><y>0</y><z>0</z></threadIdx>"
                "<blockIdx><x>0</x><y>0</y><z>0</z></blockIdx></who>"
                f"<what><text>{head.partition(' ')[0]} {direction}: Access is out of bounds</text><space>global</space>"
                f"<size>4</size><direction>{direction}</direction><address>0x7f{thread:08x}</address></what>"
                f"<where><func>{name}</func><path>kernel.cu</path><line>{line}</line><pc>0x70</pc></where>"
                "<hostStack><frame><func>main</func><path>main.cu</path><line>3</line></frame></hostStack></record>"
            )
    lines.append(f"========= ERROR SUMMARY: {len(records)} errors")
    Path(options.log_file).write_text("\n".join(lines) + "\n")
    if made and options.tool != "racecheck":
        Path(options.save).write_text(f"<ComputeSanitizerOutput>{''.join(records)}</ComputeSanitizerOutput>")
    return ended.returncode
