"""Planning ahead, the real engine decides as the simulator does: in real time, and in random runs on a given clock."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.core.kv.reserved.reservation import Contiguous  # noqa: E402
from engine.core.policies import POLICIES  # noqa: E402
from engine.core.running.preemption import VICTIM_RULES, PreemptionMode  # noqa: E402
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions, conflict_with_reservations  # noqa: E402
from harness.record.record import RecordedRun  # noqa: E402
from harness.workload.trace import Trace  # noqa: E402
from simulator.table import objects  # noqa: E402
from tests.harness.engines.builders import (  # noqa: E402
    BLOCK_BYTES,
    OPTIONS,
    assert_equal,
    make_intake,
    make_trace,
    run_paced,
    run_real,
    run_twin,
)
from tests.policies import ON_ANY_POOL  # noqa: E402
from tests.selection import few  # noqa: E402

AHEAD = {name: replace(each, async_scheduling=True) for name, each in OPTIONS.items() if each.eviction != "radix"}
NUM_FUZZED = 6


@pytest.mark.parametrize(
    ("name", "changes", "offload"),
    [
        ("vllm", {}, None),
        ("mixed", {"preemption": "swap"}, OffloadOptions()),
        *(
            pytest.param(name, {"preemption": mode}, None, marks=pytest.mark.slow)
            for name in AHEAD
            for mode in ("recompute", "partial", "swap")
            if mode == "recompute" or name != "trtllm"  # which has no other
        ),
    ],
)
def test_the_simulator_repeats_a_real_run_that_plans_ahead(
    name: str, changes: dict[str, Any], offload: OffloadOptions | None
) -> None:
    trace, options = make_trace(), replace(AHEAD[name], **changes)
    real = run_real(trace, options, 40, 1, offload)
    measured = assert_equal(real, run_twin(real, options, 40, 1, offload), trace)
    assert measured.steps["num_preempted"].sum() > 0 and measured.steps["num_cached_tokens"].sum() > 0
    assert (measured.steps["num_blocks_in"].sum() > 0) == (options.preemption == "swap")


class Case:
    """A random workload, its engine and the times of its plans."""

    def __init__(self, seed: int, *, ahead: bool = True) -> None:
        rng = random.Random(seed)
        draw = np.random.default_rng(seed)
        self.trace = _fuzzed_trace(draw, num_sequences=rng.choice([1, 1, 2]))
        n = len(self.trace.table)
        self.times = np.cumsum(draw.choice([0, 1, 700_000, 40_000_000], n, p=[0.3, 0.1, 0.5, 0.1]))
        self.durations = draw.integers(1, 2_000_000, 10_000).tolist()
        self.num_blocks = rng.choice([20, 30, 60, 400])
        self.offload = rng.choice([None, None, OffloadOptions(), OffloadOptions(overlap=False)])
        self.contiguous = Contiguous() if rng.random() < 0.1 and (self.trace.table["n"] == 1).all() else None
        policy = rng.choice(ON_ANY_POOL)
        victim: Any = rng.choice(sorted(VICTIM_RULES))
        preemption: PreemptionMode = rng.choice(["recompute", "partial", "swap", "auto"])
        # What samples of a prompt generate has no identity in a simulation.
        caches = (self.trace.table["n"] == 1).all() and rng.random() < 0.8
        self.options = SchedulerOptions(
            policy=policy,
            watermark=rng.choice([0.0, 0.1]),
            allocation=rng.choice(["prompt", "chunk"]),
            eviction=rng.choice(["unhashed_first", "lru", "fifo", "lfu"]),
            victim="spare_last" if POLICIES[policy].chooses_victims else victim,
            full_hit=rng.choice(["recompute_block", "copy"]),
            preemption=preemption,
            recompute_token_us=2e-3 * BLOCK_BYTES / 3 if preemption == "auto" else None,
            enable_prefix_caching=bool(caches),
            async_scheduling=ahead,
        )
        if not caches:
            self.offload = None
        if self.contiguous is not None:
            self.offload = None
            self.options = SchedulerOptions(enable_prefix_caching=False, async_scheduling=ahead)
            assert conflict_with_reservations(self.options) is None

    def run(self) -> RecordedRun:
        intake, real = make_intake(
            self.trace, self.options, self.num_blocks, 1, self.offload, contiguous=self.contiguous
        )
        run_paced(intake, real, self.times, self.durations)
        settings: dict[str, Any] = {"offload": self.offload, "contiguous": self.contiguous}
        return assert_equal(real, run_twin(real, self.options, self.num_blocks, 1, **settings), self.trace)


def _fuzzed_trace(draw: np.random.Generator, *, num_sequences: int) -> Trace:
    n = int(draw.integers(4, 22))
    prompts = draw.integers(1, 60, n)
    hash_ids = [100 * int(draw.integers(3)) + np.arange(-(-length // 8)) for length in prompts]
    columns: dict[str, Any] = {
        "num_prompt_tokens": prompts, "num_output_tokens": draw.integers(1, 18, n), "hash_ids": objects(hash_ids),
        "priority": draw.integers(0, 3, n), "tenant": draw.integers(0, 3, n), "deadline": draw.uniform(0, 0.1, n),
        "n": draw.integers(1, num_sequences + 1, n),
    }  # fmt: skip
    trace = make_trace()
    return replace(trace, rows=trace.rows[:n].assign(**columns))


@pytest.mark.parametrize("seed", few(range(NUM_FUZZED)))
def test_a_random_run_that_plans_ahead_is_repeated(seed: int) -> None:
    Case(seed).run()


@pytest.mark.slow
def test_many_random_runs_are_repeated() -> None:
    for seed in range(NUM_FUZZED, 300):
        Case(seed, ahead=seed % 4 > 0).run()
