"""What the engine tells of a plan: when it has run, and when it is committed."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.token_collector import NewTokens
from engine.core.flight import Verified
from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class StepTimes:
    """Time of a plan by phase, in ns. With `async_scheduling`, the first two pass while the plan before this one runs.

    Attributes:
        schedule_ns: planning.
        prepare_ns: drafting, building the inputs and sending them to the ranks.
        execute_ns: the model.
        sample_ns: logits and sampling; 0 for decode steps under CUDA graphs, where `execute_ns` includes both.
        transfer_ns: waiting for copies from or to the host.
    """

    schedule_ns: int
    prepare_ns: int
    execute_ns: int
    sample_ns: int
    transfer_ns: int


@dataclass(frozen=True)
class ExecutedPlan:
    """A plan that ran and is not committed yet.

    Attributes:
        stopped, verified: the arguments of `Scheduler.commit`.
        start: the plan's start as it was before the next plan was made; None where that is not made yet.
    """

    plan: StepPlan
    start_ns: int
    times: StepTimes
    outputs: list[NewTokens]
    stopped: dict[Sequence, int]
    verified: Verified | None
    start: PlanStart | None = None


@dataclass(frozen=True)
class StepReport:
    """One executed plan: its start and end in ns on the caller's clock, its tokens, and the outcome of its commit.

    `start` as in `ExecutedPlan`.
    """

    plan: StepPlan
    start_ns: int
    end_ns: int
    times: StepTimes
    outputs: list[NewTokens]
    outcome: StepOutcome
    start: PlanStart | None = None
