"""The KV pool of a GPU: what is left beside weights, the activations of the largest step and memory outside of torch.

vLLM sizes its KV pool by running the largest step once: `max_num_batched_tokens` tokens through the layers, then the
logits of `max_num_seqs` sequences through its sampler. It subtracts the peak of torch's allocations and what the
process took outside of torch since it started; the CUDA context, which is older, is not among it.

    layers     per token: the residual, attention's output, the normed hidden state, and the larger of the MLP's gate,
               up and product or attention's query, key, value and output
    sampler    the hidden states of the step, and per logit: the LM head's output in the model's dtype, and copies in
               float32. Since vLLM 0.17: the logits, their probabilities, random numbers, and a row for each
               multiprocessor. Before: the logits, sorted values, their indices of 64 bits, and scratch of the sort
    experts    Triton's buffers for all routed tokens, kept for all steps since vLLM 0.17: two of the largest rows
    library    cuBLAS's workspace and small inputs
    weights    as torch's caching allocator counts them (`held_weights`)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.device import Device
from simulator.models.experts import Experts
from simulator.models.held_weights import padding_bytes, unsplit_bytes, weights_held
from simulator.models.kv_pool import GIB, KVPool, blocks_in
from simulator.models.model import Model

EARLY = "vllm_v0"  # the account of an early vLLM, `early_activation_bytes`
TRTLLM = "trtllm"  # TensorRT-LLM's: a share of what weights and the largest step leave
SGLANG = "sglang"  # the account of SGLang, which keeps activations and CUDA graphs out of its share
_MIB = 1 << 20
_ASSUMED_MULTIPROCESSORS = 128  # of a GPU whose description does not say
_NVLINK_BANDWIDTH = 150e9  # bytes/s, one direction: links of at least this are NVLink's
# What SGLang's process holds before it loads weights: a CUDA context (assumed), and NCCL's buffers on NVLink (H200, 8
# ranks: 137.3 GiB were left, sgl-project/sglang pull request 11716).
_SGLANG_CONTEXT_BYTES, _SGLANG_NVLINK_BYTES = 512 * _MIB, 2048 * _MIB
# Of CUDA graphs, fitted to the estimates that vLLM 0.19 logged for 44 servers on H100 (experiments/kv_pool).
_FIRST_GRAPH_BYTES, _GRAPH_LAYER_BYTES = 112 * _MIB, _MIB // 5


class DeviceTooSmallError(ValueError):
    """The model leaves no room for a single KV block."""


@dataclass(frozen=True)
class MemoryAccount:
    """How a range of versions of vLLM accounts for memory beside weights and KV blocks.

    Attributes:
        name: as in the configuration, `engine.memory_account=<name>`.
        sampler_bytes: per logit, beside the LM head's output.
        row_per_multiprocessor: whether the sampler has a float32 row of logits for each multiprocessor.
        keeps_expert_buffers: whether the experts' buffers exist while the sampler runs.
        library_bytes: cuBLAS's workspace and small inputs.
        outside_bytes: memory outside of torch on a single GPU: kernels that were loaded, allocator slack.
        nvlink_bytes: more of it with several GPUs on NVLink: buffers of NCCL and of direct all-reduces.
        counts_graphs: whether an estimate of the CUDA graphs' memory is set apart, by default since 0.20.
        pads_inputs: whether experts in MXFP4 are padded in both directions, not in their own width only.
    """

    name: str
    sampler_bytes: int
    row_per_multiprocessor: bool
    keeps_expert_buffers: bool
    library_bytes: int
    outside_bytes: int
    nvlink_bytes: int
    counts_graphs: bool
    pads_inputs: bool

    def held_outside(self, device: Device, tensor_parallel_size: int) -> int:
        """Bytes outside of torch on one rank."""
        has_nvlink = tensor_parallel_size > 1 and device.link_bandwidth >= _NVLINK_BANDWIDTH
        return self.outside_bytes + (self.nvlink_bytes if has_nvlink else 0)

    def graph_bytes(self, model: Model, device: Device, num_graphs: int, tensor_parallel_size: int) -> int:
        """vLLM's estimate of what `num_graphs` CUDA graphs take: the largest, and what each other adds."""
        if not (self.counts_graphs and num_graphs):
            return 0
        # Of more than two GPUs without NVLink vLLM reduces by NCCL, whose kernels hold as much as all others.
        by_nccl = tensor_parallel_size > 2 and device.link_bandwidth < _NVLINK_BANDWIDTH
        per_graph = model.num_layers * _GRAPH_LAYER_BYTES * (2 if by_nccl else 1)
        return _FIRST_GRAPH_BYTES + (num_graphs - 1) * per_graph

    def activation_bytes(
        self,
        model: Model,
        device: Device,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        tensor_parallel_size: int,
    ) -> int:
        """Peak of torch's allocations beside the weights, on one rank, in the largest step."""
        tokens, routing = max_num_batched_tokens, model.first(Experts)
        experts = routing.buffer_bytes(model, tokens, tensor_parallel_size) if routing else 0
        hidden = tokens * model.hidden_size * model.dtype_bytes
        layers = 3 * hidden + tokens * _widest(model, tensor_parallel_size) * model.dtype_bytes + experts
        sampled = min(max_num_seqs, tokens)
        sampler = hidden + sampled * model.vocab_size * (model.dtype_bytes + self.sampler_bytes)
        if self.row_per_multiprocessor:
            sampler += (device.multiprocessors or _ASSUMED_MULTIPROCESSORS) * model.vocab_size * 4
        if self.keeps_expert_buffers:
            sampler += experts
        return max(layers, sampler) + self.library_bytes


# The bytes outside of torch are fitted to Llama-3.1-8B on one and two H100 (experiments/kv_pool); the bytes per logit
# follow from vLLM's sampler, the library's from the workspace that torch gives cuBLAS on Hopper and what was left.
ACCOUNTS = {
    account.name: account
    for account in (
        MemoryAccount("vllm", 12, True, True, 46 * _MIB, 256 * _MIB, 1856 * _MIB, True, True),
        MemoryAccount("vllm_0.17", 12, True, True, 46 * _MIB, 256 * _MIB, 1856 * _MIB, False, True),
        MemoryAccount("vllm_0.9", 36, False, False, 46 * _MIB, 128 * _MIB, 432 * _MIB, False, False),
    )
}


def early_activation_bytes(
    model: Model, max_num_batched_tokens: int, max_num_seqs: int, tensor_parallel_size: int
) -> int:
    """Peak of the tensors of the largest step on one rank, as an early vLLM (before V1) accounted for it.

    Per token: the residual and the hidden state, the embeddings of tokens and positions where positions are learned
    (they stay while the layers run), and the larger of the MLP's gate, up and product or attention's query, key, value
    and output. Or, if they take more, the logits of all sequences in float32, twice (raw and scaled).
    """
    experts = model.first(Experts)
    routed = 3 * experts.intermediate_size * experts.num_used // tensor_parallel_size if experts else 0
    hidden_states = 4 if model.learned_positions else 2
    per_token = hidden_states * model.hidden_size + max(routed, _widest(model, tensor_parallel_size))
    logits = 2 * max_num_seqs * model.vocab_size * 4
    return max(max_num_batched_tokens * per_token * model.dtype_bytes, logits)


def size_kv_pool(
    model: Model,
    device: Device,
    *,
    block_size: int,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    memory_account: str = "vllm",
    num_graphs: int = 0,
    drafter: Model | None = None,
    shares_states: bool = False,
) -> KVPool:
    """The KV blocks that fit on one rank beside what an engine holds otherwise, by a `memory_account` of its version.

    If some layers have a sliding window and others none, they are counted as vLLM's hybrid KV-cache manager holds them:
    in a layer with a window each running sequence holds its window and a partial block, and the prompt chunks of a step
    as much more as they compute. That is set apart here for `max_num_seqs` sequences, where vLLM hands out blocks as
    needed, so that the pool is rather too small. If whole contexts in all layers leave more blocks, they are counted.
    What was computed of a cached prefix in layers with a window stays in the pool, beside the rest (`cached_size`).
    With `shares_states` a sequence that keeps a state holds blocks for it, as in vLLM; else the states of
    `max_num_seqs` sequences are set apart.

    With SGLang's account `gpu_memory_utilization` is its `mem_fraction_static`: the share of weights and KV pool in the
    memory that is free before the weights are loaded. With TensorRT-LLM's it is `free_gpu_memory_fraction`: the share
    of the KV pool in the memory that weights, the activations of the largest step and memory outside of torch leave.

    A `drafter` has weights beside the model's, and a share in each block for its own KV; its activations are smaller
    than the model's and share their memory. `num_graphs` CUDA graphs are captured, 0 with `--enforce-eager`.

    Raises:
        DeviceTooSmallError: not even one block fits.
    """
    usable = int(device.memory_bytes * gpu_memory_utilization)
    weights = weights_held(model, drafter, tensor_parallel_size)
    if memory_account == EARLY:
        activations = early_activation_bytes(model, max_num_batched_tokens, max_num_seqs, tensor_parallel_size)
        outside = 0
    else:
        weights += model.rotary_table_bytes + unsplit_bytes(model, tensor_parallel_size)
    if memory_account == SGLANG:
        activations, outside = 0, round(gpu_memory_utilization * _held_by_sglang(device, tensor_parallel_size))
    elif memory_account != EARLY:
        account = ACCOUNTS["vllm_0.17" if memory_account == TRTLLM else memory_account]
        step = (max_num_batched_tokens, max_num_seqs, tensor_parallel_size)
        weights += padding_bytes(model, tensor_parallel_size, both=account.pads_inputs)
        activations = account.activation_bytes(model, device, *step)
        outside = account.held_outside(device, tensor_parallel_size)
        outside += account.graph_bytes(model, device, num_graphs, tensor_parallel_size)
    free = usable - weights - activations - outside
    if memory_account == TRTLLM:
        free = round((device.memory_bytes - weights - activations - outside) * gpu_memory_utilization)
    found = blocks_in(
        free, model, drafter, block_size, tensor_parallel_size, max_num_batched_tokens, max_num_seqs,
        shares_states=shares_states,
    )  # fmt: skip
    if found.num_blocks < 1 + found.state_blocks:
        raise DeviceTooSmallError(
            f"{model.name} does not fit on {device.name} with tensor_parallel_size={tensor_parallel_size}: "
            f"weights {weights / GIB:.1f} GiB and activations {(activations + outside) / GIB:.1f} GiB leave no KV "
            f"block of {found.block_bytes / GIB:.3f} GiB in {usable / GIB:.1f} usable GiB; use a larger device, more "
            "ranks, a smaller model or a smaller block_size"
            + (
                f", or max_num_seqs below {max_num_seqs}, for each of which it keeps a state"
                if found.window_bytes and model.state_bytes()
                else ""
            )
        )
    return replace(
        found, usable_bytes=usable, weight_bytes=weights, activation_bytes=activations, outside_bytes=outside
    )


def _held_by_sglang(device: Device, tensor_parallel_size: int) -> int:
    has_nvlink = tensor_parallel_size > 1 and device.link_bandwidth >= _NVLINK_BANDWIDTH
    return _SGLANG_CONTEXT_BYTES + (_SGLANG_NVLINK_BYTES if has_nvlink else 0)


def fill_kv_pool(
    model: Model,
    device: Device,
    kv_bytes: int,
    *,
    block_size: int,
    tensor_parallel_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    drafter: Model | None = None,
    shares_states: bool = False,
) -> KVPool:
    """The KV blocks of one rank in `kv_bytes`, whatever else the device holds; with windows as in `size_kv_pool`.

    Raises:
        DeviceTooSmallError: not even one block fits in them, or the device cannot hold the weights and them.
    """
    found = blocks_in(
        kv_bytes, model, drafter, block_size, tensor_parallel_size, max_num_batched_tokens, max_num_seqs,
        shares_states=shares_states,
    )  # fmt: skip
    weights = weights_held(model, drafter, tensor_parallel_size)
    if found.num_blocks < 1 + found.state_blocks:
        raise DeviceTooSmallError(f"{kv_bytes:,} bytes hold no KV block of {found.block_bytes:,} bytes")
    if weights + kv_bytes > device.memory_bytes:
        raise DeviceTooSmallError(
            f"{kv_bytes:,} bytes and the weights of {model.name}, {weights:,} bytes, are more than its memory"
        )
    return replace(found, usable_bytes=kv_bytes)


def _widest(model: Model, ranks: int) -> int:
    """Elements per token of the block that has most at once; experts have buffers of their own."""
    return max(block.width(ranks) for _, block in model.blocks)
