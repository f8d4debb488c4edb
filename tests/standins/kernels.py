"""Kernels that never ran, with numbers that hang together: what a stand-in profiler puts into its reports."""

from __future__ import annotations

from tests.standins.ncu_writer import Launch, Value, bars, curve, groups, roofline, rule, section

_STALLS = "long_scoreboard short_scoreboard barrier wait math_pipe_throttle lg_throttle not_selected selected".split()
DEVICE = "Stand-in GPU (no hardware)"


def saxpy(
    duration_ns: float = 12_345.0, *, name: str = "saxpy", memory_pct: float = 88.4, bank_conflicts: int = 0
) -> Launch:
    """A memory-bound kernel: every view has something to show."""
    base = 0x7F00_0000_1000
    bytes_moved = 3 * 4 * (1 << 20)
    metrics: dict[str, Value] = {
        "gpu__time_duration.sum": duration_ns,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 21.5,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": memory_pct,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": memory_pct,
        "l1tex__throughput.avg.pct_of_peak_sustained_active": 31.0,
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": 40.2,
        "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed": (
            "sm__inst_executed.avg.pct_of_peak_sustained_elapsed,sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"
        ),
        "sm__inst_executed.avg.pct_of_peak_sustained_elapsed": 21.5,
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed": 9.1,
        "device__attribute_display_name": DEVICE,
        "device__attribute_compute_capability_major": 9,
        "device__attribute_compute_capability_minor": 0,
        "launch__grid_size": 4096,
        "launch__block_size": 256,
        "launch__registers_per_thread": 24,
        "launch__shared_mem_per_block_static": 0,
        "launch__shared_mem_per_block_dynamic": 0,
        "launch__waves_per_multiprocessor": 3.88,
        "launch__occupancy_limit_blocks": 32,
        "launch__occupancy_limit_registers": 8,
        "launch__occupancy_limit_shared_mem": 32,
        "launch__occupancy_limit_warps": 8,
        "launch__occupancy_per_register_count": 64,
        "sm__maximum_warps_per_active_cycle_pct": 100.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 91.7,
        "sm__cycles_elapsed.avg.per_second": 1.5e9,
        "smsp__cycles_elapsed.avg.per_second": 1.5e9,
        "gpc__cycles_elapsed.avg.per_second": 1.5e9,
        "dram__cycles_elapsed.avg.per_second": 2.6e9,
        "dram__bytes.sum.peak_sustained": 1290,
        "dram__bytes.sum.per_second": bytes_moved / duration_ns * 1e9,
        "dram__bytes_read.sum": bytes_moved * 2 // 3,
        "dram__bytes_write.sum": bytes_moved // 3,
        "derived__sm__sass_thread_inst_executed_op_ffma_pred_on_x2": 33_792.0,
        "derived__sm__sass_thread_inst_executed_op_dfma_pred_on_x2": 16_896.0,
        "derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2": 2 * (1 << 20) / (duration_ns * 1.5),
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed": 0.0,
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed": 0.0,
        "l1tex__t_sector_hit_rate.pct": 0.0,
        "lts__t_sector_hit_rate.pct": 33.4,
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 65_536,
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": 32_768,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": bank_conflicts,
        "l1tex__m_xbar2l1tex_read_bytes.sum": bytes_moved * 2 // 3,
        "l1tex__m_l1tex2xbar_write_bytes.sum": bytes_moved // 3,
        "smsp__inst_executed.sum": 1_015_808,
        "profiler__replayer_passes": 9,
        "inst_executed": 1_015_808,
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard": 900,
        "smsp__pcsamp_warps_issue_stalled_wait": 100,
    }
    for place, reason in enumerate(_STALLS):
        metrics[f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"] = round(14.0 / (1 + 2 * place), 3)
    pcs = [base + 16 * step for step in range(8)]
    instances = {
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard": [(pcs[4], 600), (pcs[5], 250), (pcs[6], 50)],
        "smsp__pcsamp_warps_issue_stalled_wait": [(pcs[4], 30), (pcs[7], 70)],
        "inst_executed": [(pc, 126_976) for pc in pcs],
        "launch__occupancy_per_register_count": [
            (float(count), 64.0 if count <= 32 else 2048 / count) for count in range(8, 256, 8)
        ],
    }
    light = [
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput"),
        ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput"),
        ("gpu__time_duration.sum", "Duration"),
    ]
    sections = [
        section(
            "SpeedOfLight",
            "GPU Speed Of Light Throughput",
            10,
            light,
            [
                bars(
                    "GPU Throughput", "Speed Of Light (SOL) [%]", 100, [(metric, label) for metric, label in light[:2]]
                ),
                groups(
                    [("Compute Throughput Breakdown", "breakdown:sm__throughput.avg.pct_of_peak_sustained_elapsed")]
                ),
            ],
        ),
        section(
            "SpeedOfLight_RooflineChart",
            "GPU Speed Of Light Roofline Chart",
            11,
            [],
            [roofline("Floating Point Operations Roofline", [("f", "Single"), ("d", "Double")])],
        ),
        section(
            "Occupancy",
            "Occupancy",
            80,
            [("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")],
            [
                curve(
                    "Impact of Varying Register Count Per Thread",
                    "Registers Per Thread",
                    "Warp Occupancy",
                    "launch__occupancy_per_register_count",
                    "launch__registers_per_thread",
                )
            ],
        ),
    ]
    rules = [
        rule(
            "SOLBottleneck",
            "Bottleneck",
            "SpeedOfLight",
            "Memory is more heavily utilized than Compute: look at the "
            "@section:MemoryWorkloadAnalysis:Memory Workload Analysis@ section. See the "
            "@url:guide:https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html@.",
            title="High Memory Throughput",
            kind=1,
        ),
        rule(
            "TheoreticalOccupancy",
            "Occupancy",
            "Occupancy",
            "A stand-in's advice: use vectorized loads.",
            title="Vectorize",
            speedup=(1, 11.6),
        ),
    ]
    return Launch(
        name=name,
        signature=f"{name}(int, float, const float *, float *)",
        mangled=f"_Z{len(name)}{name}ifPKfPf",
        grid=(4096, 1, 1),
        block=(256, 1, 1),
        metrics=metrics,
        instances=instances,
        sections=sections,
        rules=rules,
    )
