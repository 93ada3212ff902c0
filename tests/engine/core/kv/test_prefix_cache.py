"""The rules of the prefix cache as the scheduler applies them, one by one."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.block_pool import BlockPool
from engine.core.kv.eviction import Eviction
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.kv.tiers.tier import DEVICE, Transfer
from engine.core.sequence import Request
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run, sequences
from tests.policies import ON_ANY_POOL

ALL = pytest.mark.parametrize("policy", ON_ANY_POOL)


@ALL
def test_a_repeated_prompt_that_fills_its_last_block_computes_one_token(policy: str) -> None:
    scheduler = make(policy)
    prompt = list(range(8))
    for i in range(2):
        scheduler.add(Request(i, 8, 1, token_ids=prompt.copy()))
        (plan,) = run(scheduler)
        assert chunks(plan) == [(i, 7 * i, 8 - 7 * i)]
        assert plan.transfers == []


@pytest.mark.parametrize("policy", sorted({*ON_ANY_POOL} - {"static"}))  # admits nobody beside a decode
def test_a_last_block_that_another_holds_is_copied_before_it_is_written(policy: str) -> None:
    scheduler = make(policy)
    prompt = list(range(8))
    scheduler.add(Request(0, 8, 9, token_ids=prompt.copy()))
    plans = run(scheduler)
    next(plans)
    held = sequences(scheduler)[0].block_table[1]
    next(plans)
    scheduler.add(Request(1, 8, 2, token_ids=prompt.copy()))
    plan = next(plans)
    assert chunks(plan) == [(1, 7, 1)]
    assert plan.transfers == [Transfer(DEVICE, held, DEVICE, plan.admitted[0].block_table[1])]
    assert plan.admitted[0].block_table[0] == sequences(scheduler)[0].block_table[0]
    list(plans)


@ALL
def test_same_step_duplicates_share_full_blocks(policy: str) -> None:
    scheduler = make(policy)
    for i in range(3):
        scheduler.add(Request(i, 11, 1, token_ids=list(range(11))))
    (plan,) = run(scheduler)
    assert chunks(plan) == [(0, 0, 11), (1, 8, 3), (2, 8, 3)]
    assert plan.num_used_blocks == 2 + 3


def test_a_hash_collision_is_not_a_hit() -> None:
    scheduler = make()
    for i in range(2):
        scheduler.add(Request(i, 9, 1, token_ids=[i] * 9, block_hashes=[42, 43]))
        (plan,) = run(scheduler)
        assert chunks(plan) == [(i, 0, 9)]


def test_an_equal_block_after_another_prefix_is_not_a_hit() -> None:
    scheduler = make()
    for i in range(2):
        scheduler.add(Request(i, 9, 1, token_ids=[i] * 4 + [5] * 5))
        (plan,) = run(scheduler)
        assert chunks(plan) == [(i, 0, 9)]


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    scheduler = make()
    first = Request(0, 6, 7, token_ids=list(range(6)))
    scheduler.add(first)
    list(run(scheduler))
    turn = first.sequences[0].token_ids + [9, 9]  # type: ignore[operator]
    scheduler.add(Request(1, len(turn), 1, token_ids=turn))
    (plan,) = run(scheduler)
    assert chunks(plan) == [(1, 12, 3)]  # of 13 tokens all but the last were computed: three full blocks


def test_a_prompt_equal_to_what_was_said_and_generated_computes_one_token() -> None:
    scheduler = make()
    first = Request(0, 6, 7, token_ids=list(range(6)))
    scheduler.add(first)
    list(run(scheduler))
    scheduler.add(Request(1, 12, 1, token_ids=first.sequences[0].token_ids[:12]))  # type: ignore[index]
    (plan,) = run(scheduler)
    assert chunks(plan) == [(1, 11, 1)]


@ALL
def test_a_preempted_sequence_of_unknown_content_finds_its_own_blocks(policy: str) -> None:
    scheduler = make(policy, num_blocks=30, block_size=2, max_num_seqs=3)
    for i in range(3):
        scheduler.add(Request(i, 12, 14 - 2 * i))
    restarts = [c.start for plan in run(scheduler) for c in plan.prefills if c.sequence.num_preemptions]
    assert restarts and min(restarts) > 0


@pytest.mark.parametrize("groups", [False, True], ids=["steps", "groups"])
@given(st.integers(0, 1 << 30))
def test_blocks_of_unknown_content_take_their_turn_among_the_cached(groups: bool, seed: int) -> None:
    """As if all that a sequence generates had an identity that nobody else has."""
    rng = random.Random(seed)
    policy, block_size = rng.choice(["mixed", "prefill_first"]), rng.choice([1, 2, 4])
    limits = {
        "num_blocks": rng.randint(60, 120) // block_size, "block_size": block_size, "max_num_seqs": rng.randint(2, 6),
        "eviction": rng.choice(["unhashed_first", "lru"]), "cached_size": rng.choice([1.0, 1.0, 1.5]),
        # Planned ahead, who decodes after a step of others' prompts has a token more that its name does not cover.
        "async_scheduling": policy == "mixed" and rng.random() < 0.5,
    }  # fmt: skip
    requests = []
    for number in range(40):
        group, num_shared = rng.randrange(4), rng.randint(0, 12) // block_size
        prompt, output = num_shared * block_size + rng.randint(1, 12), rng.randint(1, 20)
        known = [*range(100 * group, 100 * group + num_shared)] if group else []
        requests.append((number, prompt, output, known))

    def steps(name_all: bool) -> list[tuple[Any, ...]]:
        scheduler = make(policy, **limits)
        for number, prompt, output, known in requests:
            own = [*range(1000 * (number + 1) + len(known), 1000 * (number + 1) + (prompt + output) // block_size)]
            scheduler.add(Request(number, prompt, output, block_hashes=known + own if name_all else known or None))
        found: list[tuple[Any, ...]] = []
        for plan in run(scheduler, groups=groups):
            decodes = ids([*plan.decodes])
            found.append((chunks(plan), decodes, ids([*plan.preempted])))
            found += [([], decodes, [])] * (plan.num_steps - 1)
        return found

    assert steps(name_all=False) == steps(name_all=True)


def test_what_others_hold_is_not_counted_among_the_full_blocks_that_become_free() -> None:
    pool = BlockPool(7, has_one_queue=False, evict=lambda *_: None)
    pool.release(pool.take(1), BlockHashes([7]), 1)  # an older block that can be found
    table = pool.take(6)
    pool.hold([table[2]])
    pool.release(table, None, 0, 4)
    pool.check_integrity(Counter([table[2]]))
    taken = [block for _ in range(2) for block in pool.take(1)]
    pool.take(1)
    taken += [block for _ in range(3) for block in pool.take(1)]
    assert taken == [table[4], table[5], table[3], table[1], table[0]], "those without content first, then the tail"


def test_evicting_the_indexed_copy_keeps_a_live_one_findable() -> None:
    blocks = BlockManager(4, 2)
    one, two = (bare_sequence(i, 2, 1, block_hashes=[1]) for i in range(2))
    for sequence in (one, two):  # both computed the same content without knowing of each other
        blocks.admit(sequence, blocks.match(bare_sequence(9, 2, 1)), 2)
    for sequence in (one, two):
        blocks.register(sequence, 2)
    blocks.settle()
    blocks.release(one)
    blocks.take(3)  # evicts the first copy
    match = blocks.match(bare_sequence(3, 3, 1, block_hashes=[1]))
    assert match.blocks == two.block_table


def test_a_sequence_that_keeps_a_part_of_its_prefix_finds_the_rest() -> None:
    blocks = BlockManager(40, 1)
    sequence = bare_sequence(0, 32, 1, block_hashes=[*range(32)])
    blocks.admit(sequence, blocks.match(sequence), 32)
    blocks.register(sequence, 32)
    table = sequence.block_table
    blocks.settle()
    blocks.release_tail(sequence, 3)
    match = blocks.match(sequence)
    assert (match.blocks, match.num_kept) == (table[3:], 3)
    blocks.admit(sequence, match, 32)
    blocks.check_integrity([sequence])
    assert sequence.block_table[:31] == table[:31]


def test_free_blocks_are_reused_least_recently_used_first_tail_before_head() -> None:
    blocks = BlockManager(6, 1)
    old, new = (bare_sequence(i, 3, 1, block_hashes=[10 * i, 10 * i + 1, 10 * i + 2]) for i in range(2))
    for sequence in (old, new):
        blocks.admit(sequence, blocks.match(sequence), 3)
        blocks.register(sequence, 3)
    old_table, new_table = old.block_table, new.block_table
    blocks.release(old)
    blocks.release(new)
    taken = [block for _ in range(6) for block in blocks.take(1)]
    assert taken == old_table[::-1] + new_table[::-1]


@pytest.mark.parametrize("eviction", ["unhashed_first", "lru"])
def test_blocks_of_a_sequence_are_in_ascending_order_however_they_were_freed(eviction: Eviction) -> None:
    manager = BlockManager(9, 4, eviction=eviction)
    for round_ in range(3):
        hashes = [[100 * round_ + 10 * i + block for block in range(5)] for i in range(2)]
        first, second = bare_sequence(0, 18, 1, block_hashes=hashes[0]), bare_sequence(1, 16, 1, block_hashes=hashes[1])
        for sequence in (first, second):
            manager.admit(sequence, manager.match(sequence), sequence.num_tokens)
            manager.register(sequence, sequence.num_tokens)
            assert sequence.block_table == sorted(sequence.block_table)
        manager.check_integrity([first, second])
        manager.release(first)
        manager.release(second)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_with_one_queue_unhashed_blocks_take_their_turn_among_hashed_ones(count: int) -> None:
    manager = BlockManager(18, 4, eviction="lru")
    tables = []
    for i in range(3):  # each has three hashed blocks and three that are not
        sequence = bare_sequence(i, 24, block_hashes=[10 * i + block for block in range(3)])
        manager.admit(sequence, manager.match(sequence), 24)
        manager.register(sequence, 12)
        tables.append(sequence.block_table)
        manager.release(sequence)
    manager.check_integrity([])
    taken: list[int] = []
    while len(taken) < 18:
        blocks = manager.take(min(count, 18 - len(taken)))
        assert blocks == sorted(blocks)
        taken += blocks
        left = {10 * i + block for i in range(3) for block in range(3) if tables[i][block] not in taken}
        assert {each for each in range(30) if each in manager.index} == left
    order = [block for table in tables for block in table[::-1]]
    assert all({*taken[i : i + count]} == {*order[i : i + count]} for i in range(0, 18, count))


def test_blocks_are_counted_without_those_that_only_some_sequences_hold() -> None:
    manager = BlockManager(10, 4)
    first, second, third = (bare_sequence(i, 8, block_hashes=[7, 8]) for i in range(3))
    manager.admit(first, manager.match(first), 12)
    manager.register(first, 8)
    for other in (second, third):
        manager.admit(other, PrefixMatch(first.block_table[:2], 8, 0, False), 12)
    everybody = [first, second, third]
    assert manager.num_used_blocks() == 2 + 3
    assert manager.count_blocks([]) == (5, 4, 2)
    assert all(manager.count_blocks([each]) == (4, 2, 2) for each in everybody)
    assert manager.count_blocks([first, third]) == (3, 0, 0)
    assert manager.count_blocks(everybody) == (0, 0, 0)
