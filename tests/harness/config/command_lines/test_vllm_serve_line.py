"""Configurations become command lines of `vllm serve`, and lines are the same server on the way back."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import run
from harness.config import parse
from harness.config.command_lines.vllm import serve_line as vllm_serve
from harness.config.command_lines.vllm.serve_line import overrides, serve_command
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from tests.harness.builders import composed, config
from tests.harness.config.builders import SERVE, of_line
from tests.selection import examples


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--max-num-seqs 100 --max-num-batched-tokens 4096 --block-size 32 --gpu-memory-utilization 0.85",
        "-tp 2 --max-model-len 8192 --kv-cache-dtype fp8 --quantization fp8 --dtype float16",
        "--scheduling-policy priority --long-prefill-token-threshold 512 --no-enable-prefix-caching",
        "--no-enable-chunked-prefill --no-scheduler-reserve-full-isl --no-async-scheduling",
        "--num-gpu-blocks-override 5000 -sc.method ngram -sc.num_speculative_tokens 3",
        "-sc.model Qwen/Qwen3-0.6B -sc.num_speculative_tokens 3",
        "--spec-method ngram_gpu --spec-tokens 2",
        "--spec-method ngram --spec-tokens 2 --device_memory_utilization 0.8",
    ],
)
@pytest.mark.sample(4)
def test_there_and_back(flags: str) -> None:
    settings = of_line(f"{SERVE} {flags}")
    line = serve_command(settings)
    assert "#" not in line
    assert of_line(line) == settings


_PARTS = (
    "", "--max-num-seqs 77", "--max-num-batched-tokens 3000", "--max-model-len 9000", "--block-size 32", "-tp 2",
    "--gpu-memory-utilization 0.8", "--kv-cache-dtype fp8", "-q fp8", "--dtype half", "--kv-cache-memory-bytes 8G",
    "--num-gpu-blocks-override 5000", "--scheduling-policy priority", "--long-prefill-token-threshold 512",
    "--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--no-scheduler-reserve-full-isl",
    "--no-async-scheduling", "--async-scheduling", "-asc 3", "--enforce-eager", "--max-cudagraph-capture-size 128",
)  # fmt: skip
_LAST = ("", "-pp 2", "-sc.method eagle3 -sc.num_speculative_tokens 3", "--spec-method ngram --spec-tokens 4")


@examples(12)
@given(
    parts=st.sets(st.sampled_from(_PARTS), max_size=6),
    last=st.sampled_from(_LAST),
    version=st.sampled_from(("", "  # vLLM 0.11.0", "  # vLLM 0.19.1", "  # vLLM 0.27.0", "  # vLLM 0.33.0")),
)
def test_a_line_is_the_same_server_on_the_way_back(parts: set[str], last: str, version: str) -> None:
    chosen = sorted(parts - ({"--kv-cache-memory-bytes 8G"} if "--num-gpu-blocks-override 5000" in parts else set()))
    try:
        settings = of_line(" ".join((SERVE, *chosen, last)) + version)
    except ConfigError as error:  # what vLLM has and the simulation has not
        assert "async_scheduling" in str(error) or "max_num_batched_tokens" in str(error)
        return
    assert of_line(serve_command(settings)) == settings


@examples(8)
@given(
    device=st.sampled_from(("h100-80gb", "a100-80gb", "b200", "l40s", "h200")),
    model=st.sampled_from(("qwen3-8b", "qwen3-32b", "gpt-oss-20b", "llama-3.1-8b")),
    more=st.sampled_from(("max_num_seqs=64", "engine.vllm_version=0.11.0", "speculation=ngram", "quantization=fp8")),
)
def test_the_default_is_a_server_of_vllm(device: str, model: str, more: str) -> None:
    """What a line of the default starts is what was simulated."""
    settings = parse(composed(f"model={model}", f"device={device}", more))
    line = serve_command(settings)
    assert "not in vLLM" not in line
    assert parse(composed(*overrides(line), f"device={device}")) == settings


def test_what_vllm_has_no_flag_for_is_named() -> None:
    line = serve_command(
        config("scheduler=sjf", "tiers=host", "quantization=int4", "scheduler.options.relative_error=1")
    )
    command, _, comment = line.partition("  # not in vLLM: ")
    for setting in ("scheduler.policy=sjf", "tiers.host.gib=", "quantization=int4", "relative_error", "victim="):
        assert setting in comment
    assert "--quantization" not in command
    assert overrides(line) == overrides(command)


def test_the_fixed_scheduler_is_that_of_the_option() -> None:
    scheduler = config("scheduler=vllm").scheduler
    assert {key: getattr(scheduler, key) for key in vllm_serve._FIXED} == vllm_serve._FIXED


def test_the_line_has_a_length_that_the_pool_holds() -> None:
    long = ("model=llama-3.1-70b", "tensor_parallel_size=2", "scheduler=vllm")
    table = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [9], "num_output_tokens": [2]})
    found = run(*long, "arrival=trace", "plots=false", trace=table)
    tokens = found.summary["num_blocks"] * 16
    assert tokens < 131_072
    assert f" --max-model-len {tokens} " in found.summary["vllm_command"]
    assert any(
        f"holds {tokens:,} tokens" in note and f"max_model_len={tokens} fits" in note for note in found.summary["notes"]
    )
    assert serve_line(parse(composed(*long))) == found.summary["vllm_command"], "the line of searches"
    roomy = run(*long[::2], "model=qwen3-0.6b", "arrival=trace", "plots=false", trace=table)
    assert "--max-model-len" not in roomy.summary["vllm_command"]
    assert not any("refuses to start" in note for note in roomy.summary["notes"])


@pytest.mark.parametrize(("tokens", "said"), [("512", True), ("4096", False), (None, False)])
def test_a_step_that_cannot_hold_the_longest_prompt_is_named(tokens: str | None, said: bool) -> None:
    """vLLM 0.27 refused 512 with a length of 4,096."""
    line = f"{SERVE} --max-model-len 4096 --no-enable-chunked-prefill" + f" --max-num-batched-tokens {tokens}" * bool(
        tokens
    )
    table = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [9], "num_output_tokens": [2]})
    notes = run(f"import_vllm={line}", "arrival=trace", "plots=false", trace=table).summary["notes"]
    assert any("prompts are not cut" in note and "refuses to start" in note for note in notes) is said
