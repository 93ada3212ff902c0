"""Step times of hardware that nobody profiled: each operator takes the longer of its bytes and its FLOPs.

Operators run one after the other, so their times add up (Williams, Waterman and Patterson, "Roofline", CACM 2009,
applied per operator). With the rates scaled by the device's efficiency factors:

    linear layer      max(weight bytes / bandwidth, 2·tokens·parameters / flops); both by the format of the weights
    quantisation      of a linear layer's input, where the format has one: bytes read and written / bandwidth
    mixture of experts  weights of the experts that are hit, E·(1 - (1 - k/E)^tokens) of E in expectation
    decode attention  max(KV bytes of the contexts / bandwidth, 4·context·heads·head_dim·tokens per decode / flops);
                      beside prompts the bytes count as often as they are read (`ModelShape.kv_reads`)
    prefill attention the same, with chunk·start + chunk·(chunk+1)/2 pairs and the chunk's whole context read once
    sliding window    tokens count up to the window: for chunks exactly, for decodes by min(mean context, window), which
                      is too many where some contexts are shorter than the window and others longer
    elementwise       norms, rotary, activation, KV store: bytes / bandwidth
    all-reduce        2 per layer and 1 of the embedding: latency + 2·(TP-1)/TP·bytes / link bandwidth (ring)
    step              the host's overhead

A decode computes one token, or with speculation several: all of them pass through the linear layers, the LM head and
the sampler, and all of them attend to the context, whose KV is read once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.known_times import KnownTimes
from simulator.models.hardware import Device, ModelShape
from simulator.models.weight_formats import NONE, Quantization

_NS = 1e9


class _Products(NamedTuple):
    """How products with weights of a format are priced: operations/ns, and ns to quantise an element of the input."""

    quantization: Quantization
    flops_per_ns: float
    input_element_ns: float


class _Matrix(NamedTuple):
    """A weight matrix: operations per token, columns, bytes, and how its products are priced, as in `_Products`."""

    operations: int
    num_columns: int
    num_bytes: float
    flops_per_ns: float
    input_element_ns: float


class RooflineCost:
    """Cost model of `model` on `tensor_parallel_size` devices of one kind.

    Raises:
        UnsupportedQuantizationError: the device has no arithmetic for the model's weights.
    """

    def __init__(self, model: ModelShape, device: Device, tensor_parallel_size: int = 1) -> None:
        self._model = model
        self._tp = tensor_parallel_size
        self._bytes_per_ns = device.memory_bandwidth * device.memory_efficiency / _NS
        self._plain = self._products(NONE, device)
        attention, mlp = (self._products(each, device) for each in (model.attention_quantization, model.quantization))
        self._attention = [
            self._matrix(*matrix, attention) for matrix in model.attention_matrices(tensor_parallel_size)
        ]
        self._mlp_matrices = [self._matrix(*matrix, mlp) for matrix in model.mlp_matrices(tensor_parallel_size)]
        self._router = self._matrix(model.num_experts, model.hidden_size, self._plain)
        self._lm_head = self._matrix(model.vocab_size // tensor_parallel_size, model.hidden_size, self._plain)
        self._num_elements = self._elements_per_token()
        self._link_bytes_per_ns = device.link_bandwidth / _NS
        self._link_latency_ns = device.link_latency_s * _NS
        self._overhead_ns = device.step_overhead_s * _NS
        heads = model.num_attention_heads // tensor_parallel_size
        self._pair_ns = model.num_full_layers * 4 * heads * model.head_dim / self._plain.flops_per_ns
        self._kv_token_ns = model.kv_bytes_per_token(tensor_parallel_size, model.num_full_layers) / self._bytes_per_ns
        self._kv_reads = model.kv_reads(device, tensor_parallel_size)
        self._window = model.sliding_window
        self._window_pair_ns = model.num_sliding_layers * 4 * heads * model.head_dim / self._plain.flops_per_ns
        windowed_bytes = model.kv_bytes_per_token(tensor_parallel_size, model.num_sliding_layers)
        self._window_token_ns = windowed_bytes / self._bytes_per_ns
        self._layers_ns = KnownTimes()
        self._head_ns = KnownTimes()
        self._decode_base_ns = KnownTimes()

    def step_ns(self, work: StepWork) -> int:
        per_decode = work.tokens_per_decode
        num_tokens = work.num_decodes * per_decode
        reads = self._kv_reads if work.chunks else 1.0
        decoding = work.num_context_tokens * self._decoding_ns(per_decode, reads)
        if self._window:
            seen = min(work.num_context_tokens, work.num_decodes * self._window)
            decoding += seen * self._windowed_ns(per_decode, reads)
        if not work.chunks:
            return max(1, round((self._decode_base_ns.get(num_tokens) or self._decode_base(num_tokens)) + decoding))
        num_sampled, total = num_tokens, self._overhead_ns + decoding
        pair_ns, kv_token_ns = self._pair_ns, self._kv_token_ns
        for start, chunk, is_last in work.chunks:
            num_tokens += chunk
            num_sampled += is_last
            multiplying = pair_ns * (chunk * start + chunk * (chunk + 1) / 2)
            reading = kv_token_ns * (start + chunk)
            total += multiplying if multiplying > reading else reading
            if self._window:
                total += self._windowed_chunk_ns(start, chunk)
        return max(1, round(total + self._layers(num_tokens) + self._head(num_sampled)))

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        per_decode = work.tokens_per_decode
        contexts = work.contexts(num_steps)
        attention = self._decoding_ns(per_decode) * contexts
        if self._window:
            attention += np.minimum(contexts, work.num_decodes * self._window) * self._windowed_ns(per_decode)
        base = self._decode_base(work.num_decodes * per_decode)
        times = np.rint(base + attention)
        return (times if base >= 1 else np.maximum(times, 1)).astype(np.int64)

    def _decoding_ns(self, tokens_per_decode: int, reads: float = 1.0) -> float:
        """Decode attention to one token of a context by `tokens_per_decode` tokens, whose KV is read so often."""
        return max(tokens_per_decode * self._pair_ns, reads * self._kv_token_ns)

    def _windowed_ns(self, tokens_per_decode: int, reads: float = 1.0) -> float:
        """The same in the layers with a sliding window."""
        return max(tokens_per_decode * self._window_pair_ns, reads * self._window_token_ns)

    def _windowed_chunk_ns(self, start: int, chunk: int) -> float:
        """Prefill attention of a chunk in the layers with a sliding window: token i of a prompt attends to
        min(i, window) tokens."""
        growing = min(max(self._window - start, 0), chunk)  # tokens that attend to all before them
        pairs = growing * start + growing * (growing + 1) / 2 + (chunk - growing) * self._window
        return max(self._window_pair_ns * pairs, self._window_token_ns * min(start + chunk, self._window + chunk))

    def _decode_base(self, num_tokens: int) -> float:
        """All but attention of a step of decodes that compute `num_tokens` tokens."""
        base = self._decode_base_ns.get(num_tokens)
        if not base:
            base = self._overhead_ns + self._layers(num_tokens) + self._head(num_tokens)
            self._decode_base_ns.keep(num_tokens, base)
        return base

    def _layers(self, num_tokens: int) -> float:
        """All layers but attention itself, for `num_tokens` tokens."""
        time = self._layers_ns.get(num_tokens)
        if not time:
            layer = sum([self._linear(matrix, num_tokens) for matrix in self._attention])
            all_reduce = self._all_reduce(num_tokens)
            layer += self._mlp(num_tokens) + self._elementwise(num_tokens) + 2 * all_reduce
            time = self._model.num_layers * layer + all_reduce
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

    def _products(self, quantization: Quantization, device: Device) -> _Products:
        flops, input_bytes = quantization.products(self._model.dtype, device.flops, device.name)
        quantising = (self._model.dtype_bytes + input_bytes) / self._bytes_per_ns if input_bytes else 0.0
        return _Products(quantization, flops * device.flops_efficiency / _NS, quantising)

    def _matrix(self, rows: int, columns: int, products: _Products) -> _Matrix:
        num_bytes = products.quantization.matrix_bytes(rows, columns, self._model.dtype_bytes)
        return _Matrix(2 * rows * columns, columns, num_bytes, products.flops_per_ns, products.input_element_ns)

    def _linear(self, matrix: _Matrix, num_tokens: float, num_matrices: float = 1.0) -> float:
        """`num_matrices` such matrices, each with its share of `num_tokens` tokens."""
        operations, num_columns, num_bytes, flops_per_ns, input_element_ns = matrix
        multiplying = operations * num_tokens / flops_per_ns
        quantising = num_tokens * num_columns * input_element_ns
        return max(num_matrices * num_bytes / self._bytes_per_ns, multiplying) + quantising

    def _mlp(self, num_tokens: int) -> float:
        if not self._model.num_experts:
            return sum([self._linear(matrix, num_tokens) for matrix in self._mlp_matrices])
        return self._linear(self._router, num_tokens) + self._experts(num_tokens)

    def experts_ns(self, num_tokens: int, num_ranks: int = 1) -> float:
        """The experts of all layers, on one of `num_ranks` ranks that share them out and have `num_tokens` tokens
        together, of which the experts of each get as many."""
        return self._model.num_layers * self._experts(num_tokens, num_ranks)

    def _experts(self, num_tokens: int, num_ranks: int = 1) -> float:
        experts, used = self._model.num_experts, self._model.num_experts_per_token
        hit = experts * (1 - (1 - used / experts) ** num_tokens) / num_ranks
        num_products = num_tokens * used / num_ranks
        return sum([self._linear(matrix, num_products, hit) for matrix in self._mlp_matrices])

    def _elementwise(self, num_tokens: int) -> float:
        """Two fused norms (read and write hidden state and residual), rotary, activation and KV store of a layer."""
        return num_tokens * self._num_elements * self._model.dtype_bytes / self._bytes_per_ns

    def _elements_per_token(self) -> float:
        """Elements that these read and write."""
        model = self._model
        kv_heads = model.kv_heads_per_rank(self._tp)
        rotary = 2 * (model.num_attention_heads // self._tp + kv_heads) * model.head_dim
        store = 2 * kv_heads * (model.head_dim + model.kv_row_bytes / model.dtype_bytes)
        width = model.moe_intermediate_size * model.num_experts_per_token or model.intermediate_size
        return 8 * model.hidden_size + rotary + store + 3 * width / self._tp

    def _all_reduce(self, num_tokens: int) -> float:
        if self._tp == 1:
            return 0.0
        moved = 2 * (self._tp - 1) / self._tp * num_tokens * self._model.hidden_size * self._model.dtype_bytes
        return self._link_latency_ns + moved / self._link_bytes_per_ns
