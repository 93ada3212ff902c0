"""The loads of inference-perf."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.board.inference_perf import Prompts, constant, poisson, shared_prefix


def test_a_constant_rate_fills_the_stage_with_uneven_gaps() -> None:
    times = constant(45, 120, np.random.default_rng(0))
    assert len(times) == 5400 and times[-1] == pytest.approx(120)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as exponential ones have


def test_a_poisson_stage_draws_the_requests_of_each_second_and_sends_as_many_as_asked() -> None:
    times = poisson(20, 50, np.random.default_rng(1))
    assert len(times) == 1000 and (np.diff(times) >= 0).all()
    counts = np.bincount(np.ceil(times).astype(int) - 1)[:-1]  # the last request of a second comes at its end
    assert counts.var() == pytest.approx(counts.mean(), rel=0.6) and counts.max() > 25


def test_each_stage_begins_with_the_first_prompt_and_after_the_one_before() -> None:
    prompts = Prompts(num_groups=2, per_group=2, prefix=4, question=2, output=3, span=2)
    trace, stage_of = shared_prefix([(3, 2), (5, 1)], prompts, seed=0)
    first, second = (trace[stage_of == stage] for stage in (0, 1))
    assert len(first) == 6 and len(second) == 5
    assert first["hash_ids"].tolist()[:4] == second["hash_ids"].tolist()[:4]
    assert first["hash_ids"].tolist()[4:] == first["hash_ids"].tolist()[:2]  # in the same order again
    shared = {tuple(ids[:2]) for ids in first["hash_ids"]}
    assert shared == {(0, 1), (2, 3)} and len({tuple(ids) for ids in first["hash_ids"]}) == 4
    assert second["arrival_time"].min() > first["arrival_time"].max() + 500
