"""Does our scheduling core decide as TensorRT-LLM's PyTorch backend does? Both run random workloads, and every step is
compared.

    git clone --filter=blob:none --no-checkout https://github.com/NVIDIA/TensorRT-LLM
    git -C TensorRT-LLM checkout main -- tensorrt_llm/_torch/pyexecutor/scheduler
    python experiments/oracles/trtllm.py --trtllm TensorRT-LLM

TensorRT-LLM's own capacity scheduler and micro-batch scheduler run, those that it has in Python. Its KV cache manager
and its requests are in C++: what stands in for them (`trtllm_cache.py`, `trtllm_engine.py`) was written after them, and
so were the loops of its executor. A step is who computes which tokens, who is admitted, paused and finished, how much
of a prompt is cached, and how many blocks are used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # instead of this file's folder

from experiments.oracles.comparison import Tally, cases_parser, difference_from_ours, report  # noqa: E402
from experiments.oracles.our_options import as_trtllm  # noqa: E402
from experiments.oracles.steps import run  # noqa: E402
from experiments.oracles.theirs.trtllm_engine import FaultError, TrtllmEngine  # noqa: E402
from experiments.oracles.theirs.trtllm_modules import loaded  # noqa: E402
from experiments.oracles.trtllm_cases import GROUPS, TrtllmOptions, make_case  # noqa: E402


def compare(name: str, numbers: range, trtllm: SimpleNamespace) -> Tally:
    """Run the cases with these numbers of the group `name`; those in which TensorRT-LLM decides what it cannot carry
    out count as changed by its faults, and are not compared."""
    tally = Tally(name)
    for number in numbers:
        case = make_case(name, number)
        assert isinstance(case.options, TrtllmOptions)
        try:
            expected = run(TrtllmEngine(trtllm, case), case)
        except FaultError:
            tally.num_cases += 1
            tally.num_faulty += 1
            continue
        tally.count(expected)
        if difference := difference_from_ours(expected, case, as_trtllm(case.options)):
            tally.differences.append((number, difference))
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    args = cases_parser(__doc__, "trtllm", GROUPS, 30).parse_args(arguments)
    numbers = range(args.first, args.first + args.cases)
    with loaded(args.trtllm) as trtllm:
        tallies = [compare(name, numbers, trtllm) for name in args.only]
    return 0 if report("Our scheduling core and the scheduler of TensorRT-LLM", tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
