"""What SGLang 0.5.23 chooses for a server that is not told, by the device, the model and the number of ranks
(`handle_gpu_memory_settings`, `_attention_backend_default` and `resolve_max_num_reqs` of its wheel)."""

from __future__ import annotations

from typing import NamedTuple

_MIB, _GIB = 1 << 20, 1 << 30
# Of the device's memory: less than so many GiB, tokens of a chunk, sequences of the largest CUDA graph with fewer than
# four ranks, and with four or more.
_SIZES = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
_LARGE_GIB = 60  # above, at least `_LEAST_MIB` are kept free
_LEAST_MIB = 10 * 1024
# Tokens of CUDA graphs of prompts: from, to, step.
_PREFILL_GRAPHS = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
_DATACENTER_BLACKWELL = ("B200", "B300")  # and GB200, GB300, whose attention kernels have pages of 64 tokens
MOST_PREFILL_TOKENS = 16384  # --max-prefill-tokens, which bounds the tokens of a step without chunks
MAX_RUNNING_REQUESTS = 2048  # at least; up to 4096 in a pool that holds more than four of the longest contexts
# Tokens of a page that kernels of attention ask for, the first where another number is asked for.
_PAGES = {
    "flashmla": (64,), "hpc_ops": (64,), "trtllm_mla": (64, 32), "cutedsl_mla": (64, 32),
    "trtllm_mha": (64, 16, 32, 128),
}  # fmt: skip


class SglangDefaults(NamedTuple):
    """Attributes:
    chunked_prefill_size: tokens of a step with prompts.
    cuda_graph_max_bs: sequences of the largest CUDA graph of decodes.
    attention_backend: whose kernels of attention run, where that matters for the size of pages.
    """

    chunked_prefill_size: int
    cuda_graph_max_bs: int
    attention_backend: str | None

    def page_size(self, asked: int) -> int:
        """Tokens of a page where no kernels of attention are asked for."""
        return page_size(asked, self.attention_backend)


def sglang_defaults(memory_bytes: int, device: str, tensor_parallel_size: int, *, has_mla: bool) -> SglangDefaults:
    """The defaults on a device of this memory and name, for a model with or without multi-head latent attention."""
    _, chunk, few, many = next(each for each in _SIZES if memory_bytes < each[0] * _GIB)
    by_trtllm = not has_mla and any(name in device for name in _DATACENTER_BLACKWELL)
    return SglangDefaults(chunk, few if tensor_parallel_size < 4 else many, "trtllm_mha" if by_trtllm else None)


def page_size(asked: int, attention_backend: str | None) -> int:
    """Tokens of a page with these kernels of attention."""
    sizes = _PAGES.get(attention_backend or "", (asked,))
    return asked if asked in sizes else sizes[0]


def mem_fraction_static(
    memory_bytes: int,
    tensor_parallel_size: int,
    *,
    chunk_tokens: int,
    graph_sequences: int,
    has_prefill_graphs: bool,
    has_mla: bool,
) -> float:
    """The share of the memory that weights and KV pool may take: all but activations of a chunk and CUDA graphs.

    Args:
        chunk_tokens: of a step with prompts.
        graph_sequences: of the largest CUDA graph of decodes, 0 without graphs.
    """
    memory_mib = memory_bytes / _MIB
    kept_mib = 512 + 1.5 * max(chunk_tokens, 2048) + tensor_parallel_size / 8 * 1024 + 2 * graph_sequences
    if has_prefill_graphs:
        kept_mib += 1536 if has_mla else 8 * _num_prefill_graphs(chunk_tokens)
    if memory_mib > _LARGE_GIB * 1024:
        kept_mib = max(kept_mib, _LEAST_MIB)
    return round((memory_mib - kept_mib) / memory_mib, 3)


def _num_prefill_graphs(chunk_tokens: int) -> int:
    ranges = (*_PREFILL_GRAPHS, (4608, chunk_tokens, 512))
    return sum(size <= chunk_tokens for first, last, step in ranges for size in range(first, last + 1, step))
