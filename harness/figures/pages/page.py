"""A page as one file: its parts, with the styles, scripts and the plotting library written into it.

The policy in the head forbids the browser to load anything else, from wherever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path

from harness.errors import TwinServeError
from harness.figures.pages.elements import Markup, Tone, joined
from harness.results.stored.files import REPORT, write_whole

_ASSETS = Path(__file__).parent / "assets"
_LIBRARY = ("bokeh.min.js", "bokeh-api.min.js")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


@dataclass(frozen=True)
class Page:
    """What a page says. badges: short words beside the title, each with its tone."""

    title: str
    badges: Sequence[tuple[Tone, str]]
    question: str
    parts: Sequence[Markup]

    def html(self) -> str:
        badges = "".join(f'<span class="badge {tone}">{escape(text)}</span>' for tone, text in self.badges)
        body = joined(part for part in self.parts if part)
        scripts = _library() if "<figure" in body else []
        return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(self.title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<header>
<div><h1>{escape(self.title)}</h1>{badges}</div>
<button type="button" id="theme" aria-label="light or dark colours">◐</button>
</header>
<main>
<p class="question">{escape(self.question)}</p>
{body}
</main>
<footer>Written by TwinServe. Drag in a figure to zoom, its tool ↺ goes back; click a head to sort its table.</footer>
{"".join(f"<script>{script}</script>" for script in (*scripts, _asset("page.js")))}
</body>
</html>
"""

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all.

        Raises:
            TwinServeError: the plotting library is not installed.
        """
        text = self.html()
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _library() -> list[str]:
    """The scripts of Bokeh in the browser. The Python package is found and not imported: that takes a second."""
    spec = find_spec("bokeh")
    if spec is None or not spec.submodule_search_locations:
        raise TwinServeError(f"{REPORT}: its figures need the package bokeh (pip install bokeh)")
    folder = Path(spec.submodule_search_locations[0]) / "server" / "static" / "js"
    return [(folder / name).read_text(encoding="utf-8") for name in _LIBRARY] + [_asset("figures.js")]
