"""Execution of plans: `Rank`, one rank's share of a model, and `LocalExecutor`, a single rank in this process."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from engine.engine_config import EngineConfig
from engine.models import build_model
from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig, ModelError
from engine.models.quantization import chosen
from engine.models.weights import dequantize_for_cpu, load_random, load_safetensors, pack_for_cpu
from engine.runner.cache import kv_cache
from engine.runner.cache.kv_scales import measure_scales
from engine.runner.graphs.cuda_graphs import make_capture, uses_graphs
from engine.runner.graphs.piece_graphs import token_sizes
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.model_runner import ModelRunner
from engine.runner.step_tokens import StepTokens
from kernels.attention.backends import select_backend
from kernels.runtime import HAS_TRITON


class Rank:
    """One rank's share of a model; `allocate` adds the KV cache and the runner.

    Args:
        config: the engine's settings.
        model_config: the model's shape.
        folder: the folder with the weights; not needed with `load_format="random"`.
        tp: the rank and its group; None for a single rank.

    Attributes:
        num_host_blocks: KV blocks that host memory holds the rank's share of.
        block_bytes: of the rank's share of a KV block.

    Raises:
        OutOfMemoryError: host memory is too small for the host blocks.
        ModelError: the weights are missing, do not fit the shape or have another format than `config.quantization`, or
            the rank has no CUDA device.
        BackendUnavailableError: the configured attention backend cannot run here.
    """

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, folder: Path | None, tp: TensorParallel | None = None
    ) -> None:
        tp = tp or TensorParallel()
        if config.device == "cuda" and tp.rank >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            raise ModelError(f"device='cuda': rank {tp.rank} of {tp.size} has no device, torch finds {count}")
        is_random = config.load_format == "random"
        fp8 = chosen(model_config.fp8, config.quantization, is_random=is_random)
        model_config = replace(model_config, fp8=fp8, mxfp4=model_config.mxfp4 and not is_random)
        self._config = config
        self._tp = tp
        self._device = torch.device("cuda", tp.rank) if config.device == "cuda" else torch.device("cpu")
        dtype = getattr(torch, config.dtype or model_config.dtype)
        self._cache_dtype = kv_cache.cache_dtype(config, model_config)
        self.num_host_blocks = kv_cache.num_host_blocks(config, model_config)
        self.block_bytes = kv_cache.block_bytes(
            model_config, config.block_size, config.tensor_parallel_size, self._cache_dtype
        )
        self._max_model_len = longest_sequence(config, model_config)
        backend = select_backend(
            config.attention_backend, self._device, dtype, model_config.head_dim, config.block_size, self._cache_dtype,
            model_config.attention_kind,
        )  # fmt: skip
        self.backend_name = backend.name
        capturable = backend.is_capturable and HAS_TRITON  # PyTorch's sampler and experts synchronise
        self._uses_graphs = uses_graphs(config.cuda_graphs, self._device, capturable, backend.name)
        self._max_piece_tokens = min(config.max_graph_tokens, config.max_num_batched_tokens)
        self._model = build_model(model_config, tp, backend, dtype, self._device)
        if config.load_format == "random":
            load_random(self._model, config.seed)
        elif folder is None:
            raise ModelError("load_format='auto' needs a model folder; load_format='random' makes weights")
        else:
            load_safetensors(self._model, folder)
        dequantize_for_cpu(self._model)
        pack_for_cpu(self._model)
        if config.kv_cache_dtype == "fp8":
            measure_scales(self._model, self._max_model_len, config.block_size, config.seed)

    @property
    def model(self) -> CausalLM:
        return self._model

    @property
    def uses_graphs(self) -> bool:
        """Whether decode steps run in padded buckets: as CUDA graphs on a GPU, uncaptured on the CPU."""
        return self._uses_graphs

    @property
    def piece_sizes(self) -> list[int]:
        """Numbers of tokens to which steps with prompts are padded; empty where they run as they are."""
        return token_sizes(self._max_piece_tokens) if self._uses_graphs and self._max_piece_tokens else []

    def fitting_blocks(self) -> int:
        """The configured number of KV blocks, or else as many as fit; raises OutOfMemoryError if not one fits."""
        if self._config.num_blocks is not None:
            return self._config.num_blocks
        graph_bytes = self._graph_bytes() if self._device.type == "cuda" and self._uses_graphs else 0
        return kv_cache.fitting_blocks(
            self._model, self._config, self._max_model_len, self._cache_dtype, self._device, graph_bytes
        )

    def allocate(self, num_blocks: int) -> ModelRunner:
        """Allocate the KV cache, make the runner that uses it, and capture its steps."""
        runner = self._runner(num_blocks, self.num_host_blocks)
        runner.warm_up(self._config.max_num_batched_tokens)
        runner.capture_graphs()
        return runner

    def _runner(self, num_blocks: int, num_host_blocks: int) -> ModelRunner:
        config = self._config
        size = config.tensor_parallel_size
        cache = kv_cache.allocate(
            self._model.config, num_blocks, config.block_size, size, self._cache_dtype, self._device
        )
        capture = make_capture(self._device) if self._uses_graphs else None
        return ModelRunner(
            self._model,
            cache,
            config.max_num_seqs,
            self._max_model_len,
            config.max_lookahead_steps,
            capture,
            self._tp,
            num_host_blocks,
            config.tokens_per_decode,
            self._max_piece_tokens,
        )

    def _graph_bytes(self) -> int:
        """Estimate the memory that a runner and its CUDA graphs will take, with a runner on a cache of one block.

        The graphs themselves contain the address of the KV cache, so they can only be captured once it is allocated.
        """

        def free_bytes() -> int:
            torch.cuda.empty_cache()
            return int(torch.cuda.mem_get_info(self._device)[0])

        free = free_bytes()
        runner = self._runner(1, 0)
        needed = free - free_bytes() + runner.graph_bytes(free_bytes)
        del runner
        gc.collect()  # runner and graphs form a reference cycle
        return needed


class LocalExecutor:
    """A single rank in this process; takes the arguments of `Rank`.

    Raises:
        ModelError, BackendUnavailableError: as `Rank`.
        OutOfMemoryError: no KV block fits, or not as many as the host is to hold.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path | None = None) -> None:
        rank = Rank(config, model_config, folder)
        self.backend_name = rank.backend_name
        self.num_blocks = rank.fitting_blocks()
        self.num_host_blocks = rank.num_host_blocks
        self.block_bytes = rank.block_bytes
        self._runner: ModelRunner | None = rank.allocate(self.num_blocks)
        # The CPU computes where it is told to: with asynchronous scheduling in a thread, which takes plan after plan.
        is_threaded = config.async_scheduling and config.device == "cpu"
        self._thread = ThreadPoolExecutor(1, "execute") if is_threaded else None
        self._launched: deque[Callable[[], StepTokens]] = deque()

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan and return its tokens."""
        assert self._runner is not None, "the executor is closed"
        if self._thread is None:
            return self._runner.execute(inputs)
        return self._thread.submit(self._runner.execute, inputs).result()

    def launch(self, inputs: StepInputs) -> None:
        """Run a plan when those that were launched before it have ended; does not wait for it."""
        assert self._runner is not None, "the executor is closed"
        if self._thread is None:
            self._launched.append(self._runner.launch(inputs))
        else:
            self._launched.append(self._thread.submit(self._runner.execute, inputs).result)

    def collect(self) -> StepTokens:
        """Wait for the plan that was launched first, of those not collected, and return its tokens."""
        return self._launched.popleft()()

    def forget(self) -> None:
        """Drop the tokens of all plans that were launched; those that are launched later run behind them."""
        self._launched.clear()

    def close(self) -> None:
        """Free the model and its cache."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        self._launched.clear()
        self._runner = None
        gc.unfreeze()
        gc.collect()  # runner and graphs form a reference cycle
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def longest_sequence(config: EngineConfig, model_config: ModelConfig) -> int:
    """Most tokens of a sequence; raises ModelError if `max_model_len` exceeds the model's positions."""
    longest = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ModelError(f"max_model_len={config.max_model_len} exceeds the model's {longest} positions")
    return config.max_model_len or longest
