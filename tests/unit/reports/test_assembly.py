"""What ptxas says, PTX with its source lines, and occupancy as ncu has it."""

from __future__ import annotations

import pytest

from kcoral_magic.reports import ncu_rep, views
from kcoral_magic.reports.occupancy import capability_of, fit
from kcoral_magic.reports.ptxas import Usage, plain_names, ptx_listing, usages
from tests.unit.reports.samples import sample

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4tilePf' for 'sm_90'
ptxas info    : Function properties for _Z4tilePf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem, 360 bytes cmem[0]
ptxas info    : Function properties for helper
    999 bytes stack frame, 999 bytes spill stores, 999 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Used 24 registers, used 0 barriers
"""

PTX = """
.file 1 "/k/kernel.cu"
.visible .entry _Z1kPf(
	.param .u64 _Z1kPf_param_0
)
{
	.reg .b64 	%rd<3>;
	.loc	1 4 1
	ld.param.u64 	%rd1, [_Z1kPf_param_0];
	.loc	1 5 3
	@%p1 bra 	$L__BB0_2;
$L__BB0_2:
	ret;
}
// .globl other
"""


def test_what_each_kernel_uses_is_read_and_not_what_its_functions_do() -> None:
    assert usages(SAID) == {
        "_Z4tilePf": Usage("_Z4tilePf", "sm_90", 10, 4096, 360, 16, 8, 12, 1),
        "b": Usage("b", "sm_90", 24),
    }


def test_ptx_is_cut_into_kernels_with_their_source_lines() -> None:
    (listing,) = ptx_listing(PTX).values()
    assert [(line.line, line.text) for line in listing] == [
        (4, "ld.param.u64 %rd1, [_Z1kPf_param_0];"),
        (5, "@%p1 bra $L__BB0_2;"),
        (5, "$L__BB0_2:"),
        (5, "ret;"),
    ]
    assert listing[0].file == "/k/kernel.cu"


@pytest.mark.parametrize("name", ["indexspaces", "esmm", "yzcuda", "mojo_profile", "extrap_exgpu_s10"])
def test_occupancy_is_what_ncu_says_of_real_kernels(name: str) -> None:
    for kernel in ncu_rep.read(sample(f"{name}.ncu-rep")):
        theirs = views.occupancy(kernel).theoretical
        registers = kernel.get("launch__registers_per_thread")
        shared = sum(kernel.get(f"launch__shared_mem_per_block_{kind}") or 0 for kind in ("static", "dynamic"))
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        if theirs is None or registers is None:
            continue
        ours = fit(kernel.capability, block=threads, registers=int(registers), shared_bytes=int(shared))
        assert ours is not None
        assert ours.percent == pytest.approx(theirs, abs=0.01)


def test_an_unknown_gpu_or_an_impossible_block_has_no_occupancy() -> None:
    assert fit("99.0", block=256, registers=32, shared_bytes=0) is None
    assert fit("9.0", block=2048, registers=32, shared_bytes=0) is None
    found = fit("9.0", block=1024, registers=255, shared_bytes=0)
    assert found is not None
    assert (found.percent, found.limiters) == (0.0, ("registers",))


@pytest.mark.parametrize(("arch", "capability"), [("sm_90a", "9.0"), ("sm_75", "7.5"), ("sm_121", "12.1"), ("x", "")])
def test_an_architecture_is_a_capability(arch: str, capability: str) -> None:
    assert capability_of(arch) == capability


TRITON = """
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)
"""


def test_a_triton_kernel_is_compiled_without_a_gpu() -> None:
    pytest.importorskip("triton", reason="triton is not installed (170 MB): its wheel compiles without a GPU")
    from kcoral_gateway.worker import assembly

    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    made = assembly.triton(TRITON, ["sm_80", "sm_90"], types, {"BLOCK": 1024}, 4)
    for arch in ("sm_80", "sm_90"):
        assert usages(made[arch]["usage"])["add"].registers > 0
        assert any("ld.global" in line.text for line in ptx_listing(made[arch]["ptx"])["add"])
        assert made[arch]["cubin"][:4] == b"\x7fELF"


def test_kernels_have_their_names_of_the_source_where_that_tells_them_apart() -> None:
    template = ["_Z2trILi16E6__halfEvPKT0_PS1_i", "_Z2trILi32E6__halfEvPKT0_PS1_i"]
    assert plain_names(["_Z5saxpyifPKfPf", template[0], "k", "_ZN2ns1kEv", "_Z99short"]) == {
        "_Z5saxpyifPKfPf": "saxpy",
        template[0]: "tr<…>",
        "k": "k",
        "_ZN2ns1kEv": "_ZN2ns1kEv",
        "_Z99short": "_Z99short",
    }
    assert plain_names(template) == {name: name for name in template}
