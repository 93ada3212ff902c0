"""Float8 checkpoints of three layouts for the tests of the engine; needs torch and transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.api.llm import LLM
from engine.models import build_model
from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from engine.models.weights import load_safetensors
from engine.sampling_params import SamplingParams
from kernels.attention.backends import select_backend
from kernels.linear.fp8_numbers import dequantize_weight, quantize_weight
from tests.engine.models.builders import prompts
from tests.engine.models.paged import BLOCK_SIZE, CPU

FP8: dict[str, Any] = {
    "quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]
}  # fmt: skip
FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
CHANNELS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "weights": {**FLOAT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**FLOAT8, "strategy": "token", "dynamic": True},
            "targets": ["Linear"],
        }
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": FP8, "channel": CHANNELS, "block": FP8 | {"fmt": "e4m3", "weight_block_size": [32, 32]}
}  # fmt: skip
SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 200, "dtype": "float32"}


def save_plain(config: Any, folder: Path) -> Path:
    """A model with random weights of transformers' class; returns `folder`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def quantized(weight: Tensor, layout: str) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Float8 weights, their scales and blocks."""
    block = {"tensor": tuple(weight.shape), "channel": (1, weight.shape[1]), "block": (32, 32)}[layout]
    return *quantize_weight(weight, block), block


def make_pair(plain: Path, folder: Path, layout: str) -> tuple[Path, Path]:
    """A float8 checkpoint, and one of the same weights dequantised."""
    config, tensors = json.loads((plain / "config.json").read_text()), load_file(plain / "model.safetensors")
    small, wide = dict(tensors), dict(tensors)
    for name in tensors:
        if name.endswith("_proj.weight"):
            small[name], scales, block = quantized(tensors[name], layout)
            wide[name] = dequantize_weight(small[name], scales, block).contiguous()
            scale_name = f"{name}_scale_inv" if layout == "block" else f"{name}_scale"
            small[scale_name] = scales.reshape(()) if layout == "tensor" else scales
    return (
        _write(folder / "fp8", config | {"quantization_config": LAYOUTS[layout]}, small),
        _write(folder / "wide", config, wide),
    )


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def generate(model: Path, **settings: Any) -> list[list[int]]:
    llm = LLM(model, **{**SETTINGS, **settings})
    try:
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        return [output["token_ids"] for output in llm.generate(prompts(), params)]
    finally:
        llm.close()


def build(folder: Path, tp: TensorParallel | None = None, **changes: Any) -> CausalLM:
    """One rank of the model in a folder, with `changes` of its configuration."""
    config = replace(ModelConfig.load(folder), **changes)
    backend = select_backend("torch", CPU, torch.float32, config.head_dim, BLOCK_SIZE)
    model = build_model(config, tp or TensorParallel(), backend, torch.float32, CPU)
    load_safetensors(model, folder)
    return model
