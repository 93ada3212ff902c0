"""The workload of nano-vllm's `bench.py`, and the engines that serve it.

Each factory loads a model of Qwen3-0.6B's shape with random weights and returns a function that serves requests. A
factory raises ImportError if its package is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.api.llm import LLM
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.models.model_config import hf_config
from engine.sampling_params import SamplingParams
from experiments.acceptance.common import Context, shape_of

NUM_REQUESTS, SHORTEST, LONGEST, MAX_TOKEN = 256, 100, 1024, 10_000
PROMPT_TOKENS, OUTPUT_TOKENS = 142_827, 133_966
TEMPERATURE = 0.6
MAX_MODEL_LEN = 4096
SHARE = 0.6  # of the device's memory, which each engine may use
_CLOSING_S = 5.0  # left of a section's time when a run of transformers is given up

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
    return shape_of("tiny" if rehearse else "qwen3-0.6b")


@dataclass
class Ours:
    """This engine; it records its steps."""

    llm: LLM

    def __call__(self, requests: Requests) -> None:
        self.serve(requests)

    def close(self) -> None:
        self.llm.close()

    def serve(self, requests: Requests) -> list[tuple[StepReport, int]]:
        """Serve all requests; returns the report of every plan with the wall time in ns of the whole step."""
        return list(self._steps(requests))

    def _steps(self, requests: Requests) -> Iterator[tuple[StepReport, int]]:
        engine = self.llm.engine
        for i, (prompt, output) in enumerate(requests):
            params = SamplingParams(max_tokens=output, temperature=TEMPERATURE, ignore_eos=True)
            engine.add(Request(i, len(prompt), output, token_ids=list(prompt)), params)
        started = time.perf_counter_ns()
        while report := engine.step(time.perf_counter_ns()):
            now = time.perf_counter_ns()
            yield report, now - started
            started = now
        engine.reset()  # the prefix cache must not help the next repeat


def ours(context: Context, **settings: Any) -> Ours:
    """This engine with random weights, and with the graphs and the backend that `auto` chooses."""
    sizes: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "gpu_memory_utilization": SHARE}
    if context.rehearse:
        sizes = {"num_blocks": 256, "max_num_seqs": 8, "cuda_graphs": True}
    sizes["max_num_batched_tokens"] = 512 if context.rehearse else 16_384
    device = "cuda" if context.is_cuda else "cpu"
    dtype = str(context.dtype).removeprefix("torch.")
    return Ours(LLM(model_shape(context.rehearse), device=device, dtype=dtype, **{**sizes, **settings}))


class UnfinishedError(RuntimeError):
    """An engine exceeded its time limit; the message says how many requests it finished."""


class TransformersContinuous:
    """transformers' continuous batching, without shared blocks, so that no run profits from the run before it."""

    def __init__(self, context: Context, folder: Path) -> None:
        transformers = importlib.import_module("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=context.dtype).to(context.device)
        generation = transformers.GenerationConfig(
            do_sample=True, temperature=TEMPERATURE, top_k=0, eos_token_id=-1, pad_token_id=0, max_new_tokens=LONGEST
        )
        batching = transformers.ContinuousBatchingConfig(
            max_memory_percent=0.02 if context.rehearse else SHARE, allow_block_sharing=False
        )
        self._context = context
        self._stack = contextlib.ExitStack()
        self._manager: Any = self._stack.enter_context(
            model.eval().continuous_batching_context_manager(
                generation_config=generation, continuous_batching_config=batching
            )
        )

    def __call__(self, requests: Requests) -> None:
        for prompt, output in requests:
            self._manager.add_request(prompt, max_new_tokens=output)
        started = time.monotonic()
        finished = num_tokens = 0
        while finished < len(requests):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                finished, num_tokens = finished + 1, num_tokens + len(result.generated_tokens)
            if not self._manager.is_running():
                raise RuntimeError("transformers' continuous batching stopped")
            seconds = time.monotonic() - started
            if self._context.seconds_left() < _CLOSING_S:
                raise UnfinishedError(
                    f"{finished} of {len(requests)} requests with {num_tokens} output tokens in {seconds:.0f} s"
                )

    def close(self) -> None:
        self._manager.stop(block=False, hard_stop=True)
        self._stack.close()


def nano_vllm(context: Context, folder: Path) -> Runner:
    """nano-vllm, as in its `bench.py`."""
    nano = importlib.import_module("nanovllm")
    llm = nano.LLM(str(folder), enforce_eager=False, max_model_len=MAX_MODEL_LEN, gpu_memory_utilization=SHARE)

    def run(requests: Requests) -> None:
        params = [nano.SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=n) for _, n in requests]
        llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)

    return run


def vllm(context: Context, folder: Path) -> Runner:
    """vLLM."""
    library = importlib.import_module("vllm")
    llm = library.LLM(
        str(folder), max_model_len=MAX_MODEL_LEN, gpu_memory_utilization=SHARE, enable_prefix_caching=False
    )

    def run(requests: Requests) -> None:
        params = [library.SamplingParams(temperature=TEMPERATURE, ignore_eos=True, max_tokens=n) for _, n in requests]
        llm.generate([{"prompt_token_ids": prompt} for prompt, _ in requests], params, use_tqdm=False)

    return run


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
