"""The block manager's hit ratio on a real trace, against figures computed independently of this project."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.kv.block_manager import BlockManager
from harness.workload.readers import mooncake
from harness.workload.rows.sieve import RowRules
from tests.engine.core.builders import bare_sequence

TRACE = Path(__file__).parents[5] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"


@pytest.mark.skipif(not TRACE.exists(), reason=f"needs the Mooncake trace at {TRACE}")
@pytest.mark.parametrize(
    ("num_blocks", "expected"),
    [
        (300_000, 0.374),
        (20_000, 0.294),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1_000, 0.045), (5_000, 0.114), (100_000, 0.371))),
    ],
)
def test_mooncake_hit_ratio(num_blocks: int, expected: float) -> None:
    """Prompts one after the other: a cache that never fills, and LRU pools of several sizes.

    The figures cache a prompt's last, partial block like any other (the trace has an id for it), so every prompt is
    filled up to whole blocks here, and hits are counted up to its real length.
    """
    table = mooncake.read(str(TRACE), RowRules()).table
    blocks = BlockManager(num_blocks, mooncake.HASH_BLOCK_SIZE)
    hits = 0
    for row, (hash_ids, length) in enumerate(zip(table["hash_ids"], table["num_prompt_tokens"], strict=True)):
        padded = len(hash_ids) * blocks.block_size
        sequence = bare_sequence(row, padded, block_hashes=hash_ids.tolist())
        match = blocks.match(sequence)
        blocks.admit(sequence, match, padded)
        blocks.register(sequence, padded)
        blocks.settle()
        blocks.release(sequence)
        hits += min(len(match.blocks) * blocks.block_size, length)
    assert hits / table["num_prompt_tokens"].sum() == pytest.approx(expected, abs=0.001)
