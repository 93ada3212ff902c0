"""Step times as DistServe's simulator has them."""

from __future__ import annotations

from engine.core.work import ChunkWork, StepWork
from experiments.measured_distserve import Profiled

CONSTANTS = {
    "prefill": [10, 0.1, 0.001], "decoding_smallbs": [20, 0.01, 0.5], "decoding_largebs": [5, 0.02, 1],
    "decoding_large_small_bs_threshold": 3,
}  # fmt: skip


def test_steps_are_priced_as_profiled() -> None:
    cost = Profiled(CONSTANTS)
    assert cost.step_ns(StepWork([ChunkWork(0, 10, True), ChunkWork(0, 20, True)], 0, 0, 0)) == 14_500_000
    handed_over = StepWork([ChunkWork(99, 1, True)], 1, 50, 2500)  # with the decode a batch of two, 150 tokens
    assert cost.step_ns(handed_over) == 22_500_000
    decode = StepWork([], 2, 100, 5000)
    assert cost.decode_ns(decode, 2).tolist() == [22_000_000, 22_020_000]
    assert cost.step_ns(StepWork([], 3, 100, 5000)) == 10_000_000
