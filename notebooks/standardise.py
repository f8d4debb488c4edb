"""A module beside values.ipynb: an ``import`` in a remote cell brings it along, and the file that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SETTINGS = json.loads((Path(__file__).parent / "standardise.json").read_text("utf-8"))


def standardise(column: Any) -> Any:
    """Zero mean and unit deviation, rounded as standardise.json says."""
    return ((column - column.mean()) / column.std()).round(SETTINGS["digits"])
