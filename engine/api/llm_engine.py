"""The real engine: the scheduling core plans a step, an executor runs it, and `LLMEngine` keeps the sampled tokens.

With `async_scheduling` each step is planned, and launched behind the one that runs, while that one runs:

    executor   | step k              | step k + 1          | step k + 2
    execute(t) | plan, build, launch k + 1, await k         |
    commit               of k        | hand out tokens of k, while step k + 1 runs; execute(t) of step k + 2

The scheduler sees the same calls in the same order as in a simulation that plans ahead (`simulator.replica`).
"""

from __future__ import annotations

import time
from collections import abc
from typing import NamedTuple

from engine.api.step_report import ExecutedPlan, StepReport, StepTimes
from engine.api.token_collector import EndCheck, TokenCollector
from engine.core.decodes.interface import Decodes
from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.plan import PlanStart, StepPlan, plan_start
from engine.core.scheduler_making import make_scheduler
from engine.core.sequence import Request, Sequence, SequenceStatus
from engine.core.work import StepWork
from engine.engine_config import EngineConfig
from engine.prompt_lookup import Drafter
from engine.runner.cache.parked import Parked
from engine.runner.executors.interface import Executor, LaunchingExecutor
from engine.runner.inputs.plan_samples import PlanSamples
from engine.runner.inputs.sampling_inputs import TokenLists
from engine.runner.inputs.step_inputs import NO_DRAFTS, StepBuilder
from engine.runner.step_tokens import StepTokens
from engine.sampling_params import SamplingParams

_NO_WORK = StepPlan(0, [], (), 0, StepWork((), 0, 0, 0), [], [], [], [], [], [], [], 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class _Launched(NamedTuple):
    """A plan that was launched and whose tokens are not known yet."""

    plan: StepPlan
    samples: PlanSamples
    schedule_ns: int
    prepare_ns: int


class LLMEngine:
    """Serves requests step by step.

    Args:
        config: limits and policy.
        executor: executes plans; a `LaunchingExecutor` if `config` has `async_scheduling`.
        max_model_len: most tokens of a sequence, prompt and output.
        eos_token_ids: tokens that end a sequence, unless its sampling parameters say `ignore_eos`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        max_model_len: int,
        eos_token_ids: abc.Iterable[int] = (),
    ) -> None:
        self.config = config
        self._executor = executor
        self._launcher: LaunchingExecutor | None = None
        if config.async_scheduling:
            assert isinstance(executor, LaunchingExecutor)
            self._launcher = executor
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_model_len = max_model_len
        self._parked = Parked()
        self._landed = 0  # as reported with the last plan
        self.reset()

    def reset(self) -> None:
        """Forget all requests and start again with an empty prefix cache; also after a step that did not end."""
        config = self.config
        self._launched: _Launched | None = None
        if self._launcher is not None:
            self._launcher.forget()
        self.scheduler = make_scheduler(
            config,
            num_blocks=self._executor.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            make_decodes=self._make_decodes,
            contiguous=config.contiguous,
            num_host_blocks=self._executor.num_host_blocks,
            offload=config.offload_options,
            transfer_block_us=self._executor.block_bytes / (config.host_gb_per_s * 1e3),
        )
        self._drafter = None if config.speculation is None else Drafter(config.speculation)
        self._parked.forget_all()
        # The executor still has the decode rows of before; the first inputs of a new builder keep none of them.
        self._builder = StepBuilder(config.block_size)
        self._collector = TokenCollector(
            self._builder, self.scheduler.advance, speculates=config.speculation is not None
        )

    def add(
        self,
        request: Request,
        params: SamplingParams,
        *,
        ends: EndCheck | None = None,
        bad_words: TokenLists = (),
    ) -> None:
        """Queue a request; of how many sequences, `request.num_sequences` says, not `params`.

        The `token_ids` of its first sequence hold the prompt; sampled tokens are appended to them. The other sequences
        are forked from it when the prompt is computed, each with a first token of its own. The seed of the i-th
        sequence, counted from 0, is `params.seed + i` modulo 2^63.

        Args:
            params: how to sample.
            ends: says of each sampled token whether it ends its sequence; in place of the stop strings of `params`.
            bad_words: lists of tokens, in place of the texts of `params`.

        Raises:
            RequestRefusedError: the request can never run.
        """
        if params.prompt_logprobs is not None:
            request.reads_prefix_cache = False
        self.scheduler.add(request)
        (sequence,) = request.sequences
        seed = params.seed if params.seed is not None else hash((self.config.seed, request.request_id))
        # Before `min_tokens`, end-of-sequence tokens are forbidden even where `ignore_eos` lets them pass later.
        self._builder.add(sequence, params, seed, {*params.stop_token_ids, *self.eos_token_ids}, bad_words)
        self._collector.add(sequence, params, frozenset() if params.ignore_eos else self.eos_token_ids, ends)

    def abort(self, request_id: int) -> Request:
        """Remove a waiting or running request and return it; raises KeyError if no request has this id."""
        request = self.scheduler.abort(request_id)
        self._parked.hurry(request.sequences)
        self._forget(request.sequences)
        return request

    def step(self, now_ns: int) -> StepReport | None:
        """Plan at `now_ns`, execute, and commit at `now_ns` plus the time both took; None if no request is left."""
        started = time.perf_counter_ns()
        executed = self.execute(now_ns)
        return None if executed is None else self.commit(executed, now_ns + time.perf_counter_ns() - started)

    def execute(self, now_ns: int) -> ExecutedPlan | None:
        """Plan at `now_ns` and execute the plan; None if no request is left.

        With `async_scheduling` this waits for the plan that was launched before, or for a new one if there is none, and
        meanwhile makes and launches the next.
        """
        started = time.perf_counter_ns()
        if self._launcher is not None:
            return self._execute_ahead(self._launcher, now_ns)
        plan = self._schedule(now_ns)
        if plan is None:
            return None
        num_steps = min(plan.horizon, self.config.max_lookahead_steps)
        if num_steps > 1 and not self._builder.is_adjusted(plan):
            plan = self.scheduler.extend(plan, num_steps)
        scheduled = time.perf_counter_ns()
        self._parked.add(plan)
        drafts = NO_DRAFTS
        if self._drafter is not None:
            drafts = self._drafter.propose(self._builder.may_draft(plan))
        inputs = self._builder.build(plan, *self._parked.marks, drafts)
        prepared = time.perf_counter_ns()
        tokens = self._executor.execute(inputs)
        sending_ns = time.perf_counter_ns() - prepared - tokens.execute_ns - tokens.sample_ns - tokens.transfer_ns
        launched = _Launched(plan, self._builder.samples, scheduled - started, prepared - scheduled + sending_ns)
        return self._collect(launched, tokens, now_ns)

    def _execute_ahead(self, launcher: LaunchingExecutor, now_ns: int) -> ExecutedPlan | None:
        """`execute` with `async_scheduling`: the next plan is launched before the tokens of this one are known, unless
        its inputs need them."""
        current = self._launched
        if current is None:
            started = time.perf_counter_ns()
            plan = self._schedule(now_ns)
            if plan is None:
                return None
            current = self._launch(launcher, plan, time.perf_counter_ns() - started)
        self._launched = None
        start, started = plan_start(current.plan), time.perf_counter_ns()
        self._take_landed()
        plan = self.scheduler.schedule(now_ns)
        schedule_ns = time.perf_counter_ns() - started
        self._collector.add_forks(current.samples)
        executed = None
        if plan is not None and self._builder.must_wait(plan):
            executed = self._collect(current, launcher.collect(), now_ns, start)
        if plan is not None:
            self._launched = self._launch(launcher, plan, schedule_ns)
        return executed or self._collect(current, launcher.collect(), now_ns, start)

    def _launch(self, launcher: LaunchingExecutor, plan: StepPlan, schedule_ns: int) -> _Launched:
        started = time.perf_counter_ns()
        self._parked.add(plan)
        launcher.launch(self._builder.build(plan, *self._parked.marks))
        return _Launched(plan, self._builder.samples, schedule_ns, time.perf_counter_ns() - started)

    def _collect(
        self, launched: _Launched, tokens: StepTokens, now_ns: int, start: PlanStart | None = None
    ) -> ExecutedPlan:
        """Append the tokens of a plan that has run."""
        self._landed = tokens.landed
        times = StepTimes(
            launched.schedule_ns, launched.prepare_ns, tokens.execute_ns, tokens.sample_ns, tokens.transfer_ns
        )
        found = self._collector.collect(launched.plan, launched.samples, tokens)
        return ExecutedPlan(launched.plan, now_ns, times, *found, start)

    def _schedule(self, now_ns: int) -> StepPlan | None:
        """The next plan, in which those whose KV is back on the device take part.

        Where nothing can be done before the KV of some is back, this waits for it.
        """
        self._take_landed()
        plan = self.scheduler.schedule(now_ns)
        while plan is None and self._parked:
            self._parked.await_first()
            self._landed = self._executor.execute(self._builder.build(_NO_WORK, *self._parked.marks)).landed
            self._take_landed()
            plan = self.scheduler.schedule(now_ns)
        return plan

    def _take_landed(self) -> None:
        for sequence in self._parked.take_landed(self._landed):
            self.scheduler.ready(sequence)

    def commit(self, executed: ExecutedPlan, now_ns: int) -> StepReport:
        """Commit an executed plan that ended at `now_ns`; between `execute` and `commit` no request may be added."""
        outcome = self.scheduler.commit(executed.plan, now_ns, executed.stopped, executed.verified)
        outputs = executed.outputs
        ended = [i for i, new in enumerate(outputs) if new.sequence.status is SequenceStatus.FINISHED]
        for i in ended:
            is_stopped = outputs[i].sequence in executed.stopped
            outputs[i] = outputs[i]._replace(finish_reason="stop" if is_stopped else "length")
        if ended:
            self._forget([outputs[i].sequence for i in ended])
        return StepReport(executed.plan, executed.start_ns, now_ns, executed.times, outputs, outcome, executed.start)

    def close(self) -> None:
        """Free the executor's memory and processes."""
        self._executor.close()

    def _forget(self, sequences: abc.Collection[Sequence]) -> None:
        self._builder.drop(sequences)
        self._collector.drop(sequences)
        if self._drafter is not None:
            self._drafter.drop(sequences)

    def _make_decodes(self, block_size: int, longest: int) -> Decodes:
        if self.config.speculation is None:
            return UniformDecodes(block_size)
        return UnforeseenDecodes(block_size, longest, self.config.speculation.num_speculative_tokens)
