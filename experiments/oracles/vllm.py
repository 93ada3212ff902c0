"""Does our core decide as vLLM 0.19, 0.27 or 0.33 does? Both run random workloads, and every step is compared.

    pip download --no-deps vllm==0.19.0
    unzip vllm-0.19.0-*.whl 'vllm/_version.py' 'vllm/utils/*' 'vllm/v1/*' -d unpacked
    python experiments/oracles/vllm.py --vllm unpacked

vLLM's own scheduler and KV cache manager run, without GPU and without anything else of vLLM. A step is who computes
which tokens, who is admitted, preempted and finished, how much of a prompt is cached, and how many blocks are used.
Two faults of its priority policy are corrected in the comparison (`vllm_modules.py`, `vllm_engine.py`); the table says
how many cases they change.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # instead of this file's folder, where `vllm` would be this file

from experiments.oracles.cases import GROUPS, make_case  # noqa: E402
from experiments.oracles.comparison import Tally, cases_parser, difference_from_ours, report  # noqa: E402
from experiments.oracles.our_options import as_vllm, offloading_as_vllm  # noqa: E402
from experiments.oracles.steps import EndlessError, run  # noqa: E402
from experiments.oracles.theirs.vllm_balancing import BALANCING, compare_balancing  # noqa: E402
from experiments.oracles.theirs.vllm_engine import VllmEngine  # noqa: E402
from experiments.oracles.theirs.vllm_modules import load  # noqa: E402


def compare(name: str, numbers: range, corrected: SimpleNamespace, original: SimpleNamespace) -> Tally:
    """Run the cases with these numbers of the group `name`."""
    tally = Tally(name)
    for number in numbers:
        case = make_case(name, number)
        options = as_vllm(case.options, corrected.version)
        offload = offloading_as_vllm(case.options, corrected.version)
        engine = VllmEngine(corrected, case, corrected=True)
        try:
            expected = run(engine, case)
        except AssertionError:  # vLLM breaks off: see the README
            tally.num_faulty += 1
            continue
        except EndlessError as error:  # ours must do the same, and not end either
            tally.num_faulty += 1
            difference = difference_from_ours(error.steps, case, options, offload, ends=False)
        else:
            tally.count(expected)
            if engine.num_forgotten_blocks or case.options.scheduling_policy == "priority":  # else there are no faults
                tally.num_faulty += expected != run(VllmEngine(original, case, corrected=False), case)
            difference = difference_from_ours(expected, case, options, offload)
        if difference:
            tally.differences.append((number, difference))
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    args = cases_parser(__doc__, "vllm", [*GROUPS, BALANCING], 100).parse_args(arguments)
    corrected, original = load(args.vllm, corrected=True), load(args.vllm, corrected=False)
    names = [name for name in args.only if name != BALANCING]
    numbers = range(args.first, args.first + args.cases)
    tallies = [compare(name, numbers, corrected, original) for name in names]
    if BALANCING in args.only:
        tallies.append(compare_balancing(args.vllm, corrected.version, numbers))
    return 0 if report(f"Our scheduling core and the scheduler of vLLM {corrected.version}", tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
