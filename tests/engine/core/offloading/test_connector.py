"""KV that is stored on the host as it is computed, and loaded for who waits."""

from __future__ import annotations

from functools import partial

import pytest

from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.decodes.uniform import uniform_decodes
from engine.core.offloading.host_cache import HostCache
from engine.core.offloading.recency import RECENCIES, RecencyRule
from engine.core.offloading.rules import OffloadingRules
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request, Sequence
from simulator.versions.vllm_versions import vllm_version

VERSIONS = ("0.19", "0.27", "0.33")


def scheduler_of(
    version: str,
    num_blocks: int = 8,
    chunk_blocks: int = 1,
    *,
    plans_ahead: bool = False,
    has_priorities: bool = False,
    num_drafts: int = 0,
) -> Scheduler:
    """With blocks of two tokens, and a host for 30 of them."""
    found = vllm_version(version)
    options = SchedulerOptions(
        policy="admission_order", watermark=0.0, allocation="chunk", full_hit="recompute_block",
        victim="least_urgent" if has_priorities else "last", queue="priority" if has_priorities else "fcfs",
        eviction=found.eviction, options=found.options, async_scheduling=plans_ahead,
    )  # fmt: skip
    rules = OffloadingRules(chunk_blocks, **found.offloading)
    return make_scheduler(
        options, num_blocks=num_blocks, block_size=2, max_num_seqs=2, max_num_batched_tokens=16,
        num_host_blocks=30, offload=OffloadOptions(rules=rules),
        make_decodes=partial(UnforeseenDecodes, num_drafts=num_drafts) if num_drafts else uniform_decodes,
    )  # fmt: skip


def request(number: int, tokens: list[int], num_outputs: int = 1, priority: int = 0) -> Request:
    return Request(number, len(tokens), num_outputs, arrival_time=number, token_ids=[*tokens], priority=priority)


def commit(scheduler: Scheduler, plan: StepPlan) -> None:
    for sequence in [*plan.decodes, *(chunk.sequence for chunk in plan.prefills if chunk.is_last)]:
        assert sequence.token_ids is not None
        sequence.token_ids.append(1)
    scheduler.commit(plan, 0)


class Course:
    """Steps of a scheduler whose transfers end when `land` says so.

    Attributes:
        waiting: jobs that were asked for and have not ended.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.waiting: dict[int, tuple[int, bool, int]] = {}
        self._ended: list[Sequence] = []

    def step(self) -> dict[int, tuple[int, int]] | None:
        """Who computes how many tokens from where; None if there is nothing to compute."""
        plan = self.scheduler.schedule(0)
        assert self.scheduler.storing is not None
        orders = self.scheduler.storing.take_orders()
        for job in orders.jobs:
            self.waiting[job.number] = job.sequence.request_id, job.is_store, len(job.blocks)
        self._ended += orders.ended
        if plan is not None:
            commit(self.scheduler, plan)
        self.scheduler.check_integrity()
        return None if plan is None else {c.sequence.request_id: (c.start, c.num_tokens) for c in plan.prefills}

    def land(self) -> None:
        """All jobs are done."""
        assert self.scheduler.storing is not None
        self.scheduler.storing.report([*self.waiting], self._ended)
        self.waiting.clear()
        self._ended.clear()

    def drain(self) -> None:
        """Until nobody is left and nothing is under way."""
        for _ in range(20):
            self.step()
            self.land()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_device_has_lost_is_loaded_without_a_seat(version: str) -> None:
    course = Course(scheduler_of(version))
    scheduler, prompt = course.scheduler, [*range(10, 20)]
    scheduler.add(request(0, prompt))
    course.drain()
    for number in (1, 2):  # takes all blocks of the device
        scheduler.add(request(number, [*range(30 * number, 30 * number + 15)]))
        course.drain()
    scheduler.add(request(3, prompt))
    scheduler.add(request(4, [7]))
    assert course.step() == {4: (0, 1)}, "who waits for the host lets others pass"
    assert (
        course.waiting.popitem()[1] == (3, False, 5) if version == "0.19" else (3, False, 5) in course.waiting.values()
    )
    assert scheduler.num_running == 0 and scheduler.num_waiting == 1 and scheduler.blocks.num_used_blocks() >= 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prompt_that_is_there_as_a_whole_computes_its_last_token(version: str) -> None:
    course = Course(scheduler_of(version))
    scheduler, prompt = course.scheduler, [*range(10, 20)]
    for number, tokens in enumerate((prompt, [*range(30, 45)], [*range(60, 75)], prompt)):
        scheduler.add(request(number, tokens))
        if number < 3:
            course.drain()
    assert course.step() is None, "it is loaded first"
    course.land()
    assert course.step() == {3: (9, 1)}


def test_blocks_are_held_until_they_are_stored_in_0_19_only() -> None:
    for version in VERSIONS:
        course = Course(scheduler_of(version))
        course.scheduler.add(request(0, [*range(10, 20)]))
        course.step()
        course.step()
        held = course.scheduler.blocks.num_used_blocks()
        assert held == (5 if version == "0.19" else 0), version
        course.land()
        assert course.scheduler.blocks.num_used_blocks() == 0


def test_who_is_given_a_block_that_is_being_stored_waits_for_that() -> None:
    course = Course(scheduler_of("0.33"))
    course.scheduler.add(request(0, [*range(10, 25)]))
    course.step()
    course.scheduler.add(request(1, [*range(50, 65)]))
    plan = course.scheduler.schedule(0)
    assert plan is not None and course.scheduler.storing is not None
    orders = course.scheduler.storing.take_orders()
    assert orders.flushed == {*course.waiting}, "the only job reads all that the second is given"


def test_a_chunk_is_stored_and_found_as_one() -> None:
    course = Course(scheduler_of("0.33", chunk_blocks=3))
    course.scheduler.add(request(0, [*range(10, 25)]))
    course.step()
    assert [*course.waiting.values()] == [(0, True, 6)], "of seven full blocks, two chunks"


def test_planned_ahead_a_step_after_an_empty_one_does_not_know_yet_what_that_has_flushed() -> None:
    course = Course(scheduler_of("0.33", plans_ahead=True))
    scheduler, loaded = course.scheduler, [*range(10, 20)]
    for number, tokens in enumerate((loaded, [*range(30, 45)], [*range(60, 75)])):  # now only the host has `loaded`
        scheduler.add(request(number, tokens))
        course.drain()
    scheduler.add(request(3, loaded))
    scheduler.add(request(4, [*range(80, 85)], 5))
    course.step()
    course.step()
    assert course.step() is None and scheduler.wait_until == 0, "five blocks are held, request 4 lacks a fourth"
    assert [victim.request_id for victim in scheduler.preempted_meanwhile] == [4]
    assert course.step() is None, "it is not looked up before it is known that the host has what it stored"
    course.land()
    assert course.step() is not None


@pytest.mark.parametrize(
    ("version", "served", "used"), [("0.19", [0], 3), ("0.27", None, 4), ("0.33", None, 4)], ids=VERSIONS
)
def test_blocks_that_the_step_under_way_writes_are_free_at_once_or_later_or_not_taken(
    version: str, served: list[int] | None, used: int
) -> None:
    scheduler = scheduler_of(version, num_blocks=4, plans_ahead=True)
    for number in range(2):
        scheduler.add(request(number, [*range(10 * number, 10 * number + 3)], 4))
    plans = [scheduler.schedule(0), scheduler.schedule(0)]
    assert plans[0] is not None and plans[1] is not None
    commit(scheduler, plans[0])
    plan = scheduler.schedule(0)
    assert served == (None if plan is None else [sequence.request_id for sequence in plan.decodes])
    assert scheduler.blocks.num_used_blocks() == used
    assert scheduler.num_running == {"0.19": 1, "0.27": 0, "0.33": 2}[version], "in 0.27 all of them give way"
    commit(scheduler, plans[1])
    scheduler.check_integrity()
    assert scheduler.blocks.num_used_blocks() == {"0.19": 3, "0.27": 0, "0.33": 4}[version]


@pytest.mark.parametrize(("version", "decodes"), [("0.19", [1]), ("0.27", []), ("0.33", [0])])
def test_who_gives_way_after_it_was_served_has_the_blocks_of_this_step_too(version: str, decodes: list[int]) -> None:
    scheduler = scheduler_of(version, num_blocks=5, plans_ahead=True, has_priorities=True)
    plans = []
    for number in range(2):  # in the third step each needs a third block
        scheduler.add(request(number, [*range(10 * number, 10 * number + 3 + number)], 4, priority=-number))
        plans.append(scheduler.schedule(0))
    assert plans[0] is not None
    commit(scheduler, plans[0])
    plan = scheduler.schedule(0)
    assert ([] if plan is None else [each.request_id for each in plan.decodes]) == decodes
    assert scheduler.blocks.num_used_blocks() == {"0.19": 3, "0.27": 5, "0.33": 5}[version]
    scheduler.check_integrity()


@pytest.mark.parametrize(("version", "num_drafts", "loads"), [("0.27", 3, True), ("0.33", 3, False), ("0.33", 0, True)])
def test_a_load_leaves_blocks_for_its_first_decode_step_with_drafts(version: str, num_drafts: int, loads: bool) -> None:
    course = Course(scheduler_of(version, num_blocks=6, num_drafts=num_drafts))
    scheduler, prompt = course.scheduler, [*range(10, 20)]
    for number, tokens in enumerate((prompt, [*range(30, 41)], [*range(60, 71)], prompt)):
        scheduler.add(request(number, tokens))
        if number < 3:
            course.drain()
    course.step()
    assert any(not is_store for _, is_store, _ in course.waiting.values()) == loads


@pytest.mark.parametrize("rule", RECENCIES)
def test_a_chunk_that_is_read_or_written_is_not_evicted(rule: RecencyRule) -> None:
    cache = HostCache(2, rule)
    (first,), (second,) = (request(number, [1]).sequences for number in (0, 1))
    store = cache.begin_write({11: 0, 12: 1}, first)
    assert store is not None and store.places == [0, 1]
    assert cache.begin_write({13: 0}, second) is None, "both are being written"
    cache.end_write([11, 12])
    assert cache.begin_read({11: 0}, second) == [0]
    again = cache.begin_write({13: 0}, second)
    assert again is not None and again.places == [1], "the place of the other one"
    cache.end_read([11])
    cache.end_write([13])
    cache.check_integrity({}, set())
    assert 11 in cache and 12 not in cache and cache.is_readable(13)


def test_what_was_of_use_last_stays() -> None:
    evicted = {}
    for rule in RECENCIES:
        cache = HostCache(3, rule)
        (first,), (second,), (third,) = (request(number, [1]).sequences for number in range(3))
        cache.begin_write({1: 0, 2: 1}, first)
        cache.begin_write({3: 0}, second)
        cache.end_write([3])
        cache.end_write([1, 2])
        cache.touch([3])
        cache.end(second)
        cache.begin_write({4: 0}, third)
        (evicted[rule],) = {1, 2, 3} - {chunk for chunk in (1, 2, 3) if chunk in cache}
    assert evicted == {"stored": 1, "idle": 1, "request": 2}, "of a request, the last chunk goes first in 0.33"
