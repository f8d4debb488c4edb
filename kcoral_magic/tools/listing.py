"""Disassemblies of the code in a report, by NVIDIA's nvdisasm: of the CUDA toolkit, or from kcoral-magic[asm]."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kcoral_magic.reports.hotspots import Line, disassembly
from kcoral_magic.reports.ncu import Profile

_MOST_CODES = 8  # modules of a report that are disassembled, a tenth of a second each
_LIMIT_S = 20.0
_MOST_TEXT = 16 * 1024 * 1024  # characters of a listing from the other machine
_MOST_SOURCE_BYTES = 4 * 1024 * 1024


def program(name: str) -> str | None:
    """nvdisasm, cuobjdump or nvcc: on the PATH, in a wheel of NVIDIA's, or where the toolkit lies."""
    if found := shutil.which(name):
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for place in Path(folder).glob(f"*/bin/{name}"):
            if os.access(place, os.X_OK):
                return str(place)
    return shutil.which(name, path="/usr/local/cuda/bin")


def of(profile: Profile, text: str = "") -> Mapping[str, Mapping[int, Line]]:
    """The instructions of the report's kernels by mangled name and offset.

    Args:
        text: What nvdisasm printed where the report was made. It is read if there is none here.
    """
    cubins = dict.fromkeys(
        kernel.code.cubin for kernel in profile.heaviest() if kernel.code is not None and kernel.code.cubin
    )
    tool = program("nvdisasm") if cubins else None
    found: dict[str, Mapping[int, Line]] = {}
    if tool is None and text:
        found |= disassembly(text[:_MOST_TEXT])
    for cubin in list(cubins)[:_MOST_CODES] if tool is not None else ():
        found |= disassembly(disassembled(tool, cubin) if tool else "")
    sources = _Sources()
    return {name: {at: sources.told(line) for at, line in listing.items()} for name, listing in found.items()}


class _Sources:
    """Lines of source files that lie in this folder: a report names paths of another machine, and may name anything."""

    def __init__(self) -> None:
        self._files: dict[str, list[str]] = {}

    def told(self, line: Line) -> Line:
        """The instruction with its source line."""
        if not line.file:
            return line
        name = line.file.replace("\\", "/").rpartition("/")[2]
        if name not in self._files:
            self._files[name] = self._read(Path(name))
        lines = self._files[name]
        return replace(line, source=lines[line.line - 1].strip()[:200]) if 0 < line.line <= len(lines) else line

    def _read(self, path: Path) -> list[str]:
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_SOURCE_BYTES:
                return []
            return path.read_text("utf-8", "replace").splitlines()
        except OSError:
            return []


def disassembled(tool: str, cubin: bytes) -> str:
    """What nvdisasm printed; nothing for code that it does not take. It is a stranger's: there is a limit of time."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            ended = subprocess.run([tool, "-c", "-g", file.name], capture_output=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
    return ended.stdout.decode("utf-8", "replace")
