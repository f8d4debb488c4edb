"""Pages of reports as a browser draws them: nothing is cut, hidden or unreadable, on a light and on a dark page.

Chromium opens each page once, with a script that opens all folds, measures, and writes what it found into the document;
its picture is of the same layout. Without a chromium on the PATH the tests skip.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcoral_magic.display.profile import Report
from kcoral_magic.reports import ncu_csv, ncu_rep
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import Writer
from tests.unit.reports.samples import sample

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH: it draws the pages")
WIDTH, HEIGHT = 900, 8000  # the whole page in one picture
LEAST_CONTRAST = 3.0  # WCAG 1.4.11 for graphics; small letters are drawn thinner than their colour
THEMES = {"light": ((255, 255, 255), "#222"), "dark": ((17, 17, 17), "#ddd")}
MEASURE = """<pre id="measured" style="display:none"></pre><script>
const errors = [];
window.addEventListener('error', e => errors.push(String(e.message || e.target.tagName)), true);
window.addEventListener('load', () => {
  document.querySelectorAll('details').forEach(one => one.open = true);
  const rect = one => (({x, y, width, height}) => [x, y, width, height])(one.getBoundingClientRect());
  const pictures = [...document.querySelectorAll('svg')].map(one => {
    const view = one.viewBox.baseVal;
    const beyond = [...one.querySelectorAll('text')].filter(text => {
      const box = text.getBBox();
      return box.x < -1 || box.y < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1;
    });
    return {says: one.getAttribute('aria-label'), rect: rect(one), beyond: beyond.map(text => text.textContent)};
  });
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, name = node.parentElement.tagName.toLowerCase();
    if (!node.textContent.trim() || ['title', 'script', 'pre'].includes(name)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    texts.push({text: node.textContent, rect: rect(range)});
  }
  const isWide = one => one.getBoundingClientRect().right > innerWidth + 1;
  const wide = [...document.querySelectorAll('body *')].filter(isWide);
  document.getElementById('measured').textContent = JSON.stringify({
    errors, pictures, texts, width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
    wide: wide.map(one => one.tagName + ': ' + one.textContent.slice(0, 80)),
  });
});
</script>"""


def made() -> Report:
    return Report(ncu_rep.read(Writer().report([saxpy(bank_conflicts=123_456)])), cost="2 passes")


def several() -> Report:
    return Report(ncu_rep.read(Writer().report([saxpy(), saxpy(9.0, name="a_name_that_is_long_" * 6)])), launched=99)


def real(name: str) -> Callable[[], Report]:
    return lambda: Report(ncu_rep.read(sample(f"{name}.ncu-rep"), name))


def page_of_csv() -> Report:
    return Report(ncu_csv.read(sample("csv_nsightful_copy_blocked_details.csv").decode()))


REPORTS: dict[str, Callable[[], Report]] = {
    "made": made,
    "several": several,
    "indexspaces": real("indexspaces"),
    "yzcuda": real("yzcuda"),
    "csv": page_of_csv,
}
CASES = [(name, theme) for name in REPORTS for theme in THEMES if theme == "light" or name in ("made", "indexspaces")]


@dataclass
class Drawn:
    """A page as it was drawn: ``measured`` by the script above, and the picture's pixels."""

    measured: dict[str, Any]
    picture: Any
    log: str
    background: tuple[int, int, int]


_drawn: dict[tuple[str, str], Drawn] = {}


@pytest.fixture(params=CASES, ids="-".join)
def drawn(request: pytest.FixtureRequest, tmp_path: Path) -> Drawn:
    """Each page is drawn once; a browser takes a second to start."""
    name, theme = request.param
    if (name, theme) not in _drawn:
        _drawn[name, theme] = draw(REPORTS[name](), theme, tmp_path)
    return _drawn[name, theme]


def draw(report: Report, theme: str, folder: Path) -> Drawn:
    image = pytest.importorskip("PIL.Image", reason="Pillow reads the pictures: pip install pillow")
    background, color = THEMES[theme]
    page, picture = folder / "page.html", folder / "page.png"
    look = f"background:rgb{background};color:{color};font-family:sans-serif;font-size:14px;color-scheme:{theme}"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="{look}">{report.html()}{MEASURE}</body>', "utf-8"
    )
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={WIDTH},{HEIGHT}",
        "--virtual-time-budget=2000",
    ]
    ended = subprocess.run(
        [*command, "--dump-dom", f"--screenshot={picture}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    start = ended.stdout.index('id="measured"')
    text = ended.stdout[ended.stdout.index(">", start) + 1 : ended.stdout.index("</pre>", start)]
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", "\u00a0"), ("&amp;", "&")):
        text = text.replace(entity, letter)
    return Drawn(json.loads(text), image.open(picture).convert("RGB"), ended.stderr, background)


def test_a_page_draws_without_a_word_on_the_console(drawn: Drawn) -> None:
    assert drawn.measured["errors"] == []
    assert [line for line in drawn.log.splitlines() if "CONSOLE" in line] == []


def test_every_picture_is_visible_and_no_text_leaves_it(drawn: Drawn) -> None:
    pictures = drawn.measured["pictures"]
    assert pictures
    for one in pictures:
        _, _, width, height = one["rect"]
        assert width > 100, one
        assert height > 10, one
        assert one["beyond"] == [], one["says"]


def test_nothing_is_wider_than_the_page(drawn: Drawn) -> None:
    assert drawn.measured["wide"] == []
    assert drawn.measured["width"] <= WIDTH


def luminance(color: tuple[int, ...]) -> float:
    """WCAG 2.1, "relative luminance"."""
    parts = [part / 255 for part in color]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_every_text_stands_out_from_the_page(drawn: Drawn) -> None:
    """By the picture's own pixels: the strongest within each text's box."""
    faint, seen = [], 0
    for one in drawn.measured["texts"]:
        x, y, width, height = one["rect"]
        if len(one["text"].strip()) < 3 or width < 4 or y + height > min(HEIGHT, drawn.picture.height):
            continue
        box = drawn.picture.crop((int(x), int(y), int(x + width) + 1, int(y + height) + 1))
        colors = box.getcolors(box.width * box.height) or []
        strongest = max(contrast(color, drawn.background) for _, color in colors)
        seen += 1
        if strongest < LEAST_CONTRAST:
            faint.append((one["text"][:60], round(strongest, 2)))
    assert seen > 20
    assert faint == []
