"""What ncu says while it runs, with a program's words between."""

from __future__ import annotations

from kcoral_magic.reports import ncu_log


def test_kernels_and_passes_are_counted_and_errors_kept() -> None:
    log = ncu_log.read(
        '==PROF== Profiling "saxpy" - 0: 0%....50%....100% - 9 passes\nmine: 77 passes\n'
        '==PROF== Profiling "fill" - 1 (2/2): 0%....100% - 1 pass\n==ERROR== ERR_NVGPUCTRPERM: no\n'
    )
    assert (log.profiled, log.passes) == (2, 9)
    assert log.errors == ("ERR_NVGPUCTRPERM: no",)
    assert log.failure is not None
    assert log.failure.code == "counters_forbidden"


def test_a_number_of_passes_that_no_int_is_made_of_is_none() -> None:
    assert ncu_log.read(f'==PROF== Profiling "k" {"1" * 5000} passes').passes is None
