"""What the profiler times: contexts, grids of points, blocks, collectives, and whole steps that are planned ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from engine.runner.inputs.step_inputs import StepInputs  # noqa: E402
from engine.runner.step_tokens import StepTokens  # noqa: E402
from simulator.profiler import families  # noqa: E402
from simulator.profiler.bench import Limits, uneven_contexts  # noqa: E402
from simulator.profiler.collectives import Collectives  # noqa: E402
from simulator.profiler.operators import block_tables  # noqa: E402
from simulator.profiler.whole_steps import Steps  # noqa: E402
from tests.simulator.builders import ENGINE  # noqa: E402


@pytest.mark.parametrize(("batch", "percent"), [(2, 50), (2, 100), (8, 150), (256, 25), (256, 150)])
def test_uneven_contexts_have_their_mean_and_deviation(batch: int, percent: int) -> None:
    contexts = np.array(uneven_contexts(batch, 400, percent, 4096))
    assert contexts.mean() == pytest.approx(400, rel=0.04)
    assert contexts.std() == pytest.approx(4.0 * percent, rel=0.1)
    assert contexts.min() >= 1 and contexts.max() <= 4096


def test_contexts_that_cannot_be_so_uneven_are_told() -> None:
    assert uneven_contexts(2, 400, 150, 4096) is None
    assert uneven_contexts(64, 400, 100, 500) is None


@pytest.mark.parametrize(
    ("context", "block_size"), [(1, 16), (2, 1), (99, 2), (99, 3), (20, 16), (97, 16), (4096, 256)]
)
def test_contexts_end_inside_a_block_and_at_the_longest_that_is_decoded(context: int, block_size: int) -> None:
    limits = Limits(64, 8, context, context, 1 << 20, block_size, (), (), 1, 128)
    contexts = next(grid.axes[1] for grid in families.grids(limits) if grid.family == "decode")
    assert contexts == sorted(set(contexts)) and contexts[0] >= 1 and contexts[-1] == max(1, context - 1)
    assert block_size == 1 or all(each % block_size for each in contexts[:-1])


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_attention_adds_is_looked_for_on_a_cpu(on_cpu: bool) -> None:
    limits = Limits(64, 8, 4096, 4096, 1 << 20, 16, (), (), 1, 128, on_cpu)
    points = [point for grid in families.others(limits) if grid.family == "beside" for point in grid.points()]
    tokens = [point.sizes[0] * point.sizes[1] for point in points]
    assert not on_cpu or (min(tokens) < 100 and max(tokens) > 32_000)
    assert bool(points) == on_cpu


@pytest.mark.parametrize("counts", [[1], [40], [3, 1, 700], [20] * 12])
def test_timed_blocks_lie_in_one_piece_and_belong_to_one_sequence(counts: list[int]) -> None:
    tables = block_tables(counts)
    held = [block for row, count in zip(tables.tolist(), counts, strict=True) for block in row[:count]]
    assert held == list(range(sum(counts)))


@pytest.mark.long
@pytest.mark.usefixtures("forked_ranks")
def test_all_reduce_is_timed_on_real_ranks() -> None:
    collectives = Collectives("cpu", 2)
    try:
        times = collectives.all_reduce(1 << 12)
    finally:
        collectives.close()
    assert len(times) > 1 and min(times) > 0


class PlannedAheadGpu:
    """Launching a plan with prompts takes the host 5 us and the GPU 3; any other takes them 1 and 2."""

    num_blocks, num_host_blocks, block_bytes, backend_name = 64, 0, 1, "made up"

    def __init__(self) -> None:
        self.now_ns = self.busy_until_ns = 0
        self.launched: list[tuple[int, StepTokens]] = []

    def launch(self, inputs: StepInputs) -> None:
        prompts = 0 if inputs.prefill is None else len(inputs.prefill.sampled_tokens)
        self.now_ns += 5000 if prompts else 1000
        self.busy_until_ns = max(self.busy_until_ns, self.now_ns) + (3000 if prompts else 2000)
        tokens = StepTokens(np.zeros((1, inputs.num_decodes), np.int64), np.zeros(prompts, np.int64), 0, 0)
        self.launched.append((self.busy_until_ns, tokens))

    def collect(self) -> StepTokens:
        ended_ns, tokens = self.launched.pop(0)
        self.now_ns = max(self.now_ns, ended_ns)
        return tokens

    def execute(self, inputs: StepInputs) -> StepTokens:
        raise AssertionError("steps are planned ahead")

    def forget(self) -> None:
        self.launched.clear()

    def close(self) -> None: ...


def test_steps_planned_ahead_are_timed_as_they_are_served() -> None:
    """The tokens of a decode step wait for the launch of the prompts, whose own step is then short: together they take
    6 us more than decode steps do."""
    gpu, config = PlannedAheadGpu(), replace(ENGINE, async_scheduling=True)
    steps = Steps(config, gpu, 96, 100, 0.0, lambda _: None, lambda: gpu.now_ns)
    for _ in range(2):
        assert set(steps.decode(2, 24)["2"]) == {2.0}
        assert set(steps.with_prompts(2, 24, 8)["8"]) == {6.0}
        assert set(steps.with_prompts(0, 0, 8)["8"]) == {8.0}
