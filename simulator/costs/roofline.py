"""Step times of hardware that nobody profiled: each operator takes the longer of its bytes and its FLOPs.

Operators run one after the other, so their times add up (Williams, Waterman and Patterson, "Roofline", CACM 2009,
applied per operator). With the rates scaled by the device's efficiency factors:

    linear layer      max(weight bytes / bandwidth, 2·tokens·parameters / flops); both by the format of the weights
    quantisation      of a linear layer's input, where the format has one: bytes read and written / bandwidth
    mixture of experts  weights of the experts that are hit, E·(1 - (1 - k/E)^tokens) of E in expectation
    decode attention  max(KV bytes of the contexts / bandwidth, 4·context·heads·head_dim·tokens per decode / flops);
                      beside prompts the bytes count as often as they are read (`Model.kv_reads`)
    prefill attention the same, with chunk·start + chunk·(chunk+1)/2 pairs and the chunk's whole context read once
    sliding window    tokens count up to the window: for chunks exactly, for decodes by min(mean context, window), which
                      is too many where some contexts are shorter than the window and others longer
    latent attention  decodes multiply with the vectors of a context as they are, prompts with keys and values of it
    sparse attention  the indexer reads all keys, attention as many tokens as it picks
    states            read and written once by a decode and by a chunk; a chunk takes at least its operations
    elementwise       norms, rotary, activation, KV store: bytes / bandwidth
    all-reduce        2 per layer and 1 of the embedding: latency + 2·(TP-1)/TP·bytes / link bandwidth (ring)
    step              the host's overhead

A decode computes one token, or with speculation several: all of them pass through the linear layers, the LM head and
the sampler, and all of them attend to the context, whose KV is read once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.core.work import StepWork
from simulator.costs.cost import FEW_STEPS, step_time_ns
from simulator.costs.known_times import KnownTimes
from simulator.decode_run import Durations
from simulator.device import Device
from simulator.models.block import Block, Weights, num_hit
from simulator.models.model import Model
from simulator.models.weight_formats import NONE, Arithmetic, Quantization

_NS = 1e9


class _Matrix(NamedTuple):
    """Weight matrices of one size: operations per token and bytes of one, how many there are and how many of them a
    token uses, operations/ns of products with them, and ns to quantise the input of one token."""

    operations: int
    num_bytes: float
    copies: int
    used: float
    flops_per_ns: float
    input_ns: float


class _Reading(NamedTuple):
    """Attention in all blocks of a kind: ns to read a token of a context, ns to multiply a token of a decode and one of
    a prompt with one of its context, and the tokens that are attended to at most, 0 for all."""

    token_ns: float
    pair_ns: float
    prompt_pair_ns: float
    window: int

    def decode_ns(self, tokens_per_decode: int, reads: float = 1.0) -> float:
        """Attention to one token of a context by `tokens_per_decode` tokens, whose KV is read so often."""
        return max(tokens_per_decode * self.pair_ns, reads * self.token_ns)

    def windowed_chunk_ns(self, start: int, chunk: int) -> float:
        """Prefill attention of a chunk: token i of a prompt attends to min(i, window) tokens."""
        growing = min(max(self.window - start, 0), chunk)  # tokens that attend to all before them
        pairs = growing * start + growing * (growing + 1) / 2 + (chunk - growing) * self.window
        return max(self.prompt_pair_ns * pairs, self.token_ns * min(start + chunk, self.window + chunk))


class RooflineCost:
    """Cost model of `model` on `tensor_parallel_size` devices of one kind.

    Raises:
        UnsupportedQuantizationError: the device has no arithmetic for the model's weights.
    """

    def __init__(self, model: Model, device: Device, tensor_parallel_size: int = 1) -> None:
        self._model = model
        self._device = device
        self._tp = tensor_parallel_size
        self._bytes_per_ns: float = device.memory_bandwidth * device.memory_efficiency / _NS
        self._blocks = [
            (count, [self._matrix(weights) for weights in block.matrices(model, self._tp)], self._moved_ns(block))
            for count, block in model.blocks
        ]
        experts = ((count, each) for count, each in model.matrices(self._tp) if each.part == "experts")
        self._experts = [(count, self._matrix(each)) for count, each in experts]
        self._lm_head = self._matrix(Weights("lm_head", "lm_head", model.vocab_size // self._tp, model.hidden_size))
        self._link_bytes_per_ns: float = device.link_bandwidth / _NS
        self._link_latency_ns: float = device.link_latency_s * _NS
        self._overhead_ns: float = device.step_overhead_s * _NS
        self._flops_per_ns: float = self._products(NONE).flops * device.flops_efficiency / _NS
        readings = self._readings()
        self._readings_of_all = [each for each in readings if not each.window]
        self._windowed = [each for each in readings if each.window]
        self._kv_reads: float = model.kv_reads(device, tensor_parallel_size)
        operations = sum(count * block.state_operations(self._tp) for count, block in model.blocks)
        self._state_token_ns: float = operations / self._flops_per_ns
        self._state_ns: float = 2 * model.state_bytes(self._tp) / self._bytes_per_ns  # to read and to write it
        self._layers_ns = KnownTimes()
        self._head_ns = KnownTimes()
        self._decode_base_ns = KnownTimes()
        self._growing: dict[int, float] = {}  # what `_growing_ns` has answered for steps without prompts
        self._growing_beside: dict[int, float] = {}  # and with prompts

    def step_ns(self, work: StepWork) -> int:
        chunks, num_decodes, num_contexts = work.chunks, work.num_decodes, work.num_context_tokens
        per_decode = work.tokens_per_decode
        num_tokens = num_decodes * per_decode
        decoding = num_contexts * self._growing_ns(per_decode, beside_prompts=bool(chunks))
        if self._windowed:
            reads = self._kv_reads if chunks else 1.0
            for reading in self._windowed:
                attended = min(num_contexts, num_decodes * reading.window)
                decoding += attended * reading.decode_ns(per_decode, reads)
        if not chunks:
            return step_time_ns((self._decode_base_ns.get(num_tokens) or self._decode_base(num_tokens)) + decoding)
        num_sampled, total = num_tokens, self._overhead_ns + decoding + num_tokens * self._state_ns
        for each in chunks:
            start, chunk = each.start, each.num_tokens
            num_tokens += chunk
            num_sampled += each.is_last
            pairs = chunk * start + chunk * (chunk + 1) / 2
            for token_ns, _, pair_ns, _ in self._readings_of_all:
                multiplying, read = pair_ns * pairs, token_ns * (start + chunk)
                total += multiplying if multiplying > read else read
            for reading in self._windowed:
                total += reading.windowed_chunk_ns(start, chunk)
            if self._state_ns:
                total += max(self._state_ns, self._state_token_ns * chunk)
        return step_time_ns(total + self._layers(num_tokens) + self._head(num_sampled))

    def decode_ns(self, work: StepWork, num_steps: int) -> Durations:
        per_decode, num_decodes = work.tokens_per_decode, work.num_decodes
        growing_ns, base = self._growing_ns(per_decode), self._decode_base(num_decodes * per_decode)
        if num_steps <= FEW_STEPS and work.later_contexts is None and not self._windowed:
            few: list[int] = []
            total = work.num_context_tokens
            for _ in range(num_steps):
                few.append(step_time_ns(base + growing_ns * total))
                total += num_decodes
            return few
        contexts = work.contexts(num_steps)
        attention = growing_ns * contexts
        for reading in self._windowed:
            attention += np.minimum(contexts, num_decodes * reading.window) * reading.decode_ns(per_decode)
        times = np.rint(base + attention)
        return (times if base >= 1 else np.maximum(times, 1)).astype(np.int64)

    def _readings(self) -> list[_Reading]:
        readings = []
        for count, block in self._model.blocks:
            for token_bytes, operations, window, in_prompts in block.scans(self._model, self._tp):
                pair_ns = count * operations / self._flops_per_ns
                prompt_pair_ns = pair_ns if in_prompts is None else count * in_prompts / self._flops_per_ns
                readings.append(_Reading(count * token_bytes / self._bytes_per_ns, pair_ns, prompt_pair_ns, window))
        return readings

    def _growing_ns(self, tokens_per_decode: int, *, beside_prompts: bool = False) -> float:
        """Decode attention to one token of a context by `tokens_per_decode` tokens, where nothing is out of sight."""
        known = self._growing_beside if beside_prompts else self._growing
        time = known.get(tokens_per_decode)
        if time is None:
            reads = self._kv_reads if beside_prompts else 1.0
            time = sum([reading.decode_ns(tokens_per_decode, reads) for reading in self._readings_of_all], 0.0)
            known[tokens_per_decode] = time
        return time

    def _decode_base(self, num_tokens: int) -> float:
        """All but attention of a step of decodes that compute `num_tokens` tokens."""
        base = self._decode_base_ns.get(num_tokens)
        if not base:
            base = self._overhead_ns + self._layers(num_tokens) + self._head(num_tokens) + num_tokens * self._state_ns
            self._decode_base_ns.keep(num_tokens, base)
        return base

    def _layers(self, num_tokens: int) -> float:
        """All blocks but attention itself, for `num_tokens` tokens."""
        time = self._layers_ns.get(num_tokens)
        if not time:
            time = all_reduce = self._all_reduce(num_tokens)
            for count, matrices, moved_ns in self._blocks:
                block = sum([self._linear(matrix, num_tokens) for matrix in matrices])
                time += count * (block + moved_ns * num_tokens + all_reduce)
            self._layers_ns.keep(num_tokens, time)
        return time

    def _head(self, num_sampled: int) -> float:
        """LM head of `num_sampled` tokens, and sampling over its float32 logits."""
        if num_sampled == 0:
            return 0.0
        time = self._head_ns.get(num_sampled)
        if not time:
            model = self._model
            logits_bytes = 3 * 4 * num_sampled * model.vocab_size / self._tp
            time = self._linear(self._lm_head, num_sampled)
            time += logits_bytes / self._bytes_per_ns
            self._head_ns.keep(num_sampled, time)
        return time

    def _products(self, quantization: Quantization) -> Arithmetic:
        return quantization.products(self._model.dtype, self._device.flops, self._device.name)

    def _matrix(self, weights: Weights) -> _Matrix:
        quantization, dtype_bytes = self._model.format_of(weights.part), self._model.dtype_bytes
        flops, input_bytes = self._products(quantization)
        quantising = weights.columns * (dtype_bytes + input_bytes) / self._bytes_per_ns if input_bytes else 0.0
        return _Matrix(
            2 * weights.rows * weights.columns,
            quantization.matrix_bytes(weights.rows, weights.columns, dtype_bytes),
            weights.copies,
            weights.used,
            flops * self._device.flops_efficiency / _NS,
            quantising,
        )

    def experts_ns(self, num_tokens: int) -> float:
        """The experts of all layers on one rank, for `num_tokens` tokens. Where ranks share out whole experts, the
        experts of each get as many of them."""
        return sum(count * self._linear(matrix, num_tokens) for count, matrix in self._experts)

    def _linear(self, matrix: _Matrix, num_tokens: int) -> float:
        """Products of `num_tokens` tokens; those with experts read the weights of the experts that are hit."""
        operations, num_bytes, copies, used, flops_per_ns, input_ns = matrix
        hit = num_hit(copies, used, num_tokens)
        num_products = num_tokens * used
        return max(hit * num_bytes / self._bytes_per_ns, operations * num_products / flops_per_ns) + (
            num_products * input_ns
        )

    def _moved_ns(self, block: Block) -> float:
        """ns per token of kernels that only move bytes: a fused norm (reads and writes hidden state and residual) and
        those of the kind."""
        elements = 4 * self._model.hidden_size + block.num_elements(self._model, self._tp)
        return elements * self._model.dtype_bytes / self._bytes_per_ns

    def _all_reduce(self, num_tokens: int) -> float:
        if self._tp == 1:
            return 0.0
        moved = 2 * (self._tp - 1) / self._tp * num_tokens * self._model.hidden_size * self._model.dtype_bytes
        return self._link_latency_ns + moved / self._link_bytes_per_ns
