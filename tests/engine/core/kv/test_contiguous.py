"""Contiguous reservations: which hole they go to, how large they are, and what they cannot be combined with."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.core.kv.prefix_match import NO_MATCH
from engine.core.kv.reserved.contiguous import ContiguousManager, RangePool
from engine.core.kv.reserved.reservation import Contiguous, Fit, Reserve
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, RequestRefusedError
from tests.engine.core.builders import LIMITS, bare_sequence, run, step


def make(rule: Contiguous, policy: str = "mixed", **given: Any) -> Scheduler:
    options = SchedulerOptions(policy=policy, enable_prefix_caching=False)
    return make_scheduler(options, **LIMITS | given, contiguous=rule)


# -- where a reservation goes -----------------------------------------------------------------------------------------


def chosen_start(free: list[bool], count: int, fit: Fit) -> int | None:
    """Where a range of `count` blocks goes, found block by block."""
    holes, start = [], 0
    for block, is_free in enumerate([*free, False]):
        if not is_free:
            holes.append((block - start, start))
            start = block + 1
    large = [hole for hole in holes if hole[0] >= count]
    if not large:
        return None
    return min(large)[1] if fit == "best" else min(start for _, start in large)


@pytest.mark.parametrize("fit", ["first", "best"])
def test_a_reservation_goes_where_a_search_of_all_blocks_puts_it(fit: Fit) -> None:
    rng, refusals = random.Random(fit), 0
    for num_blocks in (1, 7, 40):
        pool, free, held = RangePool(num_blocks, fit), [True] * num_blocks, list[list[int]]()
        for _ in range(400):
            count = rng.randint(1, max(1, num_blocks // 4))
            start = chosen_start(free, count, fit)
            assert (pool.largest >= count) == (start is not None)
            refusals += start is None
            if start is not None and rng.random() < 0.6:
                table = pool.take(count)
                assert table == list(range(start, start + count))
                held.append(table)
            elif held:
                table = held.pop(rng.randrange(len(held)))
                pool.release(table, None, 0)
            free = [not any(block in table for table in held) for block in range(num_blocks)]
            assert pool.num_free == sum(free)
    assert refusals > 20


# -- how large it is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "prompt", "output", "tokens"),
    [
        (Contiguous("max_model_len"), 10, 5, 100),
        (Contiguous("exact"), 10, 5, 15),
        (Contiguous("exact"), 10, 200, 100),
        (Contiguous("requested"), 10, 5, 15),
        (Contiguous("requested", max_tokens=30), 10, 5, 40),
        (Contiguous("requested", max_tokens=3), 10, 5, 15),
        (Contiguous("requested", max_tokens=99), 10, 5, 100),
        (Contiguous("pow2"), 10, 25, 42),  # the paper's example: 32 slots for 25 tokens
        (Contiguous("pow2"), 10, 32, 42),
        (Contiguous("pow2"), 10, 1, 11),
        (Contiguous("pow2"), 10, 65, 100),
    ],
)
def test_tokens_that_are_reserved(rule: Contiguous, prompt: int, output: int, tokens: int) -> None:
    sequence = bare_sequence(0, prompt, output)
    sequence.end_length = min(sequence.end_length, 100)  # as `Scheduler.add` has it
    assert rule.num_tokens(sequence, 100) == tokens


@pytest.mark.parametrize(
    ("reserve", "num_drafts", "tokens"),
    [("exact", 0, 15), ("exact", 3, 17), ("exact", 9, 20), ("pow2", 3, 18), ("pow2", 9, 20), ("max_model_len", 3, 20)],
)
def test_a_reservation_has_room_for_drafts_beyond_the_end(reserve: Reserve, num_drafts: int, tokens: int) -> None:
    """The last step of a sequence that ends at 15 tokens verifies drafts after 14 known ones, but never beyond 20."""
    manager = ContiguousManager(100, 1, Contiguous(reserve), 20, num_drafts)
    assert manager.blocks_needed(bare_sequence(0, 10, 5), NO_MATCH, 0) == tokens


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "static", "admission_order"])
@pytest.mark.parametrize("block_size", [1, 4])
def test_nobody_gets_a_block_after_admission_or_gives_one_up(policy: str, block_size: int) -> None:
    scheduler = make(Contiguous("exact"), policy, num_blocks=60 // block_size, block_size=block_size)
    for i in range(12):
        scheduler.add(Request(i, 3 + i, 5 + 2 * (i % 5), token_ids=list(range(3 + i))))
    tables = {}
    for plan in run(scheduler, groups=True):
        assert not plan.growth and not plan.preempted
        for sequence in plan.admitted:
            tables[sequence] = list(sequence.block_table)
            assert len(sequence.block_table) == -(-sequence.end_length // block_size)
        assert all(sequence.block_table == tables[sequence] for sequence in plan.decodes)
    assert len(tables) == 12


def test_the_head_waits_for_a_hole_though_enough_blocks_are_free() -> None:
    scheduler = make(Contiguous("exact"), num_blocks=14, block_size=1)
    for i, (prompt, output) in enumerate([(3, 1), (3, 3), (3, 1)]):
        scheduler.add(Request(i, prompt, output))
    step(scheduler)  # the second is left in the middle, with holes of 4 blocks on both sides
    scheduler.add(Request(3, 4, 1))
    for num_tokens in (4, 5):
        plan = step(scheduler)
        assert not plan.admitted and plan.num_waiting == 1 and plan.num_used_blocks == 6
        assert (plan.num_kv_tokens, plan.num_reserved_slots, plan.num_external_slots) == (num_tokens, 5 - num_tokens, 8)
    plan = step(scheduler)  # it ended: all is one hole
    assert [sequence.request_id for sequence in plan.admitted] == [3] and plan.num_external_slots == 0


# -- what it cannot be combined with ----------------------------------------------------------------------------------


def test_what_reservations_cannot_be_combined_with() -> None:
    for options, text in [
        (SchedulerOptions(), "^enable_prefix_caching=true: "),
        (SchedulerOptions(enable_prefix_caching=False, allocation="chunk"), "^allocation=chunk: "),
    ]:
        with pytest.raises(ValueError, match=text):
            make_scheduler(options, **LIMITS, contiguous=Contiguous())
    with pytest.raises(ValueError, match="^num_host_blocks=5: "):
        make(Contiguous(), num_host_blocks=5)
    with pytest.raises(ValueError, match="^max_tokens=5: read with reserve=requested only"):
        Contiguous("exact", max_tokens=5)
    with pytest.raises(ValueError, match="^max_tokens=0: "):
        Contiguous("requested", max_tokens=0)
    with pytest.raises(RequestRefusedError, match="share"):
        make(Contiguous()).add(Request(0, 5, 5, num_sequences=2))


@pytest.mark.parametrize("reserve", ["pow2", "exact"])
def test_the_real_engine_foresees_nothing(reserve: Any) -> None:
    engine_config = pytest.importorskip("engine.engine_config")
    with pytest.raises(ValueError, match=f"^contiguous.reserve={reserve}: "):
        engine_config.EngineConfig(enable_prefix_caching=False, contiguous=Contiguous(reserve))
    with pytest.raises(ValueError, match="^enable_prefix_caching=true: "):
        engine_config.EngineConfig(contiguous=Contiguous())
