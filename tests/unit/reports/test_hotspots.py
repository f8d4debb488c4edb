"""Instructions by samples, and disassemblies as nvdisasm and cuobjdump print them."""

from __future__ import annotations

import pytest

from kcoral_magic.reports import ncu_rep
from kcoral_magic.reports.hotspots import disassembly, hot_spots
from tests.standins.ncu_writer import Launch, Writer


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("/*0010*/   FFMA R5, R2, R7 ;   /* 0x000 */", "FFMA R5, R2, R7"),
        ("/*0010*/ EXIT", "EXIT"),
        ("/*0010*/ @!P0  BRA `(.L_x_1)   ;", "@!P0 BRA `(.L_x_1)"),
        ("/*0010*/ MOV /* odd */ R1, R2 ;", "MOV /* odd */ R1, R2"),
    ],
)
def test_an_instruction_is_its_text_without_the_comment_at_its_end(printed: str, code: str) -> None:
    assert disassembly(f"Function : f\n{printed}")["f"][16].text == code


def test_a_line_number_that_no_int_is_made_of_is_none() -> None:
    assert disassembly(f'Function : f\n//## File "a", line {"1" * 5000}\n/*0010*/ EXIT')["f"][16].line < 10**9


def test_executions_that_are_no_numbers_count_nothing() -> None:
    launch = Launch(
        "k", {"inst_executed": 1}, instances={"inst_executed": [(16, float("inf")), (32, 5), (48, float("nan"))]}
    )
    (spot,) = hot_spots(ncu_rep.read(Writer().report([launch]))[0])
    assert spot.executed == 5
