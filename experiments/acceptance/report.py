"""The table of a record: a line per check, then how the engines compare."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.acceptance.processes import Entry
from experiments.acceptance.record import Record

NANO_GOAL = 1.5
OWN = "engine"
OTHERS = ("nano_vllm", "vllm", "transformers")
_MOST_WIDTH = 80
_MARKS = {None: "", True: "ok", False: "MISSED"}


def print_record(record: Record, names: Sequence[str]) -> None:
    """Print the sections `names` of a record, and the comparison of engines."""
    for name in names:
        for line in _lines(name, record.sections[name]):
            print(line)
    for line in compared(record):
        print(line)


def _lines(name: str, entry: Entry) -> list[str]:
    lines = [f"{name}: {entry['status']}, {entry.get('seconds', 0):.0f} s"]
    if entry["status"] != "ok":
        lines += [f"  ! {line[:150]}" for line in str(entry.get("error", "")).strip().splitlines()[-1:]]
    width = min(_MOST_WIDTH, max((len(check["name"]) for check in entry["checks"]), default=0))
    for check in entry["checks"]:
        goal = f"  {check['goal']}  {_MARKS[check['passed']]}" if check["goal"] else ""
        lines.append(f"  {check['name']:{width}}  {check['value']}{goal}")
    return lines


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
