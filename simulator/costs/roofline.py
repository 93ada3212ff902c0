"""Step times of hardware that nobody profiled: each operator takes the longer of its bytes and its FLOPs.

Operators run one after the other, so their times add up (Williams, Waterman and Patterson, "Roofline", CACM 2009,
applied per operator). With the rates scaled by the device's efficiency factors:

    linear layer      max(weight bytes / bandwidth, 2·tokens·parameters / flops)
    mixture of experts  weights of the experts that are hit, E·(1 - (1 - k/E)^tokens) of E in expectation
    decode attention  max(KV bytes of the contexts / bandwidth, 4·context·heads·head_dim / flops)
    prefill attention the same, with chunk·start + chunk·(chunk+1)/2 pairs and the chunk's whole context read once
    elementwise       norms, rotary, activation, KV store: bytes / bandwidth
    all-reduce        2 per layer and 1 of the embedding: latency + 2·(TP-1)/TP·bytes / link bandwidth (ring)
    step              the host's overhead
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import StepPlan
from simulator.hardware import Device, ModelShape

_NS = 1e9


class RooflineCost:
    """Cost model of `model` on `tensor_parallel_size` devices of one kind."""

    prices_scattered = False

    def __init__(self, model: ModelShape, device: Device, tensor_parallel_size: int = 1) -> None:
        self._model = model
        self._tp = tensor_parallel_size
        self._bytes_per_ns = device.memory_bandwidth * device.memory_efficiency / _NS
        self._flops_per_ns = device.flops[model.dtype] * device.flops_efficiency / _NS
        self._link_bytes_per_ns = device.link_bandwidth / _NS
        self._link_latency_ns = device.link_latency_s * _NS
        self._overhead_ns = device.step_overhead_s * _NS
        heads = model.num_attention_heads // tensor_parallel_size
        self._pair_ns = model.num_layers * 4 * heads * model.head_dim / self._flops_per_ns
        self._kv_token_ns = model.kv_bytes_per_token(tensor_parallel_size) / self._bytes_per_ns
        self._decode_token_ns = max(self._pair_ns, self._kv_token_ns)
        self._layers_ns: dict[int, float] = {}
        self._head_ns: dict[int, float] = {}
        self._decode_base_ns: dict[int, float] = {}

    def step_ns(self, plan: StepPlan) -> int:
        num_decodes = plan.num_decodes
        if not plan.prefills:
            return round(self._decode_base(num_decodes) + self._decode_token_ns * plan.num_context_tokens)
        num_tokens = num_decodes
        num_sampled = num_decodes
        total = self._overhead_ns + self._decode_token_ns * plan.num_context_tokens
        for _, start, chunk, is_last in plan.prefills:
            num_tokens += chunk
            num_sampled += is_last
            pairs = chunk * start + chunk * (chunk + 1) / 2
            total += max(self._pair_ns * pairs, self._kv_token_ns * (start + chunk))
        return round(total + self._layers(num_tokens) + self._head(num_sampled))

    def decode_ns(self, plan: StepPlan, num_steps: int) -> NDArray[np.int64]:
        context = plan.num_context_tokens + plan.num_decodes * np.arange(num_steps, dtype=np.int64)
        times = self._decode_base(plan.num_decodes) + self._decode_token_ns * context
        return np.rint(times).astype(np.int64)

    def _decode_base(self, num_decodes: int) -> float:
        """All but attention of a step of `num_decodes` decodes."""
        base = self._decode_base_ns.get(num_decodes)
        if base is None:
            base = self._overhead_ns + self._layers(num_decodes) + self._head(num_decodes)
            self._decode_base_ns[num_decodes] = base
        return base

    def _layers(self, num_tokens: int) -> float:
        """All layers but attention itself, for `num_tokens` tokens."""
        time = self._layers_ns.get(num_tokens)
        if time is None:
            layer = sum(self._linear(size, num_tokens) for size in self._model.attention_parameters(self._tp))
            all_reduce = self._all_reduce(num_tokens)
            layer += self._mlp(num_tokens) + self._elementwise(num_tokens) + 2 * all_reduce
            time = self._layers_ns[num_tokens] = self._model.num_layers * layer + all_reduce
        return time

    def _head(self, num_sequences: int) -> float:
        """LM head and sampling over its float32 logits."""
        if num_sequences == 0:
            return 0.0
        time = self._head_ns.get(num_sequences)
        if time is None:
            model = self._model
            logits_bytes = 3 * 4 * num_sequences * model.vocab_size / self._tp
            time = self._linear(model.hidden_size * model.vocab_size // self._tp, num_sequences)
            time += logits_bytes / self._bytes_per_ns
            self._head_ns[num_sequences] = time
        return time

    def _linear(self, parameters: float, num_tokens: float) -> float:
        weights = parameters * self._model.dtype_bytes / self._bytes_per_ns
        return max(weights, 2 * parameters * num_tokens / self._flops_per_ns)

    def _mlp(self, num_tokens: int) -> float:
        model = self._model
        sizes = [size / self._tp for size in model.mlp_parameters()]
        if not model.num_experts:
            return sum(self._linear(size, num_tokens) for size in sizes)
        experts, used = model.num_experts, model.num_experts_per_token
        hit = experts * (1 - (1 - used / experts) ** num_tokens)
        router = self._linear(model.hidden_size * experts, num_tokens)
        return router + sum(self._linear(hit * size, num_tokens * used / hit) for size in sizes)

    def _elementwise(self, num_tokens: int) -> float:
        """Two fused norms (read and write hidden state and residual), rotary, activation and KV store of a layer."""
        model = self._model
        kv_heads = model.kv_heads_per_rank(self._tp)
        rotary = 2 * (model.num_attention_heads // self._tp + kv_heads) * model.head_dim
        store = 2 * kv_heads * model.head_dim * (1 + model.kv_element_bytes / model.dtype_bytes)
        width = model.moe_intermediate_size * model.num_experts_per_token or model.intermediate_size
        elements = 8 * model.hidden_size + rotary + store + 3 * width / self._tp
        return num_tokens * elements * model.dtype_bytes / self._bytes_per_ns

    def _all_reduce(self, num_tokens: int) -> float:
        if self._tp == 1:
            return 0.0
        moved = 2 * (self._tp - 1) / self._tp * num_tokens * self._model.hidden_size * self._model.dtype_bytes
        return self._link_latency_ns + moved / self._link_bytes_per_ns
