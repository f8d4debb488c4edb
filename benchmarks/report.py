"""What the benchmarks share: a real gateway, and a table of ratios with their range."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from kcoral_magic.config import Target

Pairs = Sequence[Sequence[float]]  # ours and theirs, of each round


@contextlib.contextmanager
def gateway(folder: Path, *options: str) -> Iterator[tuple[Target, psutil.Process]]:
    """A real gateway on loopback, with a token."""
    state = folder / "state"
    command = [sys.executable, "-m", "kcoral_gateway", "--state", str(state)]
    with open(folder / "gateway.log", "wb") as log:
        process = subprocess.Popen([*command, "--port", "0", *options], stderr=log)
    try:
        while not (state / "gateway.json").exists():
            if process.poll() is not None:
                raise RuntimeError((folder / "gateway.log").read_text())
            time.sleep(0.01)
        token = subprocess.run([*command, "token", "add", "bench"], capture_output=True, text=True, check=True).stdout
        url = json.loads((state / "gateway.json").read_text())["url"]
        yield Target(url, token.strip()), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


class Report:
    """The table: the median ratio of the rounds, and their range."""

    def __init__(self, sides: str) -> None:
        self._sides = sides
        self.rows: list[tuple[str, str, str, str, str, bool]] = []

    @property
    def is_met(self) -> bool:
        """Whether every bar is."""
        return all(row[5] for row in self.rows)

    def ratio(self, figure: str, pairs: Pairs, bar: float, *, unit: str = "ms", is_least: bool = False) -> None:
        """A row of ``ours / theirs``; with ``is_least`` the bar is the least it may be."""
        scale = 1e3 if unit == "ms" else 1.0
        values = sorted(ours / theirs for ours, theirs in pairs)
        middle = statistics.median(values)
        ours, theirs = (statistics.median(pair[side] for pair in pairs) * scale for side in (0, 1))
        digits = 0 if unit == "MiB/s" else 2
        self.add(
            figure,
            f"{ours:,.{digits}f} / {theirs:,.{digits}f} {unit}",
            f"{middle:.3f}",
            f"{values[0]:.3f}–{values[-1]:.3f}",
            f"{'≥' if is_least else '≤'} {bar:g}",
            middle >= bar if is_least else middle <= bar,
        )

    def add(self, figure: str, measured: str, ratio: str, spread: str, bar: str, is_met: bool) -> None:
        """A row."""
        self.rows.append((figure, measured, ratio, spread, bar, is_met))
        print(f"  {figure}: {measured}, {ratio} ({spread}), bar {bar} {'met' if is_met else 'MISSED'}", flush=True)

    def markdown(self) -> str:
        """All rows, for the README."""
        lines = [f"| figure | {self._sides} | ratio | range | bar | met |", "|---|---|---|---|---|---|"]
        lines += [f"| {' | '.join(row[:5])} | {'yes' if row[5] else '**no**'} |" for row in self.rows]
        return "\n".join(lines)


def machine(*packages: str) -> str:
    """What the figures were taken on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("kcoral-magic", *packages))
    load = f"{os.cpu_count()} cores, load now {os.getloadavg()[0]:.2f}"
    return f"{platform.python_implementation()} {platform.python_version()}, {versions}; {load}"
