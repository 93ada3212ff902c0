"""The table of configurations, and the number of splits of a context."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kernels.attention.configs import decode_config, prefill_config  # noqa: E402
from kernels.attention.splits import MAX_SPLITS, MIN_SPLIT_TOKENS, decode_splits, prefill_splits  # noqa: E402

BF16 = torch.bfloat16


@given(rows=st.integers(1, 4096), context=st.integers(0, 200_000), slots=st.integers(1, 2000))
def test_splits_are_bounded_and_long_contexts_have_several(rows: int, context: int, slots: int) -> None:
    for splits in (decode_splits(rows, context, slots), prefill_splits(rows, context, slots)):
        assert 1 <= splits <= MAX_SPLITS
        assert splits == 1 or (splits - 1) * MIN_SPLIT_TOKENS < context
    assert prefill_splits(rows, context, slots) * rows <= max(rows, slots)


def test_splits_fill_whole_waves() -> None:
    """8 sequences of 8,192 tokens on 132 multiprocessors of 4 programs: 9 splits would take two waves."""
    assert decode_splits(8 * 8, 8192, 4 * 132) == 8
    assert decode_splits(8, 32768, 4 * 132) == 66
    assert decode_splits(8, 100, 528) == decode_splits(256 * 8, 1000, 528) == 1
    assert decode_splits(256 * 8, 32768, 528) < 12  # balances, without many small programs


def test_few_tokens_take_a_small_tile() -> None:
    assert prefill_config(90, 128, 2, 2, BF16).block_m == 16
    assert prefill_config(90, 128, 33, 2, BF16).block_m == 64
    assert prefill_config(90, 128, 4096, 2, BF16).block_m == 128
    assert prefill_config(80, 128, 9, 2, torch.int8).block_m == 16
    assert prefill_config(80, 128, 17, 2, torch.int8) == prefill_config(80, 128, 4096, 2, torch.int8)


def test_unknown_architectures_take_the_one_before() -> None:
    assert decode_config(103, 128, 2, BF16) == decode_config(100, 128, 2, BF16)
    assert decode_config(121, 128, 2, BF16) == decode_config(86, 128, 2, BF16) == decode_config(89, 128, 2, BF16)
