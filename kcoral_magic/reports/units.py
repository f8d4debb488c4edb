"""The unit of a metric, by its name: ``.ncu-rep`` files hold names and numbers.

NVIDIA's names are built of parts (Kernel Profiling Guide, "Metrics Decoder"): ``unit__counter.rollup.submetric``. What
the parts do not tell is in a small table.
"""

from __future__ import annotations

_RATES = {
    ".per_second": "/s",
    ".per_cycle_active": "/cycle",
    ".per_cycle_elapsed": "/cycle",
    ".peak_sustained": "/cycle",
    ".peak_sustained_active": "",
    ".peak_sustained_elapsed": "",
    ".max_rate": "",
}
_EXACT = {
    "derived__avg_thread_executed": "thread",
    "derived__avg_thread_executed_true": "thread",
    "derived__memory_l1_wavefronts_shared_excessive": "",
    "derived__memory_l2_theoretical_sectors_global_excessive": "sector",
    "gpu__time_duration.sum": "ns",
    "inst_executed": "inst",
    "launch__registers_per_thread": "register/thread",
    "launch__registers_per_thread_allocated": "register/thread",
    "launch__shared_mem_config_size": "byte",
    "launch__thread_count": "thread",
    "smsp__average_warp_latency_per_inst_issued.ratio": "cycle",
    "smsp__average_warps_active_per_inst_executed.ratio": "cycle",
    "smsp__warps_active.avg.peak_sustained": "warp",
    "thread_inst_executed": "inst",
    "thread_inst_executed_true": "inst",
}


def unit_of(name: str) -> str:
    """The unit, as ncu writes it (``byte/s``, ``%``, ``inst/cycle``); empty where it counts something without one."""
    if (exact := _EXACT.get(name)) is not None:
        return exact
    if name.startswith(("breakdown:", "group:", "device__", "nvlink__", "numa__", "pmsampling:group")):
        return "%" if name.endswith(("pct", "pct_of_peak_sustained_elapsed")) else ""
    if ".pct" in name or name.endswith("_pct"):
        return "%"
    if name.startswith("launch__"):
        return _launch(name)
    if "_per_opcode" in name or name.endswith("per_inst_executed.ratio"):
        return ""
    rate = next((rate for end, rate in _RATES.items() if name.endswith(end)), "")
    base = _base(name)
    if base == "cycle" and rate == "/s":
        return "hz"
    if base == "warp":  # an average, as NVIDIA has it
        return base
    return base + rate if base else ""


def _launch(name: str) -> str:
    if name.startswith("launch__shared_mem_per_block"):
        return "byte/block"
    if name.startswith(("launch__block_dim", "launch__occupancy_limit")):
        return "block"
    return ""


def _base(name: str) -> str:
    counter = name.partition("__")[2].partition(".")[0]
    for word, unit in (
        ("time_duration", "ns"),
        ("_bytes_", "byte"),
        ("bytes", "byte"),
        ("cycles_", "cycle"),
        ("_cycles", "cycle"),
        ("sectors", "sector" if "__" in name else "sectors"),
        ("t_requests", "request" if name.startswith("lts") else ""),
        ("replayer_passes", "pass"),
        ("writeback_active", "cycle"),
        ("thread_inst_executed", "inst" if "sass" in counter else "thread"),
        ("inst_executed", "inst"),
        ("inst_issued", "inst"),
        ("warps_issue_stalled", "warp" if "pcsamp" in counter else "inst"),
        ("warps", "warp"),
    ):
        if word in counter:
            return unit
    return ""
