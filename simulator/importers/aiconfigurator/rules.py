"""What the database does not hold, priced by rules.

Elementwise kernels (norms, rotary, activation, KV store) move bytes: each takes a fixed time plus its bytes over the
memory bandwidth. Both constants, 3 us and 0.8 of the datasheet's bandwidth, are those that aiconfigurator uses for such
kernels on all systems (`mem_empirical_constant_latency`, `mem_bw_empirical_scaling_factor` of `systems/<system>.yaml`).

The host's share of a step is what the GPU waits for: sampling parameters, the sampler's small kernels, outputs, and in
steps without a CUDA graph the launches of each layer. `HOST` was fitted to the runs of Llama-3.1-70B FP8 on H100 that
InferenceX measured (`python -m experiments.inferencex.fit`), and is the same for all systems and models. Its
`synchronous_` times, of servers without asynchronous scheduling, were fitted to runs of Qwen3-32B on two H100.

The server of the Llama runs (vLLM 0.10.2) launched attention between pieces of CUDA graphs (`step_us`). Since
0.11 (pull request 25444) one graph is a whole decode step, and asynchronous scheduling, the default since 0.14,
prepares it while the step before it runs: the GPU then waits for nothing. Profiles are of such servers, with or without
asynchronous scheduling.

Experts that all tokens use run on a stream of their own beside the others in steps of up to 256 tokens, and are shorter
(`VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD` of vLLM's envs.py).

Large matrix products run at the power limit of a GPU. The database timed few at a time, with weights that are all 0.01
(FP8) or not initialised (16 bits; its collector `collect_gemm.py`). Such data switch fewer transistors, so that clocks
stay high: 295 TFLOPS with zeros, 257 with random numbers (https://www.thonking.ai/p/strangely-matrix-multiplications).
Products in 16 bits that the same database timed for SGLang, with random weights, take 6 to 10 % longer on H100, H200
and B200. So what a product takes beyond that of one token is `SUSTAINED` times as long, fitted as the host's times are.

TensorRT-LLM's operators were timed otherwise (collector/trtllm of ai-dynamo/aiconfigurator): products with random
weights and inputs, so that `SUSTAINED` is no factor of theirs; attention with the rotary embedding and the KV store,
which are not counted again. Its products in FP8 contain the search for a scale and the quantisation of the input.
Checkpoints with static scales need neither: its norms, its activation and its attention write FP8 themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve
from simulator.models.block import Block
from simulator.models.latent import Latent
from simulator.models.linear_state import GatedDeltaNet
from simulator.models.model import Model

LOGIT_BYTES = 4
SUSTAINED = 1.1
SGLANG, TRTLLM = "sglang", "trtllm"
_BESIDE, _NOTHING_US = 256, 1e-3


class Host(NamedTuple):
    """Time in us that the host adds to a step.

    Attributes:
        step_us: to every step whose attention is launched between pieces of CUDA graphs.
        eager_layer_us: for the launches of a layer, where no CUDA graph serves the step. The GPU waits for them if its
            kernels are shorter: a step takes at least this for each layer.
        synchronous_step_us, synchronous_sequence_us: for every step and for each sequence that decodes in
            it, where the next step is planned after a step has ended (vLLM without asynchronous scheduling).
    """

    step_us: float
    eager_layer_us: float
    synchronous_step_us: float
    synchronous_sequence_us: float


HOST = Host(step_us=800.0, eager_layer_us=700.0, synchronous_step_us=0.0, synchronous_sequence_us=38.0)


class MemoryRule(NamedTuple):
    """Kernels that move bytes: `fixed_us` each, and `us_per_byte`."""

    fixed_us: float
    us_per_byte: float

    def time_us(self, num_kernels: float, num_bytes: float) -> float:
        return num_kernels * self.fixed_us + num_bytes * self.us_per_byte


# By backend: the kind of attention of models whose launches were seen, and the time of a layer.
_LAUNCHED: dict[str, tuple[type[Block], float]] = {TRTLLM: (Latent, 1800.0), SGLANG: (GatedDeltaNet, 1800.0)}


def eager_layer_us(backend: str, model: Model) -> float:
    """`Host.eager_layer_us` of a backend: what single prompts leave for it whose kernels take far less, without the
    server's front end as it is priced here.

    TensorRT-LLM, latent attention: its issue 5929 (July 2025, v0.21.0rc2) has the first token of DeepSeek-R1 on eight
    GPUs. It comes after 124, 134 and 165 ms on H200 in FP8, and 160, 161 and 173 ms on B200 in FP4, by how ranks share
    out the experts; 1,600 tokens, front end 15 ms. This is the least of the six, of 61 layers.

    SGLang, gated delta nets: its pull request 13081 (November 2025) has the first token of Qwen3-Next-80B on two H200
    without graphs for prompts: 99 ms with 1,024 tokens, 102 with 2,048, front end 13 ms. 48 layers.
    """
    kind, time_us = _LAUNCHED.get(backend, (None, 0.0))
    return time_us if kind is not None and model.first(kind) else HOST.eager_layer_us


def memory_rule(rates: Mapping[str, float]) -> MemoryRule:
    """The rule of a system, from its description."""
    bandwidth = rates["mem_bw"] * rates["mem_bw_empirical_scaling_factor"]
    return MemoryRule(1e6 * rates["mem_empirical_constant_latency"], 1e6 / bandwidth)


def elementwise_work(model: Model, tensor_parallel_size: int, backend: str) -> tuple[float, float]:
    """Kernels of a layer that only move bytes, and bytes per token on one rank: the mean of all layers."""
    kernels = [(count, block.small_kernels(model, tensor_parallel_size)) for count, block in model.blocks]
    if backend == TRTLLM:
        kernels += [
            (-count, block.kernels_with_attention(model, tensor_parallel_size)) for count, block in model.blocks
        ]
    num_kernels = sum(count * each.num_kernels for count, each in kernels)
    return num_kernels / model.num_layers, sum(count * each.num_bytes for count, each in kernels) / model.num_layers


def beside_experts(curve: MeasuredCurve) -> MeasuredCurve:
    """The time that products of shared experts add to a layer's routed experts."""
    sizes = np.union1d(curve.sizes, [_BESIDE, _BESIDE + 1.0])
    return MeasuredCurve(sizes, np.where(sizes <= _BESIDE, _NOTHING_US, curve.at(sizes)))


def sampler_bytes(model: Model) -> float:
    """Bytes per sequence of sampling: logits are cast to float32, read for the largest one, and read once more."""
    return model.vocab_size * (model.dtype_bytes + 3 * LOGIT_BYTES)
