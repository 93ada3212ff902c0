"""Counts how many cases another scheduler and ours decide alike, and shows it as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from experiments.oracles.cases import Case
from experiments.oracles.ours import OurEngine
from experiments.oracles.steps import EndlessError, Step, first_difference, run


@dataclass
class Tally:
    """What came out for one kind of cases.

    Attributes:
        num_faulty: cases which the other scheduler decides otherwise when its faults are not corrected.
        differences: for each case that the schedulers decide differently, its number and the first difference.
    """

    name: str
    num_cases: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_faulty: int = 0
    differences: list[tuple[int, str]] = field(default_factory=list)

    def count(self, steps: Sequence[Step]) -> None:
        """Count a case that the other scheduler runs in `steps`."""
        self.num_cases += 1
        self.num_steps += len(steps)
        self.num_preemptions += sum(len(step.preempted) for step in steps)
        self.num_cached_tokens += sum(step.computed[request][0] for step in steps for request in step.admitted)


def difference_from_ours(
    expected: Sequence[Step],
    case: Case,
    options: SchedulerOptions,
    offload: OffloadOptions | None = None,
    *,
    ends: bool = True,
) -> str | None:
    """Run a case on our core, step by step and then in as long runs of decode steps as it allows; None if it has the
    `expected` steps, and computes nothing for ever after them if it never `ends`."""
    for horizons in (False, True):
        has_ended = True
        try:
            actual = run(OurEngine(case, options, horizons=horizons, offload=offload), case)
        except EndlessError as error:
            actual, has_ended = error.steps, False
        except AssertionError as error:
            return f"AssertionError: {error}"
        difference = first_difference(expected, actual)
        if difference is None and ends != has_ended:
            difference = "it ends" if has_ended else "it never ends"
        if difference:
            return f"{'with horizons, ' if horizons else ''}{difference}"
    return None


def cases_parser(doc: str | None, engine: str, groups: Iterable[str], num_cases: int) -> argparse.ArgumentParser:
    """The arguments of an oracle: the unpacked wheel of `engine`, and which of the cases that have numbers it runs."""
    groups = list(groups)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        f"--{engine}", type=Path, required=True, help=f"folder with the directory `{engine}` of the wheel"
    )
    parser.add_argument("--cases", type=int, default=num_cases, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--only", choices=groups, nargs="*", default=groups, help="kinds of cases")
    return parser


def report(title: str, tallies: Sequence[Tally]) -> bool:
    """Print the table and the first difference of each kind; True if there is no difference."""
    console = Console(width=140)
    table = Table(title=title)
    table.add_column("cases")
    for column in ("number", "steps", "preemptions", "cached tokens", "changed by its faults", "different"):
        table.add_column(column, justify="right")
    for tally in tallies:
        table.add_row(tally.name, *map(str, _numbers(tally)))
    sums = [sum(column) for column in zip(*map(_numbers, tallies), strict=True)]
    table.add_section()
    table.add_row("all", *map(str, sums))
    console.print(table)
    for tally in tallies:
        for number, difference in tally.differences[:1]:
            console.print(f"{tally.name}, case {number}, {difference}", markup=False)
    return not any(tally.differences for tally in tallies)


def _numbers(tally: Tally) -> list[int]:
    return [
        tally.num_cases, tally.num_steps, tally.num_preemptions, tally.num_cached_tokens, tally.num_faulty,
        len(tally.differences),
    ]  # fmt: skip
