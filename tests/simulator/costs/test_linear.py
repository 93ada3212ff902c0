"""The linear cost model against its formula by hand, and its defaults against the roofline."""

from __future__ import annotations

import pytest

from simulator.costs.cost import CostModel
from simulator.costs.linear import LinearCost, constants
from simulator.costs.roofline import RooflineCost
from simulator.models.model import Model
from tests.simulator.builders import H100, MOE, QWEN, work

VALUES = {"step_s": 0.02, "context_token_s": 1e-6, "prefill_step_s": 0.03, "prompt_token_s": 1e-4}


@pytest.mark.parametrize(
    ("chunks", "contexts", "pads_prompts", "expected_s"),
    [
        ([], [100, 300], False, 0.02 + 400e-6),
        ([(0, 500, True)], [], False, 0.03 + 0.05),
        ([(0, 500, True), (64, 100, False)], [], False, 0.03 + 0.06),
        ([(0, 500, True), (0, 100, True)], [], True, 0.03 + 0.1),
        ([(0, 500, True)], [100, 300], True, 0.03 + 0.05 + 400e-6),
    ],
)
def test_a_step_is_what_the_formula_says(
    chunks: list[tuple[int, int, bool]], contexts: list[int], pads_prompts: bool, expected_s: float
) -> None:
    assert LinearCost(VALUES, pads_prompts=pads_prompts).step_ns(work(chunks, contexts)) == round(expected_s * 1e9)


@pytest.mark.parametrize(("model", "ranks"), [(QWEN, 1), (QWEN, 2), (MOE, 1)])
def test_the_defaults_follow_the_roofline_where_it_is_linear(model: Model, ranks: int) -> None:
    values = {name: constant.default for name, constant in constants(model, H100, ranks).items()}
    costs: list[CostModel] = [LinearCost(values), RooflineCost(model, H100, ranks)]
    contexts = [cost.step_ns(work([], [20_000])) - cost.step_ns(work([], [10_000])) for cost in costs]
    assert contexts[0] == pytest.approx(contexts[1], rel=1e-3)
    one, two = [(0, 4096, True)], [(0, 4096, True)] * 2
    prompts = [cost.step_ns(work(two, [])) - cost.step_ns(work(one, [])) for cost in costs]
    assert 0.65 < prompts[0] / prompts[1] < 1  # without attention, norms and all-reduces


def test_the_default_step_reads_the_weights_once() -> None:
    values = {name: constant.default for name, constant in constants(QWEN, H100, 1).items()}
    alone = work([], [1])
    assert LinearCost(values).step_ns(alone) == pytest.approx(RooflineCost(QWEN, H100).step_ns(alone), rel=0.1)
