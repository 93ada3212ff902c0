"""Report pages in a headless Chromium: drawn without an error or a request, in both colours, sortable, on paper.

Skipped where there is no browser: neither `CHROMIUM` in the environment nor one of the usual names on the path.
"""

from __future__ import annotations

import json
import re
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest

from experiments.report_picture import chromium
from tests.harness.figures.pages.builders import PAGES

BROWSER = chromium()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: set CHROMIUM to its path")

_DARK = "--blink-settings=preferredColorScheme=0"
_PROBE = """<script>
const root = document.documentElement;
const plots = [...document.querySelectorAll(".plot")];
const inner = node => [node, ...[...(node.shadowRoot?.children ?? []), ...node.children].flatMap(inner)];
const drawings = () => plots.filter(plot => inner(plot).some(node => node.tagName === "svg")).length;
const inks = () => plots.map(plot => {
  const text = inner(plot).find(node => node.tagName === "text");
  return text && (text.getAttribute("fill") ?? text.style.fill);
});
const columns = [...document.querySelectorAll("table.sortable")].map(table => {
  const number = [...table.tHead.rows[0].cells].findIndex(cell => cell.className === "number");
  const head = table.tHead.rows[0].cells[number];
  const values = () => [...table.tBodies[0].rows].map(row => row.cells[number].dataset.value);
  if (number < 0) return null;
  head.firstElementChild.click();
  const [rising, sorted] = [values(), head.getAttribute("aria-sort")];
  head.firstElementChild.click();
  return {rising, sorted, falling: values()};
});
const pause = () => new Promise(resolve => setTimeout(resolve, 1500));
(async () => {
  await pause();
  const [theme, drawn, before] = [root.dataset.theme, drawings(), inks()];
  const legend = document.querySelector(".legend button");
  legend?.click();
  const pressed = legend?.getAttribute("aria-pressed");
  document.getElementById("theme").click();
  await pause();
  console.log("FOUND " + JSON.stringify({
    theme, plots: plots.length, drawn, before, other: root.dataset.theme, again: drawings(), after: inks(), pressed,
    columns, width: innerWidth, needed: root.scrollWidth, alerts: window.alerts ?? 0,
    requests: performance.getEntriesByType("resource").map(entry => entry.name),
  }));
})();
</script></body>"""

_ON_PAPER = """<script>
const inner = node => [node, ...[...(node.shadowRoot?.children ?? []), ...node.children].flatMap(inner)];
const pause = () => new Promise(resolve => setTimeout(resolve, 1500));
(async () => {
  await pause();
  dispatchEvent(new Event("beforeprint"));
  await pause();
  const drawings = [...document.querySelectorAll(".plot")].flatMap(inner).filter(node => node.tagName === "svg");
  console.log("WIDTHS " + JSON.stringify(drawings.map(drawing => drawing.getBoundingClientRect().width)));
})();
</script></body>"""
_PAPER_PX = 688  # A4 without its margins


def opened(page: Path, *flags: str) -> list[str]:
    """The lines of the console after the page was shown for some seconds of its own clock."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-dev-shm-usage",
        "--virtual-time-budget=8000", f"--user-data-dir={page.parent / 'browser'}",
         "--window-size=1440,1600", *flags,
        page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return re.findall(r'CONSOLE[^"]*"(.*)", source:', done.stderr)


def probed(page: Path, folder: Path, *flags: str, width: int | None = None) -> dict[str, Any]:
    """What the script above found on the page, and the other lines of the console.

    width: of a frame around the page in pixels, as windows have a least width; None for a window of its own.
    """
    text = page.read_text(encoding="utf-8").replace("</body>", _PROBE)
    if width is not None:
        text = f'<iframe style="width: {width}px; height: 5000px; border: 0" srcdoc="{escape(text)}"></iframe>'
    copy = folder / "probed.html"
    copy.write_text(text, encoding="utf-8")
    lines = opened(copy, f"--screenshot={folder / 'page.png'}", *flags)
    found = [line for line in lines if line.startswith("FOUND ")]
    assert len(found) == 1, lines
    return {**json.loads(found[0].removeprefix("FOUND ")), "console": [line for line in lines if line not in found]}


def ordered(values: list[str]) -> list[str]:
    """Rising, the empty ones last."""
    return sorted(values, key=lambda value: (value == "", float(value or 0)))


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["run", *(pytest.param(name, marks=pytest.mark.slow) for name in PAGES if name != "run")]
)
def test_a_page_is_drawn_without_error_and_request_in_both_colours(tmp_path: Path, name: str) -> None:
    dark = name in ("sweep", "validation")
    found = probed(PAGES[name](tmp_path / "result"), tmp_path, *([_DARK] if dark else []))
    assert found["console"] == [] and found["requests"] == []
    assert (found["theme"], found["other"]) == (("dark", "light") if dark else ("light", "dark"))
    assert found["drawn"] == found["again"] == found["plots"] > 0
    assert all(one and other and one != other for one, other in zip(found["before"], found["after"], strict=True))
    assert found["pressed"] == "false"
    assert found["needed"] <= found["width"]
    for column in filter(None, found["columns"]):
        assert column["sorted"] == "ascending" and column["rising"] == ordered(column["rising"])
        known = [value for value in column["falling"] if value]
        assert known == sorted(known, key=float, reverse=True)


@pytest.mark.slow
def test_a_page_fits_a_telephone(tmp_path: Path) -> None:
    found = probed(PAGES["sweep"](tmp_path / "result"), tmp_path, width=390)
    assert found["needed"] <= found["width"] == 390
    assert found["console"] == []


@pytest.mark.slow
def test_a_page_can_be_printed(tmp_path: Path) -> None:
    page = PAGES["run"](tmp_path / "result")
    assert opened(page, f"--print-to-pdf={tmp_path / 'page.pdf'}", _DARK) == []
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_figures_are_as_wide_as_the_paper(tmp_path: Path) -> None:
    page = PAGES["run"](tmp_path / "result")
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", _ON_PAPER), encoding="utf-8")
    (line,) = [line for line in opened(page) if line.startswith("WIDTHS ")]
    widths = json.loads(line.removeprefix("WIDTHS "))
    assert len(widths) > 3 and all(_PAPER_PX / 2 < width <= _PAPER_PX for width in widths)
