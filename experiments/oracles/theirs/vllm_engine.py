"""Runs a case through the scheduler of vLLM, in the loop that its engine core runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from experiments.oracles.cases import STOP_TOKEN, Case, Options, Request
from experiments.oracles.steps import Step
from experiments.oracles.theirs.offloading import Workers, connector_config, make_spec
from experiments.oracles.theirs.vllm_modules import block_hash


class VllmEngine:
    """The scheduler of vLLM with a model that answers what the case says.

    Args:
        vllm: what `vllm_modules.load` returns.
        corrected: forget the hashes of blocks that a victim was to fill in the step it is thrown out of. vLLM keeps
            them, so that KV which was never computed is found as cached.

    Attributes:
        num_forgotten_blocks: how often that was needed.
    """

    def __init__(self, vllm: SimpleNamespace, case: Case, *, corrected: bool) -> None:
        self.steps: list[Step] = []
        self.num_forgotten_blocks = 0
        self._vllm = vllm
        self._case = case
        self._options = options = case.options
        self._hasher = (
            vllm.get_request_block_hasher(options.block_size, block_hash) if options.enable_prefix_caching else None
        )
        self._scheduler = _make_scheduler(vllm, options)
        if corrected:
            self._forget_with_victims()
        self._workers = Workers(vllm, case, self._scheduler) if options.num_host_blocks else None
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._in_flight: tuple[Any, Step] | None = None  # what was planned ahead and is not accounted for yet

    @property
    def is_idle(self) -> bool:
        if self._workers is not None and not self._workers.is_idle:
            return False
        return not self._scheduler.requests and self._in_flight is None

    def add(self, request: Request) -> None:
        name = str(request.request_id)
        params = SimpleNamespace(
            max_tokens=len(request.outputs), min_tokens=0, eos_token_id=None, stop_token_ids=[STOP_TOKEN],
            num_logprobs=None, repetition_detection=None, extra_args=None, logprobs=None,
            skip_reading_prefix_cache=None,
        )  # fmt: skip
        self._scheduler.add_request(
            self._vllm.Request(
                name, list(request.prompt), params, None, arrival_time=float(request.request_id),
                priority=request.priority, block_hasher=self._hasher,
            )
        )  # fmt: skip

    def abort(self, request_id: int) -> None:
        self._scheduler.finish_requests(str(request_id), self._vllm.RequestStatus.FINISHED_ABORTED)

    def step(self, most: int = 1) -> None:
        """One step; with asynchronous scheduling it is planned before the step before it is accounted for."""
        starts = {name: request.num_computed_tokens for name, request in self._scheduler.requests.items()}
        output = self._scheduler.schedule()
        step = self._step(output, starts)
        self.steps.append(step)
        if not self._options.async_scheduling:
            self._record_state(step)
            self._account(output, step)
            return
        if self._in_flight is not None:
            self._account(*self._in_flight)
            step.preempted -= self._in_flight[1].finished
        self._record_state(step)
        goes_on = self._workers is not None and (
            self._scheduler.requests or not self._workers.is_idle or self._workers.transfers(output)
        )
        self._in_flight = (output, step) if output.num_scheduled_tokens or goes_on else None

    def _step(self, output: Any, starts: dict[str, int]) -> Step:
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        positions = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        positions |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        admitted = {request.req_id for request in output.scheduled_new_reqs} | resumed
        for name in output.num_scheduled_tokens.keys() - admitted:
            assert positions[name] == starts[name]
        return Step(
            computed={int(name): (positions[name], count) for name, count in output.num_scheduled_tokens.items()},
            admitted=[int(name) for name in output.num_scheduled_tokens if name in admitted],
            preempted=set(map(int, output.preempted_req_ids)),
            transfers=[] if self._workers is None else self._workers.transfers(output),
        )

    def _record_state(self, step: Step) -> None:
        step.num_running, step.num_waiting = self._scheduler.get_request_counts()
        step.num_used_blocks = self._options.num_blocks - self._pool.get_num_free_blocks()

    def _account(self, output: Any, step: Step) -> None:
        names = list(output.num_scheduled_tokens)
        drafted = output.scheduled_spec_decode_tokens
        admitted = {*map(str, step.admitted)}  # what stands for drafts of them is never accepted
        num_drafts = {name: len(drafted.get(name, ())) for name in names if name not in admitted}
        tokens = [self._sampled(name, *step.computed[int(name)], num_drafts.get(name, 0)) for name in names]
        before = {name for name in names if name in self._scheduler.requests and not self._is_over(name)}
        self._scheduler.update_from_output(
            output,
            SimpleNamespace(
                req_id_to_index={name: index for index, name in enumerate(names)}, sampled_token_ids=tokens,
                logprobs=None, prompt_logprobs_dict={}, pooler_output=None, num_nans_in_logits=None,
                kv_connector_output=None if self._workers is None else self._workers.run(output), cudagraph_stats=None,
                prompt_token_id_logprobs_dict={}, ec_connector_output=None, aux_output_connector_output=None,
                sampling_masks=None, routed_experts=None,
            ),
        )  # fmt: skip
        if (k := self._options.num_speculative_tokens) and not self._options.async_scheduling:
            self._scheduler.update_draft_token_ids(
                SimpleNamespace(req_ids=names, draft_token_ids=[[-1] * k] * len(names))
            )
        left = self._scheduler.requests  # some of them have finished, and are still being stored
        step.finished = {int(name) for name in before if name not in left or left[name].is_finished()}

    def _is_over(self, name: str) -> bool:
        return self._scheduler.requests[name].is_finished()

    def _sampled(self, name: str, start: int, count: int, num_drafts: int) -> list[int]:
        """The tokens that a request gets from a step; none for a prompt that is not computed to its end."""
        request = self._scheduler.requests.get(name)
        if request is None or start + count < request.num_tokens:
            return []
        asked, first = self._case.requests[int(name)], request.num_output_tokens
        num_new = self._case.num_gained(asked, request.num_tokens, num_drafts)
        return (asked.outputs + [1] * num_drafts)[first : first + num_new]

    def _forget_with_victims(self) -> None:
        scheduler, preempt = self._scheduler, self._scheduler._preempt_request
        pool, manager = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_manager

        def preempt_and_forget(request: Any, timestamp: float, **others: Any) -> None:
            (blocks,) = manager.get_blocks(request.request_id).blocks
            for block in blocks[request.num_computed_tokens // self._options.block_size :]:
                self.num_forgotten_blocks += block.block_hash is not None
                pool._maybe_evict_cached_block(block)
            preempt(request, timestamp, **others)

        scheduler._preempt_request = preempt_and_forget


def _drafts(number: int) -> SimpleNamespace | None:
    """Drafts by prompt lookup, which need no KV of their own."""
    if not number:
        return None
    return SimpleNamespace(
        num_speculative_tokens=number, use_eagle=lambda: False, uses_draft_model=lambda: False,
        num_speculative_tokens_per_batch_size=None, use_eagle_block_drop=lambda: False,
        needs_eagle_block_drop=lambda: False, use_dflash=lambda: False, use_dspark=lambda: False,
        max_num_new_slots_for_drafting=0,
    )  # fmt: skip


def _make_scheduler(vllm: SimpleNamespace, options: Options) -> Any:
    """A scheduler of vLLM for a dense model on one device; block 0 of the pool is the one that nobody gets."""
    spec = vllm.FullAttentionSpec(block_size=options.block_size, num_kv_heads=1, head_size=1, dtype=None)
    k = options.num_speculative_tokens
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_num_scheduled_tokens=None,
            policy=options.scheduling_policy,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            enable_chunked_prefill=options.enable_chunked_prefill,
            scheduler_reserve_full_isl=options.scheduler_reserve_full_isl,
            async_scheduling=options.async_scheduling,
            long_prefill_token_threshold_adaptive=False, max_num_active_seqs=None, watermark=0.0,
            prefill_schedule_interval=1,
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=options.enable_prefix_caching, num_gpu_blocks=options.num_blocks + 1,
            block_size=options.block_size, mamba_cache_mode="none", enable_mamba_shared_prefix_checkpoint=False,
            prefix_cache_retention_interval=None,
        ),
        model_config=SimpleNamespace(
            max_model_len=options.max_model_len, is_encoder_decoder=False, enable_return_routed_experts=False,
            uses_mrope=False, runner_type="generate", is_diffusion=False, supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=1,
            data_parallel_index=0, data_parallel_size=1, world_size=1,
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, enable_mfu_metrics=False, per_request_spec_decode_metrics=None
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False), is_mm_encoder_only=False,
        max_concurrent_batches=1 + options.async_scheduling,
        num_speculative_tokens=k, num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_hash_lookahead_tokens=0,
        max_in_flight_tokens=None, use_v2_model_runner=False,
        lora_config=None, kv_events_config=None, kv_transfer_config=connector_config(options), ec_transfer_config=None,
        speculative_config=_drafts(options.num_speculative_tokens),
    )  # fmt: skip
    vllm.create_spec.make = lambda: make_spec(vllm, options, config)
    scheduler_class = vllm.AsyncScheduler if options.async_scheduling else vllm.Scheduler
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=vllm.KVCacheConfig(options.num_blocks + 1, [], [vllm.KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=SimpleNamespace(
            should_advance=lambda request, **new: False,
            accept_tokens=lambda *args, **kwargs: True,
            validate_tokens=lambda request, tokens: tokens,
        ),
        block_size=options.block_size,
        mm_registry=SimpleNamespace(supports_multimodal_inputs=lambda config: False),
    )
