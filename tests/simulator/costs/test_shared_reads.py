"""Decodes that share a prefix: what attention reads of it, and what that takes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from engine.core.work import StepWork
from simulator.costs.shared_reads import SharedReads, shared_reads_of
from simulator.profile.profile import Profile
from tests.simulator.builders import (
    H100,
    OPTIONAL_TABLES,
    QWEN,
    cost,
    listed,
    profile,
    with_tables,
    work,
)

CHUNK = [(0, 64, True)]


def sharing(
    contexts: list[int], shared: int, saved: int, chunks: list[tuple[int, int, bool]] | None = None
) -> StepWork:
    step = work(chunks or [], contexts)
    step.num_shared_tokens, step.num_saved_tokens = shared, saved
    return step


@pytest.mark.parametrize(("waves", "holders"), [(2, 2), (3, 3), (4, 3)])
def test_a_shared_block_is_read_once_for_each_wave_with_a_holder(waves: int, holders: int) -> None:
    places = itertools.product(range(waves), repeat=holders)
    reads = sum(len({*each}) for each in places) / waves**holders
    step = sharing([100] * 6 * waves, 60, 60 * (holders - 1))
    assert SharedReads(6, 0.0).unread(step) == pytest.approx(60 * (holders - reads) / (6 * waves))
    assert SharedReads(6 * waves, 0.0).unread(step) == 60 * (holders - 1) / (6 * waves)


@pytest.mark.parametrize("chunks", [[], CHUNK])
def test_what_is_not_read_takes_no_time_down_to_the_rate_of_the_cache(chunks: list[tuple[int, int, bool]]) -> None:
    """Attention of the profile is linear in the context."""
    step = sharing([250, 350], 200, 200, chunks)
    for shared_reads, contexts in (
        (SharedReads(2, 0.5), [150, 250]),
        (SharedReads(2, 0.9), [220, 320]),
        (None, [250, 350]),
    ):
        assert cost(shared_reads=shared_reads).step_ns(step) == cost().step_ns(work(chunks, contexts))


@pytest.mark.parametrize("tables", [[], ["uneven"], ["deviations"]])
@pytest.mark.parametrize("num_steps", [3, 40])
def test_many_steps_are_priced_as_one_by_one(tables: list[str], num_steps: int) -> None:
    """For some steps the cache is the limit, and for the later ones memory."""
    measured = with_tables(profile(), **{name: OPTIONAL_TABLES[name] for name in tables})
    model = cost(measured, shared_reads=SharedReads(4, 0.5))
    step = sharing([100, 210, 300, 380], 120, 513)
    times = [*map(int, model.decode_ns(step, num_steps))]
    assert times == [model.step_ns(step.after(k)) for k in range(num_steps)]
    assert times[0] < cost(measured).step_ns(step)


def of_backend(backend: str) -> Profile:
    plain = profile()
    return replace(plain, meta=replace(plain.meta, source={"database": f"h100_sxm/{backend}/1.2.3"}))


def test_which_sequences_are_computed_at_a_time() -> None:
    vllm = of_backend("vllm")
    card = replace(H100, multiprocessors=132, kv_reuse_bandwidth=2 * 0.8 * 3.35e12)
    old, new = (shared_reads_of(vllm, QWEN, replace(card, flash_attention=version), 2) for version in (2, 3))
    assert old is not None and (old.at_once, old.least) == (264, 0.5)
    assert new is not None and new.at_once == 132 / 4  # of 8 KV heads on two GPUs


def test_elsewhere_each_reads_its_own() -> None:
    vllm, card = of_backend("vllm"), replace(H100, multiprocessors=132, kv_reuse_bandwidth=5e12, flash_attention=3)
    assert shared_reads_of(vllm, QWEN, card, 2) is not None
    for not_measured in ("flash_attention", "kv_reuse_bandwidth", "multiprocessors"):
        lacking: dict[str, Any] = {not_measured: None}
        assert shared_reads_of(vllm, QWEN, replace(card, **lacking), 2) is None
    assert shared_reads_of(vllm, listed("deepseek-v3"), card, 8) is None  # another kind of attention
    assert shared_reads_of(of_backend("sglang"), QWEN, card, 2) is None
    assert shared_reads_of(profile(), QWEN, card, 2) is None
