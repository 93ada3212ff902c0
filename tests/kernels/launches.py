"""Records what a step of a model would launch on a GPU: Triton kernels and torch's operators, by name, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.models import attention, build_model
from engine.models.blocks import CausalLM
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from kernels import activation, decode_step, moe, norm, rotary, sampler
from kernels.attention import AttentionMetadata
from kernels.launch import Launcher
from kernels.triton_attention import TritonBackend

DISPATCHING: tuple[ModuleType, ...] = (activation, attention, decode_step, moe, norm, rotary, sampler)
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided"}


class _Operators(TorchDispatchMode):
    """Records torch's operators that launch a kernel, which views and allocations do not."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in _ALLOCATIONS:
            self._names.append(name)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what the block launches; Triton kernels do not run, so results mean nothing."""
    names: list[str] = []
    monkeypatch.setattr(Launcher, "__call__", lambda self, *_, **__: names.append(self.name))
    for module in DISPATCHING:
        monkeypatch.setattr(module, "runs_triton", lambda _: True)
    with _Operators(names):
        yield names


def make_model(num_layers: int, **changes: Any) -> CausalLM:
    """A model with the structure of Qwen3-0.6B and few weights, in bfloat16 on the CPU, with the Triton backend."""
    shape: dict[str, Any] = {
        "name": "small", "num_layers": num_layers, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "intermediate_size": 48, "vocab_size": 200, "tie_word_embeddings": True, "dtype": "bfloat16",
        "max_position_embeddings": 8192, "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
        **changes,
    }  # fmt: skip
    model = build_model(
        ModelConfig.from_shape(shape), TensorParallel(), TritonBackend(), torch.bfloat16, torch.device("cpu")
    )
    for weights in model.parameters():
        weights.data.zero_()
    return model


def run_step(model: CausalLM, chunks: list[int], num_decodes: int, cache_dtype: torch.dtype = torch.bfloat16) -> None:
    """A step of prompt chunks and decodes with contexts of up to 4,096 tokens."""
    config, num_tokens = model.config, sum(chunks) + num_decodes
    cache = torch.zeros(config.num_layers, 2, 2, 16, config.num_kv_heads, config.head_dim).to(cache_dtype)
    bounds = torch.tensor([0, *chunks], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
        num_prefill_tokens=sum(chunks),
        cu_seqlens_q=bounds,
        prefill_context_lens=torch.tensor(chunks, dtype=torch.int32),
        prefill_block_tables=torch.zeros(len(chunks), 4, dtype=torch.int32),
        max_seqlen_q=max(chunks, default=0),
        max_prefill_context=max(chunks, default=0),
        decode_context_lens=torch.ones(num_decodes, dtype=torch.int32),
        decode_block_tables=torch.zeros(num_decodes, 256, dtype=torch.int32),
        max_decode_context=4096,
    )
    zeros = torch.zeros(num_tokens, dtype=torch.int64)
    model(zeros, zeros, cache, metadata)
