"""How fast is the real engine on the CPU, beside transformers' `generate` and its continuous batching?

    python -m experiments.cpu_speed [--requests 128] [--repeats 3] [--dtypes float32,bfloat16] [--threads 2]

All engines run in one process with the same random weights of a small Qwen3 (42 million) and serve requests with
ShareGPT's lengths, greedily, with outputs of forced lengths. The engines take turns; medians are reported. `generate`
runs static batches in the order of arrival: a batch lasts as long as its longest output, and tokens that shorter
outputs generate past their end do not count. Results go to experiments/results/cpu_speed.json, which keeps the last of
each dtype.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from engine.api.llm import LLM
from engine.sampling_params import SamplingParams
from experiments import RESULTS, ROOT, provenance, write_result
from harness.workload.sampling import sharegpt

MAX_PROMPT, MAX_OUTPUT = 1024, 512  # longer ones are cut, so that a run takes minutes
STATIC_BATCH = 32

Requests = list[tuple[list[int], int]]  # prompt and number of output tokens
Runner = Callable[[Requests], None]


def make_requests(count: int, vocab_size: int) -> Requests:
    """ShareGPT lengths, cut, with random tokens."""
    rng = np.random.default_rng(0)
    table = sharegpt(count, turns="first", rng=rng).table
    prompts = table["num_prompt_tokens"].clip(upper=MAX_PROMPT)
    outputs = table["num_output_tokens"].clip(upper=MAX_OUTPUT)
    return [(rng.integers(0, vocab_size, p).tolist(), int(o)) for p, o in zip(prompts, outputs, strict=True)]


def make_model(dtype: torch.dtype) -> Any:
    """transformers' Qwen3 with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        num_hidden_layers=8, hidden_size=512, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        intermediate_size=1536, vocab_size=32000, tie_word_embeddings=False, max_position_embeddings=4096,
        eos_token_id=None, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(dtype).eval()


def ours(folder: Path, dtype: str) -> Runner:
    """This engine on the same weights."""
    llm = LLM(folder, device="cpu", dtype=dtype, num_blocks=16_000, max_num_seqs=128, max_num_batched_tokens=4096)

    def run(requests: Requests) -> None:
        params = [SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True) for _, output in requests]
        outputs = llm.generate([prompt for prompt, _ in requests], params)
        assert [len(output["token_ids"]) for output in outputs] == [output for _, output in requests]
        llm.engine.reset()  # an empty prefix cache for the next repeat

    return run


def static_batches(model: Any) -> Runner:
    """`generate` on left-padded batches."""

    @torch.inference_mode()
    def run(requests: Requests) -> None:
        for first in range(0, len(requests), STATIC_BATCH):
            batch = requests[first : first + STATIC_BATCH]
            longest = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in batch])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
            steps = max(output for _, output in batch)
            model.generate(ids, attention_mask=mask, max_new_tokens=steps, min_new_tokens=steps, do_sample=False)

    return run


def continuous_batching(model: Any) -> Runner:
    """transformers' continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    def run(requests: Requests) -> None:
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=MAX_OUTPUT)
        # Room for all requests at once. By default the cache takes all memory, and the next repeat's does not fit.
        cache = ContinuousBatchingConfig(page_size=256, num_blocks=16_000 * 16 // 256)
        with model.continuous_batching_context_manager(config, continuous_batching_config=cache) as manager:
            for prompt, output in requests:
                manager.add_request(prompt, max_new_tokens=output)
            finished = 0
            while finished < len(requests):
                result = manager.get_result(timeout=1)
                finished += result is not None and result.is_finished()
                assert manager.is_running(), "transformers' continuous batching stopped"

    return run


def measure(dtype: str, requests: Requests, repeats: int) -> dict[str, list[float]]:
    """Output tokens/s of each engine in each repeat."""
    model = make_model(getattr(torch, dtype))
    num_tokens = sum(output for _, output in requests)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        runners = {
            "this engine": ours(Path(folder), dtype),
            "transformers generate": static_batches(model),
            "transformers continuous batching": continuous_batching(model),
        }
        speeds: dict[str, list[float]] = {name: [] for name in runners}
        for repeat in range(repeats + 1):
            for name, run in runners.items():
                started = time.perf_counter()
                run(requests[:8] if repeat == 0 else requests)  # the first round warms up
                if repeat:
                    speeds[name].append(num_tokens / (time.perf_counter() - started))
                    print(f"{dtype}, repeat {repeat}: {name} {speeds[name][-1]:,.0f} output tok/s", flush=True)
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    requests = make_requests(args.requests, 32000)
    console = Console()
    table = Table("dtype", "engine", "output tok/s", "this engine is faster by", box=None)
    results: dict[str, Any] = {}
    for dtype in args.dtypes.split(","):
        results[dtype] = measure(dtype, requests, args.repeats)
        for name, speeds in results[dtype].items():
            ratios = [ours / theirs for ours, theirs in zip(results[dtype]["this engine"], speeds, strict=True)]
            table.add_row(dtype, name, f"{statistics.median(speeds):,.0f}", f"{statistics.median(ratios):.2f}x")
    console.print(table)
    lengths = {"prompt_tokens": sum(len(p) for p, _ in requests), "output_tokens": sum(o for _, o in requests)}
    record = {**provenance("experiments.cpu_speed"), "requests": lengths}
    path = ROOT / RESULTS / "cpu_speed.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    document |= {dtype: {**record, "output_tokens_per_s": speeds} for dtype, speeds in results.items()}
    write_result(path, document)


if __name__ == "__main__":
    main()
