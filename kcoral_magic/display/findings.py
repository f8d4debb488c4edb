"""What a cell shows of a sanitizer's findings: a row for each fault, with how often and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kcoral_magic.display import svg
from kcoral_magic.display.markup import colored, faint, folded, grid, note
from kcoral_magic.display.twin import Twin
from kcoral_magic.reports.sanitizer import Finding, Findings

_COLORS = {"error": svg.RED, "warning": svg.ORANGE, "info": svg.GREY}
_ROWS = 100


class SanitizerReport(Twin):
    """The findings of one run; ``findings`` is its data.

    Attributes:
        sources: Lines of source files by name, where they are at hand.
    """

    KIND = "sanitizer"

    def __init__(self, tool: str, findings: Findings, sources: Mapping[str, Sequence[str]] | None = None) -> None:
        self.tool = tool
        self.findings = findings
        self._sources = sources or {}

    @property
    def title(self) -> str:
        """One line: how much was found."""
        found = self.findings
        if not found.findings and not found.errors:
            return f"{self.tool}: nothing found"
        faults = len(found.findings)
        return f"{self.tool}: {found.errors:,} error{'s' if found.errors != 1 else ''}, {faults} different"

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/sanitizer-1.json``."""
        return {**self.findings.json(), "tool": self.tool}

    def __repr__(self) -> str:
        lines = [self.title]
        for one in self.findings.findings[:_ROWS]:
            times = f" ×{one.count:,}" if one.count > 1 else ""
            where = " ".join(filter(None, (one.kernel, f"at {one.place}" if one.place else "")))
            lines.append(f"  {one.severity}: {one.kind}{times}{f' in {where}' if where else ''}")
            if source := self._source(one):
                lines.append(f"      {source}")
            if one.example:
                lines.append(f"      {one.example}")
        return "\n".join([*lines, *(f"  {text}" for text in self.findings.notes)])

    def _source(self, one: Finding) -> str:
        lines = self._sources.get(one.file, ())
        return lines[one.line - 1].strip()[:120] if 0 < one.line <= len(lines) else ""

    def html(self) -> str:
        """A table; the stack and an example of each fold out."""
        rows = []
        for one in self.findings.findings[:_ROWS]:
            source = self._source(one)
            place = escape(one.place) + (f"<br><code>{escape(source)}</code>" if source else "")
            more = "".join(f"<div>{escape(frame)}</div>" for frame in one.frames)
            kind = folded(escape(one.kind), f"{note(one.example)}{more}") if one.example or more else escape(one.kind)
            mark = colored(one.severity, _COLORS[one.severity])
            rows.append([mark, f"{one.count:,}", kind, f"<code>{escape(one.kernel[:90])}</code>", place])
        table = grid(("", "times", "what", "kernel", "where"), rows, right=(1,), wraps=2) if rows else ""
        hidden = len(self.findings.findings) - _ROWS
        said = [*self.findings.notes, *([f"{hidden} more in .json()"] if hidden > 0 else []), self.findings.summary]
        notes = "".join(f"<div>{faint(text)}</div>" for text in said if text)
        return f"<div><div><b>{escape(self.title)}</b></div>{table}{notes}</div>"
