"""What the plans of a server were, in flat integer buffers: a row of counts for each, and a duration for each step."""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import PlanStart, StepPlan, plan_start

PLAN_COLUMNS = (
    "start_ns", "num_steps", "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens",
    "num_running", "num_waiting", "num_used_blocks", "num_saved_blocks", "num_preempted", "num_first_admitted_tokens",
    "num_cached_tokens", "num_kv_tokens", "num_reserved_slots", "num_external_slots", "num_padding_tokens", "lane",
    "num_fresh",
)  # fmt: skip
_PACK = Struct(f"{len(PLAN_COLUMNS)}q").pack  # faster than to extend an array by a tuple


class PlanLog:
    """The plans of a run.

    Attributes:
        num_plans: so many were added.
        plans: `PLAN_COLUMNS` of each.
        durations: of each step, in ns.
        growth: plan, step in the plan and blocks, where blocks were taken within a plan.
        single_gaps: in ns, between two tokens of a sequence that were not those of two decode steps in a row.
    """

    def __init__(self) -> None:
        self.num_plans = 0
        self.plans = array("q")
        self.durations = array("q")
        self.growth = array("q")
        self.single_gaps = array("q")

    def add(self, plan: StepPlan, start_ns: int, durations_ns: NDArray[np.int64] | int, start: PlanStart | None) -> int:
        """Add a plan that ran from `start_ns` on; returns when its first step ended."""
        if isinstance(durations_ns, int):
            first_end = start_ns + durations_ns
            self.durations.append(durations_ns)
        else:
            first_end = start_ns + durations_ns.item(0)
            self.durations.frombytes(durations_ns.tobytes())
            later: list[int] = []
            for each in plan.growth:
                if each.ahead:
                    later.append(self.num_plans)
                    later.append(each.ahead)
                    later.append(len(each.blocks))
            if later:
                self.growth.fromlist(later)
        admitted, cached, last_token_times = start or plan_start(plan)
        for time in last_token_times:
            assert time is not None, "a sequence that decodes has got a token"
            self.single_gaps.append(first_end - time)
        prefill_tokens = 0
        for chunk in plan.prefills:
            prefill_tokens += chunk[2]
        self.plans.frombytes(
            _PACK(
                start_ns, plan.num_steps, len(plan.prefills), plan.num_decodes - plan.num_padding_seqs, prefill_tokens,
                plan.work.num_context_tokens, plan.num_running, plan.num_waiting, plan.num_used_blocks,
                plan.num_saved_blocks, len(plan.preempted), admitted, cached, plan.num_kv_tokens,
                plan.num_reserved_slots, plan.num_external_slots, plan.num_padding_tokens, plan.lane,
                len(last_token_times),
            )
        )  # fmt: skip
        self.num_plans += 1
        return first_end

    def keep(self, num_plans: int) -> None:
        """Remove what is there of plans after the first `num_plans`, of which the last may be half recorded."""
        width = len(PLAN_COLUMNS)
        del self.plans[num_plans * width :]
        del self.durations[sum(self.plans[PLAN_COLUMNS.index("num_steps") :: width]) :]
        del self.growth[len(self.growth) // 3 * 3 :]
        while self.growth and self.growth[-3] >= num_plans:
            del self.growth[-3:]
