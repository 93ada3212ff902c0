"""Step times from a profile against its own tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.costs.constants import profiled_constants as constants
from simulator.costs.profiled import ProfiledCost
from simulator.profile.checks import check_fits
from simulator.profile.profile import Profile, ProfileError
from tests.simulator.builders import (
    LAYERS,
    MODEL,
    OPERATORS,
    SLOW_LINK,
    attention_us,
    by_tokens,
    cost,
    profile,
    with_tables,
    work,
)


def linear_us(num_tokens: float) -> float:
    """The operators of every layer."""
    return len(OPERATORS) * LAYERS * (10 + 0.5 * num_tokens)


def test_a_decode_step_at_measured_points() -> None:
    expected = linear_us(64) + 30 + LAYERS * attention_us(0, 0, 64, 256)
    assert cost().step_ns(work([], [256] * 64)) == round(expected * 1e3)


def test_decode_steps_are_priced_at_their_mean_unless_asked_for_medians() -> None:
    shared = Profile(replace(profile().meta, mean_over_median=1.25), profile().tables)
    values = {name: constant.default for name, constant in constants(SLOW_LINK, 1).items()}
    medians = ProfiledCost(shared, MODEL, 1, values, of_means=False)
    decodes = work([], [100, 300])
    for step, factor in ((decodes, 1.25), (work([(0, 64, True)], [100]), 1), (work([(0, 64, True)], []), 1)):
        assert medians.step_ns(step) == cost().step_ns(step)
        assert cost(shared).step_ns(step) == pytest.approx(factor * cost().step_ns(step), abs=1)
    for num_steps in (3, 40):
        assert list(medians.decode_ns(decodes, num_steps)) == list(cost().decode_ns(decodes, num_steps))
        assert list(cost(shared).decode_ns(decodes, num_steps)) == [
            cost(shared).step_ns(work([], [100 + k, 300 + k])) for k in range(num_steps)
        ]


def test_a_decode_step_between_them_lies_on_the_line() -> None:
    found = cost().step_ns(work([], [100] * 10))
    head = 20 + (30 - 20) * 9 / 63
    expected = linear_us(10) + head + LAYERS * attention_us(0, 0, 10, 100)  # linear in both, so exact
    assert found == pytest.approx(expected * 1e3, abs=1)


def test_kv_is_read_more_often_beside_prompts_where_mixed_batches_were_not_measured() -> None:
    alone = profile().tables["attention"].query("prefill_tokens == 0 or num_decodes == 0")
    values = {name: constant.default for name, constant in constants(SLOW_LINK, 1).items()}
    decodes, mixed = work([], [256] * 4), work([(0, 512, False)], [256] * 4)
    added = LAYERS * 1e3 * attention_us(0, 0, 4, 256)
    for tables, reads, extra in ((with_tables(profile(), attention=alone), 2.5, 1.5 * added), (profile(), 2.5, 0.0)):
        plain, often = (ProfiledCost(tables, MODEL, 1, values, kv_reads=each) for each in (1.0, reads))
        assert often.step_ns(decodes) == plain.step_ns(decodes)
        assert often.step_ns(mixed) - plain.step_ns(mixed) == pytest.approx(extra, abs=1)


def test_a_prefill_step_counts_the_fixed_cost_of_attention_once() -> None:
    step = work([(256, 128, True), (0, 512, False)], [])
    attention = attention_us(128, 256, 0, 0) + attention_us(512, 0, 0, 0) - attention_us(16, 0, 0, 0)
    expected = linear_us(512) * 640 / 512  # beyond 512 tokens in proportion to the last point
    found = cost().step_ns(step)
    assert found == pytest.approx((expected + 20 + LAYERS * attention) * 1e3, rel=1e-6)
    apart = cost(profile(batched_prefill=False)).step_ns(step)
    assert apart - found == pytest.approx(LAYERS * attention_us(16, 0, 0, 0) * 1e3, abs=1)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_a_mixed_step_adds_what_mixing_costs(factor: float) -> None:
    step = work([(256, 128, True)], [256] * 16)
    parts = attention_us(128, 256, 0, 0) + attention_us(0, 0, 16, 256)
    mixing = attention_us(128, 256, 16, 256) - parts
    head = 20 + (30 - 20) * 16 / 63
    expected = linear_us(144) + head + LAYERS * (parts + factor * mixing)
    assert cost(mixing_factor=factor).step_ns(step) == pytest.approx(expected * 1e3, rel=1e-6)


def test_all_tokens_of_a_speculative_decode_are_computed_and_sampled_and_share_the_read_of_its_context() -> None:
    decodes, mixed = [256] * 8, [(0, 16, True)]
    head = 20 + (30 - 20) * 23 / 63
    alone = cost().step_ns(work([], decodes, tokens_per_decode=3))
    assert alone == pytest.approx((linear_us(24) + head + LAYERS * attention_us(0, 0, 8, 256)) * 1e3, abs=1)
    beside = cost().step_ns(work(mixed, decodes, tokens_per_decode=3)) - cost().step_ns(work(mixed, decodes))
    assert beside == pytest.approx((linear_us(40) - linear_us(24) + (30 - 20) * 16 / 63) * 1e3, abs=1)


def test_constants_add_up() -> None:
    decode, mixed = work([], [256] * 16), work([(0, 128, True)], [256] * 16)
    plain, loaded = cost(), cost(step_overhead_us=100, sequence_overhead_us=5, prefill_layer_us=7)
    assert loaded.step_ns(decode) - plain.step_ns(decode) == 100_000 + 16 * 5_000
    assert loaded.step_ns(mixed) - plain.step_ns(mixed) == 100_000 + 16 * 5_000 + LAYERS * 7_000
    slow = cost(kernel_factor=3)
    slow_and_loaded = cost(kernel_factor=3, step_overhead_us=100, sequence_overhead_us=5, prefill_layer_us=7)
    for step in (decode, mixed):  # the factor scales kernels only
        added = loaded.step_ns(step) - plain.step_ns(step)
        assert slow.step_ns(step) == pytest.approx(3 * plain.step_ns(step), abs=3)
        assert slow_and_loaded.step_ns(step) - slow.step_ns(step) == pytest.approx(added, abs=1)


def test_the_rest_of_a_step_is_added_by_its_kind() -> None:
    steps = pd.DataFrame(
        {"kind": ["decode", "decode", "mixed"], "num_tokens": [1, 33, 16], "time_us": [100.0, 164.0, 5.0]}
    )
    plain, loaded = cost(), cost(with_tables(profile(), steps=steps))
    for step, rest in ((work([], [256] * 17), 132), (work([(0, 16, True)], [16]), 5), (work([(0, 16, True)], []), 5)):
        assert loaded.step_ns(step) - plain.step_ns(step) == pytest.approx(rest * 1e3, abs=1)


@pytest.mark.parametrize(
    ("rest_us", "meta"),
    [(5.0, {}), (1e5, {}), (5.0, {"source": {"database": "h100_sxm/vllm/0.24.0"}}), (5.0, {"planned_ahead": True})],
)
def test_the_rest_passes_while_a_gpu_computes_if_steps_were_timed_one_after_the_other_and_are_planned_ahead(
    rest_us: float, meta: dict[str, Any]
) -> None:
    steps = pd.DataFrame({"kind": ["decode", "mixed"], "num_tokens": [1, 16], "time_us": [rest_us, rest_us]})
    captured = profile(token_buckets=(1, 32), padded_steps="decode", **meta)
    values = {name: constant.default for name, constant in constants(SLOW_LINK, 1).items()}
    for step in (work([], [256] * 17), work([(0, 16, True)], [16])):
        operators = cost(captured).step_ns(step)
        ahead, after = (
            ProfiledCost(with_tables(captured, steps=steps), MODEL, 1, values, is_async=is_async).step_ns(step)
            for is_async in (True, False)
        )
        assert after == pytest.approx(operators + rest_us * 1e3, abs=1)
        if meta:
            assert ahead == after
            continue
        attention = LAYERS * attention_us(0, 0, 17, 256) * 1e3 if not step.chunks else 0.0  # runs after the host's part
        assert ahead == pytest.approx(operators if rest_us == 5.0 else rest_us * 1e3 + attention, abs=1)


def test_copies_are_priced_once_and_not_in_the_steps_that_follow() -> None:
    copies = pd.DataFrame({"num_blocks": [1, 2], "time_us": [4.0, 6.0]})
    model = cost(with_tables(profile(), copies=copies))
    step, copying = work([], [256] * 4), work([], [256] * 4)
    copying.num_copied_blocks = 3
    assert model.step_ns(copying) - model.step_ns(step) == 9_000
    assert np.subtract(model.decode_ns(copying, 3), model.decode_ns(step, 3)).tolist() == [9_000, 0, 0]


def test_layers_with_prompts_take_longer_only_outside_of_graphs() -> None:
    captured = profile(token_buckets=(64,), padded_steps="all")
    extra = LAYERS * 100_000
    for measured, num_tokens, takes_longer in (
        (captured, 64, False), (captured, 65, True), (profile(token_buckets=(64,)), 64, True), (profile(), 64, True)
    ):  # fmt: skip
        step = work([(0, num_tokens, True)], [])
        found = cost(measured, prefill_layer_us=100.0).step_ns(step) - cost(measured).step_ns(step)
        assert found == (extra if takes_longer else 0)


def test_prompts_of_one_token_are_decodes_where_all_steps_are_captured() -> None:
    captured = profile(token_buckets=(8, 64), padded_steps="all")
    ones = work([(200, 1, True), (31, 1, False)], [100, 300])
    assert cost(captured).step_ns(ones) == cost(captured).step_ns(work([], [100, 300, 201, 32]))
    more = work([(200, 1, True), (31, 2, True)], [100, 300])
    assert cost(captured).step_ns(more) != cost(captured).step_ns(work([], [100, 300, 201, 32, 33]))
    ours = profile(token_buckets=(8, 64))
    assert cost(ours).step_ns(ones) != cost(ours).step_ns(work([], [100, 300, 201, 32]))


@pytest.mark.parametrize(("padded_steps", "padded_heads"), [("decode", False), ("decode", True), ("all", False)])
def test_steps_are_padded_to_the_graphs(padded_steps: Any, padded_heads: bool) -> None:
    padded = cost(profile(token_buckets=(1, 8, 64), padded_steps=padded_steps, padded_heads=padded_heads))
    plain = cost()
    found = padded.step_ns(work([], [256] * 9)) - plain.step_ns(work([], [256] * 9))
    head = (30 - 20) / 63 * (64 - 9) if padded_heads else 0
    assert found == pytest.approx((linear_us(64) - linear_us(9) + head) * 1e3, abs=1)
    mixed = work([(0, 16, True)], [256] * 4)
    extra = linear_us(64) - linear_us(20) if padded_steps == "all" else 0
    assert padded.step_ns(mixed) - plain.step_ns(mixed) == pytest.approx(extra * 1e3, abs=1)
    beyond = work([], [256] * 65)
    assert padded.step_ns(beyond) == plain.step_ns(beyond)


def test_steps_with_prompts_are_padded_to_the_graphs_of_their_layers() -> None:
    padded, plain = cost(profile(token_buckets=(1, 8, 64), prompt_buckets=(16, 32))), cost()
    for num_prompt_tokens, num_decodes, size in ((1, 0, 16), (12, 4, 16), (12, 5, 32), (32, 0, 32), (33, 0, 33)):
        step = work([(0, num_prompt_tokens, True)], [256] * num_decodes)
        extra = linear_us(size) - linear_us(num_prompt_tokens + num_decodes)
        assert padded.step_ns(step) - plain.step_ns(step) == pytest.approx(extra * 1e3, abs=1)


def test_rounding_up_to_a_tile() -> None:
    step = work([(0, 65, True)], [])
    found = cost(profile(round_up_tokens=True)).step_ns(step) - cost().step_ns(step)
    assert found == pytest.approx((linear_us(512) - linear_us(65)) * 1e3, abs=1)


def test_uneven_contexts_count_as_longer_ones() -> None:
    uneven = pd.DataFrame({"prefill_tokens": [0, 0, 16], "num_decodes": [2, 4, 4], "gain": [0.0, 0.5, 1.0]})
    model, even = cost(with_tables(profile(), uneven=uneven)), cost()
    contexts = [100, 200, 300, 1000]
    deviation = np.std(contexts)
    step = work([], contexts)
    assert model.step_ns(step) - even.step_ns(step) == pytest.approx(
        LAYERS * 1e-2 * 4 * 0.5 * deviation * 1e3, rel=1e-3
    )
    assert model.step_ns(work([], [400] * 4)) == even.step_ns(work([], [400] * 4))
    mixed = work([(0, 16, True)], contexts)
    assert model.step_ns(mixed) - even.step_ns(mixed) == pytest.approx(
        LAYERS * (1e-2 + 2e-3) * 4 * deviation * 1e3, rel=1e-3
    )


def test_all_reduces_from_the_table_or_from_the_link() -> None:
    ranks = replace(profile().meta, tensor_parallel_size=2)
    measured = Profile(ranks, profile().tables)
    step = work([], [256] * 64)
    num_bytes = 64 * MODEL.hidden_size * 2
    alone = cost().step_ns(step)
    calls = 2 * LAYERS + 1  # two in a layer, one of the embedding
    ring = calls * (10e3 + num_bytes)  # 1 ns a byte over the link
    assert cost(measured, 2).step_ns(step) - alone == pytest.approx(ring, abs=1)
    slower = cost(measured, 2, all_reduce_0mib_us=20.0)
    latency = calls * 10e3 * (1 - num_bytes / 2**20)
    assert slower.step_ns(step) - alone == pytest.approx(ring + latency, abs=1)
    table = pd.DataFrame({"num_bytes": [1024, 1 << 20], "time_us": [5.0, 105.0]})
    found = cost(with_tables(measured, all_reduce=table), 2).step_ns(step) - alone
    assert found == pytest.approx(calls * (5e3 + 1e5 * (num_bytes - 1024) / ((1 << 20) - 1024)), rel=1e-4)


def test_constants_are_unused_where_the_profile_measured_what_they_stand_for() -> None:
    reduce = pd.DataFrame({"num_bytes": [1024, 1 << 20], "time_us": [5.0, 105.0]})
    attention = profile().tables["attention"]
    apart = attention[(attention["prefill_tokens"] == 0) | (attention["num_decodes"] == 0)]
    names = {"mixing_factor", "all_reduce_0mib_us", "all_reduce_1mib_us", "all_reduce_16mib_us"}
    ranks = replace(profile().meta, tensor_parallel_size=2)
    step = work([(256, 128, True)], [256] * 16)
    for tables, expected in (({}, set()), ({"all_reduce": reduce, "attention": apart}, names)):
        measured = Profile(ranks, {**profile().tables, **tables})
        plain = cost(measured, 2)
        assert plain.unused_constants == expected
        changed = {
            name for name in names if cost(measured, 2, None, **{name: 1.7}).step_ns(step) != plain.step_ns(step)
        }
        assert not changed & expected


def test_beyond_the_grid_the_work_decides() -> None:
    model = cost()
    at_end, beyond = model.step_ns(work([], [4096] * 64)), model.step_ns(work([], [8192] * 64))
    assert beyond - at_end == pytest.approx(LAYERS * attention_us(0, 0, 64, 4096) * 1e3, rel=1e-6)


def test_a_profile_of_something_else_is_refused() -> None:
    with pytest.raises(ProfileError, match="profiled with tensor_parallel_size=1, this run has 2"):
        cost(tensor_parallel_size=2)
    with pytest.raises(ProfileError, match="profiled for other/Name-7B, this run is of test"):
        cost(profile(model="other/Name-7B"))
    with pytest.raises(ProfileError, match="profiled for 5 layers, test has 3"):
        cost(profile(num_layers=5))
    with pytest.raises(ProfileError, match="with hidden_size=32; test has hidden_size=64"):
        cost(profile(shape={"hidden_size": 32, "num_layers": 3}))
    with pytest.raises(ProfileError, match="with engine.kv_cache_dtype=fp8, this run has auto"):
        cost(profile(source={"kv_cache_dtype": "fp8"}))
    narrow = replace(MODEL, kv_dtype="fp8")
    for source in ({}, {"kv_cache_dtype": "auto"}):
        with pytest.raises(ProfileError, match="with engine.kv_cache_dtype=auto, this run has fp8"):
            check_fits(profile(source=source), narrow, 1)
    check_fits(profile(source={"kv_cache_dtype": "fp8"}), narrow, 1)
    shared = profile(model="a/twin", shape={"hidden_size": 64, "num_layers": 3})
    assert cost(shared).step_ns(work([], [16])) == cost().step_ns(work([], [16]))  # the shape decides, not the name


def test_operators_of_a_step_are_counted_as_often_as_called() -> None:
    measured = profile()
    tables = {**measured.tables, "tokens": by_tokens(0.0)}
    once = replace(measured.meta, calls={**measured.meta.calls, "o_proj": 1})
    model, fewer = cost(Profile(measured.meta, tables)), cost(Profile(once, tables))
    step = work([], [256])
    assert model.step_ns(step) - fewer.step_ns(step) == 20_000


def test_a_chunk_after_a_prefix_is_priced_where_its_row_was_measured_without_one() -> None:
    measured = profile()
    attention = measured.tables["attention"]
    alone = (attention["num_decodes"] == 0) & (attention["prefill_tokens"] == 512)
    kept = attention[~(alone & (attention["prefill_context"] > 0))]
    model = cost(with_tables(measured, attention=kept))
    assert model.step_ns(work([(4096, 512, True)], [])) > model.step_ns(work([(0, 512, True)], []))
    assert model.outside()["prefill context"].plans == 1
