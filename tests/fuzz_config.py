"""Random command lines and damaged files: `python -m tests.fuzz_config --cases 4000 --seed 0`.

Each case must end in results with sound figures, or in one line for the user and an exit code that is not 0.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzzing.execution import Outcome
from tests.fuzzing.files import PLACE, draw_damage, targets
from tests.fuzzing.inputs import Inputs, build
from tests.fuzzing.minimise import minimised
from tests.fuzzing.walk import Case, draw_case
from tests.fuzzing.worker import run_cases

_CASES_PER_BASE = 12
# What a task imports late; imported once before the workers are forked.
_LATE = (
    "harness.studies.run", "harness.figures.drawing", "harness.figures.charts.validation",
    "harness.validation.validate", "harness.calibration.calibrate", "harness.studies.capacity.capacity",
    "harness.studies.search.explore",
)  # fmt: skip


def fuzz(num_cases: int, num_files: int, seed: int, num_workers: int, *, real_engine: bool) -> int:
    """Run a campaign, print what failed, and return the number of different failures."""
    for name in [*_LATE, *(["harness.engines.real"] if real_engine else [])]:
        importlib.import_module(name)
    outcomes: Counter[str] = Counter()
    failures: dict[str, list[tuple[Case, Outcome]]] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        os.environ["TMPDIR"] = folder
        inputs = build(Path(folder) / "inputs", real_engine=real_engine)
        started = time.perf_counter()
        cases = [*_cases(num_cases, seed, inputs), *_file_cases(num_files, seed, inputs)]
        for number, (case, outcome) in enumerate(run_cases(cases, num_workers), start=1):
            if number % 500 == 0:
                print(f"{number} of {len(cases)} cases, {len(failures)} kinds of failures", flush=True)
            outcomes[outcome.kind] += 1
            if outcome.kind == "failed":
                if outcome.signature not in failures:
                    print(f"{outcome.signature}\n  {case.command()}\n  {outcome.detail[-700:]}", flush=True)
                failures.setdefault(outcome.signature, []).append((case, outcome))
        elapsed = time.perf_counter() - started
        print(f"\n{len(cases)} cases in {elapsed:.0f} s ({len(cases) / elapsed:.1f}/s):", dict(outcomes))
        for signature, found in sorted(failures.items(), key=lambda item: -len(item[1])):
            smallest = minimised(min((case for case, _ in found), key=lambda case: len(case.arguments())), signature)
            print(f"{len(found)} x {signature}\n  {smallest.command()}", flush=True)
    return len(failures)


def _cases(num_cases: int, seed: int, inputs: Inputs) -> Iterator[Case]:
    rng = random.Random(seed)
    cases = [draw_case(rng, inputs, seed, max(1, num_cases // _CASES_PER_BASE)) for _ in range(num_cases)]
    return iter(sorted(cases, key=lambda case: case.base))  # compositions are cached


def _file_cases(num_files: int, seed: int, inputs: Inputs) -> Iterator[Case]:
    rng, kinds = random.Random(f"{seed}, files"), targets(inputs)
    damages = [draw_damage(rng, kinds) for _ in range(num_files)]
    for damage in sorted(damages, key=lambda damage: damage.target.overrides):
        base = tuple(text for text in damage.target.overrides if PLACE not in text)
        overrides = tuple(text for text in damage.target.overrides if PLACE in text)
        yield Case(base, overrides, damage=damage)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=4000, help="command lines to run")
    parser.add_argument("--files", type=int, default=2000, help="damaged files to read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-engine", action="store_true", help="leave out runs of the real engine")
    args = parser.parse_args()
    return 1 if fuzz(args.cases, args.files, args.seed, args.workers, real_engine=not args.no_engine) else 0


if __name__ == "__main__":
    sys.exit(main())
