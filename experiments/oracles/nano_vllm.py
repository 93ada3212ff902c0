"""Does our scheduling core decide as nano-vllm does? Both run its own benchmark and random workloads, compared by step.

    git clone https://github.com/GeeeekExplorer/nano-vllm
    python experiments/oracles/nano_vllm.py --nano-vllm nano-vllm

nano-vllm's own scheduler and block manager run, without its model code. Three faults are corrected in the comparison
(`nano_modules.py`); the table says how many cases they change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from experiments.oracles.cases import STOP_TOKEN, Case, Options, Request, make_case  # noqa: E402
from experiments.oracles.comparison import Tally, difference_from_ours, report  # noqa: E402
from experiments.oracles.our_options import as_nano_vllm  # noqa: E402
from experiments.oracles.steps import Step, run  # noqa: E402
from experiments.oracles.theirs.nano_engine import NanoEngine  # noqa: E402
from experiments.oracles.theirs.nano_modules import load  # noqa: E402

POOLS = (4000, 400, 300, 200)
RANDOM_GROUPS = {"random": "sync", "random, stops": "sync, stops and aborts"}


def benchmark(num_blocks: int) -> Case:
    """The requests of nano-vllm's bench.py with the engine options that it uses; what they are answered is invented."""
    random = Random(0)
    prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
    lengths = [random.randint(100, 1024) for _ in range(256)]
    options = Options(
        block_size=256, num_blocks=num_blocks, max_num_seqs=512, max_num_batched_tokens=16384, max_model_len=4096
    )
    answers = [[random.randint(STOP_TOKEN + 1, 10000) for _ in range(length)] for length in lengths]
    return Case(options, [Request(i, 0, *pair) for i, pair in enumerate(zip(prompts, answers, strict=True))])


def random_case(group: str, number: int) -> Case:
    """A case within what nano-vllm can do: no aborts, no blocks of one token, no length limit that would be reached."""
    case = make_case(group, number)
    longest = case.options.max_model_len
    requests = [replace(r, outputs=r.outputs[: longest - len(r.prompt)], abort=None) for r in case.requests]
    return Case(replace(case.options, block_size=max(2, case.options.block_size)), requests)


def compare(name: str, cases: Iterable[Case], corrected: SimpleNamespace, original: SimpleNamespace) -> Tally:
    tally = Tally(name)
    for number, case in enumerate(cases):
        expected = run(NanoEngine(corrected, case.options), case)
        tally.count(expected)
        tally.num_faulty += expected != _original(original, case)
        if difference := difference_from_ours(expected, case, as_nano_vllm(case.options)):
            tally.differences.append((number, difference))
    return tally


def _original(nano: SimpleNamespace, case: Case) -> list[Step] | None:
    """What nano-vllm does as it is; None where it fails."""
    try:
        return run(NanoEngine(nano, case.options), case)
    except (AssertionError, IndexError, KeyError):
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nano-vllm", type=Path, required=True, help="folder of the cloned repository")
    parser.add_argument("--cases", type=int, default=300, help="random cases of each kind")
    args = parser.parse_args(arguments)
    nano = load(args.nano_vllm, corrected=True), load(args.nano_vllm, corrected=False)
    tallies = [compare(f"its benchmark, {num_blocks} blocks", [benchmark(num_blocks)], *nano) for num_blocks in POOLS]
    for name, group in RANDOM_GROUPS.items():
        tallies.append(compare(name, (random_case(group, number) for number in range(args.cases)), *nano))
    return 0 if report("Our scheduling core and the scheduler of nano-vllm", tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
