"""KV that is sent layer by layer, and that of ranks that step together, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.round_robin import RoundRobin
from harness.workload.arrivals import OpenLoop
from simulator.drivers.lockstep import Ranks
from tests.simulator.fleets.builders import BY_LAYERS, MS, SLOW, STEP, two
from tests.simulator.replicas import make, simulate
from tests.simulator.workloads import simple_trace


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("prompts", "copied_ns"),
    [
        ([10], [1_076_000]),  # 3 blocks: the last layer, 0.075 ms, when it is computed, and 1 us of latency
        ([40], [1_251_000]),  # 10 blocks, 1 ms, from the end of the first layer at 0.25 ms on
        ([10, 10, 32], [1_076_000, 1_076_000, 1_651_000]),  # 0.55, 0.85 and 1.65 ms: the third waits for the others
    ],
)
def test_layers_are_sent_while_the_next_ones_are_computed(
    prompts: list[int], copied_ns: list[int], compress: bool
) -> None:
    """Steps take 1 ms, a layer 0.25; requests are queued at 1.05 ms, and those whose KV is there run a step."""
    count = len(prompts)
    _, second = two(prompts, [1] * count, [0] * count, compress=compress, network=BY_LAYERS)
    seen_ns = [at if at < 1_100_000 else 2_076_000 for at in copied_ns] if count > 1 else copied_ns
    assert second.requests["parked_time"].tolist() == pytest.approx([1e-9 * (at - 1_050_000) for at in seen_ns])
    assert second.requests["first_token_time"].tolist() == pytest.approx([1e-9 * (at + MS) for at in seen_ns])


def test_ranks_that_step_together_take_no_step_while_all_of_them_wait_for_kv() -> None:
    """Both prompts are queued at 1.05 ms and copied at 1.351 and 1.651 ms; the second waits for the step of the first.

    A step of both ranks takes 1 ms and 0.1 ms of what they share.
    """
    first, *ranks = simulate(
        simple_trace([10, 10], [3, 1]), OpenLoop(np.array([0, 0])), [make(4) for _ in range(3)], STEP, num_prefill=1,
        network=SLOW, decode_rule=RoundRobin(NoOptions()), ranks=[Ranks(1, 2, lambda num_tokens: MS // 10)],
        compress=False,
    )  # fmt: skip
    computing = ranks[0].steps[ranks[0].steps["num_decode_seqs"] + ranks[0].steps["num_prefill_tokens"] > 0]
    assert computing["start_time"].tolist() == pytest.approx([0.001351, 0.002451, 0.003551])
    assert ranks[0].requests["first_token_time"][0] == pytest.approx(0.002451)
    assert ranks[1].requests["first_token_time"][1] == pytest.approx(0.003551)
