"""A long campaign of random workloads: `python -m tests.engine.fuzz --seeds 10000`."""

from __future__ import annotations

import argparse
from collections import Counter

from tests.engine.fuzz_workloads import random_workload
from tests.engine.shadow import check_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    totals: Counter[str] = Counter()
    for seed in range(args.first, args.first + args.seeds):
        try:
            trail = check_workload(random_workload(seed), seed)
        except BaseException:
            print(f"seed {seed}")
            raise
        totals["steps"] += trail.num_steps
        totals.update({name: count for name, count in trail.counts.items() if name != "longest plan"})
    print(f"{args.seeds} workloads sound:", ", ".join(f"{count:,} {name}" for name, count in totals.items()))


if __name__ == "__main__":
    main()
