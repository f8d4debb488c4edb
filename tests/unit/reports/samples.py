"""Real reports, where they are: they are not ours to hand on, so tests skip without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("KCORAL_SAMPLES") or Path(__file__).resolve().parents[4] / "shared" / "samples")
NAMES = ("indexspaces", "esmm", "yzcuda", "mojo_profile", "extrap_exgpu_s10", "synthetic_minimal")


def sample(name: str) -> bytes:
    """A sample's bytes."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"no {name} beside the project: real reports are not part of it")
    return path.read_bytes()
