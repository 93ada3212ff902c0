"""A shadow executor that proves every KV read of a workload, and that nobody waits who could run."""

from __future__ import annotations

import heapq
import random
from collections import Counter, abc

from engine.core.flight import Verified
from engine.core.kv.tiers.tier import DEVICE
from engine.core.plan import StepPlan
from engine.core.sequence import Request, RequestRefusedError, Sequence
from tests.engine.fuzz.fuzz_options import APART
from tests.engine.fuzz.promptness import check_findable, check_found_ahead, check_promptness, check_seats
from tests.engine.fuzz.shadow_store import Holders, ShadowStore, Token
from tests.engine.fuzz.shares import IS_COMPILED, Shares
from tests.engine.fuzz.slot_reference import check_slots
from tests.engine.fuzz.thrift import Thrift, check_chunks, check_padding, watched
from tests.engine.fuzz.trail import Trail
from tests.engine.fuzz.workload import FORK_TOKENS, Workload

ARRIVE, ABORT, READY = range(3)


class ShadowExecutor:
    """Executes plans against the shadow store and drives a scheduler through a workload; before each plan all that is
    known of the head of the queue is forgotten if it `asks_anew`."""

    def __init__(self, workload: Workload, max_steps: int | None, seed: int = 0, *, asks_anew: bool = False) -> None:
        self.workload = workload
        self.asks_anew = asks_anew
        self.max_steps = max_steps  # most steps a plan is extended to; None: a random number up to the horizon
        self.random = random.Random(seed)
        self.scheduler = workload.make_scheduler()
        check_seats(workload, self.scheduler)
        self.store = ShadowStore(workload, self.scheduler.max_model_len)
        self.live: dict[int, Request] = {}
        self.lost: Counter[Sequence] = Counter()  # tokens computed when it was preempted, the most of all times
        self.recomputed: Counter[Sequence] = Counter()
        self.parked: list[Sequence] = []  # in the order of their admissions, over and over
        self.arrivals: dict[int, int] = {}  # when what is coming into a block is there
        self.events: list[tuple[int, int, int]] = []
        self.trail = Trail()
        for planner in () if IS_COMPILED else self.scheduler._planners:
            planner.admit = watched(planner.admit)  # type: ignore[method-assign]
        self.last_token: dict[Sequence, int] = {}  # when it came
        self.shares = Shares(workload.options, self.scheduler._policy) if workload.options.policy == "fair" else None
        for i, case in enumerate(workload.cases):
            self.events.append((case.arrival_step, ARRIVE, i))
            if case.abort_step is not None:
                self.events.append((case.abort_step, ABORT, i))
        heapq.heapify(self.events)

    def run(self) -> Trail:
        """Run the whole workload; AssertionError where an invariant breaks."""
        plans: dict[int, tuple[StepPlan, list[Token]] | None] = dict.fromkeys(range(self.workload.num_lanes))
        step = idle = 0
        while self.events or self.scheduler.unfinished or any(plans.values()):
            lane = self.trail.num_plans % len(plans)
            flight, planned = plans[lane], None
            if flight is not None and self.scheduler.plans_ahead:  # when the last step of this plan begins
                self._reveal(flight[1], but_last=True)
                self._apply_events(step - 1)
                planned = self._schedule(step - 1, lane, flight[1])
            if flight is not None:
                self._commit(*flight, step)
            if planned is None:
                self._apply_events(step)
                planned = self._schedule(step, lane)
            self.trail.num_plans += 1
            plans[lane] = self._launch(*planned) if planned is not None else None
            if planned is None:
                idle += 1
                if idle >= len(plans) and not any(plans.values()):
                    wake = [event[0] for event in self.events[:1]]
                    wake += [] if self.scheduler.wait_until is None else [self.scheduler.wait_until]
                    assert wake or not self.scheduler.unfinished, "requests are left and nothing is planned"
                    step, idle = max(step, min(wake, default=step)), 0
                continue
            idle = 0
            step += self.trail.last_num_steps
            assert step < 10**6, "the workload does not end"
        self.trail.num_steps = step
        assert self.scheduler.blocks.num_used_blocks() == 0, "blocks are held by nobody"
        return self.trail

    # -- what comes from outside ----------------------------------------------------------------------------------

    def _apply_events(self, step: int) -> None:
        has_changed = self.scheduler.plans_ahead and self.max_steps == 1  # since the last commit
        while self.events and self.events[0][0] <= step:
            _, kind, i = heapq.heappop(self.events)
            has_changed = True
            if kind == ARRIVE:
                self._add(i)
            elif kind == ABORT and i in self.live:
                self.scheduler.abort(i)
                self.trail.note(self.live.pop(i))
            elif kind == READY:
                sequence = self.parked[i]
                for block in sequence.block_table:
                    self.arrivals.pop(block, None)
                self.store.land(sequence)
                self.scheduler.ready(sequence)
        if has_changed:
            self.scheduler.check_integrity()

    def _add(self, i: int) -> None:
        case = self.workload.cases[i]
        request = Request(
            i,
            case.num_prompt_tokens,
            case.max_tokens,
            case.arrival_step,
            token_ids=case.tokens[: case.num_prompt_tokens] if case.contents == "tokens" else None,
            block_hashes=case.prefixes(0)[self.workload.block_size :: self.workload.block_size]
            if case.contents == "hashes"
            else None,
            priority=case.priority,
            tenant=case.tenant,
            deadline=case.deadline,
            num_sequences=case.num_sequences,
        )
        try:
            self.scheduler.add(request)
        except RequestRefusedError:
            self.trail.note(request)
        else:
            self.live[i] = request
            if self.shares is not None:
                self.shares.requests.append(request)

    # -- a plan ---------------------------------------------------------------------------------------------------

    def _schedule(self, step: int, lane: int, tokens: abc.Sequence[Token] = ()) -> tuple[StepPlan, int, Holders] | None:
        """Plan, while a plan is under way that yields `tokens`, and check whom the plan admits; returns also the time
        and who held which block before."""
        holders: Holders = {}
        padding = [row for lane in self.scheduler._lanes for row in lane.padding]
        for sequence in (*(s for request in self.live.values() for s in request.sequences), *padding):
            for block in sequence.block_table:
                holders.setdefault(block, []).append(sequence)
        before = {s: (s.num_computed_tokens, s.num_preemptions) for r in self.live.values() for s in r.sequences}
        thrift = Thrift(self.scheduler)
        if self.asks_anew:
            self.scheduler.waiting.unblock_head()
        plan = self.scheduler.schedule(step, lane)
        self._check_losses(before)
        check_promptness(self.workload, self.scheduler, plan, step)
        thrift.check(self.workload, plan)
        if plan is None:
            return None
        self._check_plan(plan)
        if self.scheduler.plans_ahead:
            under_way = {token.sequence: token.num_last for token in tokens}
            check_found_ahead(self.workload, self.scheduler, plan, under_way)
        if plan.preempted:  # who gives way and is admitted again in the same plan holds its blocks anew
            holders = {block: [s for s in owners if s not in plan.preempted] for block, owners in holders.items()}
        return plan, step, holders

    def _check_losses(self, before: dict[Sequence, tuple[int, int]]) -> None:
        """Prove that those who were preempted count what they lost."""
        for sequence, (computed, num_preemptions) in before.items():
            was_preempted = sequence.num_preemptions > num_preemptions and sequence.host_blocks is None
            if was_preempted and not self.scheduler.plans_ahead:
                self.lost[sequence] = max(self.lost[sequence], computed)
                assert sequence.num_lost_tokens == self.lost[sequence], "lost tokens are miscounted"

    def _launch(self, plan: StepPlan, step: int, holders: Holders) -> tuple[StepPlan, list[Token]]:
        """Extend the plan, check it and execute it against the store."""
        limit = min(plan.horizon, self.events[0][0] - step) if self.events else plan.horizon
        if self.scheduler.plans_ahead and any(case.stop_after for case in self.workload.cases):
            limit = 1
        num_steps = max(1, limit if self.max_steps is None else min(limit, self.max_steps))
        if self.max_steps is None:
            num_steps = self.random.randint(1, num_steps)
        plan = self.scheduler.extend(plan, num_steps) if num_steps > 1 else plan
        self.trail.log(plan, step)
        self._await_transfers(plan, step)
        self.trail.last_num_steps = plan.num_steps
        return plan, self.store.execute(plan, holders)

    def _await_transfers(self, plan: StepPlan, step: int) -> None:
        """Set the times when parked sequences are ready: not before what is coming for others into their blocks."""
        coming = {t.target for t in plan.transfers if t.target_tier == DEVICE != t.source_tier}
        for sequence in plan.parked:
            place = sequence.request.sequences.index(sequence)
            ready = step + 1 + (sequence.request_id + sequence.num_preemptions + place) % 4
            ready = max([ready, *(self.arrivals[b] for b in sequence.block_table if b in self.arrivals)])
            mine = coming.intersection(sequence.block_table) - self.arrivals.keys()
            self.arrivals |= dict.fromkeys(mine, ready)
            heapq.heappush(self.events, (ready, READY, len(self.parked)))
            self.parked.append(sequence)

    def _check_plan(self, plan: StepPlan) -> None:
        workload, decoding = self.workload, list(plan.decodes)
        courses = self.store.courses(plan)
        late = [sequence for sequence, course in courses.items() if course[0].length == sequence.end_length]
        num_tokens = plan.num_decodes + sum(course[0].num_drafts for course in courses.values())
        num_tokens += sum(chunk.num_tokens for chunk in plan.prefills)
        assert 0 < num_tokens <= workload.max_num_batched_tokens or plan.transfers or plan.parked
        assert plan.num_running <= workload.max_num_seqs
        assert plan.horizon == 1 or not plan.prefills
        assert workload.options.policy not in APART or not (plan.prefills and plan.num_decodes)
        check_chunks(workload, self.scheduler, plan)
        check_slots(self.scheduler, plan)
        fresh = [] if self.scheduler.plans_ahead else plan.fresh_decodes
        assert all(s.last_token_time == self.last_token.get(s) for s in fresh), "the time of a last token is wrong"
        contexts = [sequence.num_tokens for sequence in decoding]
        assert plan.num_decodes == plan.work.num_decodes == len(contexts)
        assert plan.work.num_context_tokens == sum(contexts)
        assert plan.work.num_squared_context_tokens == sum(length**2 for length in contexts)
        self.trail.counts["steps of padding"] += check_padding(
            workload, self.scheduler, plan, len(late), sum(1 + courses[sequence][0].num_drafts for sequence in late)
        )
        for chunk in plan.prefills:
            again = min(chunk.num_tokens, chunk.sequence.num_lost_tokens - chunk.start)
            self.recomputed[chunk.sequence] += max(0, again)

    def _commit(self, plan: StepPlan, tokens: list[Token], step: int) -> None:
        stopped = {}
        for sequence, known, count, _ in tokens:
            stop = self.workload.cases[sequence.request_id].stop_after
            if stop is not None and known < stop <= known + count and sequence.request_id in self.live:
                stopped[sequence] = known + count - stop
        self._reveal(tokens)
        verified = self._verified(plan, tokens)
        outcome = self.scheduler.commit(plan, step, stopped, verified if self.workload.unforeseen else None)
        if verified is not None and not self.scheduler.plans_ahead and self.workload.num_lanes == 1:
            assert outcome.drafts is not None
            accepted = sum(verified.gains.values()) - plan.num_decodes * plan.num_steps
            assert outcome.drafts.num_accepted.sum() == accepted, "accepted drafts are miscounted"
            if plan.num_steps == 1:
                assert outcome.drafts.num_drafted.tolist() == [verified.num_drafted], "drafts are miscounted"
        self._check_times(plan, tokens, outcome.resumed_gaps, step)
        for request in outcome.finished:
            self._finish(request)
        for sequence, known, _, _ in tokens:
            if not known and sequence.token_ids is not None:
                for fork in sequence.request.sequences[1:]:  # it samples tokens of its own, from its first one on
                    assert fork.token_ids is not None
                    fork.token_ids[sequence.request.num_prompt_tokens :] = self._outputs(fork)[:1]
        if plan.num_steps > 1 or self.max_steps == 1:  # what comes of single steps is checked where all are single
            self.scheduler.check_integrity()
            check_findable(self.workload, self.scheduler)

    def _check_times(self, plan: StepPlan, tokens: list[Token], resumed_gaps: list[int], step: int) -> None:
        """Prove that a commit tells how long those who were preempted had to wait between two tokens."""
        prompts = {chunk.sequence for chunk in plan.prefills}
        counts_all = self.scheduler.plans_ahead  # an abort counts what is under way before
        came = [(sequence, known) for sequence, known, _, _ in tokens if counts_all or sequence.request_id in self.live]
        gaps = [step - self.last_token[sequence] for sequence, known in came if known and sequence in prompts]
        assert resumed_gaps == gaps, "the time between the tokens around a preemption is wrong"
        for sequence, known in came:
            self.last_token |= dict.fromkeys([sequence] if known else sequence.request.sequences, step)

    def _verified(self, plan: StepPlan, tokens: list[Token]) -> Verified | None:
        """What a plan's decodes drafted in its first step, and gained."""
        if not plan.num_decodes or self.workload.num_drafts is None:
            return None
        decoded = [token for token in tokens if token.sequence in plan.decodes]
        num_drafted = sum(
            self.workload.num_drafted(self.scheduler.max_model_len, sequence.request.num_prompt_tokens + known)
            for sequence, known, _, _ in decoded
        )
        gains = {sequence: num_new for sequence, _, num_new, _ in decoded}
        return Verified(num_drafted, {sequence: gains.get(sequence, plan.num_steps) for sequence in plan.decodes})

    def _reveal(self, tokens: list[Token], *, but_last: bool = False) -> None:
        """The tokens of a plan become known, up to a stop; when the next is planned ahead, all but the last step's."""
        for sequence, known, count, num_last in tokens:
            if sequence.token_ids is not None and sequence.request_id in self.live:
                known_after = known + count - but_last * num_last
                stop = self.workload.cases[sequence.request_id].stop_after
                last = known_after if stop is None else min(known_after, stop)
                num_prompt = sequence.request.num_prompt_tokens
                sequence.token_ids[num_prompt + known :] = self._outputs(sequence)[known:last]

    def _outputs(self, sequence: Sequence) -> list[int]:
        """What the model generates in a sequence."""
        case, index = self.workload.cases[sequence.request_id], sequence.request.sequences.index(sequence)
        return [token + FORK_TOKENS * index for token in case.tokens[case.num_prompt_tokens :]]

    # -- what came of it ------------------------------------------------------------------------------------------

    def _finish(self, request: Request) -> None:
        del self.live[request.request_id]
        case = self.workload.cases[request.request_id]
        expected = case.max_tokens
        expected = min(expected, case.stop_after or expected)
        expected = min(expected, self.scheduler.max_model_len - case.num_prompt_tokens)
        assert len(request.sequences) == case.num_sequences, "a sequence was not forked"
        for sequence in request.sequences:
            assert sequence.num_output_tokens == expected, "a sequence ended early or late"
            assert sequence.num_recomputed_tokens == self.recomputed[sequence], "recomputed tokens are miscounted"
        self.trail.note(request)
