"""What stands around the flags of a command line of vLLM: a file of flags, docker's image, environment variables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.config import ProfiledCost, SimEngine, parse
from harness.config.command_lines.importing import expand
from harness.config.command_lines.vllm.import_line import translate
from harness.config.command_lines.vllm.offloading import transfer_words
from harness.config.command_lines.vllm.serve_line import overrides
from harness.config.schema.tiers import HostTierConfig, TiersConfig
from harness.engines.resolving.system import pool_of
from harness.errors import ConfigError, TwinServeError
from harness.measured import load_measured
from tests.harness.builders import composed, config

SERVE = "vllm serve Qwen/Qwen3-8B"


def test_the_file_of_config_is_read_and_the_command_line_counts_more(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "kv-cache-dtype: fp8\nno-enable-prefix-caching: true\nmax-num-batched-tokens: 8192\nmax_model_len: 10240\n"
        "enforce-eager: false\nspeculative-config: {method: ngram, num_speculative_tokens: 2, prompt_lookup_max: 3}\n"
    )
    for given in (f"--config {file}", f"--config={file}"):
        found = translate(f"{SERVE} {given} --max-model-len=9000 --max-num-seqs 64")
        made = config(*found.overrides)
        assert (made.engine.kv_cache_dtype, made.max_num_batched_tokens, made.max_model_len) == ("fp8", 8192, 9000)
        assert not made.scheduler.enable_prefix_caching and made.speculation.kind == "ngram"
        assert any("enforce-eager: has no effect there" in note for note in found.notes)
    assert config(*translate(f"{SERVE} --config {file}").overrides).max_model_len == 10240
    file.write_text("model: Qwen/Qwen3-0.6B\nport: 8000\n")
    assert "model=qwen3-0.6b" in translate(f"vllm serve --config {file} --max-num-seqs 3").overrides
    assert "model=qwen3-8b" in translate(f"{SERVE} --config {file}").overrides


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must hold flags"),
        ("a: [", "not YAML"),
        ("max-modell-len: 3", "--max-modell-len: no flag of vLLM"),
        (None, "cannot"),
    ],
)
def test_a_file_of_config_that_cannot_be_used_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "c.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        translate(f"{SERVE} --config {file}")
    assert "\n" not in str(error.value)


def test_a_server_of_text_alone_loads_no_tower() -> None:
    line = "vllm serve Qwen/Qwen3.5-27B --max-model-len 8192"
    both = [parse(composed(*overrides(each), "device=h200")).model for each in (line, f"{line} --language-model-only")]
    assert [model.tower_parameters for model in both] == [460_320_768, 0]


def test_the_image_of_docker_tells_the_version_and_variables_the_kernels() -> None:
    run_it = "docker run --gpus all -e VLLM_MXFP4_USE_MARLIN=1 --env A=1 vllm/vllm-openai:v0.15.1-cu130 --model {}"
    translation = translate(f"{run_it.format('openai/gpt-oss-120b')} --max-cudagraph-capture-size 2048 -tp 2")
    found = parse(composed(*translation.overrides, "device=h200"))
    assert isinstance(found.engine, SimEngine) and isinstance(found.cost, ProfiledCost)
    assert found.engine.vllm_version == "0.15.1" and found.engine.max_graph_tokens == 2048
    assert found.cost.profile == "auto+separate_norms+cutlass_fp4+routing_kernels+whole_topk+flashinfer_cutlass+marlin"
    assert found.tensor_parallel_size == 2
    assert [note for note in translation.notes if note.startswith("A=1")]
    assert not [note for note in translation.notes if "MARLIN" in note]
    static = parse(composed(*overrides("vllm serve meta-llama/Llama-3.1-70B --quantization modelopt -tp 2")))
    assert isinstance(static.cost, ProfiledCost) and static.cost.profile == "auto+static_scales"
    priced_otherwise = expand([f"import_vllm={run_it.format('openai/gpt-oss-20b')}", "cost=roofline"])
    assert not any(line.startswith("cost.") for line in priced_otherwise.overrides)
    old = config(*overrides("docker run vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B"))
    assert not old.scheduler.async_scheduling and config(*overrides(SERVE)).scheduler.async_scheduling
    told = config(*overrides("docker run vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --async-scheduling"))
    assert told.scheduler.async_scheduling


def test_environment_variables_and_nodes_are_not_dropped_unseen() -> None:
    for prefix in ("VLLM_ATTENTION_BACKEND=FLASHINFER A='x y' ", "env VLLM_ATTENTION_BACKEND=FLASHINFER "):
        notes = translate(prefix + SERVE).notes
        assert any(note.startswith("VLLM_ATTENTION_BACKEND=FLASHINFER") and "not simulated" in note for note in notes)
    with pytest.raises(ConfigError, match="VLLM_USE_V1=0: asks for the engine V0"):
        translate(f"VLLM_USE_V1=0 {SERVE}")
    with pytest.raises(ConfigError, match="--nnodes 2: not simulated"):
        translate(f"{SERVE} --nnodes 2 -tp 16")
    assert translate(f"{SERVE} --nnodes 1").overrides == translate(SERVE).overrides


def test_the_version_decides_the_share_of_memory_and_eager_servers_set_none_apart_for_graphs() -> None:
    """Since vLLM 0.20 an estimate of the CUDA graphs is set apart, and 0.92 of the memory is taken by default."""
    shares = {version: config(*overrides(SERVE), f"engine.vllm_version={version}").gpu_memory_utilization
              for version in ("0.19.1", "0.20.0", "null")}  # fmt: skip
    assert shares == {"0.19.1": 0.9, "0.20.0": 0.92, "null": 0.92}
    assert config(*overrides(f"{SERVE} --gpu-memory-utilization 0.8")).gpu_memory_utilization == 0.8
    graphs, eager, old = (
        pool_of(config(*overrides(f"{SERVE} {flags}"), *more)).outside_bytes
        for flags, more in (("", ()), ("--enforce-eager", ()), ("", ("engine.vllm_version=0.19.0",)))
    )
    assert graphs - eager == 112 * 2**20 + 101 * 36 * (2**20 // 5) and eager == old
    assert any("--enforce-eager" in note for note in translate(f"{SERVE} --enforce-eager").notes)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/x", "a\0b"], ids=lambda name: name[:9])
def test_a_model_or_a_file_that_cannot_be_is_named(name: str) -> None:
    for command in (f"vllm serve '{name}'", f"{SERVE} --config '{name}'"):
        with pytest.raises(ConfigError, match="none of conf/model|cannot be read|not a command line"):
            translate(command)
    with pytest.raises(TwinServeError, match="not a|no |cannot|missing"):
        load_measured(f"run:{name[:99]}")


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (f"nohup {SERVE} {{}} > server.log 2>&1 &", None),
        (f"sudo A=1 uv run {SERVE} {{}} 2>&1 | tee server.log", None),
        (f"{SERVE} {{}} && curl localhost:8000/v1/models", None),
        ("python3 -O -u -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B {}", None),
        ("docker run --gpus all vllm/vllm-openai:latest --model Qwen/Qwen3-8B {}", None),
        ("docker run --ipc=host ghcr.io/x/vllm-openai --model Qwen/Qwen3-8B {}", None),
        ("docker run vllm/vllm-openai:nightly-01d4d1ad3 vllm serve Qwen/Qwen3-8B {}", None),
        ("docker run vllm/vllm-openai:v0.10.2@sha256:ab12 --model Qwen/Qwen3-8B {}", "0.10.2"),
        ("docker run vllm/vllm-openai:v0.20 --model Qwen/Qwen3-8B {}", "0.20"),
        (f"{SERVE} {{}}  # vLLM 0.19.1; H100", "0.19.1"),
    ],
)
def test_command_lines_are_read_as_people_paste_them(command: str, version: str | None) -> None:
    """With what the shell does around them, and with flags of vLLM's versions since 0.9."""
    past = "--disable-log-requests --swap-space 4 --max-seq-len-to-capture 8192 --task generate"
    found = translate(command.format(f"--max-num-seqs 7 {past}"))
    made = config(*found.overrides)
    assert isinstance(made.engine, SimEngine)
    assert (made.model.name, made.max_num_seqs, made.engine.vllm_version) == ("Qwen/Qwen3-8B", 7, version)
    assert [note for note in found.notes if "--swap-space" in note and "of earlier versions" in note]


def test_kv_in_host_memory_is_read_and_written() -> None:
    extra = {"cpu_bytes_to_use": 2**31, "block_size": 64, "eviction_policy": "lru"}
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    for flags, gib, chunk in (
        (("--kv-offloading-size", 20, "--kv-offloading-backend", "native"), 20, 1),
        (("--kv-transfer-config", json.dumps(connector)), 2, 4),
    ):
        wanted = {"tiers=vllm", f"tiers.host.gib={gib}.0", *([f"tiers.chunk_blocks={chunk}"] if chunk > 1 else [])}
        tiers = TiersConfig(offload=True, rule="vllm", chunk_blocks=chunk, host=HostTierConfig(gib=gib))
        written = transfer_words(tiers, None)
        for words in (flags, written):
            found = translate(f"{SERVE} {shlex.join(map(str, words))}").overrides
            assert {each for each in found if each.startswith("tiers")} == wanted
    extra["eviction_policy"] = "arc"
    with pytest.raises(ConfigError, match="eviction_policy: not simulated"):
        translate(f"{SERVE} --kv-transfer-config '{json.dumps(connector)}'")
