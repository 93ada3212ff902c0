"""Parts of a page as HTML. Text becomes markup only here, where it is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, NewType

from harness.figures.browser import panels_data
from harness.figures.chart import Chart

Markup = NewType("Markup", str)
Tone = Literal["good", "bad", "warn", "plain"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the number that it is sorted by."""

    text: str
    value: float | None = None
    tone: Tone = "plain"


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("\n".join(parts))


def paragraph(text: str, kind: str = "") -> Markup:
    return Markup(f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>")


def section(title: str, *parts: Markup) -> Markup:
    """A titled part of the page; nothing where all parts are empty."""
    inner = joined(part for part in parts if part)
    return Markup(f"<section><h2>{escape(title)}</h2>\n{inner}\n</section>") if inner else Markup("")


def verdict(tone: Tone, title: str, text: str) -> Markup:
    return Markup(f'<div class="verdict {tone}"><strong>{escape(title)}</strong> {escape(text)}</div>')


def tiles(values: Iterable[tuple[str, str, str]]) -> Markup:
    """Large numbers: (name, value and unit with a space between them, what else to say)."""
    inner = "".join(_tile(*each) for each in values)
    return Markup(f'<div class="tiles">{inner}</div>') if inner else Markup("")


def facts(values: Iterable[tuple[str, str]]) -> Markup:
    """Names and texts in two columns."""
    inner = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in values)
    return Markup(f"<dl>{inner}</dl>") if inner else Markup("")


def bullets(texts: Iterable[str]) -> Markup:
    inner = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return Markup(f"<ul>{inner}</ul>") if inner else Markup("")


def code(text: str) -> Markup:
    return Markup(f"<pre><code>{escape(text)}</code></pre>") if text else Markup("")


def folded(title: str, inner: Markup) -> Markup:
    return Markup(f"<details><summary>{escape(title)}</summary>{inner}</details>") if inner else Markup("")


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Markup:
    """A table that is sorted by a click on a head; columns whose cells have numbers are flush right."""
    if not rows:
        return Markup("")
    numeric = [any(row[column].value is not None for row in rows) for column in range(len(heads))]
    head = "".join(
        f'<th scope="col"{_number_class(number)} aria-sort="none"><button type="button">{escape(text)}</button></th>'
        for text, number in zip(heads, numeric, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(cell, number) for cell, number in zip(row, numeric, strict=True))}</tr>" for row in rows
    )
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    return Markup(
        f'<div class="scroll"><table class="sortable">{above}<thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def figures(*charts: Chart | None) -> Markup:
    """A grid of the panels of charts; each has its data beside the place that it is drawn to."""
    inner = "\n".join(_figure(panel) for chart in charts if chart is not None for panel in panels_data(chart))
    return Markup(f'<div class="figures">\n{inner}\n</div>') if inner else Markup("")


def script_data(value: Any) -> str:
    """JSON for a script element: without `<`, so that no text can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c")


def _figure(panel: dict[str, Any]) -> str:
    note = f"<figcaption>{escape(panel['note'])}</figcaption>" if panel["note"] else ""
    title = escape(panel["title"])
    return (
        f'<figure{" class=wide" if panel["wide"] else ""}><h3>{title}</h3><div class="legend"></div>'
        f'<div class="plot" role="img" aria-label="{title}" style="height:{panel["height"]}px"></div>'
        f'<script type="application/json">{script_data(panel)}</script>{note}</figure>'
    )


def _tile(name: str, value: str, more: str) -> str:
    amount, _, unit = value.partition(" ")
    return (
        f'<div class="tile"><span class="name">{escape(name)}</span>'
        f'<span class="value">{escape(amount)} <small>{escape(unit)}</small></span>'
        f'<span class="more">{escape(more)}</span></div>'
    )


def _cell(cell: Cell, number: bool) -> str:
    known = cell.value is not None and math.isfinite(cell.value)
    value = f' data-value="{cell.value!r}"' if known else ' data-value=""' if number else ""
    kinds = " ".join(kind for kind in ("number" if number else "", cell.tone if cell.tone != "plain" else "") if kind)
    classes = f' class="{kinds}"' if kinds else ""
    return f"<td{classes}{value}>{escape(cell.text)}</td>"


def _number_class(number: bool) -> str:
    return ' class="number"' if number else ""
