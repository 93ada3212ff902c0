"""Runs a case through the scheduler of SGLang, in the loops of its engine."""

from __future__ import annotations

from array import array
from collections import deque
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

from engine.core.hashing import chain_hash
from experiments.oracles.cases import STOP_TOKEN, Case, Request
from experiments.oracles.sglang_cases import SglangOptions
from experiments.oracles.steps import Step
from experiments.oracles.theirs.sglang_modules import Settings


def set_up(sglang: SimpleNamespace, options: SglangOptions) -> None:
    """Fill in the server's configuration, which SGLang reads from everywhere, and shuffle as our core does."""
    settings, passes = sglang.settings, count(1)

    def shuffle(queue: list[Any]) -> None:
        number = next(passes)
        queue.sort(key=lambda req: chain_hash(number, [int(req.rid)]))

    sglang.policy_module.random = SimpleNamespace(shuffle=shuffle)
    settings["schedule"].__dict__ |= dict(
        schedule_policy=options.schedule_policy, schedule_conservativeness=options.schedule_conservativeness,
        prefill_max_requests=None, enable_prefill_delayer=False, retraction_policy="length",
    )  # fmt: skip
    settings["memory"].__dict__ |= dict(radix_eviction_policy="lru", enable_hisparse=False)
    settings["spec"].__dict__ |= dict(speculative_algorithm=None)
    settings["disagg"].__dict__ |= dict(disaggregation_mode="null")
    settings["parallel"].__dict__ |= dict(pp_max_micro_batch_size=options.max_num_seqs)


_ABSENT = (
    "chunked_req", "_pending_chunked_abort_req", "dllm_config", "prefill_delayer", "min_free_slots_delayer",
    "lora_drainer", "dynamic_chunk_sizer", "decode_offload_manager", "truncation_align_size", "hisparse_coordinator",
)  # fmt: skip
_OFF = (
    "enable_hisparse", "enable_priority_scheduling", "enable_priority_preemption", "is_hybrid_swa", "enable_lora",
    "enable_hicache_storage", "enable_lmcache", "enable_hierarchical_cache", "require_mlp_sync",
    "enable_lora_overlap_loading", "enable_unified_cache_external_linker", "schedule_low_priority_values_first",
)  # fmt: skip


class _Rows:
    """In place of the pool of request slots: the KV indices of each."""

    device = "cpu"

    def __init__(self, size: int, longest: int) -> None:
        self.req_to_token = torch.zeros((size + 1, longest), dtype=torch.int32)
        self.free_slots = list(range(1, size + 1))

    def write(self, indices: Any, values: Any) -> None:
        self.req_to_token[indices] = values

    def available_size(self) -> int:
        return len(self.free_slots)

    def alloc(self, reqs: list[Any]) -> list[int]:
        for req in reqs:
            if not req.kv.holds_kv:
                req.kv.req_pool_idx = self.free_slots.pop()
        return [req.kv.req_pool_idx for req in reqs]

    def free(self, req: Any) -> None:
        self.free_slots.append(req.kv.req_pool_idx)
        req.kv.req_pool_idx = None

    def alloc_aux_to_lengths(self, **kwargs: Any) -> None: ...


class SglangEngine:
    """The scheduler of SGLang with a model that answers what the case says.

    Args:
        corrected: a request that is retracted while a token of it is under way keeps that token. SGLang forgets it, and
            computes it again.
        cache: the prefix cache, "radix" or "unified".
    """

    def __init__(self, sglang: SimpleNamespace, case: Case, *, corrected: bool, cache: str) -> None:
        options = case.options
        assert isinstance(options, SglangOptions)
        set_up(sglang, options)
        self.steps: list[Step] = []
        self._sglang, self._case, self._options, self._corrected = sglang, case, options, corrected
        self._scheduler = self._make_scheduler(sglang, options, cache)
        self._live: dict[int, Any] = {}
        self._retracted: set[int] = set()
        self._last: Any = None
        self._results: deque[tuple[Any, Any, Step]] = self._scheduler.result_queue

    @property
    def is_idle(self) -> bool:
        return not self._live and not self._results

    def add(self, request: Request) -> None:
        scheduler, options = self._scheduler, self._options
        if self.is_idle and (options.async_scheduling or request.arrival > len(self.steps)):
            scheduler.new_token_ratio_tracker.reset()
            self._last = None
        params = SimpleNamespace(
            max_new_tokens=len(request.outputs), ignore_eos=options.ignore_eos, stop_token_ids={STOP_TOKEN},
            stop_strs=[], stop_regex_strs=[], min_new_tokens=0, custom_params=None,
        )  # fmt: skip
        req = self._sglang.Req(
            str(request.request_id), "", array("q", request.prompt), params, eos_token_ids=None, vocab_size=10**6
        )
        self._live[request.request_id] = req
        scheduler._add_request_to_queue(req)

    def abort(self, request_id: int) -> None:
        raise NotImplementedError("aborts are not compared")

    def step(self, most: int) -> None:
        scheduler = self._scheduler
        waiting = {req.rid for req in scheduler.waiting_queue}
        self._retracted.clear()
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=self._last)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        step = Step({}, [], set(self._retracted))
        if batch:
            step.computed = self._computed(batch)
            step.admitted = [int(req.rid) for req in batch.reqs if req.rid in waiting]
            tokens = [self._token(req, step) for req in batch.reqs]
            self._results.append((batch.copy() if self._options.async_scheduling else batch, tokens, step))
        if self._options.async_scheduling and self._last:
            self._process()
        self._record_state(step, batch)
        if not self._options.async_scheduling and batch:
            self._process()
        self._last = batch
        self.steps.append(step)

    def _computed(self, batch: Any) -> dict[int, tuple[int, int]]:
        if batch.forward_mode.is_decode():
            return {int(req.rid): (req.kv.kv_committed_len - 1, 1) for req in batch.reqs}
        parts = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
        return {int(req.rid): (start, count) for req, start, count in parts}

    def _token(self, req: Any, step: Step) -> int:
        """What a step brings a request; a token of the middle of a prompt, or past the end, is of no use to anybody."""
        outputs = self._case.requests[int(req.rid)].outputs
        index = sum(step.computed[int(req.rid)]) - len(req.origin_input_ids)
        return outputs[index] if 0 <= index < len(outputs) else 1

    def _record_state(self, step: Step, batch: Any) -> None:
        scheduler, cache = self._scheduler, self._scheduler.tree_cache
        running = {req.rid for each in (batch, scheduler.running_batch) if each for req in each.reqs}
        running -= {req.rid for req in scheduler.waiting_queue}
        if scheduler.chunked_req is not None:
            running.add(scheduler.chunked_req.rid)
        step.num_running = len(running & {req.rid for req in self._live.values()})
        step.num_waiting = len(scheduler.waiting_queue)
        num_free = scheduler.token_to_kv_pool_allocator.available_size() + cache.evictable_size()
        step.num_used_blocks = self._options.num_blocks - num_free // self._options.block_size

    def _process(self) -> None:
        batch, tokens, step = self._results.popleft()
        if self._corrected:
            for req, token in zip(batch.reqs, tokens, strict=True):
                if req.is_retracted:
                    req.output_ids.append(token)
        result = Settings(
            next_token_ids=torch.tensor(tokens), copy_done=None, routed_experts_output=None, indexer_topk_output=None,
            auxiliary_host_output=None, logits_output=None, get_num_generated_tokens=int,
        )  # fmt: skip
        processor = self._scheduler.batch_result_processor
        if batch.forward_mode.is_decode():
            processor.process_batch_result_decode(batch, result)
        else:
            processor.process_batch_result_prefill(batch, result)
        step.finished = {number for number, req in self._live.items() if req.finished()}
        for number in step.finished:
            del self._live[number]

    def _make_scheduler(self, sglang: SimpleNamespace, options: SglangOptions, cache_name: str) -> Any:
        size = options.block_size
        make = sglang.TokenToKVPoolAllocator if size == 1 else sglang.PagedTokenToKVPoolAllocator
        sizes = {} if size == 1 else {"page_size": size}
        pool = make(options.num_blocks * size, dtype=None, device="cpu", kvcache=None, need_sort=False, **sizes)
        rows = _Rows(options.max_num_seqs, options.max_model_len + size)
        cache = sglang.caches[cache_name](
            sglang.CacheInitParams(
                disable=not options.enable_prefix_caching,
                req_to_token_pool=rows,
                token_to_kv_pool_allocator=pool,
                page_size=size,
            )  # fmt: skip
        )
        cache.buffer_pipeline = None
        cache.storage_prefetch_retries = None
        scheduler = sglang.Scheduler.__new__(sglang.Scheduler)
        none, false = dict.fromkeys(_ABSENT), dict.fromkeys(_OFF, False)
        quiet = Settings()
        null = "null"
        scheduler.__dict__ |= none | false
        scheduler.__dict__ |= dict(
            waiting_queue=[], running_batch=sglang.ScheduleBatch(reqs=[], batch_is_full=False), result_queue=deque(),
            enable_skip_finishing_decode=options.async_scheduling, enable_overlap=options.async_scheduling,
            tree_cache=cache, token_to_kv_pool_allocator=pool, req_to_token_pool=rows, page_size=size,
            chunked_prefill_size=options.chunked_prefill_size, max_prefill_tokens=options.max_num_batched_tokens,
            is_mixed_chunk=options.enable_mixed_chunk and options.chunked_prefill_size is not None,
            max_running_requests=options.max_num_seqs, max_prefill_bs=0, priority_scheduling_preemption_threshold=0,
            prefill_decode_interval=0, _prefill_decode_interval_remaining=0, processed_tokens_counter=0, forward_ct=0,
            model_config=Settings(is_encoder_decoder=False, vocab_size=10**6), spec_algorithm=_NoSpeculation(),
            disaggregation_mode=null, schedule_policy=options.schedule_policy, device="cpu",
            grammar_manager=Settings(has_waiting_grammars=lambda: False),
            beam_coordinator=Settings(pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set()),
            dp_attn_adapter=SimpleNamespace(
                maybe_prepare_mlp_sync_batch=lambda batch, need_sync: batch,
                maybe_convert_decode_to_extend=lambda batch: batch,
            ),
            ngram_embedding_manager=SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch),
            metrics_reporter=Settings(num_generated_tokens=0, forward_ct_decode=0), load_inquirer=quiet,
            tp_worker=quiet, future_map=quiet,
        )  # fmt: skip
        scheduler._process_hicache_events = scheduler._prefetch_kvcache = lambda *args: None
        scheduler._abort_on_queued_limit = lambda req: False
        add = scheduler._add_request_to_queue

        def note_retraction(req: Any, is_retracted: bool = False) -> None:
            if is_retracted:
                self._retracted.add(int(req.rid))
            add(req, is_retracted)

        scheduler._add_request_to_queue = note_retraction
        scheduler.init_schedule_policy()
        scheduler.batch_result_processor = sglang.SchedulerBatchResultProcessor(
            is_generation=True, disaggregation_mode=null, enable_overlap=options.async_scheduling,
            enable_overlap_mlx=False, model_config=scheduler.model_config, token_to_kv_pool_allocator=pool,
            tree_cache=cache, hisparse_coordinator=None, req_to_token_pool=rows, decode_offload_manager=None,
            metrics_collector=quiet, metrics_reporter=scheduler.metrics_reporter, draft_worker=None, model_worker=quiet,
            logprob_result_processor=quiet, output_streamer=quiet, beam_coordinator=scheduler.beam_coordinator,
            abort_request=quiet,
        )  # fmt: skip
        return scheduler


class _NoSpeculation:
    def is_none(self) -> bool:
        return True
