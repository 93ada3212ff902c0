"""The page docs/choose_a_configuration.md: its table and figure from a finished capacity study.

    python run.py experiment=capacity_study hydra.sweep.dir=multirun/study
    python -m experiments.capacity_study multirun/study [--wall-s 170]

Stores the capacities without their probes in experiments/results/capacity_study.json, draws them, and writes what was
found between the marks of the page. `--wall-s` is what the study took.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import RESULTS, provenance
from harness.config.schema.tasks.plotting import AS_USUAL
from harness.figures import write_charts
from harness.figures.charts.capacity import capacities_chart
from harness.results.stored.files import CAPACITY, write_whole

PAGE, FIGURE = Path("docs/choose_a_configuration.md"), Path("docs/images/capacity_study.png")
STORED = RESULTS / "capacity_study.json"
BEGIN, END = "<!-- capacity_study -->\n", "<!-- end -->"
_SWEPT = ("max_num_seqs", "max_num_batched_tokens", "quantization")


def without_probes(found: Mapping[str, Any]) -> dict[str, Any]:
    rows = [{key: value for key, value in row.items() if key != "probes"} for row in found["rows"]]
    return {**found, "rows": rows}


def ranked(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows by capacity, the best first."""
    return sorted(found["rows"], key=lambda row: -(row["capacity"] or 0))


def section(found: Mapping[str, Any]) -> str:
    """What the page says of the study, in Markdown."""
    lines = [
        "## What was found",
        "",
        f"Configurations are named by {', '.join(f'`{key}`' for key in _SWEPT)}.",
        "",
        f"| | {found['unit']} | 95 % interval | tokens/s per user | $/M tokens | J/token | probes |",
        "|---|---|---|---|---|---|---|",
        *map(_line, ranked(found)),
        "",
        f"> {found['sentence']}",
        "",
        f"    {found['command']}",
        "",
        f"![Capacities of the configurations]({FIGURE.relative_to('docs')})",
        "",
        _origin(found),
        "",
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    numbers = [
        f"{row['capacity']:.1f}", f"{row['low']:.1f} to {row['high']:.1f}", f"{row['interactivity']:.0f}",
        f"{row['cost_per_million_tokens']:.3f}", f"{row['joules_per_token']:.3f}", str(row["num_probes"]),
    ]  # fmt: skip
    return f"| {_name(row).replace(' ', chr(0xA0))} | {' | '.join(numbers)} |"


def _name(row: Mapping[str, Any]) -> str:
    return " · ".join(str(row["overrides"][key]) for key in _SWEPT)


def _origin(found: Mapping[str, Any]) -> str:
    machine = found["environment"]
    took = f"; it took {found['wall_s']:,.0f} s" if found.get("wall_s") else ""
    return f"Computed on {machine['cpu_cores']} cores of {machine['cpu_model']}{took}. Stored in `{STORED}`."


def draw(found: Mapping[str, Any], path: Path) -> None:
    rows = [{**row, "name": _name(row)} for row in found["rows"]]
    chart = capacities_chart(rows, found["unit"], f"within the SLO · {' · '.join(_SWEPT)}")
    write_charts({path.stem: chart}, path.parent, AS_USUAL)


def replaced(page: str, text: str) -> str:
    """The page with `text` between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the sweep")
    parser.add_argument("--wall-s", type=float, help="seconds that the study took")
    options = parser.parse_args(arguments)
    found = without_probes(json.loads((options.folder / CAPACITY).read_text(encoding="utf-8")))
    found |= {"environment": provenance("experiments.capacity_study")["environment"], "wall_s": options.wall_s}
    text = json.dumps(found, indent=1) + "\n"
    write_whole(STORED, lambda path: path.write_text(text, encoding="utf-8"))
    draw(found, FIGURE)
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), section(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
