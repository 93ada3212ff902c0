"""Command lines of `vllm serve` become configurations, and back, and nothing in them is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.config.command_lines.importing import expand
from harness.config.command_lines.known_models import SAME_SIZES
from harness.config.command_lines.vllm.flags import NEUTRAL, OTHERS
from harness.config.command_lines.vllm.import_line import translate
from harness.config.command_lines.vllm.line import read_line
from harness.config.command_lines.vllm.serve_line import overrides, serve_command
from harness.errors import ConfigError
from tests.harness.builders import CONF, config
from tests.harness.config.builders import SERVE, of_line


@pytest.mark.parametrize(
    ("device", "num_seqs", "num_tokens"),
    [("h100-80gb", 1024, 8192), ("a100-80gb", 256, 2048), ("l40s", 256, 2048), ("b200", 1024, 16384)],
)
def test_defaults_are_those_of_vllm_on_the_device(device: str, num_seqs: int, num_tokens: int) -> None:
    settings = of_line(SERVE, f"device={device}")
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (num_seqs, num_tokens)
    assert settings.scheduler == config("scheduler=vllm").scheduler


def test_a_command_line_has_the_front_end_of_a_server_and_what_is_given_beside_it_counts() -> None:
    assert of_line(SERVE).frontend == config("frontend=vllm").frontend
    several = of_line(f"{SERVE} --api-server-count 3")
    assert several.frontend.processes == 3 and "--api-server-count 3" in serve_command(several)
    beside = config(*expand([f"import_vllm={SERVE} -asc 3", "frontend=none"]).overrides)
    assert beside.frontend == config().frontend


def test_defaults_depend_on_one_another() -> None:
    assert of_line(f"{SERVE} --max-num-batched-tokens 512").max_num_seqs == 512
    assert of_line(f"{SERVE} --max-num-seqs 1 --max-model-len 4k").max_num_batched_tokens == 4000
    assert of_line(f"{SERVE} --no-enable-chunked-prefill").max_num_batched_tokens == 40960
    assert of_line(SERVE, "max_num_batched_tokens=512").max_num_seqs == 512


@pytest.mark.parametrize(
    ("flags", "override"),
    [
        ("--max-num-seqs 128", "max_num_seqs=128"),
        ("--max_num_seqs=128", "max_num_seqs=128"),
        ("--max-num-batched-tokens 16K", "max_num_batched_tokens=16384"),
        ("--max-model-len 32k", "max_model_len=32000"),
        ("--max-model-len 1.5k", "max_model_len=1500"),
        ("--max-model-len -1", "max_model_len=null"),
        ("-tp 4", "tensor_parallel_size=4"),
        ("--block-size 32", "block_size=32"),
        ("--gpu-memory-utilization .95", "gpu_memory_utilization=0.95"),
        ("--num-gpu-blocks-override 3000", "num_blocks=3000"),
        ("--quantization fp8", "quantization=fp8"),
        ("-q awq_marlin", "quantization=int4"),
        ("--dtype half", "model.dtype=float16"),
        ("--kv-cache-dtype fp8_e4m3", "engine.kv_cache_dtype=fp8"),
        ("--no-enable-chunked-prefill", "scheduler.enable_chunked_prefill=false"),
        ("--no-enable-prefix-caching", "scheduler.enable_prefix_caching=false"),
        ("--no-async-scheduling", "scheduler.async_scheduling=false"),
        ("--no-scheduler-reserve-full-isl", "scheduler.admission=first_chunk"),
        ("--long-prefill-token-threshold 2048", "scheduler.long_prefill_token_threshold=2048"),
        ("--scheduling-policy priority", "scheduler.queue=priority"),
        ("--scheduling-policy priority", "scheduler.victim=least_urgent"),
        ("--speculative-config.method ngram -sc.num_speculative_tokens=4", "speculation.num_speculative_tokens=4"),
    ],
)
def test_a_flag_sets_its_key(flags: str, override: str) -> None:
    assert override in overrides(f"{SERVE} {flags}")
    assert override not in overrides(SERVE) or override == "max_model_len=null"


def test_the_pool_is_as_large_as_the_flag_says() -> None:
    settings = of_line(f"{SERVE} --kv-cache-memory-bytes 4G")
    assert settings.kv_cache_memory_bytes == 4 * 2**30
    assert "--kv-cache-memory-bytes 4294967296" in serve_command(settings)
    assert "num_blocks=9" in overrides(f"{SERVE} --kv-cache-memory-bytes 4G --num-gpu-blocks-override 9")
    assert not any("kv_cache_memory" in each for each in overrides(f"{SERVE} --num-gpu-blocks-override 9"))


def test_speculation() -> None:
    ngram = json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})
    settings = of_line(f"{SERVE} --speculative-config '{ngram}'")
    assert settings.speculation.kind == "ngram"
    assert (settings.speculation.prompt_lookup_min, settings.speculation.prompt_lookup_max) == (3, 3)
    drafter = json.dumps({"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 2})
    settings = of_line(f"{SERVE} --speculative-config '{drafter}'")
    assert settings.speculation.kind == "draft_model" and settings.speculation.drafter is not None
    assert settings.speculation.drafter.name == "Qwen/Qwen3-0.6B"
    for method in ("eagle3", "mtp", "deepseek_mtp", "qwen3_next_mtp"):
        head, notes = translate(f"{SERVE} -sc.method {method} -sc.num_speculative_tokens 3")
        assert "speculation.drafter=null" in head and any("draft_token_s" in note for note in notes)


@pytest.mark.parametrize(
    ("flags", "is_ahead", "method"),
    [
        ("-sc.method ngram", False, "ngram"),
        ("-sc.method ngram_gpu", True, "ngram_gpu"),
        ("-sc.method ngram_gpu --no-async-scheduling", False, "ngram"),
        ("-sc.method ngram_gpu -pp 2", False, "ngram"),
        ("-sc.method eagle3", True, "eagle3"),
        ("-sc.method medusa", False, "eagle3"),
        ("-sc.model Qwen/Qwen3-0.6B", True, "draft_model"),
    ],
)
def test_drafts_are_planned_ahead_as_in_vllm(flags: str, is_ahead: bool, method: str) -> None:
    settings = of_line(f"{SERVE} -sc.num_speculative_tokens 3 {flags}")
    line = serve_command(settings)
    assert settings.scheduler.async_scheduling == is_ahead and f'"method": "{method}"' in line
    assert of_line(line) == settings


def test_models_are_found_by_their_names(tmp_path: Path) -> None:
    assert of_line("vllm serve meta-llama/Llama-3.1-8B-Instruct").model.name == "meta-llama/Llama-3.1-8B"
    assert of_line("vllm serve Qwen/Qwen3-8B-FP8").quantization == "fp8_block"
    names = {yaml.safe_load(path.read_text())["name"] for path in (CONF / "model").glob("*.yaml")}
    assert set(SAME_SIZES.values()) <= names and not set(SAME_SIZES) & names
    shape = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    folder = tmp_path / "it's mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape))
    assert of_line(f'vllm serve "{folder}" --max-num-seqs 8').model.num_layers == 2
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("name: me/own\n")
    assert "model=own" in translate("vllm serve me/own", (), [CONF, tmp_path]).overrides


def test_ranks_stages_and_one_side_of_a_hand_over() -> None:
    ranks = of_line(f"{SERVE} -dp 3")
    assert (ranks.replicas, ranks.router.rule, ranks.router.view_delay_ms) == (3, "vllm_balancer", 100)
    together = of_line("vllm serve Qwen/Qwen3-30B-A3B -dp 4 -tp 2 -ep")
    assert (together.data_parallel_size, together.expert_parallel, together.replicas) == (4, True, 1)
    assert (together.num_gpus, together.num_servers, together.router.rule) == (8, 4, "vllm_balancer")
    assert "--data-parallel-size 4 --enable-expert-parallel" in serve_command(together)
    for model in ("deepseek-ai/DeepSeek-V3", "zai-org/GLM-5"):  # whose layers are listed as blocks
        apart = of_line(f"vllm serve {model} -dp 8 -ep --all2all-backend deepep_low_latency")
        assert "--all2all-backend deepep_low_latency" in serve_command(apart)
        assert (apart.data_parallel_size, apart.expert_parallel, apart.replicas) == (8, True, 1)
    whole = of_line("vllm serve Qwen/Qwen3-30B-A3B -tp 4 --enable-expert-parallel")
    assert (whole.data_parallel_size, whole.expert_parallel, whole.num_expert_ranks) == (1, True, 4)
    assert "--tensor-parallel-size 4 --enable-expert-parallel" in serve_command(whole)
    assert together.num_expert_ranks == 8 and together.scheduler.async_scheduling
    stages = of_line(f"{SERVE} -pp 2 -dp 1")
    assert (stages.pipeline_parallel_size, stages.replicas, stages.scheduler.async_scheduling) == (2, 1, False)
    found = translate(f"""{SERVE} --kv-transfer-config '{{"kv_connector": "NixlConnector", "kv_role": "kv_both"}}'""")
    assert any("fleet=disaggregated has both sides" in note for note in found.notes)
    assert found.overrides == translate(SERVE).overrides


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("vllm serve Qwen/Qwen3-30B-A3B -dp 2", "--data-parallel-size 2: ranks that share the experts"),
        (f"{SERVE} --data-parallel-size many", "--data-parallel-size many: must be a number"),
        (f"{SERVE} --kv-transfer-config '[1]'", "--kv-transfer-config: must be a JSON object"),
        (f"{SERVE} --kv-transfer-config.kv_connector LMCacheConnectorV1", "'LMCacheConnectorV1' is not simulated"),
        (f"{SERVE} --enable-lora", "--enable-lora"),
        (f"{SERVE} --all2all-backend pplx", "--all2all-backend pplx: not simulated"),
        (f"{SERVE} --kv-cache-dtype fp8_ds_mla", "--kv-cache-dtype fp8_ds_mla"),
        (f"{SERVE} --quantization bitsandbytes", "--quantization bitsandbytes"),
        (f"{SERVE} --quantization compressed-tensors", "--quantization compressed-tensors"),
        (f"{SERVE} --max-num-sequences 3", "did you mean '--max-num-seqs'"),
        (f"{SERVE} --hf-overrides x", "--hf-overrides: no JSON"),
        (f"{SERVE} --hf-overrides {'[' * 100_000}", "--hf-overrides: no JSON"),
        (f"{SERVE} --hf-overrides '[1]'", "--hf-overrides: must be a JSON object"),
        (f"{SERVE} --hf-overrides.architectures x", "architectures: give the folder of the model's config.json"),
        (f"{SERVE} --hf-overrides.a 1 --hf-overrides.a.b 2", "a.b: a has a value of its own"),
        (f"{SERVE} --hf-overrides.max_position_embeddings 0.5", "must be an integer from 1"),
        (f"{SERVE} --override-generation-config 5", "--override-generation-config: must be a JSON object"),
        (f"{SERVE} --kv-cache-memory-bytes all", "--kv-cache-memory-bytes all: must be a number"),
        (f"{SERVE} --swap-spaces 4", "--swap-spaces: no flag of vLLM 0.33"),
        (f"{SERVE} --task embed", "--task embed: not simulated"),
        (f"{SERVE} --max-num-seqs many", "--max-num-seqs many: must be a number"),
        (f"{SERVE} --max-num-seqs", "--max-num-seqs: expected one argument"),
        (f"{SERVE} --speculative-config nonsense", "--speculative-config: no JSON"),
        (f"{SERVE} -sc.method suffix -sc.num_speculative_tokens 3", "suffix"),
        (f"{SERVE} ''", "unrecognized arguments: ''"),
        (f"{SERVE} more", "unrecognized arguments: more"),
        (f"{SERVE} --max-model-len {'9' * 320}", "--max-model-len 999999999999999999999999999999...: must be a number"),
        (f"{SERVE} --max-num-seqs {'9' * 5000}", "must be a number of at most 30 digits"),
        (f"{SERVE} --gpu-memory-utilization {'9' * 400}", "must be a number of at most 30 digits"),
        (f"{SERVE} --speculative-config {'[' * 100_000}", "--speculative-config: no JSON"),
        (f"{SERVE} --speculative-config {'9' * 5000}", "--speculative-config: no JSON"),
        (f"{SERVE} --speculative-config.method {'9' * 5000}", "needs num_speculative_tokens"),
        ("vllm serve", "names no model"),
        ("vllm serve Qwen/Qwen3-9B", "did you mean 'Qwen/Qwen3-"),
        ("vllm serve Qwen/Qwen3-235B-A22B-Chat-FP8", "did you mean 'Qwen/Qwen3-235B-A22B'"),
        ("vllm serve Owen/Qven3-8B", "did you mean 'Qwen/Qwen3-8B'"),
        ("python serve.py", "must be a command line that starts with vllm serve"),
        ("vllm serve 'Qwen", "not a command line"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(command: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overrides(command)
    text = str(caught.value)
    assert text.startswith("import_vllm: ") and named in text and "\n" not in text


def test_every_other_flag_is_refused_or_noted() -> None:
    for name, flag in OTHERS.items():
        command = f"{SERVE} {name} {'' if flag.values == 'switch' else '2'}"
        if flag.effect == "refused":
            with pytest.raises(ConfigError, match=name):
                read_line(command)
        else:
            assert any(name in note for note in read_line(command).notes), name
    for name, value in NEUTRAL.items():
        assert not read_line(f"{SERVE} {name} {value} --no-enable-lora").notes


def test_what_is_given_beside_it_counts() -> None:
    command = f"import_vllm={SERVE} --max-num-seqs 128 -tp 2 --no-enable-prefix-caching --port 80"
    arguments, notes = expand(["-m", "max_num_seqs=8,16", command, "device=h200"])
    assert notes == ["--port: left out"]
    assert arguments[0] == "-m" and arguments[-2:] == ["max_num_seqs=8,16", "device=h200"]
    assert "max_num_seqs=128" not in arguments and "scheduler.enable_prefix_caching=false" in arguments
    assert "model=qwen3-8b" not in expand(["import_vllm=vllm serve un/known", "model=tiny"]).overrides
    assert expand(["model=tiny"]).overrides == ["model=tiny"]
