"""A stand-in for NVIDIA's ``ncu``, where no GPU is: it runs the program, and reports kernels that it only pretended.

Its options, its log and its reports are those of the real one (facts and public documentation); its numbers are made
up, and its device says so. What a program launches is what it writes to the file named by ``STANDIN_LAUNCHES``, a JSON
object a line: ``notebooks/standin_gpu.py`` does. A kernel named after a failure makes that failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer

PASSES = {"basic": 9, "detailed": 20, "full": 40, "roofline": 12}
FAILURES = {
    "ERR_NVGPUCTRPERM": "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM",
    "unsupported_chip": "Profiling is not supported on device 0 as it uses an unsupported chip.",
    "old_driver": "Cuda driver is not compatible with Nsight Compute.",
    "busy": "An error was reported by the driver: Resource busy, another tool is already attached.",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("ncu", allow_abbrev=False)
    for option in ("--config-file", "--export", "--log-file", "--target-processes", "--set", "--metrics"):
        parser.add_argument(option)
    for option in ("--kernel-name", "--replay-mode", "--nvtx-include", "--import-source", "--clock-control"):
        parser.add_argument(option)
    for option in ("--cache-control", "--profile-from-start"):
        parser.add_argument(option)
    parser.add_argument("--launch-skip", type=int, default=0)
    parser.add_argument("--launch-count", type=int)
    parser.add_argument("--nvtx", action="store_true")
    parser.add_argument("--force-overwrite", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    log = open(options.log_file, "w") if options.log_file else sys.stdout
    if options.set not in (None, *PASSES):
        print(f'==ERROR== "{options.set}" is not a valid value for option --set', file=log)
        return 1
    with tempfile.NamedTemporaryFile("r", suffix=".launches") as launches:
        env = {**os.environ, "STANDIN_LAUNCHES": launches.name}
        ended = subprocess.run(options.program, env=env, check=False)
        made = [json.loads(line) for line in launches.read().splitlines()]
    if not made:
        print("==ERROR== The target application terminated before first instrumented API call.", file=log)
        return ended.returncode or 1
    print(f"==PROF== Connected to process {os.getpid()} (a stand-in: no GPU)", file=log)
    if (failure := next((FAILURES[one["name"]] for one in made if one["name"] in FAILURES), None)) is not None:
        print(f"==ERROR== {failure}", file=log)
        return ended.returncode or 1
    chosen = [one for one in made if _matches(options.kernel_name, one["name"])]
    chosen = chosen[options.launch_skip :]
    if options.launch_count is not None:
        chosen = chosen[: options.launch_count]
    if not chosen:
        print("==WARNING== No kernels were profiled.", file=log)
        return ended.returncode
    passes = PASSES.get(options.set or "basic", 9)
    for number, one in enumerate(chosen):
        print(f'==PROF== Profiling "{one["name"]}" - {number}: 0%....50%....100% - {passes} passes', file=log)
    kernels = [saxpy(one["duration_ns"], name=one["name"], memory_pct=one["memory_pct"]) for one in chosen]
    Path(options.export).write_bytes(Writer().report(kernels))
    print(f"==PROF== Disconnected from process {os.getpid()}", file=log)
    print(f"==PROF== Report: {options.export}", file=log)
    return ended.returncode


def _matches(wanted: str | None, name: str) -> bool:
    if wanted is None:
        return True
    if wanted.startswith("regex:"):
        return re.search(wanted.removeprefix("regex:"), name) is not None
    return wanted == name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
