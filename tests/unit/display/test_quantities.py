"""Numbers as people read them."""

from __future__ import annotations

import pytest

from kcoral_magic.display.quantities import ratio


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.000398, "0.0004"), (0.0128, "0.013"), (0.996, "0.996"), (2.564, "2.564"), (298.281, "298"), (0.0, "0.000")],
)
def test_a_ratio_keeps_two_digits_however_small_it_is(value: float, text: str) -> None:
    assert ratio(value) == text
