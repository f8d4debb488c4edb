"""When two results are the same."""

from __future__ import annotations

import numpy as np
import pytest

from kcoral_gateway.worker.bench import is_close


def test_rounding_is_close_and_zeros_are_not_what_is_small() -> None:
    small = np.linspace(0, 1e-7, 100)
    assert is_close(small * (1 + 1e-6), small)
    assert not is_close(np.zeros_like(small), small)
    assert not is_close(np.array([1, 2]), np.array([1, 3]))
    assert is_close(np.array([np.inf, np.nan, 1.0]), np.array([np.inf, np.nan, 1.0]))
    assert is_close(np.empty(0), np.empty(0))


def test_tensors_are_compared_beside_their_largest_value() -> None:
    torch = pytest.importorskip("torch")
    small = torch.linspace(0, 1e-7, 100)
    assert is_close(small * (1 + 1e-6), small)
    assert not is_close(torch.zeros_like(small), small)
    assert is_close(torch.tensor([1 + 1j]), torch.tensor([1 + 1j]))
    assert not is_close(torch.tensor([1 + 1j]), torch.tensor([1 - 1j]))
