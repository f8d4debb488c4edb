"""What a cell shows of a kernel profile, and what people do with it afterwards.

Static HTML first: it survives saving, nbconvert and a notebook without this package. Beside it text for terminals, JSON
for agents, and a richer type for the lab extension, each within a size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcoral_magic.display import kernel as kernel_page
from kcoral_magic.display import svg
from kcoral_magic.display.comparison import ProfileDiff
from kcoral_magic.display.markup import faint, folded, grid, note, share_bar
from kcoral_magic.display.quantities import quantity
from kcoral_magic.display.twin import MOST_JSON, Twin
from kcoral_magic.reports import export, ncu_rep, views
from kcoral_magic.reports.comparison import compare
from kcoral_magic.reports.hotspots import Line
from kcoral_magic.reports.ncu import Kernel, Profile

if TYPE_CHECKING:
    import pandas

MIME = "application/vnd.kcoral.ncu+json"
_MOST_HTML = 900 * 1024  # bytes: notebooks are saved with it
_MOST_RICH = 2 * 1024 * 1024
_ROWS = 50  # of the table of kernels
_PAGES = 12  # kernels whose views are drawn


class Report(Twin):
    """A kernel profile as a notebook has it.

    Attributes:
        profile: The data: ``report.profile.kernels``.
        data: The file's bytes, if it came from one.
        cost: How it was made, for people: passes, clocks, caches.
    """

    KIND = "ncu"

    def __init__(
        self,
        profile: Profile,
        data: bytes = b"",
        *,
        listings: Mapping[str, Mapping[int, Line]] | None = None,
        cost: str = "",
        launched: int | None = None,
        saved: Path | None = None,
    ) -> None:
        self.profile = profile
        self.data = data
        self.cost = cost
        self.launched = launched
        self.saved = saved
        self.remarks: list[str] = []  # of this run, for people
        self.listings = dict(listings or {})

    # ── data ──

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels in the order they were launched."""
        return self.profile.kernels

    def __len__(self) -> int:
        return len(self.profile)

    def __iter__(self) -> Iterator[KernelView]:
        return (self._view(kernel) for kernel in self.profile)

    def __getitem__(self, key: int | str) -> KernelView:
        """One kernel: by number, name, the name's beginning or a pattern. It shows its own views."""
        return self._view(self.profile[key])

    def _view(self, kernel: Kernel) -> KernelView:
        return KernelView(kernel, self.listings.get(kernel.mangled))

    def df(self) -> pandas.DataFrame:
        """A row for each kernel, a column for each metric."""
        return _frame(export.wide(self.profile))

    def long(self) -> pandas.DataFrame:
        """A row for each metric of each kernel: index, kernel, signature, grid, block, metric, value, unit."""
        return _frame(list(export.long(self.profile)))

    def json(self) -> dict[str, Any]:
        """The whole of it as plain data, by ``docs/schemas/ncu-1.json``."""
        return export.as_json(self.profile, listings=self.listings, launched=self.launched)

    def diff(self, base: Report) -> ProfileDiff:
        """This report against another that came before it."""
        return ProfileDiff(compare(base.profile, self.profile))

    def save(self, path: str | Path) -> Path:
        """Write the report: ``.json`` and ``.html`` as that, anything else as the file it came from.

        Raises:
            ValueError: It came from no file, as one that was read from CSV.
        """
        target = Path(path)
        if target.suffix == ".json":
            target.write_text(json.dumps(self.json(), indent=1), "utf-8")
        elif target.suffix in (".html", ".htm"):
            title = escape(self.profile.source or "profile")
            head = '<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            body = f'<title>{title}</title><body style="font-family:system-ui,sans-serif">{self.html()}'
            target.write_text(head + body, "utf-8")
        elif self.data:
            target.write_bytes(self.data)
        else:
            raise ValueError("this report came from no .ncu-rep file: save it as .json or .html")
        return target

    def redacted(self) -> Report:
        """The same without the names of the machine, its user's paths and processes."""
        data = ncu_rep.redact(self.data) if self.data else b""
        return Report(self.profile.redacted(), data, listings=self.listings, cost=self.cost, launched=self.launched)

    # ── shown ──

    @property
    def title(self) -> str:
        """One line: what was captured."""
        taken = len(self.profile)
        named = f"{taken:,} kernel{'s' if taken != 1 else ''}"
        if self.launched is not None:
            named = f"{self.launched:,} launched, {taken:,} captured"
        elif self.cost:  # captured now, with a filter
            named = f"{taken:,} captured of those that match, the others launched uncounted"
        total = sum(kernel.duration_ns or 0.0 for kernel in self.profile)
        devices = dict.fromkeys(kernel.device for kernel in self.profile if kernel.device)
        shown = [device[:80] for device in list(devices)[:4]]
        return " · ".join([named, *([quantity(total, "ns")] if total else []), *shown])

    def html(self, pages: int = _PAGES) -> str:
        """The table of kernels, and the views of the heaviest ``pages``, within 1 MB."""
        parts = [self._head(), self._table()]
        room = _MOST_HTML - sum(map(_size, parts))
        order = self.profile.heaviest()
        for place, kernel in enumerate(order[:pages]):
            page = kernel_page.page(kernel, self.listings.get(kernel.mangled))
            if _size(page) > room:
                break
            room -= _size(page)
            if len(order) == 1:
                parts.append(page)
                continue
            name = f"{faint(f'#{kernel.index}')} {escape(kernel.name[:100])} · {quantity(kernel.duration_ns, 'ns')}"
            parts.append(folded(name, page, is_open=place == 0))
        if (left := len(order) - (len(parts) - 2)) > 0:
            parts.append(note(f'{left:,} more: report[number] or report["name"] draws one'))
        return f"<div>{''.join(parts)}</div>"

    def _head(self) -> str:
        said = [self.cost, *self.profile.notes, f"saved as {self.saved}" if self.saved else "", *self.remarks]
        return f"<div><b>{escape(self.title)}</b></div>{''.join(note(line) for line in said if line)}"

    def _table(self) -> str:
        if len(self.profile) < 2:
            return ""
        order = self.profile.heaviest()
        total = sum(kernel.duration_ns or 0.0 for kernel in order) or 1.0
        rows = []
        for kernel in order[:_ROWS]:
            share = (kernel.duration_ns or 0.0) / total
            light = dict(views.speed_of_light(kernel))
            rows.append(
                [
                    faint(f"#{kernel.index}"),
                    f'<span style="overflow-wrap:anywhere">{escape(kernel.name[:60])}</span>',
                    quantity(kernel.duration_ns, "ns"),
                    share_bar(share, svg.BLUE),
                    f"{share:.1%}",
                    quantity(light.get("Compute (SM)"), "%"),
                    quantity(light.get("Memory"), "%"),
                    quantity(views.occupancy(kernel).achieved, "%"),
                ]
            )
        heads = ("", "kernel", "time", "", "share", "compute", "memory", "occupancy")
        more = len(order) - _ROWS
        said = note(f"and {more:,} shorter ones") if more > 0 else ""
        return grid(heads, rows, right=(2, 4, 5, 6, 7), wraps=1) + said

    def __repr__(self) -> str:
        lines = [f"ncu: {self.title}", *([f"  {self.cost}"] if self.cost else [])]
        lines += [f"  {note}" for note in (*self.profile.notes, *self.remarks)]
        order = self.profile.heaviest()
        for kernel in order[:10]:
            light = dict(views.speed_of_light(kernel))
            lines.append(
                f"  #{kernel.index} {kernel.name[:48]:<48} {quantity(kernel.duration_ns, 'ns'):>10}"
                + "".join(
                    f"  {word} {quantity(value, '%')}"
                    for word, value in (
                        ("compute", light.get("Compute (SM)")),
                        ("memory", light.get("Memory")),
                        ("occupancy", views.occupancy(kernel).achieved),
                    )
                    if value is not None
                )
            )
        if len(order) > 10:
            lines.append(f"  … and {len(order) - 10:,} shorter ones")
        if order:
            for rule in order[0].advice[:3]:
                gain = f" (up to {rule.speedup[1]:.1f} %)" if rule.speedup else ""
                lines.append(f"  {(rule.title or rule.name)[:100]}{gain}: {kernel_page.plain(rule.text[:2000])[:200]}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/plain": repr(self),
            "text/html": self.html(),
            MIME: self._fitting(_MOST_RICH, has_metrics=True),
        }

    def compact(self) -> dict[str, Any]:
        """What the views show, of as many kernels as fit."""
        return self._fitting(MOST_JSON, has_metrics=False)

    def _fitting(self, most: int, *, has_metrics: bool) -> dict[str, Any]:
        """As much of the JSON as fits: first fewer kernels, then without their metrics."""
        kernels = min(len(self.profile), 200)
        while True:
            made = export.as_json(
                self.profile,
                listings=self.listings,
                has_metrics=has_metrics,
                most_kernels=kernels,
                launched=self.launched,
            )
            size = len(json.dumps(made))
            if size > most and kernels <= 1 and not has_metrics:  # one kernel that is too large even so
                made |= {"kernels": [], "provenance": {"source": self.profile.source[:200]}}
                kernels = size = 0
            if size <= most:
                made["shown"] = kernels
                made["saved"] = str(self.saved) if self.saved else None
                return made
            if kernels <= 1:
                has_metrics = False
            kernels = max(1, min(kernels - 1, int(kernels * most / size)))


class KernelView:
    """One kernel of a report. ``kernel`` is its data."""

    def __init__(self, kernel: Kernel, listing: Mapping[int, Line] | None = None) -> None:
        self.kernel = kernel
        self._listing = listing

    def metric(self, name: str) -> Any:
        """The value of a metric, in the report's units.

        Raises:
            NotFoundError: There is none of that name; the message says what comes near.
        """
        return self.kernel.metric(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "kernel"), name)

    def __repr__(self) -> str:
        kernel = self.kernel
        light = ", ".join(f"{label} {value:.1f} %" for label, value in views.speed_of_light(kernel))
        lines = [f"{kernel.name}: {quantity(kernel.duration_ns, 'ns')}", *([f"  {light}"] if light else [])]
        for rule in kernel.advice:
            lines.append(f"  {rule.title or rule.name}: {kernel_page.plain(rule.text)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        page = kernel_page.page(self.kernel, self._listing)
        if _size(page) > _MOST_HTML:
            page = kernel_page.headline(self.kernel) + note(
                "its views are larger than a notebook takes: .kernel has it"
            )
        return f"<div>{page}</div>"


def _size(html: str) -> int:
    return len(html.encode())


def _frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas as pd
    except ImportError:
        raise ImportError("tables need pandas: pip install pandas; .json() gives the same as plain data") from None
    return pd.DataFrame(rows)
