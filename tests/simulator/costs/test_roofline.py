"""Step times against an operator-by-operator reference, and memory against published sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.work import ChunkWork, StepWork
from engine.engine_config import KVDtype
from simulator.costs.roofline import RooflineCost
from simulator.device import Device
from simulator.models.kv_pool import GIB
from simulator.models.memory import ACCOUNTS, DeviceTooSmallError, size_kv_pool
from simulator.models.model import Model
from tests.simulator.builders import H100, MODEL, MOE, QWEN, WINDOWED, load_model, resized


def summed(
    chunks: list[tuple[int, int, bool]], num_decodes: int, num_context_tokens: int, tokens_per_decode: int = 1
) -> StepWork:
    """A step by the sum of its contexts."""
    made = [ChunkWork(*chunk) for chunk in chunks]
    return StepWork(made, num_decodes, num_context_tokens, 0, tokens_per_decode=tokens_per_decode)


def reference_s(model: Model, device: Device, tp: int, step: StepWork) -> float:
    """Seconds of a step, one operator at a time, as the module's docstring has it."""
    bandwidth = device.memory_bandwidth * device.memory_efficiency
    flops = device.flops["bf16"] * device.flops_efficiency
    b, hidden, sizes = 2, model.hidden_size, model.sizes
    heads, kv_heads = sizes["num_attention_heads"] // tp, max(1, sizes["num_kv_heads"] // tp)
    decoding = step.num_decodes * step.tokens_per_decode
    tokens = decoding + sum(chunk.num_tokens for chunk in step.chunks)
    sampled = decoding + sum(chunk.is_last for chunk in step.chunks)

    def linear(rows: float, columns: float, n: float) -> float:
        return max(rows * columns * b / bandwidth, 2 * rows * columns * n / flops)

    layer = linear(hidden, (heads + 2 * kv_heads) * sizes["head_dim"], tokens)
    layer += linear(heads * sizes["head_dim"], hidden, tokens)
    if sizes["num_experts"]:
        experts, k, width = sizes["num_experts"], sizes["num_experts_per_token"], sizes["moe_intermediate_size"]
        hit = experts * (1 - (1 - k / experts) ** tokens)
        layer += linear(hidden, experts, tokens)
        layer += linear(hidden * hit, 2 * width / tp, tokens * k / hit)
        layer += linear(width * hit / tp, hidden, tokens * k / hit)
        active = k * width
    else:
        layer += linear(hidden, 2 * sizes["intermediate_size"] / tp, tokens)
        layer += linear(sizes["intermediate_size"] / tp, hidden, tokens)
        active = sizes["intermediate_size"]
    elementwise = (
        8 * hidden + 2 * (heads + kv_heads) * sizes["head_dim"] + 4 * kv_heads * sizes["head_dim"] + 3 * active / tp
    )
    layer += tokens * elementwise * b / bandwidth
    kv_token = 2 * kv_heads * sizes["head_dim"] * b
    pair_flops = 4 * heads * sizes["head_dim"]
    reads = heads / kv_heads if step.chunks and not device.shares_kv_reads else 1
    windowed = sizes["num_sliding_layers"] / model.num_layers
    for window, share in ((10**9, 1 - windowed), (sizes["sliding_window"], windowed)):
        contexts = min(step.num_context_tokens, step.num_decodes * window)
        layer += share * max(
            reads * contexts * kv_token / bandwidth, step.tokens_per_decode * contexts * pair_flops / flops
        )
        for chunk in step.chunks:
            pairs = sum(min(chunk.start + i + 1, window) for i in range(chunk.num_tokens))
            read = min(chunk.start, window) + chunk.num_tokens
            layer += share * max(read * kv_token / bandwidth, pairs * pair_flops / flops)
    if tp > 1:
        all_reduce = device.link_latency_s + 2 * (tp - 1) / tp * tokens * hidden * b / device.link_bandwidth
        layer += (2 + 1 / model.num_layers) * all_reduce  # and one of the embedding
    head = linear(hidden, model.vocab_size // tp, sampled) + 3 * 4 * sampled * model.vocab_size / tp / bandwidth
    return device.step_overhead_s + model.num_layers * layer + (head if sampled else 0)


CHUNKS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 500), st.booleans()), max_size=4)


@given(
    CHUNKS,
    st.integers(0, 300),
    st.integers(1, 3000),
    st.sampled_from([1, 1, 2, 5, 400]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([QWEN, MOE, WINDOWED]),
    st.booleans(),
)
def test_step_time_is_the_sum_of_its_operators(
    chunks: list[tuple[int, int, bool]],
    num_decodes: int,
    mean_context: int,
    per_decode: int,
    tp: int,
    model: Model,
    shares_kv_reads: bool,
) -> None:
    """Also where each decode computes several tokens, so many that attention is bound by arithmetic."""
    if not chunks and not num_decodes:
        num_decodes = 1
    step = summed(chunks, num_decodes, num_decodes * mean_context, tokens_per_decode=per_decode)
    device = replace(H100, shares_kv_reads=shares_kv_reads)
    expected = reference_s(model, device, tp, step)
    assert RooflineCost(model, device, tp).step_ns(step) == pytest.approx(expected * 1e9, rel=1e-9, abs=1)


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # parameter counts as published with each model
        ("qwen3-0.6b", 0.596),
        ("qwen3-8b", 8.19),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55),
    ],
)
def test_weights_match_the_published_parameter_counts(name: str, billions: float) -> None:
    model = load_model(name)
    assert model.weight_bytes() / 2 / 1e9 == pytest.approx(billions, rel=2e-3)
    assert 4 * model.weight_bytes(4) == pytest.approx(model.weight_bytes(), rel=0.01)


def test_kv_pool_follows_the_formula() -> None:
    llama, account = load_model("llama-3.1-8b"), ACCOUNTS["vllm"]
    assert llama.kv_bytes_per_token() == 131072  # 128 KiB, as in vLLM's log for this model
    settings = {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    # Embeddings and LM head take 1002, 501 and 125.25 MiB each; their segments 1002, 502 and 126.
    for tp, block_size, segment_ends in ((1, 16, 0), (2, 64, 2 << 20), (8, 1, 3 << 19)):
        pool = size_kv_pool(llama, H100, block_size=block_size, tensor_parallel_size=tp, **settings)  # type: ignore[arg-type]
        assert pool.block_bytes == 2 * 32 * block_size * (8 // tp) * 128 * 2
        assert pool.weight_bytes == llama.weight_bytes(tp) + llama.rotary_table_bytes + segment_ends
        held = pool.weight_bytes + account.held_outside(H100, tp)
        free = int(H100.memory_bytes * 0.9) - held - account.activation_bytes(llama, H100, 8192, 256, tp)
        assert pool.num_blocks == free // pool.block_bytes
        assert f"{pool.num_blocks:,} blocks" in pool.describe() and f"{pool.block_bytes:,} bytes" in pool.describe()


def test_layers_with_a_window_hold_the_window_of_each_sequence() -> None:
    """gpt-oss-20b: half of its 24 layers, with a window of 128 tokens; a token of a layer takes 2·8·64·2 bytes."""
    oss = load_model("gpt-oss-20b")
    settings = {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.9, "max_num_batched_tokens": 8192}
    pool = size_kv_pool(oss, H100, block_size=16, max_num_seqs=256, **settings)  # type: ignore[arg-type]
    assert pool.block_bytes == 12 * 16 * 2048
    assert pool.window_bytes == 12 * 2048 * (256 * (128 + 16) + 8192)
    left = pool.usable_bytes - pool.weight_bytes - pool.activation_bytes - pool.outside_bytes
    assert pool.num_blocks == (left - pool.window_bytes) // pool.block_bytes
    assert "sliding windows 1.03 GiB)" in pool.describe() and "2·layers without window·" in pool.describe()
    whole = size_kv_pool(resized(oss, num_sliding_layers=0), H100, block_size=16, max_num_seqs=256, **settings)  # type: ignore[arg-type]
    assert 1.9 < pool.num_blocks / whole.num_blocks < 2
    # Windows as long as contexts, or layers that all have one: whole contexts in all layers.
    for model in (resized(oss, sliding_window=100_000), resized(oss, num_sliding_layers=24)):
        assert size_kv_pool(model, H100, block_size=16, max_num_seqs=256, **settings) == whole  # type: ignore[arg-type]


def test_a_window_is_no_more_work_than_whole_contexts() -> None:
    for step in (summed([], 10, 50_000), summed([(3000, 500, True)], 10, 50_000), summed([], 10, 5_000)):
        whole, windowed = (RooflineCost(model, H100).step_ns(step) for model in (QWEN, WINDOWED))
        assert windowed < whole or step.num_context_tokens == 5_000
        assert windowed <= whole + 1
    prompts = [RooflineCost(WINDOWED, H100).step_ns(summed([(start, 400, True)], 0, 0)) for start in (0, 1000, 100_000)]
    assert prompts == sorted(prompts)


def test_a_kv_cache_in_8_bits_takes_half() -> None:
    llama = load_model("llama-3.1-8b")
    narrow = replace(llama, kv_dtype="fp8")
    assert 2 * narrow.kv_bytes_per_token() == llama.kv_bytes_per_token()
    assert narrow.weight_bytes() == llama.weight_bytes()
    decodes = summed([], 64, 64 * 4096)
    wide, half = (RooflineCost(model, H100).step_ns(decodes) for model in (llama, narrow))
    moved_tokens = 64 * 4096 + 64  # read, and written
    kv_ns = moved_tokens * llama.kv_bytes_per_token() / (H100.memory_bandwidth * H100.memory_efficiency) * 1e9
    assert wide - half == pytest.approx(kv_ns / 2, abs=1)


@pytest.mark.parametrize(("dtype", "row_bytes"), [("auto", 256), ("fp8", 128), ("int8", 130), ("int4", 66)])
def test_an_integer_kv_cache_takes_its_elements_and_a_scale_per_token_and_head(dtype: KVDtype, row_bytes: int) -> None:
    llama = load_model("llama-3.1-8b")
    model = replace(llama, kv_dtype=dtype)
    assert model.sizes["head_dim"] == 128 and model.kv_bytes_per_token() == 2 * 32 * 8 * row_bytes
    row_of_129 = {"auto": 258, "fp8": 129, "int8": 131, "int4": 67}[dtype]
    assert resized(model, head_dim=129).kv_bytes_per_token() == 2 * 32 * 8 * row_of_129
    limits = {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 8192, "max_num_seqs": 256, "block_size": 16}
    wide_pool, pool = (size_kv_pool(each, H100, tensor_parallel_size=1, **limits) for each in (llama, model))  # type: ignore[arg-type]
    assert pool.num_blocks == pytest.approx(wide_pool.num_blocks * 256 / row_bytes, abs=4)
    decodes = summed([], 64, 64 * 4096)
    wide, narrow = (RooflineCost(each, H100).step_ns(decodes) for each in (llama, model))
    moved = (64 * 4096 + 64) * (llama.kv_bytes_per_token() - model.kv_bytes_per_token())
    assert wide - narrow == pytest.approx(moved / (H100.memory_bandwidth * H100.memory_efficiency) * 1e9, abs=1)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    llama = load_model("llama-3.1-8b")
    assert llama.kv_bytes_per_token(16) == llama.kv_bytes_per_token(8) == 131072 // 8


def test_a_device_too_small_says_so() -> None:
    small = replace(H100, name="small", memory_bytes=16 * GIB)
    with pytest.raises(DeviceTooSmallError, match="does not fit on small"):
        size_kv_pool(
            QWEN, small, block_size=16, tensor_parallel_size=1, gpu_memory_utilization=0.9,
            max_num_batched_tokens=8192, max_num_seqs=256,
        )  # fmt: skip


def test_a_step_of_the_smallest_model_on_the_fastest_device_takes_time() -> None:
    ones = ("num_layers", "hidden_size", "num_attention_heads", "num_kv_heads", "head_dim", "vocab_size")
    model = resized(MODEL, **dict.fromkeys(ones, 1), intermediate_size=1, tie_word_embeddings=True)
    fast = replace(H100, memory_bandwidth=1e16, flops={"bf16": 1e20, "fp32": 1e20}, step_overhead_s=0.0)
    cost = RooflineCost(model, fast)
    assert cost.step_ns(summed([(0, 1, True)], 0, 0)) == cost.step_ns(summed([], 1, 1)) == 1
    assert cost.decode_ns(summed([], 1, 1), 3) == [1, 1, 1]
