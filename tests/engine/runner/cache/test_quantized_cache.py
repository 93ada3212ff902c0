"""A KV cache of fp8, int8 and int4: its bytes, its error, and tokens that depend on no cut, copy or preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.core.sequence import Sequence  # noqa: E402
from engine.engine_config import EngineConfig, KVDtype  # noqa: E402
from engine.models.layers.attention import Attention  # noqa: E402
from engine.prompt_lookup import NgramOptions  # noqa: E402
from engine.runner.cache import kv_cache  # noqa: E402
from engine.runner.executors.executor import Rank  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from experiments.claims.memory.kv_error import measure  # noqa: E402
from harness.engines.resolving.system import resolve  # noqa: E402
from kernels.cache.kv_store import FP8_MAX  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, generate, make_prompts, watch_plans  # noqa: E402
from tests.harness.builders import config  # noqa: E402

INTEGERS: list[KVDtype] = ["int8", "int4"]
BRIEF = replace(GREEDY, max_tokens=12)
SAMPLED = SamplingParams(n=3, max_tokens=12, temperature=0.8, seed=7)


def alone(params: SamplingParams, dtype: KVDtype) -> list[list[int]]:
    """Each prompt alone, uncut and uncached."""
    cut: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 512, "enable_prefix_caching": False}
    return generate(params, kv_cache_dtype=dtype, **cut)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [pytest.param("int8", marks=pytest.mark.slow), "int4", "fp8"])
def test_tokens_do_not_depend_on_how_the_work_is_cut_up(dtype: KVDtype, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped: dict[Sequence, int] = {}
    watch_plans(monkeypatch, lambda plan: swapped.update({each: each.num_swaps for each in plan.preempted}))
    expected = alone(BRIEF, dtype)
    assert len({token for tokens in expected for token in tokens}) > 60
    cuts: list[dict[str, Any]] = [
        {"num_blocks": 64, "max_num_batched_tokens": 9},
        {"cuda_graphs": True, "block_size": 1, "num_blocks": 1600},
        {"speculation": NgramOptions()},
        {"num_blocks": 40, "watermark": 0.0, "preemption": "swap", "host_kv_gib": 2e-3, "offload": True},
    ]
    for settings in cuts:
        assert generate(BRIEF, kv_cache_dtype=dtype, **settings) == expected, settings
    assert sum(swapped.values()) > 2
    assert generate(BRIEF) != expected, "rounding must have some effect"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
def test_tokens_do_not_depend_on_the_number_of_ranks(dtype: KVDtype) -> None:
    assert generate(BRIEF, kv_cache_dtype=dtype, tensor_parallel_size=2) == alone(BRIEF, dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_copies_of_blocks_carry_their_scales(dtype: KVDtype) -> None:
    """Sequences of a request share blocks and copy the last one before they write to it."""

    def serve(**settings: Any) -> list[list[list[int]]]:
        llm = LLM(MODEL, **{**SETTINGS, "kv_cache_dtype": dtype, **settings})
        outputs = llm.generate(make_prompts()[:4], SAMPLED)
        return [[each.token_ids for each in output.outputs] for output in outputs]

    # With blocks of one token, no block is copied.
    assert serve() == serve(block_size=1, num_blocks=1600, enable_prefix_caching=False)


@pytest.mark.parametrize("dtype", [*INTEGERS, "fp8", "auto"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_block_has_the_bytes_that_the_simulator_counts(dtype: KVDtype, ranks: int) -> None:
    sizes = ["model=tiny", f"tensor_parallel_size={ranks}", "block_size=8", "num_blocks=5"]
    configured = config(*sizes, f"engine.kv_cache_dtype={dtype}")
    shape = resolve(configured).model
    sizes_of: dict[str, Any] = {key: shape.sizes[key] for key in ("num_layers", "num_kv_heads", "head_dim")}
    model = replace(MODEL, **sizes_of)
    stored = kv_cache.cache_dtype(EngineConfig(kv_cache_dtype=dtype), model)
    each = kv_cache.block_bytes(model, 8, ranks, stored)
    assert each == 8 * shape.kv_bytes_per_token(ranks) == resolve(configured).pool.block_bytes
    cache = kv_cache.allocate(model, 5, 8, ranks, stored, torch.device("cpu"))
    assert cache.nbytes == 5 * each and not cache.view(torch.uint8).any()


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


def test_int8_is_nearer_to_full_precision_than_fp8_and_int4_is_farther() -> None:
    found = measure(MODEL, 2, 64)
    for name, tops in (("kl_nats", (1e-3, 0.05, 0.5)), ("logit_error", (0.03, 0.2, 0.6))):
        errors = [found[dtype][name] for dtype in ("int8", "fp8", "int4")]
        assert errors == sorted(errors) and errors[0] > 0, name
        assert all(error < top for error, top in zip(errors, tops, strict=True)), (name, errors)
    assert found["int8"]["top1"] > 0.9
