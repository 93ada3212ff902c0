"""Ranks with data-parallel attention: what each takes for its own tokens, and what they share, worked out by hand."""

from __future__ import annotations

import pytest

from simulator.costs.ranks import RankCost, SharedExperts
from simulator.costs.roofline import RooflineCost
from tests.simulator.builders import MOE, SLOW_LINK, work

WHOLE = RooflineCost(MOE, SLOW_LINK)
_BYTES_OF_AN_EXPERT = 3 * 768 * 2048 * 2
_LAYERS, _EXCHANGES = 48, 96


def exchanged(num_tokens: int, num_ranks: int) -> float:
    """10 us and 1 ns a byte; each rank has its share already."""
    return _EXCHANGES * (10_000 + num_tokens * 2048 * 2 * (num_ranks - 1) / num_ranks)


@pytest.mark.parametrize(("num_ranks", "experts"), [(2, 4), (4, 2)])
def test_one_token_reads_its_eight_experts_wherever_they_are(num_ranks: int, experts: int) -> None:
    reading = _LAYERS * experts * _BYTES_OF_AN_EXPERT / 800  # bytes/ns
    shared = SharedExperts(WHOLE, MOE, SLOW_LINK, num_ranks)
    assert shared(1) == round(reading + exchanged(1, num_ranks))


def test_equal_work_on_all_ranks_is_one_rank_with_a_collective() -> None:
    own = work([(0, 6400, True)], [100, 300])
    shared = SharedExperts(WHOLE, MOE, SLOW_LINK, 2)
    together = RankCost(WHOLE).step_ns(own) + shared(2 * own.num_tokens)
    assert together == pytest.approx(WHOLE.step_ns(own) + exchanged(2 * 6402, 2), abs=1)


def test_a_rank_alone_shares_nothing() -> None:
    own = work([(10, 30, False)], [100, 300])
    alone = RankCost(WHOLE).step_ns(own) + SharedExperts(WHOLE, MOE, SLOW_LINK, 1)(own.num_tokens)
    assert alone == pytest.approx(WHOLE.step_ns(own) + exchanged(32, 1), abs=1)
    assert RankCost(WHOLE).decode_ns(work([], [9]), 2).tolist() == [
        RankCost(WHOLE).step_ns(work([], [context])) for context in (9, 10)
    ]
