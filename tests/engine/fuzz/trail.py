"""What a scheduler did with a workload, to compare several runs of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.core.plan import StepPlan
from engine.core.sequence import Request


@dataclass
class Trail:
    """What happened, in an order that does not depend on how decode steps were grouped."""

    decisions: list[tuple[object, ...]] = field(default_factory=list)
    requests: dict[int, tuple[object, ...]] = field(default_factory=dict)
    num_steps: int = 0
    num_plans: int = 0
    last_num_steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def log(self, plan: StepPlan, step: int) -> None:
        """Note what a plan decides."""
        counts = self.counts
        counts["preemptions"] += len(plan.preempted)
        counts["paused decodes"] += len(plan.paused)
        counts.update(f"blocks {t.source_tier} to {t.target_tier}" for t in plan.transfers)
        counts["hits of blocks that come for others"] += len(plan.parked) - len(
            [s for s in plan.parked if {t.target for t in plan.transfers} & set(s.block_table)]
        )
        counts["cached tokens"] += sum(s.num_cached_tokens for s in plan.admitted if not s.num_preemptions)
        counts["longest plan"] = max(counts["longest plan"], plan.num_steps)
        if plan.admitted or plan.preempted or plan.prefills:
            chunks = tuple((c.sequence.request_id, c.start, c.num_tokens) for c in plan.prefills)
            tables = tuple(tuple(c.sequence.block_table) for c in plan.prefills)
            preempted = tuple(s.request_id for s in plan.preempted)
            self.decisions.append((step, chunks, tables, preempted, tuple(plan.transfers)))

    def note(self, request: Request) -> None:
        """Note how a request ended."""
        assert request.request_id not in self.requests
        self.counts["swaps"] += sum(s.num_swaps for s in request.sequences)
        self.counts["partial preemptions"] += sum(s.num_partial_preemptions for s in request.sequences)
        self.requests[request.request_id] = (
            request.sequences[0].status,
            request.num_output_tokens,
            request.first_scheduled_time,
            request.first_token_time,
            request.finish_time,
            request.num_cached_tokens,
            request.num_recomputed_tokens,
            request.num_preemptions,
        )
