"""Continuous batching: decides, step by step, which sequences compute how many tokens in which blocks.

To read the core in the order that a request lives: `Scheduler.add` queues it (`waiting_queue`), a policy (`policies`)
composes steps with the planner (`step_planner`), which admits it to the running set (`running_set`) and gives it blocks
(`kv`); its prompt is computed in chunks, then it joins the decodes (`decodes`) until it ends.
"""

from __future__ import annotations

from engine.core.admission.limits import Limits
from engine.core.admission.refusal import Refusal
from engine.core.admission.skipping_queue import SkippingQueue
from engine.core.admission.unfinished import UnfinishedRequests
from engine.core.decodes.interface import NEVER, MakeDecodes
from engine.core.decodes.uniform import uniform_decodes
from engine.core.flight import NOBODY, Flight, Stopped, Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.kv.trees.radix import RadixManager
from engine.core.plan import StepOutcome, StepPlan
from engine.core.planning.composing import Composer
from engine.core.planning.offloading.storing import Storing
from engine.core.planning.plan_making import PlanMaker
from engine.core.planning.policy import Policy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.progress import Progress
from engine.core.running.running_set import RunningSet
from engine.core.scheduler_integrity import check_places, check_tables
from engine.core.sequence import Request, Sequence, SequenceStatus


class Scheduler:
    """Runs the requests given to `add` through steps: `schedule`, execute the plan, `commit`, and again.

    Args:
        blocks: the KV block pool.
        policy: owns the decisions.
        limits: bounds on a step; `max_num_batched_tokens` is at least `max_num_seqs` times the tokens of a decode.
        max_model_len: bound on prompt and output tokens of a sequence; the pool is one too.
        plans_ahead: each step is planned while the one before it runs (asynchronous scheduling), from what is certain:
            how many tokens that brings. What it ends keeps its seat and blocks for the planning of one more step, and a
            stop that could not be foreseen costs the slot that is planned meanwhile.
        num_lanes: disjoint sets of sequences, each with a plan of its own under way, as the stages of a pipeline work
            on different steps; a sequence stays in the lane that admitted it and gives way to that lane only. The pool
            should hold the longest sequence of every lane: else two lanes can preempt themselves in turn for ever.
        make_decodes: makes the calendar of a lane's decodes; by default they grow by one token per step.

    Raises:
        ValueError: a limit is below 1, or a step has no room for a token of every running sequence.
    """

    def __init__(
        self,
        blocks: BlockManager,
        policy: Policy,
        limits: Limits,
        *,
        max_model_len: int | None = None,
        plans_ahead: bool = False,
        num_lanes: int = 1,
        make_decodes: MakeDecodes = uniform_decodes,
    ) -> None:
        if not 1 <= num_lanes <= limits.max_num_seqs:
            raise ValueError(f"num_lanes={num_lanes} must be from 1 to max_num_seqs={limits.max_num_seqs}")
        self.blocks = blocks
        self.plans_ahead = plans_ahead
        self.num_lanes = num_lanes
        self.max_num_seqs = limits.max_num_seqs
        longest = blocks.longest_sequence
        longest_prompt = longest if limits.cuts_prompts else min(longest, limits.max_num_batched_tokens)
        if not policy.never_recomputes:
            longest = longest_prompt  # what gives way computes its output as part of its prompt
        self.max_model_len = longest if max_model_len is None else min(longest, max_model_len)
        self.waiting = policy.make_queue()
        if blocks.connector is not None:
            self.waiting = SkippingQueue(policy.order, holders_first=blocks.connector.rules.holders_first)
        self._policy = policy
        self._limits = limits
        self._planners: list[StepPlanner] = []  # one for each lane
        size = NEVER if isinstance(blocks, ContiguousManager) else blocks.block_size
        for lane in range(num_lanes):
            decodes = make_decodes(size, self.max_model_len)
            running = RunningSet(blocks, self.waiting, decodes, lag=int(plans_ahead))
            limits.check(decodes.tokens_per_decode, pads=policy.pads)
            bounds = limits.of_lane(lane, num_lanes, pads=policy.pads)
            self._planners.append(
                StepPlanner(blocks, self.waiting, running, bounds, policy.preemption, policy.admit, self.max_model_len)
            )
        self._lanes = [planner.running for planner in self._planners]
        pads_to = self.max_model_len if policy.pads else None
        finds = policy.finds_verified
        self._progress = [Progress(lane, blocks, self.waiting, pads_to, finds_verified=finds) for lane in self._lanes]
        self._maker = PlanMaker(
            [planner.admission for planner in self._planners], blocks, self.waiting, pads=policy.pads
        )
        refusal = Refusal(self.max_model_len, longest_prompt, limits.max_num_seqs // num_lanes, blocks)
        self._requests = UnfinishedRequests(refusal)
        self.storing = None if blocks.connector is None else Storing(blocks.connector, self.ready)
        self._composer = Composer(policy, blocks, self.waiting, self.storing, plans_ahead=plans_ahead)

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return sum(len(lane.sequences) for lane in self._lanes)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def preempted_meanwhile(self) -> list[Sequence]:
        """Whom steps preempted that came out empty; the next plan has them."""
        return self._composer.unreported.preempted

    @property
    def wait_until(self) -> int | None:
        """When to call `schedule` again at the latest, after it returned None; None: when something happens."""
        return self._composer.wait_until

    @property
    def unfinished(self) -> list[Request]:
        """All requests that are waiting or running."""
        return list(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestRefusedError: the prompt is empty, or longer than the model or the pool allow with one token of
                output; `max_tokens` is below 1; it has more sequences than may run; or the id is in use.
        """
        self.waiting.push(self._requests.add(request))

    def check(self, request: Request) -> int:
        """Prompt and output tokens that a sequence of `request` cannot exceed here.

        Raises:
            RequestRefusedError: as `add`.
        """
        return self._requests.check(request)

    def abort(self, request_id: int) -> Request:
        """Take a request out. A plan that is under way still computes its tokens, which are dropped.

        Raises:
            KeyError: no such request is waiting or running.
        """
        request = self._requests.pop(request_id)
        for sequence in request.sequences:
            if sequence.status is SequenceStatus.WAITING:
                self.waiting.remove(sequence)
                sequence.status = SequenceStatus.ABORTED
                if self.blocks.connector is not None and self.blocks.connector.end(sequence):
                    self._lanes[0].held[sequence] = None
                    continue
                self.blocks.drop(sequence)
            for number, lane in enumerate(self._lanes):
                if sequence in lane.sequences:
                    self._advance(number)
                    self._progress[number].abort(sequence)
        return request

    def ready(self, sequence: Sequence) -> None:
        """What a parked sequence waited for is there: it takes part from the next plan on. Or the blocks of one
        that has ended are no longer written or read: they are free."""
        for lane in self._lanes:
            lane.ready(sequence)

    # -- a step ---------------------------------------------------------------------------------------------------

    def schedule(self, now: int, lane: int = 0) -> StepPlan | None:
        """Plan the next step of a lane at the time `now`; None when there is nothing to do for it yet.

        With `plans_ahead` it may be called while the lane's last plan is not committed. None then also means that all
        that could have been planned has to wait for that: commit it and call again. Where requests are left and nothing
        is under way, call again after an arrival or `ready`, and at the time `wait_until`.
        """
        planner, running = self._planners[lane], self._lanes[lane]
        assert not running.flights or (self.plans_ahead and len(running.flights) == 1), "commit the last plan first"
        if running.flights:
            self._advance(lane)
        elif running.paused:  # what they waited for has come
            running.resume()
        draft = self._composer.compose(planner, now)
        if draft is None:
            return None
        plan = self._maker.make(lane, draft)
        running.flights.append(Flight(plan, draft.padded, () if self.storing is None else self.storing.planned))
        return plan

    def extend(self, plan: StepPlan, num_steps: int) -> StepPlan:
        """Let `plan` cover `num_steps` decode steps, at most its horizon, and take the blocks they need.

        The plan before it is committed by then, so that those it ended have given back their blocks. With `plans_ahead`
        only where every stop is foreseen, as in a simulation: the next plan would come too late.
        """
        running = self._lanes[plan.lane]
        (flight,) = running.flights
        assert flight.plan is plan and not flight.is_advanced and 1 <= num_steps <= plan.horizon
        plan.num_steps = num_steps
        plan.growth += running.decodes.run(num_steps, self.blocks)
        if isinstance(self.blocks, RadixManager) and (not plan.growth or plan.growth[-1].ahead < num_steps - 1):
            self.blocks.pass_steps()
        return plan

    def num_blocks_due(self, num_steps: int) -> int:
        """KV blocks that the `num_steps` decode steps after the planned one take, as far as `extend` may go."""
        return sum(lane.decodes.num_blocks_due(ahead) for lane in self._lanes for ahead in range(1, num_steps + 1))

    def advance(self, plan: StepPlan, drafts: Verified | None = None) -> None:
        """Count the tokens of an executed plan before its commit, so that the forks it makes exist by then."""
        self._progress[plan.lane].advance(self._lanes[plan.lane].flights[-1], drafts=drafts)

    def commit(
        self, plan: StepPlan, now: int, stopped: Stopped = NOBODY, drafts: Verified | None = None
    ) -> StepOutcome:
        """Account for an executed plan that ended at `now`; the plans of a lane in the order they were made.

        Args:
            stopped: sequences that met a stop condition in this plan, with the number of tokens they generated past it.
            drafts: what became of them, where the decodes do not know it.
        """
        flight = self._lanes[plan.lane].flights.pop(0)
        assert flight.plan is plan, "plans are committed in order, and as they were extended"
        resumed_gaps = self._progress[plan.lane].settle(flight, now, stopped, drafts)
        finished = self._requests.end(flight.ended, now) if flight.ended else []
        return StepOutcome(finished, resumed_gaps, flight.drafts)

    def _advance(self, lane: int) -> None:
        """Count what the plan under way is certain to bring, where planning goes on meanwhile."""
        flights = self._lanes[lane].flights
        if self.plans_ahead and flights and not flights[-1].is_advanced:
            self._progress[lane].advance(flights[-1])

    def check_integrity(self) -> None:
        """Prove the invariants of the scheduler, its running sets and its pool; raises AssertionError."""
        waiting = list(self.waiting)
        check_places(self._lanes, waiting, self.unfinished, self.max_num_seqs)
        self.waiting.check_integrity([sequence for lane in self._lanes for sequence in lane.sequences])
        check_tables(self._lanes, waiting, self.blocks, allocates_chunks=self._limits.allocates_chunks)
