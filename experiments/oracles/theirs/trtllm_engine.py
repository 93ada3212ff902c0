"""Runs a case through the scheduler of TensorRT-LLM, in the loops of its PyTorch backend (`py_executor.py`)."""

from __future__ import annotations

from types import SimpleNamespace

from experiments.oracles.cases import STOP_TOKEN, Case, Request
from experiments.oracles.steps import Step
from experiments.oracles.theirs.trtllm_cache import KVCache
from experiments.oracles.theirs.trtllm_modules import CapacitySchedulerPolicy, LlmRequestState
from experiments.oracles.trtllm_cases import TrtllmOptions

State = LlmRequestState


class LlmRequest:
    """In place of TensorRT-LLM's request, which is in C++."""

    num_draft_tokens = 0
    is_encoder_init_state = False
    is_disagg_generation_init_state = False

    def __init__(self, request: Request) -> None:
        self.request_id = self.py_request_id = request.request_id
        self.tokens = list(request.prompt)
        self.outputs = request.outputs
        self.num_origin = self.prompt_len = len(self.tokens)
        self.max_new_tokens = len(request.outputs)
        self.state = State.CONTEXT_INIT
        self.position = self.prepopulated = self.context_chunk_size = self.estimated_reusable_tokens = 0

    @property
    def state_value(self) -> int:
        return self.state.value

    @property
    def is_context_init_state(self) -> bool:
        return self.state is State.CONTEXT_INIT

    @property
    def is_generation_in_progress_state(self) -> bool:
        return self.state in (State.GENERATION_IN_PROGRESS, State.GENERATION_TO_COMPLETE)

    @property
    def is_first_context_chunk(self) -> bool:
        return self.position == self.prepopulated

    @property
    def is_last_context_chunk(self) -> bool:
        return self.position + self.context_chunk_size == self.prompt_len

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.position

    def get_num_tokens(self, beam: int) -> int:
        return len(self.tokens)

    def get_unique_tokens(self, beam: int) -> list[int]:
        return self.tokens

    def get_beam_width_by_iter(self, for_next_iteration: bool) -> int:
        return 1

    def has_draft_tokens(self) -> bool:
        return False

    def will_complete_next_iteration(self) -> bool:
        return len(self.tokens) - self.prompt_len + 1 >= self.max_new_tokens

    def start_behind(self, num_cached: int, block_size: int) -> None:
        """`setPrepopulatedPromptLen`: the chunk moves behind what is stored, and ends with a block or the prompt."""
        self.prepopulated = num_cached
        size = self.context_chunk_size
        if num_cached:
            if num_cached + size < self.prompt_len:
                size = (num_cached + size) // block_size * block_size - num_cached
            self.position = num_cached
            self.context_chunk_size = min(size, self.prompt_len - num_cached)

    def num_to_compute(self, *, cut: bool) -> int:
        """Tokens that the next chunk computes, which begins behind what is stored; the whole prompt if it is not
        `cut`."""
        size = self.context_chunk_size if cut else self.context_remaining_length
        num_stored = max(0, self.estimated_reusable_tokens - self.position) if self.is_first_context_chunk else 0
        if num_stored and num_stored + size >= self.context_remaining_length:
            size = self.context_remaining_length - num_stored
        return max(1, size)

    def pause(self) -> None:
        """Compute all again, what was generated as part of the prompt."""
        self.max_new_tokens -= len(self.tokens) - self.prompt_len
        self.prompt_len = len(self.tokens)
        self.state = State.CONTEXT_INIT
        self.position = self.prepopulated = 0


class FaultError(RuntimeError):
    """TensorRT-LLM decides something that it cannot carry out."""


_Tokens = list[tuple[LlmRequest, bool]]


class TrtllmEngine:
    """The scheduler of TensorRT-LLM with a model that answers what the case says."""

    def __init__(self, trtllm: SimpleNamespace, case: Case) -> None:
        options = case.options
        assert isinstance(options, TrtllmOptions)
        self.steps: list[Step] = []
        self._options = options
        self._cache = KVCache(
            options.num_blocks, options.block_size, enable_block_reuse=options.enable_prefix_caching
        )  # fmt: skip
        chunks = (options.context_chunking_policy.upper(), options.block_size)
        self._scheduler = trtllm.SimpleUnifiedScheduler(
            max_batch_size=options.max_num_seqs,
            max_num_tokens=options.max_num_batched_tokens,
            kv_cache_manager=self._cache,
            peft_cache_manager=None,
            scheduler_policy=CapacitySchedulerPolicy[options.capacity_scheduler_policy.upper()],
            ctx_chunk_config=chunks if options.enable_chunked_prefill else None,
        )
        self._waiting: list[LlmRequest] = []
        self._active: list[LlmRequest] = []
        self._in_flight: tuple[_Tokens, Step] | None = None
        self._num_waited = 0

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._active or self._in_flight)

    def add(self, request: Request) -> None:
        self._waiting.append(LlmRequest(request))

    def abort(self, request_id: int) -> None:
        raise NotImplementedError

    def step(self, most: int) -> None:
        while self._waiting and len(self._active) < self._options.max_num_seqs:
            self._active.append(self._waiting.pop(0))
        output = self._scheduler.schedule_request(self._active, set())
        for req in output.paused_requests:
            num_computed = req.position if req.is_context_init_state else len(req.tokens) - 1
            req.pause()
            self._cache.remove_sequence(req, num_computed)
        step = Step({}, [], {req.request_id for req in output.paused_requests})
        contexts = self._not_held_back(output.context_requests, output.generation_requests)
        self._prepare(step, contexts, output.generation_requests)
        self.steps.append(step)
        before, self._in_flight = self._in_flight, None
        if not step.computed and not output.paused_requests and before is None:
            raise FaultError("nobody can take part in a step, though nothing is under way")
        if self._options.async_scheduling:
            if before is not None:
                self._take_tokens(*before)
            flight = self._launch(contexts, output.generation_requests), step
            if before is not None:
                self._release(*before)
            self._note(step)
            self._in_flight = flight if step.computed else None
        else:
            self._note(step)
            flight = self._launch(contexts, output.generation_requests), step
            self._take_tokens(*flight)
            self._release(*flight)

    def _not_held_back(self, contexts: list[LlmRequest], decodes: list[LlmRequest]) -> list[LlmRequest]:
        """`_waiting_requests` and `_compute_scheduled_tokens`: `contexts`, or nobody if they wait for more."""
        if not contexts or not decodes:
            return contexts
        options = self._options
        num_tokens = len(decodes) + sum(each.num_to_compute(cut=options.enable_chunked_prefill) for each in contexts)
        is_enough = num_tokens >= options.batch_wait_max_tokens_ratio * options.max_num_batched_tokens
        if is_enough or self._num_waited >= options.batch_wait_timeout_iters:
            self._num_waited = 0
            return contexts
        self._num_waited += 1
        return []

    def _prepare(self, step: Step, contexts: list[LlmRequest], decodes: list[LlmRequest]) -> None:
        """Give the requests of a step their blocks."""
        budget = self._options.max_num_batched_tokens - len(decodes)
        for req in contexts:
            if not self._options.enable_chunked_prefill:
                req.context_chunk_size = req.context_remaining_length
            if req.request_id not in self._cache.tables:
                req.start_behind(self._cache.add_sequence(req), self._options.block_size)
                step.admitted.append(req.request_id)
            budget -= req.context_chunk_size
            if budget < 0:
                raise FaultError("less is stored than the scheduler reckoned with, and the step exceeds its tokens")
            step.computed[req.request_id] = (req.position, req.context_chunk_size)
        for req in decodes:
            step.computed[req.request_id] = (self._cache.num_tokens[req.request_id], 1)
            self._cache.add_token(req)

    def _launch(self, contexts: list[LlmRequest], decodes: list[LlmRequest]) -> _Tokens:
        """`_update_request_states`: what is certain when the step has been launched; returns who will get a token, and
        whether it is the first one after a prompt."""
        for req in contexts:
            req.position += req.context_chunk_size
        started = [req for req in contexts if not req.context_remaining_length]
        for req in started:
            req.state = State.GENERATION_IN_PROGRESS
        for req in [*started, *decodes]:
            if self._options.async_scheduling and req.will_complete_next_iteration():
                req.state = State.GENERATION_TO_COMPLETE
        return [*((req, True) for req in started), *((req, False) for req in decodes)]

    def _take_tokens(self, tokens: _Tokens, step: Step) -> None:
        for req, _ in tokens:
            token = req.outputs[len(req.tokens) - req.num_origin]
            req.tokens.append(token)
            if token == STOP_TOKEN or len(req.tokens) - req.num_origin == len(req.outputs):
                req.state = State.GENERATION_COMPLETE
                step.finished.add(req.request_id)

    def _release(self, tokens: _Tokens, step: Step) -> None:
        """Store the prompts that are computed, and let those go that have ended."""
        for req, is_started in tokens:
            if is_started:
                self._cache.store_context_blocks(req)
        for req in [each for each in self._active if each.state is State.GENERATION_COMPLETE]:
            self._cache.remove_sequence(req, len(req.tokens) - 1)
            self._active.remove(req)

    def _note(self, step: Step) -> None:
        step.num_running = len(self._cache.tables)
        step.num_waiting = len(self._waiting) + len(self._active) - step.num_running
        step.num_used_blocks = self._cache.num_used
