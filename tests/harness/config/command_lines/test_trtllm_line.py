"""Command lines of TensorRT-LLM become configurations, and nothing in them is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.config.command_lines.importing import expand
from harness.config.command_lines.trtllm import serve_line as trtllm_serve
from harness.config.command_lines.trtllm.import_line import translate
from harness.config.command_lines.trtllm.serve_line import serve_command
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError
from tests.harness.builders import config
from tests.selection import examples

SERVE = "trtllm-serve Qwen/Qwen3-8B"
_FLAGS = (
    "--max_batch_size 77", "--max_num_tokens 3000", "--max_seq_len 9000", "--tp_size 2", "--enable_chunked_prefill",
)  # fmt: skip
_OPTIONS = {
    "disable_overlap_scheduler": True, "batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.5,
    "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION", "context_chunking_policy": "EQUAL_PROGRESS"},
    "kv_cache_config": {"tokens_per_block": 64, "max_tokens": 6400, "dtype": "fp8", "enable_block_reuse": False},
    "cuda_graph_config": {"max_batch_size": 8},
}  # fmt: skip


@examples(1)
@example(flags={*_FLAGS}, names={*_OPTIONS})
@given(flags=st.sets(st.sampled_from(_FLAGS)), names=st.sets(st.sampled_from([*_OPTIONS])))
def test_a_line_is_the_same_server_on_the_way_back(flags: set[str], names: set[str]) -> None:
    options = {name: _OPTIONS[name] for name in names}
    file = f" --config options.yml  # options.yml is {json.dumps(options)}" if names else ""
    settings = config(*translate(" ".join((SERVE, *sorted(flags))) + file).overrides)
    line = serve_command(settings)
    assert "not in TensorRT-LLM" not in line
    back = config(*translate(line).overrides)
    assert back == settings
    assert serve_command(back) == line


def test_what_tensorrt_llm_has_no_option_for_is_named() -> None:
    more = ("quantization=fp8", "scheduler.watermark=0.1", "replicas=2", "tiers.host.gib=0")
    line = serve_line(config("scheduler=trtllm", "router=random", *more))
    assert line.startswith("trtllm-serve Qwen/Qwen3-8B --tp_size 1 ")
    comment = line.partition("  # ")[2]
    for setting in ("2 such servers behind a router: random", "quantization=fp8", "scheduler.watermark=0.1"):
        assert setting in comment
    scheduler = config("scheduler=trtllm").scheduler
    assert {key: getattr(scheduler, key) for key in trtllm_serve._FIXED} == trtllm_serve._FIXED


@pytest.mark.parametrize(
    ("flags", "options", "override"),
    [
        ("--max_batch_size 128", "", "max_num_seqs=128"),
        ("--max_num_tokens=4096", "", "max_num_batched_tokens=4096"),
        ("--max_seq_len 5000", "", "max_model_len=5000"),
        ("--tp_size 4", "", "tensor_parallel_size=4"),
        ("--tp_size 4 --ep_size 4", "", "expert_parallel=true"),
        ("--kv_cache_free_gpu_memory_fraction .8", "", "gpu_memory_utilization=0.8"),
        ("--enable_chunked_prefill", "", "scheduler.enable_chunked_prefill=true"),
        ("", "kv_cache_config: {free_gpu_memory_fraction: 0.85}", "gpu_memory_utilization=0.85"),
        ("", "kv_cache_config: {enable_block_reuse: false}", "scheduler.enable_prefix_caching=false"),
        ("", "kv_cache_config: {tokens_per_block: 64, max_tokens: 1000}", "num_blocks=16"),
        ("", "kv_cache_config: {dtype: fp8}", "engine.kv_cache_dtype=fp8"),
        ("--max_num_tokens 4096", "max_num_tokens: 2048", "max_num_batched_tokens=2048"),
        ("", "cuda_graph_config: {max_batch_size: 64, enable_padding: true}", "engine.max_graph_tokens=64"),
        ("", "cuda_graph_config: null", "engine.max_graph_tokens=0"),
        ("", "disable_overlap_scheduler: true", "scheduler.async_scheduling=false"),
        ("", "batch_wait_timeout_iters: 20", "scheduler.options.batch_wait_timeout_iters=20"),
        ("", "batch_wait_max_tokens_ratio: 0.9", "scheduler.options.batch_wait_max_tokens_ratio=0.9"),
        (
            "",
            "scheduler_config: {capacity_scheduler_policy: MAX_UTILIZATION}",
            "scheduler.options.capacity_scheduler_policy=max_utilization",
        ),
        (
            "",
            "scheduler_config: {context_chunking_policy: EQUAL_PROGRESS}",
            "scheduler.options.context_chunking_policy=equal_progress",
        ),
    ],
)
def test_a_flag_or_a_key_of_the_file_sets_its_key(tmp_path: Path, flags: str, options: str, override: str) -> None:
    command = f"{SERVE} {flags}"
    if options:
        (tmp_path / "options.yml").write_text(options)
        command += f" --extra_llm_api_options {tmp_path / 'options.yml'}"
    assert override in translate(command).overrides
    assert override not in translate(SERVE).overrides


def test_a_line_without_flags_is_the_preset_with_the_defaults() -> None:
    launched = "mpirun -n 1 --allow-run-as-root trtllm-serve serve Qwen/Qwen3-8B --port 80 --num_postprocess_workers 2"
    found = config(*expand([f"import_trtllm={launched}"]).overrides)
    assert found.scheduler == config("scheduler=trtllm").scheduler
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.block_size) == (2048, 8192, 32)
    assert found.engine.memory_account == "trtllm" and found.gpu_memory_utilization == 0.9  # type: ignore[union-attr]
    notes = translate("docker run nvcr.io/nvidia/tensorrt-llm/release:1.2.0 trtllm-serve Qwen/Qwen3-8B --port 80").notes
    assert [note.partition(":")[0] for note in notes] == ["--port", "TensorRT-LLM 1.2.0"]


@pytest.mark.parametrize(
    ("flags", "options", "named"),
    [
        ("--backend tensorrt", "", "--backend tensorrt: not simulated"),
        ("--max_batchsize 1", "", "--max_batchsize: no flag of TensorRT-LLM 1.2"),
        ("--tp_size 4 --ep_size 2", "", "moe_expert_parallel_size 2: simulated with"),
        ("--pp_size 2", "", "pipeline_parallel_size: not simulated"),
        ("", "enable_attention_dp: true", "enable_attention_dp: not simulated"),
        ("", "speculative_config: {decoding_type: MTP}", "speculative_config: not simulated"),
        ("", "kv_cache_config: {dtype: nvfp4}", "kv_cache_config.dtype nvfp4: not simulated; choose one of"),
        ("", "max_tokens: 3", "max_tokens: no key of TensorRT-LLM"),
        ("", "[1]", "must hold options by name"),
        ("", "disable_overlap_scheduler: 3", "disable_overlap_scheduler 3: must be true or false"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(tmp_path: Path, flags: str, options: str, named: str) -> None:
    command = f"{SERVE} {flags}"
    if options:
        (tmp_path / "options.yml").write_text(options)
        command += f" --config {tmp_path / 'options.yml'}"
    with pytest.raises(ConfigError, match=r"import_trtllm: ") as refusal:
        translate(command)
    assert named in str(refusal.value)


def test_what_only_changes_times_is_named(tmp_path: Path) -> None:
    path = tmp_path / "options.yml"
    path.write_text("stream_interval: 10\nmoe_config: {backend: CUTLASS}\nenable_attention_dp: false")
    assert "stream_interval, moe_config: not simulated" in translate(f"{SERVE} --config {path}").notes[0]
