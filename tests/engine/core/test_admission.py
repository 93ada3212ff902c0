"""Who may enter: the question that a policy is asked, what its answers bring about, and who asks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from engine.core.admission.need import Need
from engine.core.plan import StepPlan
from engine.core.planning.asking import WAIT, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.policies import POLICIES
from engine.core.policies.priority import Priority
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from tests.engine.core.builders import chunks, ids, make, run, sequences, step
from tests.engine.fuzz.fuzz_options import OWN_POLICY
from tests.engine.fuzz.fuzz_workloads import random_workload
from tests.engine.fuzz.outputs_fit import OutputsFit
from tests.engine.fuzz.soundness import check_workload
from tests.selection import few


class Restricted(BasePolicy):
    """Gives the answer of the test beside somebody who runs."""

    answer: ClassVar[Admit | Wait]
    asked: ClassVar[list[tuple[int, int]]]

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        self.asked.append((need.sequence.request_id, state.free_tokens))
        return self.answer if state.running else super().admit(need, state)


@pytest.fixture
def restricted(monkeypatch: pytest.MonkeyPatch) -> type[Restricted]:
    monkeypatch.setitem(POLICIES, "restricted", Restricted)
    monkeypatch.setattr(Restricted, "asked", [], raising=False)
    monkeypatch.setattr(Restricted, "answer", WAIT, raising=False)
    return Restricted


def two_requests(policy: str, **second: Any) -> tuple[Scheduler, StepPlan]:
    """Request 0 decodes and request 1 waits; the plan is that of the second decode step."""
    scheduler = make(policy)
    scheduler.add(Request(0, 4, 50))
    step(scheduler)
    step(scheduler, 1)
    scheduler.add(Request(1, 12, 2, **second))
    plan = scheduler.schedule(2)
    assert plan is not None and ids(plan.admitted) == []
    return scheduler, plan


@pytest.mark.parametrize(("answer", "horizon"), [(WAIT, 48), (Wait(steps=3), 3), (Wait(until=5), 1)])
def test_who_waits_is_asked_about_when_the_policy_says(
    restricted: type[Restricted], answer: Wait, horizon: int
) -> None:
    restricted.answer = answer
    scheduler, plan = two_requests("restricted")
    assert plan.horizon == horizon
    assert restricted.asked[-2:] == [(1, 63), (1, 64)], "by the planner beside a decode, and for the horizon"
    if answer is WAIT:
        scheduler.commit(scheduler.extend(plan, horizon), 50)
        assert ids(step(scheduler, 50).admitted) == [1], "request 0 has released what it held"


def test_an_empty_step_is_planned_again_at_the_time_that_the_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BasePolicy, "admit", lambda self, need, state: Wait(until=state.now + 7))
    scheduler = make()
    scheduler.add(Request(0, 4, 2))
    assert scheduler.schedule(3) is None and scheduler.wait_until == 10


def test_a_policy_says_how_many_tokens_the_newcomer_computes(restricted: type[Restricted]) -> None:
    restricted.answer = Admit(5)
    scheduler = make("restricted")
    scheduler.add(Request(0, 4, 9))
    step(scheduler)
    scheduler.add(Request(1, 12, 2))
    assert chunks(step(scheduler, 1)) == [(1, 0, 5)]
    assert chunks(step(scheduler, 2)) == [(1, 5, 7)]


@pytest.mark.parametrize("policy", ["restricted", "static"])
def test_nobody_looks_into_the_prefix_cache_for_who_waits_for_something_else(
    restricted: type[Restricted], policy: str
) -> None:
    """Tokens are hashed when they are looked for."""
    scheduler, plan = two_requests(policy, token_ids=[1] * 12)
    assert plan.horizon == 48 and sequences(scheduler)[1].hashes is None
    scheduler.commit(scheduler.extend(plan, 48), 50)
    assert ids(step(scheduler, 50).admitted) == [1] and sequences(scheduler)[1].hashes is not None


def test_the_next_batch_is_planned_when_the_one_before_it_has_ended() -> None:
    """With steps planned ahead too, where its end is certain before."""
    scheduler = make("static", async_scheduling=True)
    scheduler.add(Request(0, 4, 2))
    first, last = scheduler.schedule(0), scheduler.schedule(0)
    assert first and last
    scheduler.add(Request(1, 4, 2))
    scheduler.commit(first, 1)
    assert scheduler.schedule(1) is None
    scheduler.commit(last, 2)
    assert ids(step(scheduler, 2).admitted) == [1]


def test_displacement_asks_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives way for an urgent request that would not be let in."""

    class Closed(Priority):
        def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
            return WAIT if need.sequence.request_id == 1 else super().admit(need, state)

    preempted = {}
    for name, policy in {"open": Priority, "closed": Closed}.items():
        monkeypatch.setitem(POLICIES, name, policy)
        scheduler = make(name, max_num_seqs=1)
        scheduler.add(Request(0, 4, 9, priority=1))
        step(scheduler)
        scheduler.add(Request(1, 4, 2, priority=-9))
        preempted[name] = ids(step(scheduler, 1).preempted)
    assert preempted == {"open": [0], "closed": []}


def test_nobody_gives_way_to_one_that_would_pad_a_step_too_much() -> None:
    """A prompt of 3 tokens beside a chunk of 7 is 4 tokens of padding, of 5 is 2."""
    preempted = {}
    for rest in (5, 7):
        scheduler = make("priority", max_num_seqs=2, max_num_batched_tokens=16, max_padding=3)
        scheduler.add(Request(0, 4, 9, priority=2))
        step(scheduler)
        scheduler.add(Request(1, 15 + rest, 9, priority=0))
        step(scheduler)
        scheduler.add(Request(2, 3, 2, priority=1))
        preempted[rest] = ids(step(scheduler).preempted)
    assert preempted == {5: [0], 7: []}


def test_those_for_whom_room_is_made_count_with_their_first_chunks() -> None:
    """Two prompts of 5 blocks are checked for all of them, but the first takes only one of the 7 that are free."""
    scheduler = make(
        "priority", num_blocks=9, max_num_seqs=3, allocation="chunk", admission="full_prompt",
        long_prefill_token_threshold=4, enable_prefix_caching=False,
    )  # fmt: skip
    scheduler.add(Request(0, 4, 9, priority=1))
    scheduler.add(Request(1, 4, 9, priority=1))
    step(scheduler)
    for request_id in (2, 3):
        scheduler.add(Request(request_id, 20, 2))
    plan = step(scheduler, 1)
    assert ids(plan.admitted) == [2, 3] and ids(plan.preempted) == [1]


@pytest.fixture
def outputs_fit(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(POLICIES, OWN_POLICY, OutputsFit)
    return OWN_POLICY


def test_what_waits_for_the_rule_in_one_lane_may_enter_another(outputs_fit: str) -> None:
    scheduler = make(outputs_fit, num_blocks=9, num_lanes=2)
    for i in range(2):
        scheduler.add(Request(i, 4, 20))
    plans = [scheduler.schedule(0, lane) for lane in (0, 1)]
    assert [plan and ids(plan.admitted) for plan in plans] == [[0], [1]]


def entries(scheduler: Scheduler, *, groups: bool) -> list[tuple[int, int]]:
    """Step and request of every admission."""
    admitted, steps = [], 0
    for plan in run(scheduler, groups=groups):
        admitted += [(steps, request_id) for request_id in ids(plan.admitted)]
        steps += plan.num_steps
    return admitted


@pytest.mark.parametrize("groups", [False, True])
def test_who_waits_for_the_rule_enters_with_the_block_that_a_decode_fills(outputs_fit: str, groups: bool) -> None:
    scheduler = make(outputs_fit, num_blocks=9)
    for i, (tokens, num_outputs) in enumerate((([1, 2, 3, 4], 21), ([1, 2, 3, 4] + [7] * 10, 4))):
        scheduler.add(Request(i, len(tokens), num_outputs, token_ids=tokens))
    assert entries(scheduler, groups=groups) == [(0, 0), (4, 1)]


@pytest.mark.parametrize("groups", [False, True])
def test_of_two_that_may_fill_a_block_for_the_head_the_first_lets_it_enter(groups: bool) -> None:
    """Requests 0 and 1 generate the same, two steps apart; request 2 lacks one of the three blocks that it needs."""
    scheduler = make(num_blocks=6)
    for i, tokens in enumerate([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4] + [7] * 10]):
        scheduler.add(Request(i, len(tokens), 9, token_ids=tokens))
        for now in ((0, 1), (2,), ())[i]:
            step(scheduler, now)
    assert entries(scheduler, groups=groups)[0] == (1, 2)


@pytest.mark.parametrize("groups", [False, True])
def test_a_rule_that_nobody_could_ask_in_a_starved_step_is_asked_in_the_next(
    restricted: type[Restricted], monkeypatch: pytest.MonkeyPatch, groups: bool
) -> None:
    """It lets long prompts in, and what is needed is not known where nobody has looked."""

    def admit(self: Restricted, need: Need, state: AdmissionState) -> Admit | Wait:
        return WAIT if need.tokens < 5 and state.running else BasePolicy.admit(self, need, state)

    monkeypatch.setattr(Restricted, "admit", admit)
    scheduler = make("restricted", max_num_seqs=2, num_blocks=12, queue="priority")
    scheduler.add(Request(0, 5, 40))
    scheduler.add(Request(1, 5, 40))
    step(scheduler)
    scheduler.add(Request(2, 8, 3, priority=-1))
    assert entries(scheduler, groups=groups) == [(20, 2), (39, 1)]


def test_outputs_that_fit_preempt_nobody(outputs_fit: str) -> None:
    """Ten requests of up to 13 blocks in a pool of 30: two at a time, in few plans."""
    plans = {}
    for policy in ("mixed", outputs_fit):
        scheduler = make(policy, num_blocks=30)
        for i in range(10):
            scheduler.add(Request(i, 4, 40 + i))
        plans[policy] = list(run(scheduler, groups=True))
    preempted = {policy: sum(len(plan.preempted) for plan in plans[policy]) for policy in plans}
    assert preempted[outputs_fit] == 0 < preempted["mixed"]
    assert max(plan.num_running for plan in plans[outputs_fit]) == 2 and len(plans[outputs_fit]) < 40


@pytest.mark.parametrize("seed", few(range(6), 3))
def test_a_rule_of_admission_is_sound_and_prompt(outputs_fit: str, seed: int) -> None:
    check_workload(random_workload(seed, outputs_fit), seed)
