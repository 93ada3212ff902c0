"""Fills a model: from the safetensors files of a model folder, or with seeded random numbers."""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.json_file import ModelError, read_json, shown
from engine.models.blocks import CausalLM
from engine.models.layers.checkpoint import CheckpointTensor
from engine.models.layers.fp8 import Fp8Experts, Fp8Matrix
from engine.models.layers.linear import (
    PACKED_ROWS,
    ColumnParallelLinear,
    Layer,
    RowParallelLinear,
    VocabParallelHead,
    linear,
    packed,
)
from engine.models.model_config import ModelConfig, check_folder

_INDEX = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_LONGEST_NAME = 300  # that messages show in full
_COMPILED_ELEMENTS = 1 << 20  # largest matrix that `_compile_packed` compiles kernels for


def load_random(model: CausalLM, seed: int = 0) -> None:
    """Fill a model with normal weights of standard deviation `initializer_range`; norms are ones.

    The weights depend only on the seed, the tensor's name and the kind of device, not on the number of ranks: every
    tensor-parallel rank draws the full tensor in float32 and keeps its slice.
    """
    for wanted in checkpoint_tensors(model):
        if wanted.is_norm:
            wanted.target.fill_(1.0)
            continue
        device = wanted.target.device
        # The CPU generator uses only 32 bits of its seed, hence crc32.
        generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{wanted.name}".encode()))
        full = torch.empty(wanted.shape, dtype=torch.float32, device=device)
        full.normal_(0.0, model.config.initializer_range, generator=generator)
        wanted.fill(full[wanted.index])


def load_safetensors(model: CausalLM, folder: str | Path) -> None:
    """Fill a model from `model.safetensors`, or from the files that `model.safetensors.index.json` lists.

    A rank reads only its slice of each tensor and casts it to the model's dtype. All names, shapes and dtypes are
    checked before the first tensor is read.

    Raises:
        ModelError: the folder has no weights, a file cannot be read, or a tensor is missing, is not part of the model,
            has the wrong shape, or has another dtype than float32, bfloat16 or float16 (or float8, where the model's
            configuration says so).
    """
    folder = Path(folder)
    wanted = {tensor.name: tensor for tensor in checkpoint_tensors(model)}
    with ExitStack() as stack:
        found: dict[str, Any] = {}
        for path in _weight_files(folder):
            found |= _open(path, stack)
        _check(folder, wanted, found, model.config)
        for name, tensor in wanted.items():
            if tensor.target.numel():
                tensor.fill(found[name][tensor.index])


def dequantize_for_cpu(model: CausalLM) -> None:
    """On the CPU, put float8 matrices whose weights are loaded into the model's dtype; they then take as much memory.

    The CPU has no arithmetic in float8, and turning 300,000 weights into float32 in every call takes 1.5 ms on one core
    of an AVX-512 CPU, 50 times as long as their product with one token.
    """
    dtype = model.norm.weight.dtype
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Fp8Matrix | Fp8Experts) and child.scales.device.type == "cpu":
                setattr(module, name, nn.Parameter(child.dequantized(dtype), requires_grad=False))


def pack_for_cpu(model: CausalLM) -> None:
    """Put the matrices of a model whose weights are loaded into oneDNN's layout.

    Does nothing where the device, the processor or the dtype has no such layout. The layout saves oneDNN a copy of the
    matrix in every call. The model computes the same, but weights cannot be loaded into it again, and tied embeddings
    take their memory twice.

    Measured decoding with 8 layers of hidden size 512 and a vocabulary of 32,000 on one core of an AVX-512 CPU: 1.5,
    1.4 and 1.2 times the speed in bfloat16 at batch 1, 8 and 32, and 1.1, 1.6 and 1.4 times in float32.
    """
    if not _has_packed_layout(model.embedding.weight):
        return
    for module in model.modules():
        is_matrix = isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelHead)
        if is_matrix and isinstance(module.weight, Tensor):
            module.weight = packed(module.weight)
    _compile_packed(model)


def _compile_packed(model: CausalLM) -> None:
    """Compile oneDNN's kernels for all `PACKED_ROWS`, for matrices so small that compiling would dominate a step."""
    weights = {tuple(weight.shape): weight for weight in model.parameters() if weight.is_mkldnn}
    for (_, width), weight in weights.items():
        if weight.numel() <= _COMPILED_ELEMENTS:
            for num_tokens in PACKED_ROWS:
                linear(torch.zeros(num_tokens, width, dtype=weight.dtype), weight)


def _has_packed_layout(weight: Tensor) -> bool:
    is_x86_cpu = weight.device.type == "cpu" and platform.machine() in ("x86_64", "AMD64")
    if not is_x86_cpu or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def checkpoint_tensors(model: CausalLM) -> Iterator[CheckpointTensor]:
    """All checkpoint tensors of a model, each once; with tied embeddings there is no `lm_head.weight` among them."""
    for module in model.modules():
        if isinstance(module, Layer):
            yield from module.checkpoint_tensors()


def _weight_files(folder: Path) -> list[Path]:
    check_folder(folder)
    index = folder / _INDEX
    if not os.path.exists(index):  # unlike Path.exists, it raises nothing
        if not os.path.exists(folder / _SINGLE_FILE):
            raise ModelError(f"{folder}: no weights, neither {_SINGLE_FILE} nor {_INDEX}")
        return [folder / _SINGLE_FILE]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        raise ModelError(f"{index}: not an index of safetensors files")
    names = sorted(set(weight_map.values()))
    for name in names:
        path = PurePosixPath(name)
        if not name.isprintable() or not path.name or path.is_absolute() or ".." in path.parts:
            raise ModelError(f"{index}: {shown(name)} is not the name of a file in the model folder")
    missing = [name for name in names if not os.path.isfile(folder / name)]
    if missing:
        raise ModelError(f"{folder}: missing weight files: {_some(missing)}")
    return [folder / name for name in names]


def _open(path: Path, stack: ExitStack) -> dict[str, Any]:
    """The tensors of a file by name, not read yet; the file stays open as long as `stack`."""
    try:
        file = stack.enter_context(safe_open(path, framework="pt"))
        return {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path}: not a safetensors file: {' '.join(str(error).split())}") from None


def _check(folder: Path, wanted: dict[str, CheckpointTensor], found: dict[str, Any], config: ModelConfig) -> None:
    """Raise ModelError unless the checkpoint has exactly the tensors that the model needs.

    Three kinds of extra tensors are allowed: `lm_head.weight` if the embeddings are tied, the rotary frequencies that
    old checkpoints contain, and the layer behind the last one that DeepSeek-V3 predicts a second token with.
    """
    spare = {"lm_head.weight"} if config.tie_word_embeddings else set()
    behind = f"model.layers.{config.num_layers}."
    extra = [
        name
        for name in found.keys() - wanted.keys() - spare
        if not name.endswith(".rotary_emb.inv_freq") and not (config.sigmoid_routing and name.startswith(behind))
    ]
    faults = []
    if missing := wanted.keys() - found.keys():
        faults.append(f"missing tensors: {_some(missing)}")
    if extra:
        faults.append(f"unexpected tensors: {_some(extra)}")
    for name in wanted.keys() & found.keys():
        shape, dtype = tuple(found[name].get_shape()), found[name].get_dtype()
        if not wanted[name].has_shape(shape):
            faults.append(f"{name} has shape {list(shape)}, not {list(wanted[name].shape)}")
        elif dtype not in wanted[name].dtypes:
            faults.append(f"{name} has dtype {dtype}, not one of {', '.join(wanted[name].dtypes)}")
    if faults:
        raise ModelError(f"{folder}: {_some(faults, separator='; ')}")


def _some(names: Collection[str], separator: str = ", ") -> str:
    """The first four names in alphabetical order, and how many more there are."""
    first = [name if name.isprintable() and len(name) < _LONGEST_NAME else shown(name) for name in sorted(names)[:4]]
    more = len(names) - len(first)
    return separator.join(first) + (f" and {more} more" if more else "")
