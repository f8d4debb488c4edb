"""What the ``%kcoral`` lines return: tables, and a cell's whole output."""

from __future__ import annotations

from pathlib import Path

from kcoral_magic.client.results import Result
from kcoral_magic.display.html import size

_SHOWN_BYTES = 64 * 1024  # of a whole output in its repr; all of it is in ``text``


class CellOutput:
    """The whole output of one cell. ``text`` is stdout and stderr in the order they were kept."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.text = result.stdout + result.stderr

    def save(self, path: str | Path) -> Path:
        """Write the text to a file."""
        target = Path(path)
        target.write_text(self.text, "utf-8")
        return target

    def __len__(self) -> int:
        return len(self.text)

    def __repr__(self) -> str:
        if len(self.text) <= _SHOWN_BYTES:
            return self.text
        half = _SHOWN_BYTES // 2
        cut = size(len(self.text) - 2 * half)
        note = f"[… {cut} not shown: .text has all of it, .save(path) writes it …]"
        return f"{self.text[:half]}\n{note}\n{self.text[-half:]}"
