"""Where the KV blocks lie that are profiled: those of operators and of whole steps alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from engine.core.block_manager import Eviction  # noqa: E402
from engine.core.decode_set import num_breaks  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.runner.executor import Rank  # noqa: E402
from engine.runner.model_runner import StepTokens  # noqa: E402
from engine.runner.step_inputs import StepInputs  # noqa: E402
from simulator.profiler.operators import block_tables  # noqa: E402
from simulator.profiler.steps import Steps  # noqa: E402
from tests.simulator.small_model import ENGINE, FAMILIES  # noqa: E402


class SeeBlocks:
    """Executes plans, and keeps the block tables of prompts and of sequences that begin to decode."""

    backend_name = "torch"

    def __init__(self, config: EngineConfig) -> None:
        assert config.num_blocks is not None
        self.num_blocks = config.num_blocks
        self.prompts: list[list[int]] = []
        self.joined: list[list[int]] = []
        self._runner = Rank(config, FAMILIES["qwen3"], None).allocate(config.num_blocks)

    def execute(self, inputs: StepInputs) -> StepTokens:
        self.prompts += [] if inputs.prefill is None else inputs.prefill.block_tables.tolist()
        self.joined += inputs.rows.joined_tables.tolist()
        return self._runner.execute(inputs)

    def close(self) -> None: ...


def test_blocks_lie_in_one_piece_or_in_turns_with_those_of_others() -> None:
    """In turns of three sequences, and of five that have ended where the pool has room for them."""
    in_order = [[0, 1, 2], [3, 0, 0], [4, 5, 6]]
    assert block_tables([3, 1, 3], 1000, scattered=False).tolist() == in_order
    assert block_tables([3, 1, 3], 1000, scattered=True).tolist() == [[0, 8, 15], [1, 0, 0], [2, 9, 16]]
    assert block_tables([3, 1, 3], 9, scattered=True).tolist() == [[0, 3, 5], [1, 0, 0], [2, 4, 6]]
    assert block_tables([60, 60], 120, scattered=True)[0].tolist() == [*range(0, 120, 2)]
    assert block_tables([5], 9, scattered=True).tolist() == [[0, 3, 1, 4, 2]]


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("counts", [[1], [40], [3, 1, 700], [20] * 12])
@pytest.mark.parametrize("spare", [0, 1, 50, 10**4])
def test_blocks_are_of_the_pool_and_nobody_elses(counts: list[int], spare: int, scattered: bool) -> None:
    num_blocks = sum(counts) + spare
    tables = block_tables(counts, num_blocks, scattered=scattered)
    held = [block for row, count in zip(tables.tolist(), counts, strict=True) for block in row[:count]]
    assert len(set(held)) == len(held) and min(held) >= 0 and max(held) < num_blocks
    if not scattered or spare == 10**4 or len(counts) == 1:  # else the longest has nobody left to take turns with
        breaks = [num_breaks(row[:count]) for row, count in zip(tables.tolist(), counts, strict=True)]
        assert breaks == [(count - 1) * scattered for count in counts]


@pytest.mark.parametrize("eviction", ["unhashed_first", "lru"])
def test_whole_steps_are_timed_on_blocks_that_lie_like_those_of_the_operators(eviction: Eviction) -> None:
    batch, context = 3, 85
    config = replace(ENGINE, eviction=eviction, max_lookahead_steps=1)
    seen = SeeBlocks(config)
    Steps(config, seen, 96, 300, 0.0, lambda report: None).decode(batch, context)
    assert seen.joined == block_tables([6] * batch, 64, scattered=False).tolist()


def test_prompts_beside_timed_decodes_lie_in_one_piece() -> None:
    config = replace(
        ENGINE, num_blocks=256, block_size=4, max_num_batched_tokens=128, max_model_len=160, max_lookahead_steps=1
    )
    seen = SeeBlocks(config)
    Steps(config, seen, 160, 300, 0.0, lambda report: None).with_prompts(1, 100, 90)
    first = seen.prompts[0]
    assert np.diff(first).tolist() == [1] * (len(first) - 1)
