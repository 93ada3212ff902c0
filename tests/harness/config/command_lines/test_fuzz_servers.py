"""Mutated command lines of vLLM and SGLang, and mutated config.json files: each gives a server, or one line."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness.config.command_lines.sglang import flags as sglang_flags
from harness.config.command_lines.sglang import import_line as sglang_import
from harness.config.command_lines.vllm import flags as vllm_flags
from harness.config.command_lines.vllm import import_line as vllm_import
from harness.engines.resolving.system import pool_of
from harness.errors import TwinServeError
from tests.fuzzing.values import HOSTILE
from tests.harness.builders import config
from tests.harness.config.builders import CHECKPOINTS
from tests.mutations import mutants

MAX_SECONDS = 10
FILES = sorted(CHECKPOINTS.glob("*.json"))
# As people write them.
SGLANG_LINES = (
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.85 --disable-cuda-graph",
    "docker run -e A=1 lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model Qwen/Qwen3-32B-FP8 --tp 2",
    "sglang serve Qwen/Qwen3-14B --dp 2 --chunked-prefill-size -1 --schedule-policy lpm --page-size 32 # all",
    'sglang serve Qwen/Qwen3-8B --cuda-graph-config \'{"decode": {"max_bs": 64}}\' --max-total-tokens 64Ki',
)
LINES = (
    "vllm serve Qwen/Qwen3-8B --max-model-len 32768 --gpu-memory-utilization 0.85 --enforce-eager",
    "VLLM_USE_V1=1 vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max_num_seqs=64 --no-enable-prefix-caching",
    "docker run --gpus all -e A=1 -p 8000:8000 vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-32B-FP8 -tp 2 -q fp8",
    "python3 -m vllm.entrypoints.openai.api_server --model openai/gpt-oss-20b --dtype auto --max-model-len 131k",
    "vllm serve Qwen/Qwen3-14B -dp 2 -tp 2 --async-scheduling --max-cudagraph-capture-size 1024 # all",
    'vllm serve Qwen/Qwen3-8B --speculative-config \'{"method": "ngram", "num_speculative_tokens": 3}\' -O3',
    'vllm serve mistralai/Mixtral-8x7B-v0.1 -pp 2 --hf-overrides \'{"rope_scaling": {"factor": 2.0}}\' -cc.mode=3',
    'vllm serve Qwen/Qwen3-8B --kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'',
    "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ --kv-cache-dtype fp8_e4m3 --kv-cache-memory-bytes 8G --block-size 32",
    "vllm serve Qwen/Qwen3-0.6B --num-gpu-blocks-override 1000 --served-model-name a b --scheduling-policy priority",
)
_FLAGS = (*vllm_flags.OTHERS, *vllm_flags.SHORT, *sglang_flags.OTHERS, *sglang_flags.SHORT)
_ODD = (
    *HOSTILE,
    "''",
    "--",
    "-",
    "-tp",
    "--no-",
    "=",
    "1" * 400,
    "0",
    "-3",
    "1e9",
    "9" * 20,
    "\\\n",
    "$(x)",
    "`x`",
    "|",
)


def mutated_line(rng: random.Random) -> str:
    """A line whose words are dropped, repeated, moved, replaced or broken."""
    words = rng.choice((*LINES, *SGLANG_LINES)).split(" ")
    for _ in range(rng.choice((1, 1, 1, 2))):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        flag, odd = rng.choice(_FLAGS), rng.choice(_ODD)
        changed = rng.choice(([], [words[at]] * 2, [odd], [words[at], odd], [f"{words[at]}={odd}"], [flag, odd],
                              [words[at][::-1]], [words[other]], [f"{flag}.a.b={odd}"], [words[at][:-1]]))  # fmt: skip
        words[at : at + 1] = changed or ([] if len(words) > 1 else words)
    return " ".join(words)


def ends_well(case: str, action: Callable[[], object]) -> bool:
    """Whether it was accepted; raises AssertionError unless it is refused in one short line, in time."""
    started = time.perf_counter()
    try:
        action()
    except TwinServeError as error:
        text = str(error)
        assert text and "\n" not in text and len(text) < 6000 + len(case), (case, text)
        return False
    except Exception as error:
        raise AssertionError(case) from error
    finally:
        assert time.perf_counter() - started < MAX_SECONDS, case
    return True


def lines_that_serve(count: int, *, composed_every: int) -> int:
    """Of `count` lines, how many are translated; of these, one in `composed_every` gets its KV pool."""
    num_translated = 0
    for number in range(count):
        line = mutated_line(random.Random(f"line {number}"))
        translate = (sglang_import if "sglang" in line else vllm_import).translate
        if not ends_well(line, partial(translate, line)):
            continue
        num_translated += 1
        if num_translated % composed_every == 0:
            overrides = translate(line).overrides
            ends_well(line, lambda given=overrides: pool_of(config(*given, "device=h200")))  # type: ignore[misc]
    return num_translated


def models_that_are_read(folder: Path, count: int) -> int:
    """Of `count` files, how many models are read."""
    num_read, path = 0, folder / "config.json"
    overrides = ("model=hf", f"model.config={folder}", "device=h200", "tensor_parallel_size=8")
    for number in range(count):
        valid = json.dumps(json.loads(FILES[number % len(FILES)].read_text())).encode()
        data = next(iter(mutants(valid, "json", 1, seed=number)))
        path.write_bytes(data)
        case = f"{FILES[number % len(FILES)].name}, seed {number}: {data[:300]!r}"
        num_read += ends_well(case, lambda: pool_of(config(*overrides)))
    return num_read


def test_mutated_lines() -> None:
    assert lines_that_serve(40, composed_every=4) > 1


def test_mutated_models(tmp_path: Path) -> None:
    assert models_that_are_read(tmp_path, 12) > 0


@pytest.mark.slow
def test_thousands_of_mutated_lines() -> None:
    assert lines_that_serve(4000, composed_every=10) > 400


@pytest.mark.slow
def test_thousands_of_mutated_models(tmp_path: Path) -> None:
    assert models_that_are_read(tmp_path, 1500) > 100
