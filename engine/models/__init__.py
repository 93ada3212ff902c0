"""How a model is built, and which ranks can share it."""

from __future__ import annotations

import torch

from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.models.memory_check import check_memory
from engine.models.model_config import ModelConfig, ModelError
from kernels.attention.backends import AttentionBackend


def build_model(
    config: ModelConfig,
    tp: TensorParallel,
    backend: AttentionBackend,
    dtype: torch.dtype,
    device: torch.device,
) -> CausalLM:
    """This rank's part of a model, with uninitialised weights, which `engine.models.weights` fills.

    Raises:
        ModelError: the ranks cannot share the heads or the MLPs equally, or the weights do not fit into memory.
    """
    check_parallel(config, tp.size)
    check_memory(config, tp.size, dtype, device)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return CausalLM(config, tp, backend).eval()
    finally:
        torch.set_default_dtype(previous)


def check_parallel(config: ModelConfig, size: int) -> None:
    """Check that `size` ranks can share the model.

    Attention heads and MLPs must split into equal shares. KV heads may also be fewer than the ranks: several ranks then
    hold the same KV head.

    Raises:
        ModelError: the ranks cannot share the model.
    """
    shared = {"num_attention_heads": config.num_attention_heads}
    if config.num_experts:
        shared["moe_intermediate_size"] = config.moe_intermediate_size
    if not all(config.has_experts(layer) for layer in range(config.num_layers)):
        shared["intermediate_size"] = config.intermediate_size
    for name, total in shared.items():
        if total % size:
            raise ModelError(f"tensor_parallel_size={size} does not divide {name}={total}")
    if config.num_kv_heads % size and size % config.num_kv_heads:
        raise ModelError(
            f"tensor_parallel_size={size} neither divides nor is a multiple of num_kv_heads={config.num_kv_heads}"
        )
