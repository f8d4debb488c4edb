"""The machine code in a profiler's reports, disassembled where the toolkit is: the client may have none."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from kcoral_gateway.worker.assembly import sass
from kcoral_magic.reports import ncu_rep

FILE = "listing.sass"
_MOST_CODES = 8  # modules, a tenth of a second each
_LIMIT_S = 20.0  # for all of them: the report waits
_MOST_BYTES = 16 * 1024 * 1024


def write(folder: str) -> None:
    """Write ``listing.sass`` beside the ``.ncu-rep`` files of ``folder``, as ``nvdisasm -c -g`` prints it.

    There is no such file if there are no reports, no code in them, or no nvdisasm.
    """
    ends_at = time.monotonic() + _LIMIT_S
    codes: dict[bytes, None] = {}
    for place in sorted(Path(folder).glob("*.ncu-rep")):
        profile = ncu_rep.read(place.read_bytes())
        codes |= dict.fromkeys(kernel.code.cubin for kernel in profile.heaviest() if kernel.code is not None)
    texts: list[str] = []
    for cubin in list(codes)[:_MOST_CODES]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            try:
                texts.append(sass(file.name, limit_s=max(ends_at - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                break
        if sum(map(len, texts)) > _MOST_BYTES:
            break
    if text := "\n".join(texts)[:_MOST_BYTES].strip():
        Path(folder, FILE).write_text(text, "utf-8")
