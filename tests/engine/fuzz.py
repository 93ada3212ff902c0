"""A shadow executor that proves every KV read of a workload.

The shadow store keeps for each slot of each block the whole prefix (as a running hash) that was written there. A step
reads, for each sequence it computes, every slot of its context; a slot that holds anything but this sequence's own
prefix is a reuse of wrong content. Run `python -m tests.engine.fuzz --seeds 10000` for a long campaign.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field

from engine.core.plan import StepPlan
from engine.core.scheduler_options import make_scheduler
from engine.core.sequence import RequestRefusedError, Sequence, SequenceStatus, chain_hash
from tests.engine.workloads import Workload, random_workload


@dataclass
class Trail:
    """What happened, in an order that does not depend on how decode steps were grouped."""

    decisions: list[tuple[object, ...]] = field(default_factory=list)
    requests: dict[int, tuple[object, ...]] = field(default_factory=dict)
    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_copies: int = 0
    longest_plan: int = 1


class ShadowExecutor:
    """Executes plans against the shadow store and drives a scheduler through a workload."""

    def __init__(self, workload: Workload, max_steps: int | None, seed: int = 0) -> None:
        self.workload = workload
        self.max_steps = max_steps  # most steps a plan is extended to; None: a random number up to the horizon
        self.random = random.Random(seed)
        self.scheduler = make_scheduler(
            workload.options,
            num_blocks=workload.num_blocks,
            block_size=workload.block_size,
            max_num_seqs=workload.max_num_seqs,
            max_num_batched_tokens=workload.max_num_batched_tokens,
        )
        self.store = [[0] * workload.block_size for _ in range(workload.num_blocks)]
        self.prefixes = [_prefixes(request.tokens) for request in workload.requests]
        self.live: dict[int, Sequence] = {}
        self.holders: dict[int, list[Sequence]] = {}  # before the plan, who holds each block
        self.in_order: dict[Sequence, int] = {}  # of decodes, how many tokens of their contexts are not scattered
        self.trail = Trail()

    def run(self) -> Trail:
        """Run the whole workload; AssertionError where an invariant breaks."""
        events = self._events()
        step = 0
        while events or self.scheduler.unfinished:
            while events and events[0][0] <= step:
                self._apply(*events.pop(0)[1:])
                self.scheduler.check_integrity()
            self.holders = self._holders()
            plan = self.scheduler.schedule(step)
            if plan is None and self.workload.options.async_scheduling:
                self.scheduler.check_integrity()
                plan = self.scheduler.schedule(step)
            if plan is None:
                assert not self.scheduler.unfinished, "requests are left and nothing is planned"
                step = events[0][0] if events else step
                continue
            limit = min(plan.horizon, events[0][0] - step) if events else plan.horizon
            num_steps = self._choose(max(limit, 1))
            plan = self.scheduler.extend(plan, num_steps) if num_steps > 1 else plan
            self._check_plan(plan)
            stopped = self._execute(plan)
            step += num_steps
            self._log(plan, step)
            outcome = self.scheduler.commit(plan, step, stopped)
            self.scheduler.check_integrity()
            for sequence in outcome.finished:
                self._finish(sequence)
            assert step < 10**6, "the workload does not end"
        self.trail.num_steps = step
        return self.trail

    def _events(self) -> list[tuple[int, int, int]]:
        events = []
        for i, request in enumerate(self.workload.requests):
            events.append((request.arrival_step, 0, i))
            if request.abort_step is not None:
                events.append((request.abort_step, 1, i))
        return sorted(events)

    def _apply(self, kind: int, i: int) -> None:
        request = self.workload.requests[i]
        if kind == 1:
            if i in self.live:
                sequence = self.scheduler.abort(i)
                self._note(self.live.pop(i), sequence.status)
            return
        sequence = Sequence(
            i,
            request.num_prompt_tokens,
            request.max_tokens,
            request.arrival_step,
            token_ids=request.tokens[: request.num_prompt_tokens] if request.contents == "tokens" else None,
            block_hashes=self._block_hashes(i) if request.contents == "hashes" else None,
            priority=request.priority,
        )
        try:
            self.scheduler.add(sequence)
        except RequestRefusedError:
            self._note(sequence, SequenceStatus.WAITING)
        else:
            self.live[i] = sequence

    def _block_hashes(self, i: int) -> list[int]:
        size = self.workload.block_size
        return self.prefixes[i][size::size]

    def _choose(self, limit: int) -> int:
        return self.random.randint(1, limit) if self.max_steps is None else min(limit, self.max_steps)

    def _check_plan(self, plan: StepPlan) -> None:
        workload = self.workload
        num_tokens = plan.num_decodes + sum(chunk.num_tokens for chunk in plan.prefills)
        assert 0 < num_tokens <= workload.max_num_batched_tokens
        assert plan.num_running <= workload.max_num_seqs
        assert plan.num_steps == 1 or not plan.prefills
        assert workload.options.policy == "mixed" or not (plan.prefills and plan.num_decodes)
        assert all(chunk.num_tokens > 0 for chunk in plan.prefills)
        contexts = [sequence.num_tokens for sequence in plan.decodes]
        assert plan.num_decodes == len(contexts)
        assert plan.num_context_tokens == sum(contexts)
        assert plan.num_squared_context_tokens == sum(length**2 for length in contexts)
        for sequence in plan.fresh_decodes:
            num_blocks = -(-(sequence.num_tokens - 1) // workload.block_size)
            joined = zip(sequence.block_table[:num_blocks], sequence.block_table[1:num_blocks], strict=False)
            num_broken = sum(following != block + 1 for block, following in joined)
            self.in_order[sequence] = sequence.num_tokens - workload.block_size * num_broken
        in_order = sum(self.in_order[sequence] for sequence in plan.decodes)
        assert plan.num_scattered_tokens == plan.num_context_tokens - in_order

    def _execute(self, plan: StepPlan) -> dict[Sequence, int]:
        for copy in plan.copies:
            self.store[copy.destination] = self.store[copy.source].copy()
        spans = [(c.sequence, c.start, c.start + c.num_tokens) for c in plan.prefills]
        spans += [(s, s.num_tokens - 1, s.num_tokens - 1 + plan.num_steps) for s in plan.decodes]
        for sequence, start, end in spans:
            self._write(sequence, start, end)
        for sequence, _, end in spans:
            self._read(sequence, end)
        sampling = [(c.sequence, 1) for c in plan.prefills if c.is_last]
        sampling += [(s, plan.num_steps) for s in plan.decodes]
        return self._sample(sampling)

    def _sample(self, sampling: list[tuple[Sequence, int]]) -> dict[Sequence, int]:
        stopped = {}
        for sequence, count in sampling:
            request = self.workload.requests[sequence.request_id]
            known = sequence.num_output_tokens
            if request.stop_after is not None and known < request.stop_after <= known + count:
                stopped[sequence] = known + count - request.stop_after
                count = request.stop_after - known
            if sequence.token_ids is not None:
                sequence.token_ids.extend(request.tokens[sequence.num_tokens : sequence.num_tokens + count])
        return stopped

    def _holders(self) -> dict[int, list[Sequence]]:
        holders: dict[int, list[Sequence]] = {}
        for sequence in self.live.values():
            for block in sequence.block_table:
                holders.setdefault(block, []).append(sequence)
        return holders

    def _write(self, sequence: Sequence, start: int, end: int) -> None:
        prefixes, size = self.prefixes[sequence.request_id], self.workload.block_size
        for index in range(start // size, -(-end // size)):
            block = sequence.block_table[index]
            for other in self.holders.get(block, ()):
                assert other is sequence or block not in other.block_table, "a block that another holds is written"
            first, last = max(start, index * size), min(end, (index + 1) * size)
            self.store[block][first % size : (last - 1) % size + 1] = prefixes[first + 1 : last + 1]

    def _read(self, sequence: Sequence, end: int) -> None:
        size = self.workload.block_size
        seen = [slot for block in sequence.block_table[: -(-end // size)] for slot in self.store[block]]
        assert seen[:end] == self.prefixes[sequence.request_id][1 : end + 1], "attention reads wrong content"

    def _log(self, plan: StepPlan, end: int) -> None:
        trail = self.trail
        trail.num_preemptions += len(plan.preempted)
        trail.num_copies += len(plan.copies)
        trail.longest_plan = max(trail.longest_plan, plan.num_steps)
        trail.num_cached_tokens += sum(s.num_cached_tokens for s in plan.admitted if not s.num_preemptions)
        if plan.admitted or plan.preempted or plan.prefills:
            chunks = tuple((c.sequence.request_id, c.start, c.num_tokens) for c in plan.prefills)
            tables = tuple(tuple(c.sequence.block_table) for c in plan.prefills)
            preempted = tuple(s.request_id for s in plan.preempted)
            trail.decisions.append((end - plan.num_steps, chunks, tables, preempted, tuple(plan.copies)))

    def _finish(self, sequence: Sequence) -> None:
        del self.live[sequence.request_id]
        request = self.workload.requests[sequence.request_id]
        expected = min(request.max_tokens, request.stop_after or request.max_tokens)
        expected = min(expected, self.scheduler.max_model_len - request.num_prompt_tokens)
        assert sequence.num_output_tokens == expected, "a request ended early or late"
        self._note(sequence, sequence.status)

    def _note(self, sequence: Sequence, status: SequenceStatus) -> None:
        assert sequence.request_id not in self.trail.requests
        self.trail.requests[sequence.request_id] = (
            status,
            sequence.num_output_tokens,
            sequence.first_scheduled_time,
            sequence.first_token_time,
            sequence.finish_time,
            sequence.num_cached_tokens,
            sequence.num_recomputed_tokens,
            sequence.num_preemptions,
        )


def _prefixes(tokens: list[int]) -> list[int]:
    """Hash of tokens[:k] for every k: what a slot holds after position k - 1 was written."""
    hashes = [0]
    for token in tokens:
        hashes.append(chain_hash(hashes[-1], [token]))
    return hashes


def check_workload(workload: Workload, seed: int = 0) -> Trail:
    """Run step by step, with full horizons and with random groupings: all must be sound and agree on everything.

    Where stop conditions are met, which a group of steps learns of at its end, they need only be sound.
    """
    foreseen = all(request.stop_after is None for request in workload.requests)
    stepped = ShadowExecutor(workload, max_steps=1).run()
    for max_steps in (10**9, None):
        grouped = ShadowExecutor(workload, max_steps, seed).run()
        assert grouped.requests.keys() == stepped.requests.keys(), "a request got lost"
        if foreseen:
            assert grouped.requests == stepped.requests, "grouping steps changes the requests"
            assert grouped.decisions == stepped.decisions, "grouping steps changes the decisions"
            assert grouped.num_steps == stepped.num_steps
        stepped.longest_plan = max(stepped.longest_plan, grouped.longest_plan)
    assert len(stepped.requests) == len(workload.requests), "a request got lost"
    return stepped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    totals = {"steps": 0, "preemptions": 0, "cached tokens": 0, "copies": 0}
    for seed in range(args.first, args.first + args.seeds):
        try:
            trail = check_workload(random_workload(seed), seed)
        except BaseException:
            print(f"seed {seed}")
            raise
        totals["steps"] += trail.num_steps
        totals["preemptions"] += trail.num_preemptions
        totals["cached tokens"] += trail.num_cached_tokens
        totals["copies"] += trail.num_copies
    print(f"{args.seeds} workloads sound:", ", ".join(f"{count:,} {name}" for name, count in totals.items()))


if __name__ == "__main__":
    main()
