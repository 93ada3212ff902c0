"""Does our scheduling core decide as SGLang 0.5.23 does? Both run random workloads, and every step is compared.

    pip download --no-deps sglang==0.5.23
    unzip sglang-0.5.23-*.whl 'sglang/_version.py' 'sglang/srt/*' -d unpacked
    python experiments/oracles/sglang.py --sglang unpacked

SGLang's own scheduler runs, with its policies, its batches, its radix cache and its allocators, without GPU and without
anything else of SGLang. A step is who computes which tokens, who is admitted, retracted and finished, how much of a
prompt is cached, and how many blocks are used. One fault is corrected in the comparison (`sglang_engine.py`); the table
says how many cases it changes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # instead of this file's folder, where `sglang` would be this file

from experiments.oracles.comparison import Tally, cases_parser, difference_from_ours, report  # noqa: E402
from experiments.oracles.our_options import as_sglang  # noqa: E402
from experiments.oracles.sglang_cases import GROUPS, SglangOptions, make_case  # noqa: E402
from experiments.oracles.steps import run  # noqa: E402
from experiments.oracles.theirs.sglang_engine import SglangEngine  # noqa: E402
from experiments.oracles.theirs.sglang_modules import VERSION, loaded  # noqa: E402


def compare(name: str, numbers: range, sglang: SimpleNamespace, cache: str) -> Tally:
    """Run the cases with these numbers of the group `name`."""
    tally = Tally(name)
    for number in numbers:
        case = make_case(name, number)
        assert isinstance(case.options, SglangOptions)
        expected = run(SglangEngine(sglang, case, corrected=True, cache=cache), case)
        tally.count(expected)
        if case.options.async_scheduling and any(step.preempted for step in expected):
            tally.num_faulty += expected != run(SglangEngine(sglang, case, corrected=False, cache=cache), case)
        if difference := difference_from_ours(expected, case, as_sglang(case.options)):
            tally.differences.append((number, difference))
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cases_parser(__doc__, "sglang", GROUPS, 30)
    parser.add_argument(
        "--cache", choices=("radix", "unified"), default="radix", help="SGLang's prefix cache: RadixCache, or "
        "UnifiedRadixCache, its default"
    )  # fmt: skip
    args = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # SGLang's warnings of a full pool
    numbers = range(args.first, args.first + args.cases)
    with loaded(args.sglang) as sglang:
        tallies = [compare(name, numbers, sglang, args.cache) for name in args.only]
    return 0 if report(f"Our scheduling core and the scheduler of SGLang {VERSION}", tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
