"""CUDA C++ to machine code, on any machine that has NVIDIA's compiler: a GPU is not needed to build for one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_ARCH = re.compile(r"sm_(\d{2,3}[af]?)\Z")
KINDS = {"cubin": "-cubin", "ptx": "-ptx", "fatbin": "-fatbin", "shared": "-shared"}


class CompileFailed(Exception):
    """The compiler's own words."""


def build(source: str, target: str, kind: str = "cubin", options: Sequence[str] = ()) -> bytes:
    """The object that nvcc makes of ``source``.

    Args:
        target: The GPU's architecture, as in ``sm_90a``.
        kind: ``cubin``, ``ptx``, ``fatbin``, or ``shared``: a library with host code, for ``ctypes``.
        options: More of nvcc's options.

    Raises:
        CompileFailed: It has errors, or there is no nvcc here.
        ValueError: No such target or kind.
    """
    import subprocess
    import tempfile

    found = _ARCH.match(target)
    if found is None or kind not in KINDS:
        raise ValueError(f"a target as in sm_90a and one of {', '.join(KINDS)} were expected, got {target!r}, {kind!r}")
    number = found[1]
    # PTX is of a virtual architecture; the others hold machine code of the real one.
    code = f"arch=compute_{number},code={'compute' if kind == 'ptx' else 'sm'}_{number}"
    with tempfile.TemporaryDirectory() as folder:
        path, made = os.path.join(folder, "kernel.cu"), os.path.join(folder, f"kernel.{kind}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        position = ["-Xcompiler", "-fPIC"] if kind == "shared" else []
        command = ["nvcc", KINDS[kind], *position, "-gencode", code, "-o", made, *options, path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except FileNotFoundError:
            raise CompileFailed("nvcc is not here: it comes with the CUDA toolkit, on the gateway's machine") from None
        log = (done.stdout + done.stderr).replace(path, "kernel.cu").strip()
        if done.returncode:
            raise CompileFailed(log or f"nvcc ended with status {done.returncode}")
        if log:
            print(log)  # warnings, or what -Xptxas -v was asked for
        with open(made, "rb") as result:
            return result.read()
