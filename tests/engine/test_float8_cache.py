"""A KV cache in float8: half the bytes of bfloat16, a scale per head, and tokens that do not depend on the cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.engine_config import EngineConfig  # noqa: E402
from engine.models.attention import Attention  # noqa: E402
from engine.runner.executor import Rank  # noqa: E402
from engine.runner.kv_cache import block_bytes, cache_dtype  # noqa: E402
from kernels.kv_store import FP8_MAX  # noqa: E402
from tests.engine.llm_builders import GREEDY, MODEL, SETTINGS, generate  # noqa: E402

FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}


def test_tokens_do_not_depend_on_how_the_work_is_cut_up() -> None:
    params = replace(GREEDY, max_tokens=30)
    alone = generate(params, max_num_seqs=1, max_num_batched_tokens=512, enable_prefix_caching=False, **FP8)
    assert len({token for tokens in alone for token in tokens}) > 60
    cuts: list[dict[str, Any]] = [
        {"num_blocks": 64, "max_num_batched_tokens": 9},
        {"cuda_graphs": True, "block_size": 1, "num_blocks": 1600},
    ]
    for settings in cuts:
        assert generate(params, **settings, **FP8) == alone, settings
    assert generate(params) != alone, "float8 must have some effect"


def test_scales_leave_room_above_the_largest_key_and_value_of_each_head() -> None:
    config = EngineConfig(**SETTINGS, load_format="random", kv_cache_dtype="fp8")
    rank = Rank(config, MODEL, None)
    again = Rank(replace(config, block_size=16), MODEL, None)
    layers = [[m for m in each._model.modules() if isinstance(m, Attention)] for each in (rank, again)]
    for layer, other in zip(*layers, strict=True):
        assert layer.kv_scales is not None and layer.kv_scales.shape == (2, MODEL.num_kv_heads)
        largest = layer.kv_scales * FP8_MAX / 2
        assert ((largest > 0.1) & (largest < 100)).all()
        torch.testing.assert_close(layer.kv_scales, other.kv_scales)
        assert layer.backend.name == "torch"
    first = layers[0][0].kv_scales
    assert first is not None and first.unique().numel() == first.numel(), "each head has its own"


def test_a_block_takes_half_the_bytes_of_bfloat16() -> None:
    config = EngineConfig(dtype="bfloat16")
    sizes = [
        block_bytes(MODEL, 16, 1, cache_dtype(each, MODEL)) for each in (config, replace(config, kv_cache_dtype="fp8"))
    ]
    assert sizes[0] == 2 * sizes[1]
