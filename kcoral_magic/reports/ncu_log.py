"""What ncu says while it runs: how many kernels it profiled, in how many passes, and why it failed, with the remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROFILED = re.compile(r'^==PROF== Profiling "[^"\n]*".*?(?<!\d)(?P<passes>\d{1,9}) pass', re.MULTILINE)
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)
_WARNING = re.compile(r"^==WARNING==\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why nothing, or not all, was captured. ``code`` is stable; ``remedy`` says who can do what."""

    code: str
    what: str
    remedy: str


# In this order: the first that matches explains the rest.
_FAILURES = (
    (
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        Failure(
            "counters_forbidden",
            "the GPU's performance counters are closed to this user (ERR_NVGPUCTRPERM)",
            "on the GPU host an administrator sets `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
            "/etc/modprobe.d and reboots, or runs the gateway in a container with CAP_SYS_ADMIN; most clouds do not "
            "allow it. %%kcoral profile (torch.profiler) and %%kcoral bench need no counters",
        ),
    ),
    (
        r"is not supported on|unsupported (?:GPU|device|chip)|not supported on (?:this|the) (?:device|GPU|chip)",
        Failure(
            "wrong_architecture",
            "this ncu does not know the GPU's architecture",
            "install a newer Nsight Compute on the GPU host (ncu --list-chips says which it knows), and name its "
            "folder with kcoral-gateway --tools DIR",
        ),
    ),
    (
        r"driver (?:is not|isn't) compatible|incompatible (?:with the )?driver|driver version|newer driver",
        Failure(
            "driver",
            "ncu and the GPU's driver do not fit together",
            "update the driver on the GPU host, or use the Nsight Compute that came with its CUDA toolkit",
        ),
    ),
    (
        r"unrecogni[sz]ed option|unrecognized|unknown option|invalid (?:option|argument)|is not a valid",
        Failure(
            "too_old",
            "ncu does not know an option or metric that was asked for",
            "leave it out, or install a newer Nsight Compute on the GPU host; ncu --query-metrics lists what this one "
            "knows",
        ),
    ),
    (
        r"another (?:profiler|tool)|already (?:attached|being profiled|in use)|Resource busy|cuptiSubscribe|"
        r"MULTIPLE_SUBSCRIBERS|InterprocessLockFailed|lock file",
        Failure(
            "another_profiler",
            "another profiler holds the GPU",
            "take torch.profiler, proton, nsys or CUPTI out of the cell, and wait until other profiling on this GPU "
            "has ended",
        ),
    ),
    (
        r"No kernels were profiled",
        Failure(
            "no_kernels",
            "no kernel was profiled",
            "the cell launched none, or none that matches --kernel, --nvtx, --launch-skip: run it with `%%kcoral ncu` "
            "alone first. A tensor on the CPU, and a result that was cached, launch none",
        ),
    ),
    (
        r"terminated before first instrumented API call",
        Failure(
            "no_cuda",
            "it used no CUDA",
            "what was printed says why if it failed before; else it must launch a kernel in its own process: move "
            "tensors to 'cuda', and call what is compiled lazily",
        ),
    ),
)


@dataclass(frozen=True)
class Log:
    """What the log says. ``passes`` is the most that a kernel needed."""

    profiled: int = 0
    passes: int | None = None
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def read(text: str) -> Log:
    """ncu's log, or its output with a program's between."""
    found = list(_PROFILED.finditer(text))
    passes = max((int(one["passes"]) for one in found), default=None)
    failure = next((one for pattern, one in _FAILURES if re.search(pattern, text, re.IGNORECASE)), None)
    errors = tuple(dict.fromkeys(_ERROR.findall(text)))
    return Log(len(found), passes, failure, tuple(dict.fromkeys(_WARNING.findall(text))), errors)


MISSING = Failure(
    "missing",
    "there is no ncu where the cell runs",
    "install Nsight Compute on the GPU host (it comes with the CUDA toolkit; pip has none), and name its folder with "
    "kcoral-gateway --tools DIR if it lies elsewhere than in /usr/local/cuda/bin or /opt/nvidia. "
    "%kcoral ncu view FILE reads a report without it",
)
