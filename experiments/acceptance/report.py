"""The table of a record: a line per check, then how the engines compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.acceptance.processes import Entry
from experiments.acceptance.record import Record

NANO_GOAL = 1.5
OWN = "engine"
OTHERS = ("nano_vllm", "vllm", "transformers")
_MARKS = {None: "", True: "ok", False: "MISSED"}


def print_record(record: Record, names: Sequence[str]) -> None:
    """Print the sections `names` of a record, and the comparison of engines."""
    for line in table([row for name in names for row in _rows(name, record.sections[name])]):
        print(line)
    for line in compared(record):
        print(line)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]


def _rows(name: str, entry: Entry) -> list[list[str]]:
    head = [name, f"{entry['status']}, {entry.get('seconds', 0):.0f} s", "", "", ""]
    if entry["status"] != "ok":
        lines = str(entry.get("error", "")).strip().splitlines() or [""]
        head[2] = lines[-1][:120]
    checks = [["", check["name"], check["value"], check["goal"], _MARKS[check["passed"]]] for check in entry["checks"]]
    return [head, *checks]


def compared(record: Record) -> list[str]:
    """Output tokens/s of this engine over those of each other engine that was measured."""
    speeds = {
        name: statistics.median(entry["record"]["output_tokens_per_s"])
        for name in (OWN, *OTHERS)
        if (entry := record.sections.get(name)) and entry["record"].get("output_tokens_per_s")
    }
    if OWN not in speeds:
        return []
    lines = []
    for name in OTHERS:
        if name in speeds:
            ratio = speeds[OWN] / speeds[name]
            goal = f", goal {NANO_GOAL}: {_MARKS[ratio >= NANO_GOAL]}" if name == "nano_vllm" else ""
            lines.append(f"this engine / {name}: {ratio:.2f}{goal}")
    return lines
