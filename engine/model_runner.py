"""One rank's execution of steps: model, KV cache, decode rows and sampling, tensors only."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.decode_state import DecodeState, SamplingState
from engine.step_inputs import PrefillInputs, StepInputs
from kernels.attention import AttentionMetadata
from kernels.sampler import sample


@dataclass(frozen=True)
class StepTokens:
    """What a plan sampled, and where its time went (ns).

    decode int64[num_steps, num_decodes], columns in row order; prefill int64[s], one per finished prompt.
    """

    decode: NDArray[np.int64]
    prefill: NDArray[np.int64]
    execute_ns: int
    sample_ns: int


class ModelRunner:
    """Executes step inputs with `model` on `kv_cache`, [layers, 2, blocks, block_size, kv_heads, head_dim]."""

    def __init__(self, model: nn.Module, kv_cache: Tensor, max_num_seqs: int, max_model_len: int) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = kv_cache.device
        self._block_size = kv_cache.shape[3]
        self._state = DecodeState(max_num_seqs, -(-max_model_len // self._block_size), self._device)
        self._max_model_len = max_model_len
        self._no_prefill = _empty_prefill(self._device)

    @torch.no_grad()
    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run the plan: copies, changed rows, then its step or steps."""
        if len(inputs.copies):
            source, destination = self._tensor(inputs.copies.T.copy())
            self._kv_cache[:, :, destination] = self._kv_cache[:, :, source]
        self._state.apply(inputs.rows)
        started = time.perf_counter_ns()
        sample_ns = 0
        decoded = torch.empty(inputs.num_steps, inputs.num_decodes, dtype=torch.int64, device=self._device)
        first = torch.empty(0, dtype=torch.int64, device=self._device)
        for step in range(inputs.num_steps):
            first, sample_time = self._step(inputs, decoded[step])
            sample_ns += sample_time
        tokens = decoded.cpu().numpy(), first.cpu().numpy()
        return StepTokens(*tokens, time.perf_counter_ns() - started - sample_ns, sample_ns)

    def _step(self, inputs: StepInputs, decoded: Tensor) -> tuple[Tensor, int]:
        """One step; fills `decoded` and returns the prompts' tokens and the ns that logits and sampling took."""
        state, n, prefill = self._state, inputs.num_decodes, inputs.prefill
        ids, positions, slots = [state.tokens[:n]], [state.lengths[:n] - 1], [self._decode_slots(n)]
        if prefill is not None:
            ids.insert(0, self._tensor(prefill.input_ids))
            positions.insert(0, self._tensor(prefill.positions))
            slots.insert(0, self._tensor(prefill.slot_mapping))
        metadata = self._metadata(prefill, n, _joined(slots))
        hidden = self._model(_joined(ids), _joined(positions), self._kv_cache, metadata)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter_ns()
        first = self._sample(inputs, hidden, decoded)
        state.tokens[:n] = decoded
        state.lengths[:n] += 1
        return first, time.perf_counter_ns() - started

    def _sample(self, inputs: StepInputs, hidden: Tensor, decoded: Tensor) -> Tensor:
        """Sample for the decodes into `decoded`, and for the prompts that are complete."""
        state, n, prefill = self._state, inputs.num_decodes, inputs.prefill
        parameters = [tensor[:n] for tensor in state.sampling.tensors()]
        positions = state.lengths[:n]
        num_prompts = 0
        if prefill is not None:
            num_prompts = len(prefill.sampled_tokens)
            first_decode = len(prefill.input_ids)
            decodes = torch.arange(first_decode, first_decode + n, device=self._device)
            hidden = hidden[torch.cat([self._tensor(prefill.sampled_tokens), decodes])]
            prompts = SamplingState.of(prefill.sampling, self._device).tensors()
            parameters = [torch.cat(pair) for pair in zip(prompts, parameters, strict=True)]
            positions = torch.cat([self._tensor(prefill.sampled_positions), positions])
        if len(hidden) == 0:
            return decoded
        temperature, top_k, top_p, seeds = parameters
        tokens = sample(
            self._model.compute_logits(hidden),
            temperature,
            top_k if inputs.uses_top_k else None,
            top_p if inputs.uses_top_p else None,
            seeds,
            positions,
        )
        decoded.copy_(tokens[num_prompts:])
        return tokens[:num_prompts]

    def _decode_slots(self, n: int) -> Tensor:
        positions = self._state.lengths[:n] - 1
        blocks = self._state.tables[:n].gather(1, (positions // self._block_size).unsqueeze(1)).squeeze(1)
        return blocks.to(torch.int64) * self._block_size + positions % self._block_size

    def _metadata(self, prefill: PrefillInputs | None, n: int, slots: Tensor) -> AttentionMetadata:
        lengths = self._state.lengths[:n]
        bound = int(lengths.max()) if n and self._device.type == "cpu" else self._max_model_len
        num_columns = -(-bound // self._block_size)
        part = _prefill_part(prefill, self._device) if prefill is not None else self._no_prefill
        return AttentionMetadata(
            slot_mapping=slots,
            decode_context_lens=lengths.to(torch.int32),
            decode_block_tables=self._state.tables[:n, :num_columns],
            max_decode_context=bound if n else 0,
            **part,  # type: ignore[arg-type]
        )

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _prefill_part(prefill: PrefillInputs, device: torch.device) -> dict[str, object]:
    """The fields of the attention metadata that describe the prompt chunks."""
    to32 = {
        "cu_seqlens_q": prefill.cu_seqlens,
        "prefill_context_lens": prefill.context_lens,
        "prefill_block_tables": prefill.block_tables,
    }
    tensors = {name: torch.from_numpy(array.astype(np.int32)).to(device) for name, array in to32.items()}
    return tensors | {
        "num_prefill_tokens": len(prefill.input_ids),
        "max_seqlen_q": int(np.diff(prefill.cu_seqlens).max()),
        "max_prefill_context": int(prefill.context_lens.max()),
    }


def _empty_prefill(device: torch.device) -> dict[str, object]:
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    return {
        "cu_seqlens_q": torch.zeros(1, dtype=torch.int32, device=device),
        "prefill_context_lens": empty,
        "prefill_block_tables": empty.reshape(0, 0),
        "num_prefill_tokens": 0,
        "max_seqlen_q": 0,
        "max_prefill_context": 0,
    }
