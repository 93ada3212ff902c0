"""One rank's execution of steps on tensors: model, KV cache, decode rows and sampling."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.runner.cache.block_transfers import BlockTransfers, side_stream
from engine.runner.graphs.cuda_graphs import Capture, DecodeGraphs, bucket_for
from engine.runner.graphs.piece_graphs import PieceGraphs
from engine.runner.inputs.chunk_inputs import PrefillInputs
from engine.runner.inputs.decode_state import DecodeState
from engine.runner.inputs.sampling_inputs import Adjustments
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.staging import Staging, TokenBuffer, as_arrays, to_host
from engine.runner.step_timer import StepTimer
from engine.runner.step_tokens import StepTokens
from engine.runner.warm_up import warm_attention
from kernels.attention.metadata import AttentionMetadata, empty_prefill
from kernels.decode_step import begin_decode, end_decode
from kernels.sampling.logit_edits import RowLogprobs, edit_logits, token_logprobs
from kernels.sampling.sampler import sample

_SCORED_ROWS = 64


class ModelRunner:
    """Executes step inputs with `model` on `kv_cache`, [layers, 2, blocks, block_size, kv_heads, head_dim].

    Args:
        max_num_seqs: most decode rows.
        max_model_len: most tokens of a sequence.
        max_steps: most decode steps of a plan.
        capture: captures steps (`engine.runner.graphs.cuda_graphs`); None runs every step eagerly.
        tp: the rank and its group.
        num_host_blocks: blocks of host memory that blocks of the cache can be copied to.
        tokens_per_decode: most tokens that a step samples for a decode.
        max_piece_tokens: most tokens of a step that runs in pieces (`engine.runner.graphs.piece_graphs`); 0 for none.
    """

    def __init__(
        self,
        model: CausalLM,
        kv_cache: Tensor,
        max_num_seqs: int,
        max_model_len: int,
        max_steps: int,
        capture: Capture | None,
        tp: TensorParallel,
        num_host_blocks: int = 0,
        tokens_per_decode: int = 1,
        max_piece_tokens: int = 0,
    ) -> None:
        self._tp = tp
        self._model = model
        self._kv_cache = kv_cache
        self._device = kv_cache.device
        self._block_size = kv_cache.shape[3]
        self._state = DecodeState(max_num_seqs, -(-max_model_len // self._block_size), self._device)
        self._max_model_len = max_model_len
        self._staging = Staging(self._device)
        self._transfers = BlockTransfers(kv_cache, num_host_blocks, side_stream(self._device))
        self._tokens = TokenBuffer(max_steps, max_num_seqs * tokens_per_decode, self._device)
        self._timer = StepTimer(self._device)
        self._padding_rows = torch.zeros(max_num_seqs, dtype=torch.int64, device=self._device)
        self._ended_ns = 0  # when the tokens of the last plan had come
        self._no_prefill = empty_prefill(self._device)
        self._logprobs: RowLogprobs | None = None  # of the current plan, as the next one
        self._prompt_logprobs: RowLogprobs | None = None
        self._graphs = self._pieces = None
        if capture is not None:
            self._graphs = DecodeGraphs(self._decode_in_graph, max_num_seqs, capture)
            if max_piece_tokens:
                self._pieces = PieceGraphs(model, kv_cache, max_piece_tokens, capture)

    @property
    def kv_cache(self) -> Tensor:
        """[layers, 2, blocks, block_size, kv_heads, head_dim]"""
        return self._kv_cache

    @torch.no_grad()
    def warm_up(self, max_tokens: int) -> None:
        """Run the attention of prompts of up to `max_tokens` tokens, beside up to `max_num_seqs` decodes, on a GPU:
        no request shall wait until its kernels are compiled or loaded."""
        if self._device.type == "cuda":
            longest = min(max_tokens, self._max_model_len)
            warm_attention(self._model, self._kv_cache, longest, self._max_model_len, self._state.tables.shape[0])

    @torch.no_grad()
    def capture_graphs(self) -> None:
        """Capture a graph without top-k and top-p for every bucket, and all pieces; nothing without a `capture`."""
        if self._graphs is not None:
            self._on_padding_rows(self._graphs.capture_all)
        if self._pieces is not None:
            self._pieces.capture_all()

    @torch.no_grad()
    def graph_bytes(self, free_bytes: Callable[[], int]) -> int:
        """Estimate the device memory that all graphs will take, in bytes; see `estimate_bytes`."""
        total = 0

        def measure() -> None:
            nonlocal total
            total = sum(each.capture_bytes(free_bytes) for each in (self._graphs, self._pieces) if each is not None)

        self._on_padding_rows(measure)
        return total

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan and wait for its tokens."""
        return self.launch(inputs)()

    @torch.no_grad()
    def launch(self, inputs: StepInputs) -> Callable[[], StepTokens]:
        """Launch a plan: copy blocks, change decode rows, then run its steps.

        Returns a function that waits for the tokens. It must be called before the second `launch` after this one.
        """
        on_host, inputs = inputs, self._staging.send(inputs)
        self._state.apply(inputs.rows, self._tokens.prompts)
        self._tokens.rewind()
        self._logprobs = self._prompt_logprobs = None
        started = time.perf_counter_ns()
        waited = self._transfers.launch(on_host.transfers, inputs.transfers)
        num_prompts = self._launch(inputs)
        logprobs, prompt_logprobs = to_host(self._logprobs), to_host(self._prompt_logprobs)
        read_tokens, sampling_ns = self._tokens.fetch(inputs.num_steps), self._timer.take()

        def finish() -> StepTokens:
            tokens = read_tokens()
            sample_ns, transfer_ns = sampling_ns(), self._transfers.poll(waited)
            ended = time.perf_counter_ns()
            execute_ns = max(0, ended - max(started, self._ended_ns) - sample_ns - transfer_ns)
            self._ended_ns = ended
            decoded, prompts = tokens[1:, : inputs.num_decodes], tokens[0, :num_prompts]
            times, scores = (execute_ns, sample_ns, transfer_ns), (as_arrays(logprobs), as_arrays(prompt_logprobs))
            return StepTokens(decoded, prompts, *times, self._transfers.landed, *scores)

        return finish

    def _launch(self, inputs: StepInputs) -> int:
        """Launch the plan's steps; returns the number of samples of the prompts that they complete."""
        n, top_k, top_p = inputs.num_decodes, inputs.uses_top_k, inputs.uses_top_p
        if inputs.prefill is not None:
            return self._mixed_step(inputs, inputs.prefill)
        if not n:
            return 0  # only transfers, or only a wait for them
        if self._graphs is not None and inputs.adjustments is None:
            filtered = top_k or top_p
            if not self._graphs.has(n, filtered):
                self._on_padding_rows(lambda: self._graphs.capture(n, filtered))  # type: ignore[union-attr]
            self._graphs.replay(n, inputs.num_steps, filtered)
            return 0
        for step in range(inputs.num_steps):
            hidden = self._decode_model(n, inputs.max_decode_context + step)
            with self._timer.sampling():
                self._decode_sample(n, hidden, top_k, top_p, inputs.adjustments)
        return 0

    def _on_padding_rows(self, capture: Callable[[], None]) -> None:
        """Call `capture` while all rows are padding, because capturing also runs the steps."""
        with self._state.padding_only():
            capture()
        self._tokens.rewind()

    def _decode_in_graph(self, num_rows: int, filtered: bool) -> None:
        """One decode step of the first `num_rows` rows; nothing in it depends on values on the host."""
        self._decode_sample(num_rows, self._decode_model(num_rows, self._max_model_len), filtered, filtered)

    def _mixed_step(self, inputs: StepInputs, prefill: PrefillInputs) -> int:
        """One step of prompt chunks and all decode rows; returns the number of samples of completed prompts."""
        n, state = inputs.num_decodes, self._state
        positions, decodes = self._decode_metadata(n, inputs.max_decode_context)
        num_tokens = prefill.input_ids.shape[0] + n
        parts = (
            (prefill.input_ids, state.tokens[:n]),
            (prefill.positions, positions),
            (prefill.slot_mapping, decodes.slot_mapping),
        )
        metadata = replace(
            decodes,
            num_prefill_tokens=prefill.input_ids.shape[0],
            cu_seqlens_q=prefill.cu_seqlens,
            prefill_context_lens=prefill.context_lens,
            prefill_block_tables=prefill.block_tables,
            max_seqlen_q=prefill.max_seqlen,
            max_prefill_context=prefill.max_context,
            begins_prompts=prefill.begins_prompts,
        )
        if self._pieces is not None and self._pieces.takes(num_tokens):
            slots = self._pieces.place(*parts, num_tokens)
            hidden = self._pieces.run(num_tokens, replace(metadata, slot_mapping=slots))
        else:
            ids, positions, slots = map(torch.cat, parts)
            hidden = self._model(ids, positions, self._kv_cache, replace(metadata, slot_mapping=slots))
        with self._timer.sampling():
            if inputs.adjustments is not None and inputs.adjustments.prompt_rows.shape[0]:
                self._prompt_logprobs = self._score_prompts(hidden, inputs.adjustments)
            self._mixed_sample(inputs, prefill, hidden)
        return int(prefill.sampled_tokens.shape[0])

    def _mixed_sample(self, inputs: StepInputs, prefill: PrefillInputs, hidden: Tensor) -> None:
        """Sample the tokens of the prompts that the step completes, and one for each decode row."""
        n, state, prompts = inputs.num_decodes, self._state, prefill.sampling
        num_prompts, num_tokens = prefill.sampled_tokens.shape[0], prefill.input_ids.shape[0]
        if num_prompts + n == 0:
            return
        decodes = torch.arange(num_tokens, num_tokens + n, device=self._device)
        padding = self._padding_rows[: self._num_padding_rows(num_prompts + n)]
        rows = torch.cat([prefill.sampled_tokens, decodes, padding])
        sampled = self._draw(
            inputs.adjustments,
            self._model.compute_logits(hidden[rows])[: num_prompts + n],
            torch.cat([prompts.temperature, state.temperature[:n]]),
            torch.cat([prompts.top_k, state.top_k[:n]]) if inputs.uses_top_k else None,
            torch.cat([prompts.top_p, state.top_p[:n]]) if inputs.uses_top_p else None,
            torch.cat([prompts.seeds, state.seeds[:n]]),
            torch.cat([prefill.sampled_positions, state.lengths[:n]]),
        )
        sampled = self._tp.from_rank_0(sampled)
        self._tokens.prompts[:num_prompts] = sampled[:num_prompts]
        self._store_tokens(n, sampled[num_prompts:])

    def _num_padding_rows(self, num_rows: int) -> int:
        """Rows that pad those to sample up to the size of a decode graph: its products are loaded, others take 10 to
        30 ms when they run first."""
        if self._graphs is None or num_rows > self._graphs.buckets[-1]:
            return 0
        return bucket_for(num_rows, self._graphs.buckets) - num_rows

    def _decode_model(self, num_rows: int, max_context: int) -> Tensor:
        """Hidden states of the last tokens of the first `num_rows` rows, whose contexts are at most `max_context`."""
        positions, metadata = self._decode_metadata(num_rows, max_context)
        hidden: Tensor = self._model(self._state.tokens[:num_rows], positions, self._kv_cache, metadata)
        return hidden

    def _decode_metadata(self, num_rows: int, max_context: int) -> tuple[Tensor, AttentionMetadata]:
        """Positions, and attention metadata, of a step that computes the first `num_rows` rows and no prompt chunk."""
        tables = self._state.tables[:num_rows]
        positions, slots, contexts = begin_decode(self._state.lengths[:num_rows], tables, self._block_size)
        metadata = AttentionMetadata(
            slot_mapping=slots,
            decode_context_lens=contexts,
            decode_block_tables=tables[:, : -(-max_context // self._block_size)],
            max_decode_context=max_context,
            **self._no_prefill,  # type: ignore[arg-type]
        )
        return positions, metadata

    def _decode_sample(
        self, num_rows: int, hidden: Tensor, top_k: bool, top_p: bool, adjustments: Adjustments | None = None
    ) -> None:
        state, rows = self._state, slice(0, num_rows)
        sampled = self._draw(
            adjustments,
            self._model.compute_logits(hidden),
            state.temperature[rows],
            state.top_k[rows] if top_k else None,
            state.top_p[rows] if top_p else None,
            state.seeds[rows],
            state.lengths[rows],
        )
        self._store_tokens(num_rows, self._tp.from_rank_0(sampled))

    def _draw(self, adjustments: Adjustments | None, logits: Tensor, temperature: Tensor, *others: Any) -> Tensor:
        """`kernels.sampling.sampler.sample` of the logits, after the adjustments of their rows."""
        if adjustments is None:
            return sample(logits, temperature, *others)
        sampled = sample(edit_logits(logits, temperature, adjustments.edits), temperature, *others)
        rows = adjustments.logprob_rows
        if rows.shape[0]:
            self._logprobs = token_logprobs(logits[rows], sampled[rows], adjustments.num_logprobs)
        return sampled

    def _score_prompts(self, hidden: Tensor, adjustments: Adjustments) -> RowLogprobs:
        """Log probabilities of prompt tokens, a few rows at a time, as the logits of all may not fit into memory."""
        parts = [
            token_logprobs(self._model.compute_logits(hidden[rows]), tokens, adjustments.num_prompt_logprobs)
            for rows, tokens in zip(
                adjustments.prompt_rows.split(_SCORED_ROWS), adjustments.prompt_tokens.split(_SCORED_ROWS), strict=True
            )
        ]
        return RowLogprobs(*map(torch.cat, zip(*parts, strict=True)))

    def _store_tokens(self, num_rows: int, sampled: Tensor) -> None:
        """Store the sampled tokens of the first `num_rows` rows: in the rows, and in the buffer of tokens to fetch."""
        state, tokens = self._state, self._tokens
        end_decode(sampled, state.tokens[:num_rows], state.lengths[:num_rows], tokens.ring, tokens.cursor)
