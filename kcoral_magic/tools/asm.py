"""``%%kcoral asm`` and ``kcoral-magic asm``: a kernel as source, PTX and machine code, for any GPU and without one."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kcoral_magic.client.files import Digests, FileSet, LocalFile, to_send
from kcoral_magic.display.assembly import Assembly, Built
from kcoral_magic.errors import ToolFailed, UsageError, ValueRefused
from kcoral_magic.reports.hotspots import disassembly
from kcoral_magic.reports.ptxas import ptx_listing, usages
from kcoral_magic.tools import listing
from kcoral_magic.tools import said as said_by

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution

WHERE = "apart"
_MOST_HEADERS = 500
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
USAGE = "%%kcoral asm [options] over a cell with a kernel"
_ARCH = re.compile(r"(?:sm_)?(\d{2,3}[af]?)")
_ASK = "__import__('kcoral_gateway.worker.assembly', fromlist=['cuda'])"
_MOST_ARCHS = 12
_MOST_TEXT = 1 << 26  # characters of PTX or SASS


def add_options(to: argparse.ArgumentParser) -> None:
    """What a cell and the command line take."""
    add = to.add_argument
    add("--arch", type=_archs, default=["sm_90"], metavar="sm_90a,…", help="the architectures (sm_90)")
    add("--block", type=int, default=256, metavar="N", help="threads of a block, for the occupancy (256)")
    add("--nvcc", action="append", default=[], metavar="OPTION", help="more for nvcc, as in --nvcc=-O3; repeatable")
    add("--signature", metavar="'x:*fp32, n:i32'", help="a Triton kernel's arguments and their types")
    add("--const", action="append", default=[], metavar="NAME=VALUE", help="a Triton kernel's constexpr; repeatable")
    add("--code", action="store_true", help="print PTX and SASS where there are no pages (a terminal)")
    add("--warps", type=int, default=4, metavar="N", help="of a Triton kernel (4)")


def _archs(text: str) -> list[str]:
    made = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        found = _ARCH.fullmatch(word)
        if found is None:
            raise argparse.ArgumentTypeError(f"architectures as in sm_80,sm_90a; got {word!r}")
        made.append(f"sm_{found[1]}")
    if not 1 <= len(made) <= _MOST_ARCHS:
        raise argparse.ArgumentTypeError(f"1 to {_MOST_ARCHS} architectures, got {len(made)}")
    return list(dict.fromkeys(made))


def start(client: Client, source: str, options: argparse.Namespace, folder: Path = Path()) -> Execution:
    """Have it compiled, without a GPU, in a worker of its own, with the headers of ``folder`` that it includes.

    Raises:
        UsageError: It is no kernel, or a Triton kernel without a signature.
    """
    if "__global__" in source:
        call = f"cuda(__kcoral_source, {options.arch!r}, {options.nvcc!r})"
    elif "triton.jit" in source:
        call = f"triton(__kcoral_source, {options.arch!r}, *{_triton(options)!r}, {options.warps!r})"
    else:
        raise UsageError("a kernel was expected: CUDA C++ with __global__, or Python with @triton.jit")
    digests = Digests()
    files = to_send(getattr(options, "send", ()), "", digests) | _headers(source, folder, digests)
    return client.session(gpus=0, python=options.python).execute(
        "# asm\n",
        send={"__kcoral_source": source},
        wants=[("built", f"{_ASK}.{call}")],
        files=FileSet(files) if files else None,
        is_alone=True,
    )


def _headers(source: str, folder: Path, digests: Digests) -> dict[str, LocalFile]:
    """The files below ``folder`` that the source includes in quotes, and those that they include."""
    found: dict[str, LocalFile] = {}
    waiting = [(source, PurePosixPath())]
    while waiting and len(found) < _MOST_HEADERS:
        text, place = waiting.pop()
        for name in _INCLUDE.findall(text):
            for path in (place / name, PurePosixPath(name)):  # beside the file that includes it, else beside the first
                here = folder / path
                if ".." in path.parts or path.is_absolute() or str(path) in found or not here.is_file():
                    continue
                found[str(path)] = digests.look(here)
                waiting.append((here.read_text("utf-8", "replace"), path.parent))
    return found


def _triton(options: argparse.Namespace) -> tuple[dict[str, str], dict[str, Any]]:
    if not options.signature:
        example = "--signature 'x:*fp32, n:i32' --const BLOCK=1024"
        raise UsageError(f"a Triton kernel is compiled for types: {example}")
    signature = {}
    for part in options.signature.split(","):
        name, _, kind = part.partition(":")
        if not name.strip().isidentifier() or not kind.strip():
            raise UsageError(f"--signature has names and types, as in 'x:*fp32, n:i32'; got {part.strip()!r}")
        signature[name.strip()] = kind.strip()
    constants: dict[str, Any] = {}
    for part in options.const:
        name, _, text = part.partition("=")
        try:
            constants[name.strip()] = ast.literal_eval(text.strip())
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise UsageError(f"--const has a name and a value, as in BLOCK=1024; got {part!r:.200}") from None
        signature[name.strip()] = "constexpr"
    return signature, constants


def ended(execution: Execution, source: str, options: argparse.Namespace) -> Assembly:
    """What came of it.

    Raises:
        ToolFailed: It compiles for none of the architectures; the message has the compiler's words.
    """
    try:
        found = execution.result().values.get("built")
    except ValueRefused as error:
        if "CompileFailed: " in str(error):
            raise ToolFailed(str(error).partition("CompileFailed: ")[2], "compiler") from None
        if "ModuleNotFoundError" in str(error):
            text = "triton is not installed where the worker runs: --python NAME chooses another environment"
            raise ToolFailed(text, "missing") from None
        raise
    if not isinstance(found, dict):
        raise ValueRefused("the worker did not say what it compiled")
    made = Assembly(source, [_built(arch, found.get(arch)) for arch in options.arch], options.block)
    made.prints_code = options.code
    if all(one.error for one in made.built):
        raise ToolFailed(f"it does not compile:\n{made.built[0].error[:4000]}", "compiler")
    return made


def _built(arch: str, said: Any) -> Built:
    """What a worker says of one architecture, as far as it is that."""
    if not isinstance(said, Mapping) or "error" in said:
        text = said_by.text(said["error"], _MOST_TEXT) if isinstance(said, Mapping) else ""
        return Built(arch, {}, {}, {}, text or "the worker said nothing of it")
    usage, ptx, sass = (said_by.text(said.get(name), _MOST_TEXT) for name in ("usage", "ptx", "sass"))
    cubin = bytes(said["cubin"]) if isinstance(said.get("cubin"), bytes | memoryview) else b""
    if not sass and cubin and (tool := listing.program("nvdisasm")) is not None:
        sass = listing.disassembled(tool, cubin)
    return Built(arch, usages(usage), ptx_listing(ptx), disassembly(sass), "", cubin)


def offline(given: list[str]) -> None:
    """There is none.

    Raises:
        UsageError: Always: it is a cell's.
    """
    raise UsageError(USAGE)
