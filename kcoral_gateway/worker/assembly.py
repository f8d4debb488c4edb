"""A kernel's source to PTX, machine code and what ptxas says of it, for any architecture: a GPU is not needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kcoral_gateway.worker.nvcc import CompileFailed

FILE = "kernel.cu"


def cuda(source: str, archs: Sequence[str], options: Sequence[str] = ()) -> dict[str, Any]:
    """CUDA C++ for each of ``archs``.

    Returns:
        By architecture ``ptx`` and ``usage`` as text, ``cubin`` as bytes, ``sass`` as text where nvdisasm is; or
        ``error``: the compiler's own words.
    """
    if shutil.which("nvcc") is None:
        raise CompileFailed("nvcc is not here: it comes with the CUDA toolkit, on the gateway's machine")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, FILE).write_text(source, "utf-8")
        return {arch: _one(folder, arch, options) for arch in archs}


def _one(folder: str, arch: str, options: Sequence[str]) -> dict[str, Any]:
    number = arch.removeprefix("sm_")
    common = ["nvcc", "-lineinfo", *options, "-I", os.getcwd(), FILE]  # headers that came along lie in the workspace
    target = f"arch=compute_{number},code"
    made = _run([*common, "-cubin", "-gencode", f"{target}=sm_{number}", "-Xptxas", "-v", "-o", "k.cubin"], folder)
    if made.returncode:
        return {"error": (made.stdout + made.stderr).strip() or f"nvcc ended with status {made.returncode}"}
    _run([*common, "-ptx", "-gencode", f"{target}=compute_{number}", "-o", "k.ptx"], folder)
    return {
        "usage": made.stdout + made.stderr,
        "ptx": _read(os.path.join(folder, "k.ptx")).decode("utf-8", "replace"),
        "cubin": _read(os.path.join(folder, "k.cubin")),
        "sass": sass(os.path.join(folder, "k.cubin")),
    }


def triton(
    source: str, archs: Sequence[str], signature: dict[str, str], constants: dict[str, Any], warps: int
) -> dict[str, Any]:
    """The one ``@triton.jit`` function of ``source`` for each of ``archs``; the result is as ``cuda`` gives it."""
    import importlib.util

    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    # The wheel brings NVIDIA's assembler and disassembler.
    tools = f"{os.path.join(os.path.dirname(compiler.__file__), 'backends', 'nvidia', 'bin')}:/usr/local/cuda/bin"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.py")
        Path(path).write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location("kcoral_asm", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernels = [one for one in vars(module).values() if isinstance(one, JITFunction)]
        called = {name for one in kernels for name in one.fn.__code__.co_names}
        entries = [one for one in kernels if one.fn.__name__ not in called]
        if len(entries) != 1:
            raise CompileFailed(f"one @triton.jit kernel was expected, got {len(entries)}")
        made: dict[str, Any] = {}
        for arch in archs:
            number = int("".join(filter(str.isdigit, arch)))
            try:
                target = GPUTarget("cuda", number, 32)
                code = compiler.compile(
                    ASTSource(entries[0], signature, constants), target=target, options={"num_warps": warps}
                )
            except Exception as error:  # noqa: BLE001 - the compiler raises anything for what a person wrote
                made[arch] = {"error": f"{type(error).__name__}: {error}"}
                continue
            (Path(folder) / "k.ptx").write_text(code.asm["ptx"])
            (Path(folder) / "k.cubin").write_bytes(code.asm["cubin"])
            made[arch] = {
                "usage": _usage(folder, code.asm["ptx"], tools),
                "ptx": code.asm["ptx"],
                "cubin": code.asm["cubin"],
                "sass": sass(os.path.join(folder, "k.cubin"), tools),
            }
        return made


def _usage(folder: str, ptx: str, tools: str) -> str:
    """What ptxas says of the PTX, assembled once more: Triton keeps it to itself."""
    found = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    for name in ("ptxas", "ptxas-blackwell"):  # the wheel has two, and each knows other versions of PTX
        ptxas = shutil.which(name, path=tools)
        if found is not None and ptxas is not None:
            said = _run([ptxas, "-v", f"--gpu-name={found[1]}", "k.ptx", "-o", "again.cubin"], folder)
            if not said.returncode:
                return said.stdout + said.stderr
    return ""


def sass(cubin: str, tools: str = "/usr/local/cuda/bin", limit_s: float | None = None) -> str:
    """What nvdisasm prints of a file of machine code; nothing where it is not, or for code that it does not take.

    Raises:
        subprocess.TimeoutExpired: It takes longer than ``limit_s``.
    """
    tool = shutil.which("nvdisasm") or shutil.which("nvdisasm", path=tools)
    return _run([tool, "-c", "-g", cubin], ".", limit_s).stdout if tool is not None else ""


def _run(command: Sequence[str], folder: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s
    )


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
