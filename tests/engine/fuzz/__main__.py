"""Campaigns of random workloads: `python -m tests.engine.fuzz --seeds 10000`, or with `--mutants` one per mutant."""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from engine.core.policies import POLICIES
from tests.engine.fuzz.campaigns import NUM_SEEDS, campaign, copy_tree, mutate
from tests.engine.fuzz.fuzz_options import OWN_POLICY
from tests.engine.fuzz.fuzz_workloads import random_workload
from tests.engine.fuzz.mutants.all_mutants import MUTANTS
from tests.engine.fuzz.outputs_fit import OutputsFit
from tests.engine.fuzz.soundness import check_workload

LONGEST_S = 30  # of processor time: far more than a workload takes


def fuzz(first: int, num_seeds: int, policy: str | None) -> None:
    """Check these workloads, under any policy or one; prints the seed of the first unsound one and raises its error."""
    totals: Counter[str] = Counter()
    signal.signal(signal.SIGVTALRM, _give_up)
    for seed in range(first, first + num_seeds):
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            trail = check_workload(random_workload(seed, policy), seed)
        except BaseException:
            print(f"seed {seed}")
            raise
        totals["steps"] += trail.num_steps
        totals.update({name: count for name, count in trail.counts.items() if name != "longest plan"})
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(f"{num_seeds} workloads sound:", ", ".join(f"{count:,} {name}" for name, count in totals.items()))


def _give_up(signum: int, frame: object) -> None:
    raise AssertionError("the workload does not end")


def try_mutants(num_seeds: int) -> None:
    """Run a campaign on every mutant; prints which workload caught it and why, and the share of those caught."""
    num_caught = 0
    width = max(len(mutant.name) for mutant in MUTANTS)
    for mutant in MUTANTS:
        with tempfile.TemporaryDirectory() as name:
            copy_tree(Path(name))
            mutate(Path(name), mutant)
            start = time.monotonic()
            result = campaign(Path(name), num_seeds, mutant.arguments)
        is_caught = result.returncode != 0 and result.stdout.startswith("seed ")
        num_caught += is_caught
        reason = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
        seed = result.stdout.strip() if is_caught else "SURVIVED"
        print(f"{mutant.name:{width}}  {seed:10} {time.monotonic() - start:6.1f} s  {reason}", flush=True)
    print(f"caught {num_caught} of {len(MUTANTS)} ({num_caught / len(MUTANTS):.0%})")


def main() -> None:
    POLICIES[OWN_POLICY] = OutputsFit
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="number of workloads")
    parser.add_argument("--policy", choices=sorted(POLICIES), help="the policy of all workloads; by default any")
    parser.add_argument("--mutants", action="store_true", help="one campaign for each mutant of the core")
    args = parser.parse_args()
    if args.mutants:
        try_mutants(args.seeds)
    else:
        fuzz(args.first, args.seeds, args.policy)


if __name__ == "__main__":
    main()
