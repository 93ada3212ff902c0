"""What the plans of a server were and whom they served, in flat integer buffers.

A row of counts for each plan, a duration for each step, a row for each request. Compiled, where the core is.
"""

from __future__ import annotations

from array import array
from struct import Struct, pack

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import PlanStart, StepOutcome, StepPlan, plan_start
from engine.core.sequence import Request
from harness.record.request_row import REQUEST_COLUMNS, request_row
from harness.record.rows import Rows
from harness.record.transfer_log import TransferLog
from simulator.decode_run import Durations

PLAN_COLUMNS = (
    "start_ns", "num_steps", "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens",
    "num_running", "num_waiting", "num_used_blocks", "num_saved_blocks", "num_preempted", "num_first_admitted_tokens",
    "num_cached_tokens", "num_kv_tokens", "num_reserved_slots", "num_external_slots", "num_padding_tokens", "lane",
    "num_fresh",
)  # fmt: skip
_PACK = Struct(f"{len(PLAN_COLUMNS)}q").pack  # faster than to extend an array by a tuple


class PlanLog:
    """The plans of a run, and the requests that ended with them.

    Attributes:
        num_plans: so many were added.
        last_start_ns, last_ns: when the last plan began, and what its steps took.
        plans: `PLAN_COLUMNS` of each.
        durations: of each step, in ns.
        growth: plan, step in the plan and blocks, where blocks were taken within a plan.
        single_gaps: in ns, between two tokens of a sequence that were not those of two decode steps in a row.
        drafts: step, context tokens, drafted and accepted tokens of decode steps with speculation.
        requests: `REQUEST_COLUMNS` of each request that has ended, or been given up.
        prompts: when prompts ended that are decoded elsewhere, by row.
        transfers: what plans copied between device, host and disk.
    """

    def __init__(self) -> None:
        self.last_start_ns = 0
        self.last_ns: Durations | int = 0
        self.prompts: dict[int, int] = {}
        self.transfers = TransferLog()
        self._contexts: NDArray[np.int64] | None = None  # of the steps of the last plan
        self.clear()

    def clear(self) -> None:
        """Let go of plans and requests."""
        self.num_plans = 0
        self.plans = Rows(len(PLAN_COLUMNS))
        self.durations = array("q")
        self.growth = array("q")
        self.single_gaps = array("q")
        self.drafts = array("q")
        self.requests = Rows(len(REQUEST_COLUMNS))

    def add(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int, start: PlanStart | None) -> int:
        """Add a plan that ran from `start_ns` on; returns when its first step ended."""
        if isinstance(durations_ns, int):
            first_end = start_ns + durations_ns
            self.durations.append(durations_ns)
        else:
            first_end = start_ns + int(durations_ns[0])
            if isinstance(durations_ns, list):
                self.durations.fromlist(durations_ns)
            else:
                self.durations.frombytes(durations_ns.tobytes())
            later: list[int] = []
            for each in plan.growth:
                if each.ahead:
                    later.append(self.num_plans)
                    later.append(each.ahead)
                    later.append(len(each.blocks))
            if later:
                self.growth.frombytes(pack(f"{len(later)}q", *later))
        admitted, cached, last_token_times = start or plan_start(plan)
        for time in last_token_times:
            assert time is not None, "a sequence that decodes has got a token"
            self.single_gaps.append(first_end - time)
        prefill_tokens = 0
        for chunk in plan.prefills:
            prefill_tokens += chunk.num_tokens
        self.plans.add(
            _PACK(
                start_ns, plan.num_steps, len(plan.prefills), plan.num_decodes - plan.num_padding_seqs, prefill_tokens,
                plan.work.num_context_tokens, plan.num_running, plan.num_waiting, plan.num_used_blocks,
                plan.num_saved_blocks, len(plan.preempted), admitted, cached, plan.num_kv_tokens,
                plan.num_reserved_slots, plan.num_external_slots, plan.num_padding_tokens, plan.lane,
                len(last_token_times),
            )
        )  # fmt: skip
        self.num_plans += 1
        if plan.parked or self.transfers.parked:
            self.transfers.note_parked(plan, start_ns)
        if plan.work.tokens_per_decode > 1:
            self._contexts = plan.work.contexts(plan.num_steps)
        self.last_start_ns, self.last_ns = start_ns, durations_ns
        return first_end

    def note_outcome(self, outcome: StepOutcome) -> int:
        """Add what the last plan brought; returns how many requests ended with it for good."""
        if outcome.resumed_gaps:
            self.single_gaps.extend(outcome.resumed_gaps)
        if outcome.drafts is not None and self._contexts is not None:
            end = len(self.durations)
            steps = np.arange(end - len(self._contexts), end)
            self.drafts.frombytes(np.stack([steps, self._contexts, *outcome.drafts], axis=1).tobytes())
        num_done = 0
        for request in outcome.finished:
            if request.decodes_elsewhere:
                assert request.finish_time is not None
                self.prompts[request.request_id] = request.finish_time
            else:
                self.add_request(request, 0)
                num_done += 1
        return num_done

    def add_request(self, request: Request, status: int) -> None:
        """Add the row of a request that has ended, or been given up."""
        if request.loading_time:
            self.transfers.parked_ns[request.request_id] = request.loading_time
        self.requests.add(request_row(request, status))

    def keep(self, num_plans: int) -> None:
        """Remove what is there of plans after the first `num_plans`, of which the last may be half recorded."""
        self.plans.keep(num_plans)
        num_steps = int(self.plans.matrix()[:, PLAN_COLUMNS.index("num_steps")].sum())
        del self.durations[num_steps:]
        del self.growth[len(self.growth) // 3 * 3 :]
        while self.growth and self.growth[-3] >= num_plans:
            del self.growth[-3:]
        self.transfers.drop_from(num_plans)
        del self.drafts[len(self.drafts) // 4 * 4 :]
        while self.drafts and self.drafts[-4] >= len(self.durations):
            del self.drafts[-4:]
