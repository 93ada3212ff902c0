"""The workload of nano-vllm's `bench.py`, and the engines that serve it.

Each engine loads a model of Qwen3-0.6B's shape with random weights and is called with requests. Those of other projects
raise ImportError if their package is missing.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from engine.api.llm import LLM
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.models.model_config import hf_config
from engine.sampling_params import SamplingParams
from experiments import ROOT
from experiments.acceptance.context import Context

NUM_REQUESTS, SHORTEST, LONGEST, MAX_TOKEN = 256, 100, 1024, 10_000
PROMPT_TOKENS, OUTPUT_TOKENS = 142_827, 133_966
TEMPERATURE = 0.6
MAX_MODEL_LEN = 4096
SHARE = 0.6  # of the device's memory, which each engine may use

Requests = list[tuple[list[int], int]]  # prompt, tokens to generate
Runner = Callable[[Requests], None]


def workload(rehearse: bool) -> Requests:
    """The requests of `bench.py`: lengths uniform in 100..1024, seed 0; a few short ones if `rehearse`."""
    if rehearse:
        return [([i + 1] * (5 + i), 4 + i % 3) for i in range(6)]
    rng = random.Random(0)
    prompts = [[rng.randint(0, MAX_TOKEN) for _ in range(rng.randint(SHORTEST, LONGEST))] for _ in range(NUM_REQUESTS)]
    outputs = [rng.randint(SHORTEST, LONGEST) for _ in range(NUM_REQUESTS)]
    assert (sum(map(len, prompts)), sum(outputs)) == (PROMPT_TOKENS, OUTPUT_TOKENS)
    return list(zip(prompts, outputs, strict=True))


def model_shape(rehearse: bool) -> dict[str, Any]:
    """Qwen3-0.6B, or the tiny model."""
    name = "tiny" if rehearse else "qwen3-0.6b"
    shape: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text())
    return shape


class Ours:
    """This engine with random weights, and with the graphs and the backend that `auto` chooses; records its steps."""

    def __init__(self, context: Context, **settings: Any) -> None:
        sizes: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "gpu_memory_utilization": SHARE}
        if context.rehearse:
            sizes = {"num_blocks": 256, "max_num_seqs": 8, "cuda_graphs": True}
        sizes["max_num_batched_tokens"] = 512 if context.rehearse else 16_384
        dtype = str(context.dtype).removeprefix("torch.")
        shape = model_shape(context.rehearse)
        self.llm = LLM(shape, device=context.device.type, dtype=dtype, **{**sizes, **settings})
        self.steps: list[tuple[StepReport, int]] = []  # of each plan, and the wall time in ns of the whole step

    def __call__(self, requests: Requests) -> None:
        engine = self.llm.engine
        for i, (prompt, output) in enumerate(requests):
            params = SamplingParams(max_tokens=output, temperature=TEMPERATURE, ignore_eos=True)
            engine.add(Request(i, len(prompt), output, token_ids=list(prompt)), params)
        started = time.perf_counter_ns()
        while report := engine.step(time.perf_counter_ns()):
            now = time.perf_counter_ns()
            self.steps.append((report, now - started))
            started = now
        engine.reset()  # the prefix cache must not help the next repeat

    def close(self) -> None:
        self.llm.close()


class TransformersContinuous:
    """transformers' continuous batching, without shared blocks, so that no run profits from the run before it."""

    def __init__(self, context: Context, folder: Path) -> None:
        transformers = importlib.import_module("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=context.dtype).to(context.device)
        generation = transformers.GenerationConfig(
            do_sample=True, temperature=TEMPERATURE, top_k=0, eos_token_id=-1, pad_token_id=0, max_new_tokens=LONGEST
        )
        batching = transformers.ContinuousBatchingConfig(
            max_memory_percent=0.1 if context.rehearse else SHARE, allow_block_sharing=False
        )
        self._manager: Any = model.eval().init_continuous_batching(generation, batching)
        self._manager.warmup()
        self._manager.start()

    def __call__(self, requests: Requests) -> None:
        for prompt, output in requests:
            self._manager.add_request(prompt, max_new_tokens=output)
        finished = 0
        while finished < len(requests):
            result = self._manager.get_result(timeout=1)
            finished += result is not None and result.is_finished()
            if not self._manager.is_running():
                raise RuntimeError("transformers' continuous batching stopped")


class NanoVllm:
    """nano-vllm, as in its `bench.py`."""

    module, options = "nanovllm", {"enforce_eager": False}

    def __init__(self, context: Context, folder: Path) -> None:
        self._library = importlib.import_module(self.module)
        self._llm = self._library.LLM(
            str(folder), max_model_len=MAX_MODEL_LEN, gpu_memory_utilization=SHARE, **self.options
        )

    def __call__(self, requests: Requests) -> None:
        params = [
            self._library.SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=n) for _, n in requests
        ]
        self._llm.generate([self.prompt(tokens) for tokens, _ in requests], params, use_tqdm=False)

    def prompt(self, tokens: list[int]) -> Any:
        return tokens


class Vllm(NanoVllm):
    """vLLM, with the same calls."""

    module, options = "vllm", {"enable_prefix_caching": False}

    def prompt(self, tokens: list[int]) -> Any:
        return {"prompt_token_ids": tokens}


def save_model(context: Context, folder: Path) -> None:
    """Write a model folder with random weights, and a tokenizer of numbers for engines that need one."""
    transformers = importlib.import_module("transformers")
    shape = model_shape(context.rehearse)
    fields = {key: value for key, value in hf_config(shape).items() if key not in ("architectures", "model_type")}
    config = transformers.Qwen3Config(**fields)
    torch.manual_seed(0)
    with torch.device(context.device):
        model = transformers.Qwen3ForCausalLM(config).to(context.dtype)
    model.save_pretrained(folder)
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    words = {str(i): i for i in range(16)}
    record: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "0"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(record))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "0", "eos_token": "1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
