"""Source, PTX and machine code side by side: what comes of one source line has one colour in all three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from kcoral_magic.display.markup import colored, faint, folded, grid, note
from kcoral_magic.display.quantities import scaled
from kcoral_magic.display.svg import RED
from kcoral_magic.display.twin import Twin
from kcoral_magic.reports.hotspots import Line
from kcoral_magic.reports.occupancy import Fit, capability_of, fit
from kcoral_magic.reports.ptxas import Usage, plain_names

SCHEMA = "kcoral.asm/1"
# Behind text of either theme: two neighbours differ, and none is so strong that code cannot be read on it.
_TINTS = ("74,143,216", "224,138,60", "63,164,110", "168,116,209", "217,83,79", "120,160,60", "60,170,180")
_MOST_LINES = 1500  # of one column


@dataclass(frozen=True)
class Built:
    """A kernel for one architecture."""

    arch: str
    usages: Mapping[str, Usage]
    ptx: Mapping[str, Sequence[Line]]
    sass: Mapping[str, Mapping[int, Line]]
    error: str = ""
    cubin: bytes = field(default=b"", repr=False)


class Assembly(Twin):
    """What ``%%kcoral asm`` made: ``built`` by architecture, ``cubin(arch)`` for a loader."""

    KIND = "asm"

    def __init__(self, source: str, built: Sequence[Built], block: int) -> None:
        self.source = source
        self.built = tuple(built)
        self.block = block
        self.prints_code = False  # in the text, too

    def cubin(self, arch: str) -> bytes:
        """The machine code for one architecture.

        Raises:
            KeyError: It was not built for that one.
        """
        return {one.arch: one.cubin for one in self.built if not one.error}[arch]

    def fits(self, arch: str, usage: Usage) -> Fit | None:
        """Theoretical occupancy with blocks of ``block`` threads."""
        return fit(capability_of(arch), block=self.block, registers=usage.registers, shared_bytes=usage.shared_bytes)

    def json(self) -> dict[str, Any]:
        """As plain data, by ``docs/schemas/asm-1.json``."""
        return {"schema": SCHEMA, "block": self.block, "targets": [self._target(one) for one in self.built]}

    def _target(self, one: Built) -> dict[str, Any]:
        kernels = []
        for name, usage in one.usages.items():
            found = self.fits(one.arch, usage)
            kernels.append(
                {
                    **{key: getattr(usage, key) for key in usage.__dataclass_fields__ if key != "arch"},
                    "occupancy_pct": found.percent if found else None,
                    "limiters": list(found.limiters) if found else [],
                    "ptx_instructions": len(one.ptx.get(name, ())),
                    "sass_instructions": len(one.sass.get(name, ())) or None,
                }
            )
        return {"arch": one.arch, "error": one.error or None, "kernels": kernels}

    def __repr__(self) -> str:
        lines = [f"asm: {', '.join(one.arch for one in self.built)}; occupancy with blocks of {self.block}"]
        for one in self.built:
            if one.error:
                lines.append(f"  {one.arch}: {one.error.splitlines()[0][:160]}")
            plain = plain_names(one.usages)
            for name, usage in one.usages.items():
                found = self.fits(one.arch, usage)
                occupancy = f", occupancy {found.percent:.0f} % by {' and '.join(found.limiters)}" if found else ""
                spills = usage.spill_store_bytes + usage.spill_load_bytes
                lines.append(
                    f"  {one.arch} {plain[name]}: {usage.registers} registers, {usage.shared_bytes} B shared, "
                    f"{spills} B spilled{occupancy}"
                )
                if self.prints_code:
                    lines += _printed("PTX", ((line.line, line.text) for line in one.ptx.get(name, ())))
                    lines += _printed("SASS", ((line.line, line.text) for line in _instructions(one, name)))
        return "\n".join(lines)

    def html(self) -> str:
        """The table of resources, then the code of each architecture, the first one open."""
        parts = [f"<div><b>{escape(', '.join(one.arch for one in self.built))}</b></div>", self._table()]
        good = [one for one in self.built if not one.error]
        for place, one in enumerate(good):
            parts.append(folded(f"<b>{escape(one.arch)}</b>", self._code(one), is_open=place == 0))
        for one in self.built:
            if one.error:
                head = colored(f"{one.arch} failed", RED)
                parts.append(folded(head, f"<pre>{escape(one.error[:20_000])}</pre>", is_open=True))
        return f"<div>{''.join(parts)}</div>"

    def _table(self) -> str:
        rows = []
        for one in self.built:
            plain = plain_names(one.usages)
            for name, usage in one.usages.items():
                found = self.fits(one.arch, usage)
                spills = usage.spill_store_bytes + usage.spill_load_bytes
                rows.append(
                    [
                        escape(one.arch),
                        f"<code>{escape(plain[name][:80])}</code>",
                        f"{usage.registers}",
                        scaled(usage.shared_bytes, "B"),
                        scaled(usage.stack_bytes, "B"),
                        colored(scaled(spills, "B"), RED) if spills else faint("none"),
                        f"{found.percent:.0f} %" if found else "–",
                        faint(" and ".join(found.limiters)) if found else "",
                    ]
                )
        heads = ("", "kernel", "registers", "shared", "stack", "spilled", "occupancy", "limited by")
        said = note(f"occupancy is theoretical, with blocks of {self.block} threads")
        return grid(heads, rows, right=(2, 3, 4, 5, 6)) + said

    def _code(self, one: Built) -> str:
        parts = []
        names = list(one.usages) or list(one.ptx)
        plain = plain_names(names)
        for name in names:
            sass = _instructions(one, name)
            ptx = list(one.ptx.get(name, ()))
            used = {line.line for line in (*ptx, *sass) if line.line}
            tints = {number: _TINTS[place % len(_TINTS)] for place, number in enumerate(sorted(used))}
            columns = [
                _column("source", list(enumerate(self.source.splitlines(), 1)), tints, is_source=True),
                _column("PTX", [(line.line, line.text) for line in ptx], tints),
                _column("SASS", [(line.line, line.text) for line in sass], tints, hint=_NVDISASM),
            ]
            body = f'<div style="display:flex;gap:10px;align-items:flex-start;overflow-x:auto">{"".join(columns)}</div>'
            parts.append(f"<div><code>{escape(plain[name][:120])}</code></div>{body}" if len(names) > 1 else body)
        return "".join(parts)


_NVDISASM = "with nvdisasm: pip install kcoral-magic[asm]"


def _column(
    title: str, lines: list[tuple[int, str]], tints: Mapping[int, str], *, is_source: bool = False, hint: str = ""
) -> str:
    """One listing; lines of the same tint belong together."""
    rows = []
    for number, text in lines[:_MOST_LINES]:
        tint = f"background:rgba({tints[number]},.22);" if number in tints else ""
        mark = f'<span style="opacity:.5">{number or "":>3} </span>'
        rows.append(f'<div style="{tint}padding:0 4px;white-space:pre">{mark}{escape(text)}</div>')
    if len(lines) > _MOST_LINES:
        rows.append(note(f"… {len(lines) - _MOST_LINES:,} lines more"))
    if not lines:
        rows.append(note(hint))
    count = f" {faint(f'{len(lines):,} lines')}" if lines and not is_source else ""
    listing = (
        f'<div style="font-family:monospace;font-size:11px;line-height:1.35;overflow-x:auto">{"".join(rows)}</div>'
    )
    return f'<div style="min-width:250px;flex:1 1 0;overflow:hidden"><b>{title}</b>{count}{listing}</div>'


def _instructions(one: Built, name: str) -> list[Line]:
    sass = [line for _, line in sorted(one.sass.get(name, {}).items())]
    while sass and sass[-1].text.startswith(("NOP", "BRA `(.L_x")):
        sass.pop()  # what fills the function up to its alignment
    return sass


def _printed(title: str, lines: Iterable[tuple[int, str]]) -> list[str]:
    """For a terminal: each line behind that of the source that it belongs to."""
    return [f"    {title}", *(f"    {number or '':>5}  {text}" for number, text in lines)]
