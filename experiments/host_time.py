"""Host time of a mixed step: CPU time that Python spends on the model, launches and matrix products being stubbed.

    python -m experiments.host_time [--layers 28] [--rounds 25]

The model has the structure of Qwen3-0.6B. Four ways of launching take turns, round by round:

    triton       every kernel launched by Triton; norms of q and k, rotary and the KV store as separate kernels
    separate     cached launches, separate kernels
    fused        cached launches, one kernel from the projection to attention
    pieces       as fused, in CUDA graphs of everything but attention, whose replays are stubbed too

Needs no GPU and says nothing about one. Writes `experiments/results/host_time.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from engine.models import attention, build_model, layers
from engine.models.blocks import CausalLM
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from engine.runner.cuda_graphs import bucket_for
from engine.runner.piece_graphs import PieceGraphs
from experiments import RESULTS, provenance
from kernels import activation, decode_attention, norm, prefill_attention, rotary
from kernels.attention import AttentionMetadata
from kernels.launch import Launcher
from kernels.triton_attention import TritonBackend

RESULT = RESULTS / "host_time.json"
CHUNK, DECODES = 64, 8


class _NoLauncher(CudaLauncher):
    """Triton's launcher of a kernel, of which only the call into the CUDA driver is left out."""

    num_launched = 0

    def __init__(self) -> None:
        self.gsan_enabled = self.launch_cooperative_grid = self.launch_pdl = False
        self.num_ctas = 1
        self.global_scratch_size = self.profile_scratch_size = 0
        self.global_scratch_align = self.profile_scratch_align = 1
        self.arg_annotations = self.kernel_signature = None
        self.launch = _call_hooks


def _call_hooks(*arguments: Any) -> None:
    """What the launcher written in C does in Python: it calls the hooks."""
    _NoLauncher.num_launched += 1
    for hook in arguments[9:11]:
        if hook is not None:
            hook(arguments[8])


class _NoKernel(CompiledKernel):
    """What compiling gives here: a kernel that is launched as usual, up to the call into the CUDA driver."""

    def __init__(self) -> None:
        self.name, self.src, self.function, self.packed_metadata = "stub", None, 0, (4, 1, 0)
        self.module = None
        self._run = _NoLauncher()

    def _init_handles(self) -> None:
        pass


def _compile(self: Any, key: Any, _signature: Any, device: int, *_: Any) -> _NoKernel:
    self.device_caches[device][0][key] = kernel = _NoKernel()
    return kernel


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """In place of a matrix product: its output, uninitialised."""
    return torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)


def install_stubs() -> None:
    """Make Triton's device a stand-in of sm_90 for this process, and let the models take their CUDA path."""
    driver = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    triton.runtime.driver.set_active(driver)
    JITFunction._do_compile = _compile
    layers.linear = _product
    decode_attention.device_limits = lambda _: (90, 132)  # type: ignore[assignment]
    prefill_attention.device_limits = lambda _: (90, 132)  # type: ignore[assignment]
    for module in (activation, attention, norm, rotary):
        module.runs_triton = lambda _: True  # type: ignore[attr-defined]


def make_model(num_layers: int) -> CausalLM:
    """Qwen3-0.6B with small weights; sizes of weights change nothing here."""
    shape: dict[str, Any] = {
        "name": "small", "family": "qwen3", "num_layers": num_layers, "hidden_size": 64, "num_attention_heads": 16,
        "num_kv_heads": 8, "head_dim": 128, "intermediate_size": 64, "vocab_size": 64, "tie_word_embeddings": True,
        "dtype": "bfloat16", "max_position_embeddings": 8192, "num_experts": 0, "num_experts_per_token": 0,
        "moe_intermediate_size": 0,
    }  # fmt: skip
    config = ModelConfig.from_shape(shape)
    return build_model(config, TensorParallel(), TritonBackend(), torch.bfloat16, torch.device("cpu"))


def make_steps(model: CausalLM) -> dict[str, Callable[[], None]]:
    """The model's part of a step with one prompt chunk of 64 tokens and eight decodes, by way of launching."""
    config, num_tokens = model.config, CHUNK + DECODES
    cache = torch.zeros(config.num_layers, 2, 2, 16, config.num_kv_heads, config.head_dim, dtype=torch.bfloat16)
    parts = tuple(torch.zeros(count, dtype=torch.int64) for count in (CHUNK, DECODES))
    metadata = AttentionMetadata(
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
        num_prefill_tokens=CHUNK,
        cu_seqlens_q=torch.tensor([0, CHUNK], dtype=torch.int32),
        prefill_context_lens=torch.tensor([CHUNK], dtype=torch.int32),
        prefill_block_tables=torch.zeros(1, 4, dtype=torch.int32),
        max_seqlen_q=CHUNK,
        max_prefill_context=CHUNK,
        decode_context_lens=torch.ones(DECODES, dtype=torch.int32),
        decode_block_tables=torch.zeros(DECODES, 256, dtype=torch.int32),
        max_decode_context=4096,
    )
    graphs = PieceGraphs(model, cache, 512, _capture)
    graphs.capture(bucket_for(num_tokens, graphs.sizes))

    def eager() -> None:
        ids, positions, slots = (torch.cat(parts) for _ in range(3))
        model(ids, positions, cache, replace(metadata, slot_mapping=slots))

    def pieces() -> None:
        slots = graphs.place(parts, parts, parts, num_tokens)
        graphs.run(num_tokens, replace(metadata, slot_mapping=slots))

    return {"triton": eager, "separate": eager, "fused": eager, "pieces": pieces}


def _capture(piece: Callable[[], None]) -> Callable[[], None]:
    piece()
    return lambda: None


@contextmanager
def way(name: str) -> Iterator[None]:
    """Launch in one of the ways inside the block."""
    cached = Launcher.__call__

    def by_triton(self: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        self._kernel[grid](*arguments, **constants)

    TritonBackend.takes_stored = name in ("fused", "pieces")
    if name == "triton":
        Launcher.__call__ = by_triton  # type: ignore[method-assign]
    try:
        yield
    finally:
        TritonBackend.takes_stored, Launcher.__call__ = True, cached  # type: ignore[method-assign]


@torch.no_grad()
def measure(num_layers: int, rounds: int) -> dict[str, Any]:
    """Median milliseconds and kernels of a step, by way of launching."""
    steps = make_steps(make_model(num_layers))
    times: dict[str, list[float]] = {name: [] for name in steps}
    launches: dict[str, int] = {}
    for turn in range(rounds + 2):
        for name, found in times.items():
            with way(name):
                _NoLauncher.num_launched = 0
                start = time.thread_time()
                steps[name]()
                elapsed = time.thread_time() - start
            launches[name] = _NoLauncher.num_launched
            if turn >= 2:  # the first rounds compile
                found.append(elapsed * 1e3)
    medians = {name: round(statistics.median(found), 3) for name, found in times.items()}
    return {
        "milliseconds": medians,
        "fastest_milliseconds": {name: round(min(found), 3) for name, found in times.items()},
        "triton_kernels": launches,
        "over_triton": {name: round(medians[name] / medians["triton"], 3) for name in ("fused", "pieces")},
    }


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    install_stubs()
    result = {
        **provenance("experiments.host_time"),
        "triton": triton.__version__,
        "note": "launches and matrix products stubbed; nothing ran on a GPU",
        "layers": arguments.layers,
        **measure(arguments.layers, arguments.rounds),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
