"""Ranks with data-parallel attention: what each takes for its own tokens, and what they share, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from simulator.costs.constants import profiled_constants
from simulator.costs.profiled import ProfiledCost
from simulator.costs.ranks import RankCost, SharedExperts, by_profile, by_rates
from simulator.costs.roofline import RooflineCost
from simulator.profile.profile import Profile
from simulator.profile.whole_experts import with_whole_experts
from tests.simulator.builders import LAYERS, META, MODEL, MOE, SLOW_LINK, by_tokens, profile, resized, work

WHOLE = RooflineCost(MOE, SLOW_LINK)
_BYTES_OF_AN_EXPERT = 3 * 768 * 2048 * 2
_LAYERS, _EXCHANGES = 48, 96


def of_ranks(num_ranks: int) -> tuple[RankCost, SharedExperts]:
    model = MOE.with_experts_on(num_ranks)
    whole = RooflineCost(model, SLOW_LINK)
    return RankCost(whole), by_rates(whole, model, SLOW_LINK)


def exchanged(num_tokens: int, num_ranks: int) -> float:
    """10 us and 1 ns a byte; each rank has its share already."""
    return _EXCHANGES * (10_000 + num_tokens * 2048 * 2 * (num_ranks - 1) / num_ranks)


@pytest.mark.parametrize(("num_ranks", "experts"), [(2, 4), (4, 2)])
def test_one_token_reads_its_eight_experts_wherever_they_are(num_ranks: int, experts: int) -> None:
    reading = _LAYERS * experts * _BYTES_OF_AN_EXPERT / 800  # bytes/ns
    assert of_ranks(num_ranks)[1]([1]) == round(reading + exchanged(1, num_ranks))


def test_equal_work_on_all_ranks_is_one_rank_with_a_collective() -> None:
    own = work([(0, 6400, True)], [100, 300])
    rank, shared = of_ranks(2)
    together = rank.step_ns(own) + shared([own.num_tokens] * 2)
    assert together == pytest.approx(WHOLE.step_ns(own) + exchanged(2 * 6402, 2), abs=1)


def test_a_rank_alone_shares_nothing() -> None:
    own = work([(10, 30, False)], [100, 300])
    rank, shared = of_ranks(1)
    assert rank.step_ns(own) + shared([own.num_tokens]) == pytest.approx(WHOLE.step_ns(own) + exchanged(32, 1), abs=1)
    assert rank.decode_ns(work([], [9]), 2).tolist() == [rank.step_ns(work([], [context])) for context in (9, 10)]


def test_whole_experts_take_as_much_memory_and_without_exchange_as_long_as_parts_of_each() -> None:
    parts, whole = (RooflineCost(model, SLOW_LINK, 4) for model in (MOE, MOE.with_experts_on(4)))
    own = work([(0, 900, True)], [100, 300])
    assert whole.step_ns(own) == pytest.approx(parts.step_ns(own), abs=1)
    assert MOE.with_experts_on(4).weight_bytes(4) == MOE.weight_bytes(4)
    assert MOE.with_experts_on(8).weight_bytes() < 0.25 * MOE.weight_bytes()


# -- by measured times -----------------------------------------------------------------------------------------------

_MOE = resized(MODEL, intermediate_size=None, num_experts=8, num_experts_per_token=2, moe_intermediate_size=32)
_TOKEN_BYTES = MODEL.hidden_size * MODEL.dtype_bytes


def measured() -> Profile:
    """Experts of two ranks take 10 us and 1 us a token, an exchange 5 us and 1 ns a byte."""
    tokens = pd.concat([by_tokens(0.5), by_tokens(9.0).query("operator == 'qkv_proj'").assign(operator="experts")])
    tables = {
        "tokens": tokens[tokens["operator"].isin(["qkv_proj", "o_proj", "experts"])],
        "experts": pd.DataFrame({"num_ranks": 2, "num_tokens": [1, 1000], "time_us": [11.0, 1010.0]}),
        "exchange": pd.DataFrame({"num_ranks": 2, "num_bytes": [1, 1_000_000], "time_us": [5.001, 1005.0]}),
    }
    calls = {"qkv_proj": LAYERS, "o_proj": LAYERS, "experts": LAYERS, "lm_head": 1}
    meta = replace(META, calls=calls, token_buckets=(1, 8, 64), padded_steps="all")
    return Profile(meta, {**profile().tables, **tables})


def priced(measured: Profile, **values: float) -> ProfiledCost:
    defaults = {name: each.default for name, each in profiled_constants(SLOW_LINK, 1).items()}
    return ProfiledCost(measured, _MOE, 1, {**defaults, **values})


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize(
    ("num_tokens", "total"), [([1, 1], 2), ([3, 1], 16), ([20, 64], 128), ([65, 1], 66), ([300, 500], 800)]
)
def test_experts_and_exchange_of_all_tokens_are_added_as_measured(
    num_tokens: list[int], total: int, factor: float
) -> None:
    """Where graphs serve all ranks, each is padded to the graph of the largest."""
    found = with_whole_experts(measured(), 2, apart=True)
    assert found is not None
    shared = by_profile(priced(found, kernel_factor=factor), _MOE.with_experts_on(2))
    us = LAYERS * (10 + total + 5 + total * _TOKEN_BYTES / 1e3)
    assert shared(num_tokens) == pytest.approx(factor * us * 1e3, rel=1e-9)


def test_a_rank_is_priced_without_experts_and_ranks_with_the_same_tokens_with_their_own() -> None:
    plain, own = priced(measured()), work([], [100] * 8)
    apart, inside = (with_whole_experts(measured(), 2, apart=flag) for flag in (True, False))
    assert apart is not None and inside is not None
    without = plain.step_ns(own) - LAYERS * round(1e3 * (10 + 9.0 * 8))
    assert priced(apart).step_ns(own) == pytest.approx(without, abs=2 * LAYERS)
    assert priced(inside).step_ns(own) == pytest.approx(without + LAYERS * 1e3 * (10 + 8), abs=2)


@pytest.mark.parametrize(("num_ranks", "lacking"), [(4, ""), (2, "experts"), (2, "exchange")])
def test_ranks_that_were_not_timed_have_no_profile(num_ranks: int, lacking: str) -> None:
    full = measured()
    tables = {name: table for name, table in full.tables.items() if name != lacking}
    assert with_whole_experts(Profile(full.meta, tables), num_ranks, apart=True) is None
    assert (with_whole_experts(Profile(full.meta, tables), num_ranks, apart=False) is None) == (lacking != "exchange")
