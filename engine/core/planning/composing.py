"""The drafts of steps: the policy composes one, and another if the first only made sequences give way."""

from __future__ import annotations

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import StepDraft
from engine.core.planning.offloading.storing import Storing
from engine.core.planning.policy import Policy
from engine.core.planning.step_planner import StepPlanner


class Composer:
    """Lets the policy compose the steps of all lanes.

    Args:
        storing: None where nothing is stored on the host.
        plans_ahead: as of `Scheduler`.

    Attributes:
        wait_until: as of `Scheduler`.
        unreported: whom drafts that came out empty preempted or paused; the next plan has them.
    """

    def __init__(
        self,
        policy: Policy,
        blocks: BlockManager,
        waiting: WaitingQueue,
        storing: Storing | None,
        *,
        plans_ahead: bool,
    ) -> None:
        self._policy = policy
        self._blocks = blocks
        self._waiting = waiting
        self._storing = storing
        self._plans_ahead = plans_ahead
        self.wait_until: int | None = None
        self.unreported = StepDraft(0)

    def compose(self, planner: StepPlanner, now: int) -> StepDraft | None:
        """The draft of the next step of a lane; None when there is nothing to do for it yet."""
        running, blocks, storing = planner.running, self._blocks, self._storing
        self.wait_until = None
        if not running.sequences and not self._waiting:
            if storing is not None:
                storing.end_pass(StepDraft(now), running)
            return None
        if blocks.offload is None:
            blocks.settle()
        else:
            blocks.offload.settle(now)
        draft = StepDraft(now)
        self._policy.compose(planner, draft)
        while not (draft.num_decodes or draft.prefills or draft.transfers or draft.parked):
            self.unreported.preempted += draft.preempted
            self.unreported.paused += running.paused
            if storing is not None:
                storing.end_pass(draft, running)
            if running.paused and not running.flights:  # some of them may end with what is under way
                running.resume()
            if not draft.preempted or running.flights:
                self.wait_until = draft.wait_until
                return None
            if storing is not None:
                if self._plans_ahead:  # the next step is planned before it is known that the host has what this flushes
                    self.wait_until = now
                    return None
                storing.flush()
            draft = StepDraft(now)  # nobody was served: with the blocks of the victims free, somebody can be
            self._policy.compose(planner, draft)
        if storing is not None:
            storing.end_pass(draft, running)
        if running.paused:
            draft.paused += running.paused
        if self.unreported.preempted or self.unreported.paused:
            draft.preempted[:0] = self.unreported.preempted
            draft.paused[:0] = self.unreported.paused
            self.unreported = StepDraft(now)
        if blocks.moves:
            draft.transfers[:0] = blocks.pop_moves()
        return draft
