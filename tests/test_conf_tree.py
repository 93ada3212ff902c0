"""The configuration tree: every option composes into a valid configuration, explains itself, and has true numbers."""

import json
from dataclasses import asdict, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from engine.core.policies import POLICIES
from engine.core.scheduler_options import SchedulerOptions
from harness.config import MetricsConfig, ModelConfig, RunConfig, SchedulerConfig, parse
from harness.engines.resolving.system import model_shape
from harness.errors import ConfigError
from tests.harness.builders import CONF, composed
from tests.simulator.builders import num_float32

OPTIONS = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml") if path.parent != CONF)
# Groups of which no option excludes one of another group.
TOGETHER = ("model", "device", "scheduler", "arrival", "router", "trace", "frontend", "network", "cost")
# What must be given with an option: it has no default that could work.
REQUIRED = {
    "engine/openai": ["engine.endpoint=http://localhost:8000"],
    **{
        f"trace/{name}": ["trace.path=x"]
        for name in (
            "azure",
            "mooncake",
            "burstgpt",
            "bailian",
            "servegen",
            "weka",
            "otel",
            "tracelab",
            "baseten",
            "csv",
            "jsonl",
        )
    },
    **{f"{group}/custom": [f"{group}.target=json:loads"] for group in ("trace", "arrival", "cost")},
    "experiment/shared_contexts": ["trace.path=x"],
    "experiment/autoscaling_study": ["trace.path=x"],
    **{
        f"allocator/contiguous_{name}": ["scheduler=mixed", "scheduler.enable_prefix_caching=false"]
        for name in ("max", "requested", "pow2", "exact")
    },
    "tiers/vllm": ["scheduler=vllm"],
    "model/hf": [f"model.config={Path(__file__).parent / 'harness' / 'config' / 'models' / 'gpt-oss-20b.json'}"],
}
OF_VLLM = ("max_num_seqs", "gpu_memory_utilization", "frontend")  # defaults that its newest version decides
# Published numbers of weights, which no key of the files states: those of the safetensors index on Hugging Face, which
# the model cards round (Qwen3-235B-A22B: 235B; gpt-oss-120b: 117B; Mixtral-8x22B: 141B; Llama-3.1-405B: 406B).
WEIGHTS = {
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


# Models whose layers are not alike, or of families beside the real engine's: billions of parameters, and bytes of a
# token in the KV cache of one rank in 16 bits. Parameters are those of the tensors in the published checkpoint without
# layers that draft tokens and towers for images; papers and cards round them: 671B (https://arxiv.org/abs/2412.19437),
# 355B (https://arxiv.org/abs/2508.06471), 1.03T, 744B, 397B, 120.6B, 31.6B (cards on Hugging Face).
PUBLISHED = {
    "deepseek-v3": (671.03, 70_272),
    "deepseek-r1": (671.03, 70_272),
    "deepseek-v3.2": (671.88, 61 * (1152 + 132)),
    "kimi-k2": (1026.41, 70_272),
    "kimi-k2.5": (1026.41, 70_272),
    "kimi-k2.5-nvfp4": (1026.41, 70_272),
    "minimax-m2.5-nvfp4": (228.69, 253_952),
    "glm-4.5": (352.80, 92 * 2 * 8 * 128 * 2),
    "glm-4.6": (352.80, 92 * 2 * 8 * 128 * 2),
    "glm-5": (743.91, 78 * (1152 + 132)),
    "minimax-m2.5": (228.69, 253_952),
    "qwen3-next-80b-a3b": (79.67, 12 * 2 * 2 * 256 * 2),
    "qwen3.5-27b": (26.90, 65_536),
    "qwen3.5-397b-a17b": (396.35, 30_720),
    "llama-4-scout": (107.77, 196_608),
    "llama-4-maverick": (400.71, 196_608),
    "gemma-3-27b": (27.01, 507_904),
    "gemma-4-26b-a4b": (25.23, 225_280),
    "phi-4": (14.66, 204_800),
    "olmo-3-7b": (7.30, 524_288),
    "nemotron-3-nano-30b-a3b": (31.58, 6_144),
    "nemotron-3-super-120b-a12b": (120.67, 8_192),
}


@cache
def compose_and_parse(*overrides: str) -> RunConfig:
    return parse(composed(*overrides))


def count_weights(model: ModelConfig) -> int:
    attention = 2 * model.hidden_size * model.head_dim * (model.num_attention_heads + model.num_kv_heads)
    if model.num_experts:
        mlp = model.num_experts * (3 * model.hidden_size * model.moe_intermediate_size + model.hidden_size)
    else:
        mlp = 3 * model.hidden_size * model.intermediate_size
    norms = 2 * model.hidden_size + (2 * model.head_dim if model.qk_norm else 0)
    embeddings = (1 if model.tie_word_embeddings else 2) * model.vocab_size * model.hidden_size
    layer = attention + mlp + norms + count_biases(model)
    return model.num_layers * layer + embeddings + model.hidden_size


def count_biases(model: ModelConfig) -> int:
    """Of a layer. The simulator leaves them out."""
    qkv = (model.num_attention_heads + 2 * model.num_kv_heads) * model.head_dim
    if "Qwen2.5" in model.name:
        return qkv
    if "gpt-oss" in model.name:  # of all products, the router, and a sink for each head
        experts = model.num_experts * (2 * model.moe_intermediate_size + model.hidden_size + 1)
        return qkv + model.hidden_size + experts + model.num_attention_heads
    return 0


def chosen_together() -> list[list[str]]:
    """Every option once: those of `TOGETHER` in one configuration, which saves half of all, and others alone."""
    names: dict[str, list[str]] = {}
    for path in OPTIONS:
        names.setdefault(path.parent.as_posix(), []).append(path.name.removesuffix(".yaml"))
    columns = [[f"{group}/{name}" for name in names.pop(group)] for group in TOGETHER]
    rows = [[each for each in row if each is not None] for row in zip_longest(*columns)]
    return rows + [[f"{group}/{name}"] for group in names for name in names[group]]


def with_options(options: list[str]) -> RunConfig:
    overrides = []
    for path in options:
        group, _, name = path.rpartition("/")
        if group == "trace/lengths":
            overrides += ["trace=synthetic", f"trace/lengths@trace.prompt={name}"]
        else:
            overrides += [f"{group}={name}", *REQUIRED.get(path, [])]
    return compose_and_parse(*overrides)


def with_option(path: str) -> RunConfig:
    """The configuration in which `test_every_option_composes_and_parses` has an option."""
    return with_options(next(row for row in chosen_together() if path in row))


@pytest.mark.parametrize("options", chosen_together(), ids=" ".join)
@pytest.mark.sample(45)
def test_every_option_composes_and_parses(options: list[str]) -> None:
    config = with_options(options)
    assert parse(OmegaConf.create(config.model_dump(mode="json"))) == config
    if options[0].startswith("trace/lengths"):
        assert config.trace.prompt.kind == options[0].rpartition("/")[2]  # type: ignore[union-attr]


def test_every_option_opens_with_one_line_on_when_to_choose_it() -> None:
    for path in OPTIONS:
        lines = (CONF / path).read_text(encoding="utf-8").splitlines()
        if path.parts[0] == "experiment":
            assert lines.pop(0) == "# @package _global_", path  # Hydra reads it on the first line only
        first, second = lines[:2]
        assert first.startswith("# Choose ") and first.endswith(".") and not second.startswith("#"), path


@pytest.mark.parametrize(
    "name",
    ["trace/azure", "trace/mooncake", "trace/csv", "cost/custom"],
)
def test_an_option_without_its_required_key_is_refused(name: str) -> None:
    key = REQUIRED[name][0].partition("=")[0]
    with pytest.raises(Exception, match=f"^{key}: missing"):
        compose_and_parse(name.replace("/", "="))


def test_a_preset_can_still_be_changed() -> None:
    config = compose_and_parse("experiment=tensor_parallel", "model=qwen3-32b", "arrival.rate=7")
    assert (config.model.name, config.device.name, config.tensor_parallel_size) == ("Qwen/Qwen3-32B", "NVIDIA H200", 4)
    assert config.arrival.rate == 7  # type: ignore[union-attr]


def test_a_scheduler_states_only_what_differs() -> None:
    """All other keys come from the dataclass of the core, so that a key which is new there is in every file."""
    defaults = asdict(SchedulerOptions())
    for path in (CONF / "scheduler").glob("*.yaml"):
        options = OmegaConf.to_container(composed(f"scheduler={path.stem}").scheduler)
        assert isinstance(options, dict) and options.keys() == defaults.keys()
        stated = {str(key) for key in OmegaConf.load(path)} - {"defaults", "policy"}
        assert all(options[name] != defaults[name] for name in stated), path


def test_every_policy_has_a_file() -> None:
    names = {path.stem: composed(f"scheduler={path.stem}").scheduler.policy for path in CONF.glob("scheduler/*.yaml")}
    assert set(names.values()) == POLICIES.keys()


def test_the_schema_knows_the_policies_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "mine", POLICIES["mixed"])
    assert compose_and_parse("scheduler.policy=mine").scheduler.policy == "mine"
    with pytest.raises(ConfigError, match=f"^scheduler.policy='yours': choose one of {', '.join(sorted(POLICIES))}$"):
        compose_and_parse("scheduler.policy=yours")


def test_defaults_are_those_of_the_schema_but_for_those_of_vllm() -> None:
    config = compose_and_parse()
    for name, field in RunConfig.model_fields.items():
        if not field.is_required() and name not in OF_VLLM:
            assert getattr(config, name) == field.get_default(call_default_factory=True), name
    assert (config.max_num_seqs, config.gpu_memory_utilization, config.frontend.kind) == (1024, 0.92, "vllm")
    assert config.scheduler == compose_and_parse("scheduler=vllm").scheduler
    real = compose_and_parse("engine=gpu")  # which is called without a front end
    assert (real.max_num_seqs, real.gpu_memory_utilization, real.frontend.kind) == (1024, 0.9, "none")
    assert real.scheduler == config.scheduler
    assert not compose_and_parse("engine=gpu", "engine.max_lookahead_steps=8").scheduler.async_scheduling
    assert compose_and_parse("scheduler=mixed").scheduler == SchedulerConfig()
    assert config.metrics == MetricsConfig()
    assert compose_and_parse("scheduler=prefill_first").scheduler == SchedulerConfig(policy="prefill_first")


@pytest.mark.parametrize("name", WEIGHTS)
def test_model_shapes_add_up_to_the_published_number_of_weights(name: str) -> None:
    model = with_option(f"model/{name}").model
    assert count_weights(model) == WEIGHTS[name]
    shape = model_shape(model, "none", "auto")
    assert shape.weight_bytes() / shape.dtype_bytes == pytest.approx(WEIGHTS[name], rel=5e-4)  # without biases


@pytest.mark.parametrize("name", PUBLISHED)
def test_listed_blocks_add_up_to_the_published_sizes(name: str) -> None:
    model = with_option(f"model/{name}").model
    shape = replace(model_shape(model, "none", "auto"), part_formats={})
    parameters = shape.weight_bytes() / 2 - num_float32(shape)
    assert (round(parameters / 1e9, 2), shape.kv_bytes_per_token()) == PUBLISHED[name]
    assert shape.num_layers in (sum(count for count, block in shape.blocks if block.is_attention), shape.num_blocks)


def test_every_model_has_a_published_number_of_weights() -> None:
    names = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert len(WEIGHTS) >= 20
    assert names - WEIGHTS.keys() - PUBLISHED.keys() == {"tiny", "opt-13b", "hf"}  # for opt-13b see test_roofline


def test_tiny_has_the_weights_its_comment_says() -> None:
    assert round(count_weights(compose_and_parse("model=tiny").model) / 1e6, 1) == 3.7
    assert "3.7 million" in (CONF / "model/tiny.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((CONF / "device").glob("*.yaml")), ids=lambda path: path.stem)
def test_device_rates_are_consistent(path: Path) -> None:
    device = with_option(f"device/{path.name.removesuffix('.yaml')}").device
    assert device.memory_bytes % 2**20 == 0
    assert device.flops["fp32"] <= device.flops["bf16"]
    if "fp8" in device.flops:  # dense rates double with half the bits; a sparse rate among them would stand out
        assert device.flops["fp8"] / device.flops["bf16"] == pytest.approx(2, rel=0.02)
    if "fp4" in device.flops:
        ratio = 3 if device.name in ("NVIDIA GB300", "NVIDIA B300 SXM6 AC") else 2  # Blackwell Ultra
        ratio = 4 if "GeForce" in device.name else ratio  # as with integers, below
        assert device.flops["fp4"] / device.flops["fp8"] == pytest.approx(ratio, rel=0.04 if ratio == 3 else 0.01)
    if "int8" in device.flops:  # a GeForce accumulates in float32 at half of its rate, and integers at all of it
        ratio = 4 if "GeForce" in device.name else 2
        assert device.flops["int8"] / device.flops["bf16"] == pytest.approx(ratio, rel=0.02)


def test_efficiencies_are_the_measured_ones() -> None:
    document = json.loads((CONF.parent / "experiments" / "results" / "device_rates.json").read_text(encoding="utf-8"))
    for name, rates in document["rates"].items():
        device = with_option(f"device/{name}").device
        assert (device.memory_efficiency, device.flops_efficiency) == (
            rates["memory_efficiency"],
            rates["flops_efficiency"],
        )
