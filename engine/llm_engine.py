"""The real engine: the scheduling core plans a step, an executor runs it, and `LLMEngine` keeps the sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.core.plan import StepOutcome, StepPlan
from engine.core.scheduler_options import make_scheduler
from engine.core.sequence import Request, Sequence
from engine.engine_config import EngineConfig
from engine.outputs import FinishReason, TokenLogprobs
from engine.runner.model_runner import StepTokens
from engine.runner.step_inputs import StepBuilder, StepInputs
from engine.sampling_params import SamplingParams


class Executor(Protocol):
    """Executes plans, on one rank in this process or on several ranks in processes of their own.

    Attributes:
        num_blocks: blocks of the KV cache, the same on every rank.
        backend_name: the attention backend.
    """

    num_blocks: int
    backend_name: str

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan and return the tokens that it sampled."""
        ...

    def close(self) -> None:
        """Free everything; the executor cannot be used any more."""


EndCheck = Callable[[Sequence, int], str | None]


class NewTokens(NamedTuple):
    """The tokens that a plan gave to a sequence.

    Attributes:
        finish_reason: None while the sequence runs.
        stop_reason: the token of `stop_token_ids` that ended the sequence, if one did.
        logprobs: for each token; None if the request asks for none.
        prompt_logprobs: for each prompt token, None for the first; comes with the first tokens of a request's first
            sequence, if the request asks for them.
    """

    sequence: Sequence
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True)
class StepTimes:
    """Time of a plan by phase, in ns.

    Attributes:
        schedule_ns: planning.
        prepare_ns: building the inputs and sending them to the ranks.
        execute_ns: the model.
        sample_ns: logits and sampling; 0 for decode steps under CUDA graphs, where `execute_ns` includes both.
    """

    schedule_ns: int
    prepare_ns: int
    execute_ns: int
    sample_ns: int


@dataclass(frozen=True)
class ExecutedPlan:
    """A plan that ran and is not committed yet; `stopped` is the argument of that name of `Scheduler.commit`."""

    plan: StepPlan
    start_ns: int
    times: StepTimes
    outputs: list[NewTokens]
    stopped: dict[Sequence, int]


@dataclass(frozen=True)
class StepReport:
    """One executed plan: its start and end in ns on the caller's clock, its tokens, and the outcome of its commit."""

    plan: StepPlan
    start_ns: int
    end_ns: int
    times: StepTimes
    outputs: list[NewTokens]
    outcome: StepOutcome


class LLMEngine:
    """Serves requests step by step.

    Args:
        config: limits and policy.
        executor: executes plans.
        max_model_len: most tokens of a sequence, prompt and output.
        eos_token_ids: tokens that end a sequence, unless its sampling parameters say `ignore_eos`.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.config = config
        self._executor = executor
        self._eos = frozenset(eos_token_ids)
        self._ends: dict[Sequence, EndCheck] = {}
        self._stops: dict[Sequence, frozenset[int]] = {}
        self.max_model_len = max_model_len
        self.reset()

    def reset(self) -> None:
        """Forget all requests and start again with an empty prefix cache; also after a step that did not end."""
        config = self.config
        self.scheduler = make_scheduler(
            config,
            num_blocks=self._executor.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )
        # The executor still has the decode rows of before; the first inputs of a new builder keep none of them.
        self._builder = StepBuilder(config.block_size)
        self._stops.clear()

    def add(
        self, request: Request, params: SamplingParams, *, ends: EndCheck | None = None, bad_words: object = ()
    ) -> None:
        """Queue a request of one sequence.

        The sequence's `token_ids` hold the prompt; sampled tokens are appended to them.

        Raises:
            RequestRefusedError: the request can never run.
        """
        self.scheduler.add(request)
        (sequence,) = request.sequences
        seed = params.seed if params.seed is not None else hash((self.config.seed, request.request_id)) & (2**63 - 1)
        self._builder.add(sequence, params, seed)
        if ends is not None:
            self._ends[sequence] = ends
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        if stops:
            self._stops[sequence] = stops

    def abort(self, request_id: int) -> Request:
        """Remove a waiting or running request and return it; raises KeyError if no request has this id."""
        request = self.scheduler.abort(request_id)
        self._forget([request])
        return request

    def step(self, now_ns: int) -> StepReport | None:
        """Plan at `now_ns`, execute, and commit at `now_ns` plus the time both took; None if no request is left."""
        started = time.perf_counter_ns()
        executed = self.execute(now_ns)
        return None if executed is None else self.commit(executed, now_ns + time.perf_counter_ns() - started)

    def execute(self, now_ns: int) -> ExecutedPlan | None:
        """Plan at `now_ns` and execute the plan; None if no request is left."""
        started = time.perf_counter_ns()
        plan = self.scheduler.schedule(now_ns)
        if plan is None:
            return None
        num_steps = min(plan.horizon, self.config.max_lookahead_steps)
        if num_steps > 1:
            plan = self.scheduler.extend(plan, num_steps)
        scheduled = time.perf_counter_ns()
        inputs = self._builder.build(plan)
        prepared = time.perf_counter_ns()
        tokens = self._executor.execute(inputs)
        sending_ns = time.perf_counter_ns() - prepared - tokens.execute_ns - tokens.sample_ns
        times = StepTimes(
            schedule_ns=scheduled - started,
            prepare_ns=prepared - scheduled + sending_ns,
            execute_ns=tokens.execute_ns,
            sample_ns=tokens.sample_ns,
        )
        outputs, stopped = self._collect(plan, tokens)
        return ExecutedPlan(plan, now_ns, times, outputs, stopped)

    def commit(self, executed: ExecutedPlan, now_ns: int) -> StepReport:
        """Commit an executed plan that ended at `now_ns`; between `execute` and `commit` no request may be added."""
        outcome = self.scheduler.commit(executed.plan, now_ns, executed.stopped)
        self._forget(outcome.finished)
        outputs = _with_reasons(executed, set(outcome.finished))
        return StepReport(executed.plan, executed.start_ns, now_ns, executed.times, outputs, outcome)

    def close(self) -> None:
        """Free the executor's memory and processes."""
        self._executor.close()

    def _collect(self, plan: StepPlan, tokens: StepTokens) -> tuple[list[NewTokens], dict[Sequence, int]]:
        """Append the plan's tokens to their sequences, each up to and including its first stop token.

        Returns:
            The appended tokens by sequence; and for each sequence that met a stop token, how many of the plan's tokens
            came after it and were dropped.
        """
        columns = tokens.decode.T.tolist()
        given = list(zip(self._builder.sequences, columns, strict=True)) if columns else []
        last_chunks = [chunk.sequence for chunk in plan.prefills if chunk.is_last]
        given += [(sequence, [token]) for sequence, token in zip(last_chunks, tokens.prefill.tolist(), strict=True)]
        outputs, stopped = [], {}
        for sequence, new in given:
            stops = self._stops.get(sequence)
            ends = self._ends.get(sequence)
            if ends is not None:
                reason = None
                kept = 0
                for token in new:
                    sequence.token_ids.append(token)
                    kept += 1
                    if token in (stops or ()):
                        stopped[sequence] = len(new) - kept
                        break
                    if (reason := ends(sequence, token)) is not None:
                        stopped[sequence] = len(new) - kept
                        break
                outputs.append(NewTokens(sequence, new[:kept], stop_reason=reason))
                continue
            if stops:
                for i, token in enumerate(new):
                    if token in stops:
                        stopped[sequence] = len(new) - i - 1
                        new = new[: i + 1]
                        break
            assert sequence.token_ids is not None
            sequence.token_ids.extend(new)
            outputs.append(NewTokens(sequence, new))
        return outputs, stopped

    def _forget(self, requests: Iterable[Request]) -> None:
        sequences = [sequence for request in requests for sequence in request.sequences]
        self._builder.drop(sequences)
        for sequence in sequences:
            self._stops.pop(sequence, None)
            self._ends.pop(sequence, None)


def _with_reasons(executed: ExecutedPlan, finished: set[Request]) -> list[NewTokens]:
    """The plan's tokens, with the reason for each sequence that ended."""
    if not finished:
        return executed.outputs
    return [
        output._replace(finish_reason="stop" if output.sequence in executed.stopped else "length")
        if output.sequence.request in finished
        else output
        for output in executed.outputs
    ]
