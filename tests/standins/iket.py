"""A stand-in for ``run-iket``, where no GPU is: it runs the program and writes a trace of what it pretended."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any


def trace(names: list[str], warps: int = 4, steps: int = 3) -> dict[str, Any]:
    """Every warp loads, computes and stores, one after the other."""
    launches = []
    for number, name in enumerate(names):
        ranges, lifetimes = [], []
        for warp in range(warps):
            place = {"smId": 0, "tpcId": 0, "gpcId": 0, "ctaId": warp // 2, "warpId": warp % 2}
            at = 1_000_000 + 64 * warp
            begin = at
            for _ in range(steps):
                for label, took in (("load", 960), ("mma", 1_920), ("store", 320)):
                    span = {"startTs": at, "endTs": at + took, "warpLocs": [place]}
                    ranges.append({"rangeName": label, "rangeScope": "warp", **span})
                    at += took
            lifetimes.append({"startTs": begin, "endTs": at, "warpLocation": place})
        markers = [{"markerName": "begin", "timestamp": 1_000_000, "location": {}, "payloadType": "", "payloadVal": 0}]
        launches.append(
            {"gridId": number, "kernelName": name, "ranges": ranges, "markers": markers, "warpLifetimes": lifetimes}
        )
    return {"launches": launches}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("run-iket", allow_abbrev=False)
    parser.add_argument("--output-dir")
    parser.add_argument("--clobber", action="store_true")
    parser.add_argument("command", choices=["profile"])
    parser.add_argument("--postprocess")
    parser.add_argument("--max-ts-cnt-per-warp")
    place = arguments.index("--")
    options, program = parser.parse_args(arguments[:place]), arguments[place + 1 :]
    with tempfile.NamedTemporaryFile("r", suffix=".launches") as launches:
        ended = subprocess.run(program, env={**os.environ, "STANDIN_LAUNCHES": launches.name}, check=False)
        names = [json.loads(line)["name"] for line in launches.read().splitlines()]
    folder = Path(options.output_dir)
    folder.mkdir(exist_ok=True)
    (folder / "trace.json").write_text(json.dumps(trace(names)))
    (folder / "trace.pftrace").write_bytes(b"a stand-in's trace")
    return ended.returncode
