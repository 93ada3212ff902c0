"""What sliding windows, and norms of query and key, change in profiles compiled from aiconfigurator's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.importers.aiconfigurator.attention import Attention, AttentionShape
from simulator.importers.aiconfigurator.rules import elementwise_work
from simulator.profile.profile import ProfileError
from tests.simulator.builders import QWEN, resized

WINDOW = 128
FULL = AttentionShape(64, 8, 64, "bfloat16")
HALF = FULL._replace(window=WINDOW, windowed_share=0.5)


def pairs(num_tokens: float, window: float) -> float:
    """Query-key pairs of a whole prompt."""
    growing = min(num_tokens, window)
    return growing * (growing + 1) / 2 + (num_tokens - growing) * growing


class Tables:
    """A database whose attention takes 1 us per query-key pair, with and without a window."""

    system, version = "made_up", "1.0"

    def __init__(self, *, has_windows: bool = True) -> None:
        self._has_windows = has_windows

    def rows(self, family: str, table: str, *, window_size: int, **where: Any) -> pd.DataFrame:
        window = window_size or 10**9
        if table == "context_attention_perf":
            rows = [(1, n, 0, 10 + pairs(n, window)) for n in (1, 16, 64, 128, 256, 512, 1024)]
        else:
            sizes = [(batch, context) for batch in (1, 4) for context in (1, 64, 128, 129, 256, 512)]
            rows = [(batch, context, 0, 10 + batch * min(context, window)) for batch, context in sizes]
        columns = pd.DataFrame(rows, columns=["batch_size", "isl", "step", "time_us"])
        columns = columns.assign(num_heads=64, num_key_value_heads=8)
        return columns.assign(window_size=window_size) if self._has_windows else columns


def test_attention_is_the_mean_over_the_kinds_of_layers() -> None:
    attention = Attention(Tables())  # type: ignore[arg-type]
    decodes = attention.decodes(HALF)
    contexts, batches = decodes["decode_context"], decodes["num_decodes"]
    expected = 10 + batches * (contexts + np.minimum(contexts, WINDOW)) / 2
    assert decodes["time_us"].tolist() == pytest.approx(expected.tolist())
    assert {WINDOW, 512} <= set(contexts)  # the bend of the one, the end of the other
    every, none = attention.decodes(HALF._replace(windowed_share=1.0)), attention.decodes(FULL)
    assert every["time_us"].max() == 10 + 4 * WINDOW and none["time_us"].max() == 10 + 4 * 512


def test_a_chunk_reads_the_window_of_what_is_cached_before_it() -> None:
    table = Attention(Tables()).chunks(HALF._replace(windowed_share=1.0))  # type: ignore[arg-type]
    times = {(int(s), int(p)): t for s, p, t in table.itertuples(index=False)}
    assert times[512, 0] == 10 + pairs(512, WINDOW)
    assert times[512, 1024] == times[512, 131072] == pytest.approx(512 * WINDOW, rel=0.01)
    both = Attention(Tables()).chunks(HALF)  # type: ignore[arg-type]
    whole = Attention(Tables()).chunks(FULL)  # type: ignore[arg-type]
    assert both["time_us"].tolist() == pytest.approx(((table["time_us"] + whole["time_us"]) / 2).tolist())


def test_tables_without_windows_are_no_tables_of_a_window() -> None:
    old = Attention(Tables(has_windows=False))  # type: ignore[arg-type]
    assert len(old.decodes(FULL))
    with pytest.raises(ProfileError, match="made_up/1.0 has no generation_attention_perf of .* window=128"):
        old.decodes(HALF)


def test_a_few_more_query_heads_stand_in_for_a_number_that_was_not_measured() -> None:
    attention = Attention(Tables())  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(attention.decodes(FULL._replace(heads=56)), attention.decodes(FULL))
    for shape in (FULL._replace(heads=48), FULL._replace(heads=72), FULL._replace(heads=56, kv_heads=7)):
        with pytest.raises(ProfileError, match="has no generation_attention_perf of"):
            attention.decodes(shape)


def test_norms_of_query_and_key_are_two_kernels_of_a_layer() -> None:
    assert QWEN.sizes["qk_norm"]
    kernels, moved = elementwise_work(QWEN, 2, "vllm")
    plain_kernels, plain_moved = elementwise_work(resized(QWEN, qk_norm=False), 2, "vllm")
    assert kernels - plain_kernels == 2
    # TensorRT-LLM's attention turns queries and keys and stores the KV; it norms both in one kernel with the embedding.
    assert elementwise_work(QWEN, 2, "trtllm")[0] == kernels - 3
    assert moved - plain_moved == 2 * (16 + 4) * 128 * 2  # reads and writes 16 heads of queries and 4 of keys
