"""A prefix cache that goes on behind the device: what leaves it, what comes back, and who waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.kv.prefix_index import Content
from engine.core.kv.tiers.tier import DEVICE, DISK, HOST, Tier, Transfer
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request, SequenceStatus
from tests.engine.core.builders import make, run

PROMPT = list(range(100, 113))  # three full blocks of 4, and a token
OTHERS = [list(range(start, start + 29)) for start in (200, 300, 400)]  # eight blocks each, of a pool of nine


def make_offloading(num_host_blocks: int = 100, num_blocks: int = 9, **options: Any) -> Scheduler:
    others = {name: options.pop(name) for name in ("policy", "num_lanes", "preemption") if name in options}
    return make(num_blocks=num_blocks, num_host_blocks=num_host_blocks, offload=OffloadOptions(**options), **others)


def request(number: int, tokens: list[int], max_tokens: int = 1, **others: Any) -> Request:
    return Request(number, len(tokens), max_tokens, token_ids=tokens.copy(), **others)


def serve(scheduler: Scheduler, number: int, tokens: list[int], **others: Any) -> list[StepPlan]:
    """Run a request to its end; what it waits for is there after one step."""
    scheduler.add(request(number, tokens, **others))
    plans: list[StepPlan] = []
    while (plan := scheduler.schedule(len(plans))) is not None:
        plans.append(plan)
        scheduler.commit(plan, len(plans))
        for sequence in plan.parked:
            scheduler.ready(sequence)
        scheduler.check_integrity()
    return plans


def filled(scheduler: Scheduler, *, others: int = 1) -> Scheduler:
    """After `PROMPT` and so many of `OTHERS`, of which each drives out what was there."""
    serve(scheduler, 0, PROMPT)
    for i, tokens in enumerate(OTHERS[:others], 1):
        serve(scheduler, i, tokens)
    return scheduler


def moves(plan: StepPlan) -> list[tuple[str, str]]:
    return [(transfer.source_tier, transfer.target_tier) for transfer in plan.transfers]


def test_a_prefix_that_left_the_device_comes_back_and_only_the_rest_is_computed() -> None:
    scheduler = make_offloading()
    serve(scheduler, 0, PROMPT)
    (evicting,) = serve(scheduler, 1, OTHERS[0])
    assert moves(evicting) == [(DEVICE, HOST)] * 2, "of the three blocks two were needed"
    load, rest = serve(scheduler, 2, PROMPT)
    assert moves(load) == [*[(DEVICE, HOST)] * moves(load).count((DEVICE, HOST)), *[(HOST, DEVICE)] * 2]
    (sequence,) = load.parked
    assert load.admitted == [sequence] and not load.prefills
    assert [(chunk.start, chunk.num_tokens) for chunk in rest.prefills] == [(12, 1)]
    assert sequence.num_cached_tokens == 12 and sequence.cached_by_tier == {HOST: 8}


def test_what_a_tier_has_is_not_copied_to_it_again() -> None:
    scheduler = filled(make_offloading())
    serve(scheduler, 2, PROMPT)
    plans = serve(scheduler, 3, OTHERS[1])
    stored = {transfer.target for plan in plans for transfer in plan.transfers}
    assert len(stored) < 8, "blocks of the prompt went to the host twice"


def test_without_overlap_the_step_itself_waits_for_the_hits() -> None:
    (plan,) = serve(filled(make_offloading(overlap=False)), 2, PROMPT)
    assert not plan.parked and (HOST, DEVICE) in moves(plan)
    assert [(chunk.start, chunk.num_tokens) for chunk in plan.prefills] == [(12, 1)]


def test_what_leaves_the_host_goes_to_the_disk_and_comes_back_from_there() -> None:
    scheduler = filled(make_offloading(num_host_blocks=3, num_disk_blocks=50), others=3)
    load, _ = serve(scheduler, 9, PROMPT)
    assert moves(load).count((DISK, DEVICE)) == 3 and load.parked[0].cached_by_tier == {DISK: 12}


def test_two_requests_share_what_comes_for_the_first() -> None:
    scheduler = filled(make_offloading(num_blocks=12), others=2)
    first, second = request(7, PROMPT), request(8, [*PROMPT[:12], 1, 2])
    scheduler.add(first)
    scheduler.add(second)
    plan = scheduler.schedule(0)
    assert plan is not None and plan.parked == [first.sequences[0], second.sequences[0]]
    assert moves(plan).count((HOST, DEVICE)) == 3
    assert first.sequences[0].block_table[:3] == second.sequences[0].block_table[:3]
    scheduler.commit(plan, 1)
    scheduler.check_integrity()
    scheduler.abort(7)
    assert scheduler.schedule(1) is None, "the blocks of the second are still coming"
    for each in (first, second):
        scheduler.ready(each.sequences[0])
        scheduler.check_integrity()
    assert first.sequences[0].status is SequenceStatus.ABORTED and not first.sequences[0].block_table
    assert [chunk.start for plan in run(scheduler) for chunk in plan.prefills] == [12]


def test_a_whole_prompt_that_is_coming_for_another_has_its_last_block_computed() -> None:
    scheduler = filled(make_offloading(num_blocks=14), others=2)
    first, second = request(7, PROMPT), request(8, PROMPT[:12])
    scheduler.add(first)
    scheduler.add(second)
    plan = scheduler.schedule(0)
    assert plan is not None and plan.parked == [first.sequences[0], second.sequences[0]]
    assert second.sequences[0].num_cached_tokens == 8


def test_who_does_not_read_the_cache_stores_in_it() -> None:
    scheduler = make_offloading()
    serve(scheduler, 0, PROMPT, reads_prefix_cache=False)
    serve(scheduler, 1, OTHERS[0])
    (plan,) = serve(scheduler, 2, PROMPT, reads_prefix_cache=False)
    assert not plan.parked and plan.prefills[0].start == 0
    serve(scheduler, 3, OTHERS[1])
    assert serve(scheduler, 4, PROMPT)[0].parked[0].cached_by_tier[HOST] >= 8


def test_a_swapped_sequence_takes_the_place_of_cached_blocks() -> None:
    scheduler = filled(make_offloading(num_host_blocks=4, preemption="swap", num_blocks=9), others=2)
    for number, start in ((7, 500), (8, 600)):
        scheduler.add(request(number, list(range(start, start + 9)), 12))
    preempted = [sequence for plan in run(scheduler) for sequence in plan.preempted]
    assert preempted and all(sequence.num_swaps for sequence in preempted)


@pytest.mark.parametrize(("eviction", "kept"), [("lru", [1, 3]), ("fifo", [2, 3])])
def test_what_leaves_a_full_tier_first(eviction: Any, kept: list[int]) -> None:
    tier = Tier(HOST, 2, eviction=eviction)
    for block_hash in (1, 2):
        tier.store(block_hash, None, DEVICE, block_hash)
    tier.settle()
    tier.store(1, None, DEVICE, 1)
    tier.store(3, None, DEVICE, 3)
    assert [each for each in (1, 2, 3) if each in tier] == kept


def test_a_block_that_is_read_or_written_is_not_evicted() -> None:
    moved: list[Transfer] = []
    tier = Tier(HOST, 2, moves=moved)
    tier.store(1, None, DEVICE, 0)
    tier.settle()
    tier.begin_read(1, is_lasting=True)
    tier.store(2, None, DEVICE, 1)
    assert tier.num_free_blocks == 0
    tier.store(3, None, DEVICE, 2)  # dropped: one is read, the other written
    tier.check_integrity([], [1])
    assert len(moved) == 2 and 3 not in tier
    tier.settle()
    tier.end_read(1)
    assert tier.num_free_blocks == 2


def test_a_hash_that_collides_is_no_hit() -> None:
    tier = Tier(HOST, 2)
    mine: Content = (None, b"mine")
    tier.store(1, mine, DEVICE, 0)
    assert tier.holds(1, mine) and not tier.holds(1, (None, b"another")) and not tier.holds(2, mine)


def test_a_run_of_decodes_ends_before_a_step_that_drives_out_cached_blocks() -> None:
    scheduler = make_offloading(num_blocks=7)
    serve(scheduler, 0, PROMPT)
    scheduler.add(request(1, list(range(500, 514)), 12))
    longest = 0
    for plan in run(scheduler, groups=True):
        longest = max(longest, plan.num_steps)
        assert plan.num_steps == 1 or not plan.transfers
    assert longest == 3, "it has a new block every four steps"


@pytest.mark.parametrize(
    ("options", "sizes", "reason"),
    [
        ({}, {"num_host_blocks": 0}, "num_host_blocks=0: "),
        ({"enable_prefix_caching": False}, {}, "enable_prefix_caching=False: "),
        ({"enable_chunked_prefill": False}, {}, "overlap=True: "),
        ({"max_padding": 5}, {}, "overlap=True: "),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], sizes: dict[str, Any], reason: str) -> None:
    limits: dict[str, Any] = {"num_blocks": 9, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 9}
    with pytest.raises(ValueError, match=reason):
        make_scheduler(
            SchedulerOptions(**options), **limits, **{"num_host_blocks": 9, **sizes}, offload=OffloadOptions()
        )


def test_an_abort_of_who_is_ready_but_took_no_part_yet_frees_its_blocks() -> None:
    scheduler = filled(make_offloading(), others=2)
    scheduler.add(request(7, PROMPT))
    plan = scheduler.schedule(0)
    assert plan is not None
    (sequence,) = plan.parked
    scheduler.ready(sequence)  # the plan is still under way
    scheduler.abort(7)
    scheduler.check_integrity()
    assert not sequence.block_table
    scheduler.commit(plan, 1)
    scheduler.check_integrity()
    (plan,) = serve(scheduler, 8, PROMPT)
    assert plan.prefills[0].start == 12, "what came for it is on the device"
