"""The configuration schema: what is refused, and that each refusal is one line naming the key and what is allowed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from engine.core.policies import POLICIES
from harness.config import RunConfig, load, parse, to_yaml
from harness.config.explaining import explain_override
from harness.errors import ConfigError
from tests.harness.builders import composed


def refusal(overrides: Sequence[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(composed(*overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


BLOCK_SIZE = "must be an integer >= 1 and <= 1048576"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["block_size=abc"], f"block_size='abc': {BLOCK_SIZE}"),
        (["block_size=1.5"], f"block_size=1.5: {BLOCK_SIZE}"),
        (["block_size=true"], f"block_size=true: {BLOCK_SIZE}"),
        (["max_num_seqs=null"], "max_num_seqs=null: must be an integer >= 1 and <= 1048576"),
        (["block_size=0"], f"block_size=0: {BLOCK_SIZE}"),
        (["block_size=1048577"], f"block_size=1048577: {BLOCK_SIZE}"),
        (["block_size=[16]"], f"block_size=[16]: {BLOCK_SIZE}"),
        (["num_blocks=0"], "num_blocks=0: must be an integer >= 1 and <= 33554432, or null"),
        (["gpu_memory_utilization=0"], "gpu_memory_utilization=0: must be a number > 0 and <= 1"),
        (["gpu_memory_utilization=1.01"], "gpu_memory_utilization=1.01: must be a number > 0 and <= 1"),
        (
            ["arrival.rate=inf"],
            "arrival.rate=inf: must be a number > 0, and finite; arrival=all_at_once sends all requests at once",
        ),
        (["arrival.rate=-1"], "arrival.rate=-1: must be a number > 0"),
        (["scheduler.policy=foo"], f"scheduler.policy='foo': choose one of {', '.join(sorted(POLICIES))}"),
        (["scheduler.eviction=radix"], "scheduler.eviction=radix: policy=sglang, and no other, has eviction=radix"),
        (["scheduler=sglang", "trace.n=2"], "trace.n=2: not with scheduler=sglang"),
        (["scheduler=sglang", "tiers=host"], "tiers.host.gib=64: not with scheduler=sglang"),
        (
            ["scheduler=sglang", "scheduler.preemption=partial"],
            "scheduler.preemption=partial: policy=sglang needs preemption=recompute; scheduler=sglang sets it",
        ),
        (
            ["scheduler=sglang", "block_size=512", "max_num_seqs=1", "max_num_batched_tokens=256"],
            "block_size=512 above max_num_batched_tokens=256: not with scheduler=sglang",
        ),
        (
            ["scheduler=sglang", "scheduler.async_scheduling=true", "engine=cpu", "model=tiny", "device=laptop-cpu"],
            "scheduler.async_scheduling=true with engine=cpu (set it to false): not with scheduler=sglang",
        ),
        (
            ["scheduler=sglang", "scheduler.options.schedule_policy=hrrn"],
            "scheduler.options.schedule_policy='hrrn': choose one of fcfs, lpm, dfs-weight, lof, random",
        ),
        (["scheduler.watermark=1"], "scheduler.watermark=1: must be a number >= 0 and < 1"),
        (["scheduler.enable_prefix_caching=1"], "scheduler.enable_prefix_caching=1: must be true or false"),
        (["model.name=''"], "model.name='': must be text that is not empty"),
        (["metrics.percentiles=50"], "metrics.percentiles=50: must be a list, each item a number >= 0 and <= 100"),
        (["metrics.percentiles=[50,101]"], "metrics.percentiles.1=101: must be a number >= 0 and <= 100"),
        (["metrics.slo.ttft_ms=0"], "metrics.slo.ttft_ms=0: must be a number >= 1e-06 and <= 1e+12, or null"),
        (["device.flops.bf16=0"], "device.flops.bf16=0: must be a number >= 1e+08 and <= 1e+20"),
        (["~device.flops.fp32"], "device.flops.fp32: missing; must be a number > 0 (operations per second)"),
        (["engine.kind=foo"], "engine='foo': choose one of sim, gpu, cpu, openai"),
        (["~engine.kind"], "engine.kind: missing; choose one of sim, gpu, cpu, openai"),
        (["~engine"], "engine: missing; choose one of sim, gpu, cpu, openai"),
        (["~model.num_layers"], "model.num_layers: missing; must be an integer >= 1 and <= 10000"),
        (["trace=csv"], "trace.path: missing; give it as trace.path=..."),
        (["block_size=${nothing}"], "block_size: Interpolation key 'nothing' not found"),
        (
            ["+engine.compres=true"],
            "engine.compres: unknown key; did you mean 'compress'? "
            "(allowed here: compress, kv_cache_dtype, max_lookahead_steps, vllm_version, "
            "memory_account, max_graph_tokens, pads_decodes, all2all_backend)",
        ),
        (
            ["+enable_prefix_caching=false"],
            "enable_prefix_caching: unknown key; did you mean 'scheduler.enable_prefix_caching'?",
        ),
        (["+scheduler.max_num_seqs=8"], "scheduler.max_num_seqs: unknown key; did you mean 'max_num_seqs'?"),
        (["cost=roofline", "+cost.x=1"], "cost.x: unknown key (allowed here: calibration, other_device)"),
        (
            ["+device.flops.b16=1e12"],
            "device.flops.b16: unknown key; did you mean 'bf16'? (allowed here: bf16, fp8, int8, fp4, fp32)",
        ),
        (["trace=synthetic", "trace.prompt.min=0"], "trace.prompt.min=0: must be an integer >= 1 and <= 2147483647"),
        (["trace=shared_prefix", "trace.suffix.high=1"], "trace.suffix.high=1: must be >= low=32"),
        (["trace=synthetic", "trace.output.max=1", "trace.output.min=2"], "trace.output.max=1: must be >= min=2"),
        (
            ["trace.path=x", "trace.num_requests=5"],
            "trace.num_requests=5: for the built-in sampler only; with a path use limit",
        ),
        (
            ["trace.tokenizer=x"],
            "trace.tokenizer='x': needs a path; the built-in sampler has no texts to count",
        ),
        (["model.num_kv_heads=3"], "model.num_kv_heads=3: must divide num_attention_heads=32"),
        (
            ["model.num_experts=8"],
            "model.num_experts=8: num_experts_per_token and moe_intermediate_size must be >= 1 with experts, "
            "and all three 0 without",
        ),
        (
            ["model=qwen3-30b-a3b", "model.num_experts_per_token=129"],
            "model.num_experts_per_token=129: must be <= num_experts=128",
        ),
        (
            ["max_num_seqs=8193"],
            "max_num_batched_tokens=8192: must be >= max_num_seqs=8193, "
            "so that every running sequence can take part in a step",
        ),
        (
            ["max_model_len=40961"],
            "max_model_len=40961: must be <= 40960, model.max_position_embeddings of Qwen/Qwen3-8B",
        ),
        (
            ["tensor_parallel_size=3"],
            "tensor_parallel_size=3: must divide model.num_attention_heads=32 of Qwen/Qwen3-8B",
        ),
        (
            ["tensor_parallel_size=12", "model.num_attention_heads=24"],
            "tensor_parallel_size=12: must divide or be a multiple of model.num_kv_heads=8 of Qwen/Qwen3-8B",
        ),
        (
            ["task=report"],
            "results: task=report needs result folders, e.g. results=[outputs/a,outputs/b]",
        ),
        (
            ["scheduler.async_scheduling=true", "engine=gpu", "engine.max_lookahead_steps=8"],
            "engine.max_lookahead_steps=8: must be 1 with scheduler.async_scheduling=true, which plans each step "
            "on its own",
        ),
        (
            ["scheduler.async_scheduling=true", "engine.max_lookahead_steps=2"],
            "engine.max_lookahead_steps=2: must be 1 with scheduler.async_scheduling=true, which plans each step "
            "on its own",
        ),
        (
            ["task=serve", "engine=cpu", "frontend.latency_ms=3"],
            "frontend.kind=vllm: in simulation only; leave out what is given of it with engine=cpu",
        ),
        (["trace.n=300", "max_num_seqs=256"], "trace.n=300: must be <= max_num_seqs=256"),
        (["calibration.widths={a:-3}"], "calibration.widths.a=-3: must be a number > 0"),
        (["scheduler=vllm", "num_blocks=1"], "num_blocks=1: must be > 1, scheduler.reserved_blocks"),
        (
            ["results=[a]"],
            "results: read by task=report and plot only; add task=report to compare earlier results",
        ),
        (["block_size=0", "seed=-1"], f"block_size=0: {BLOCK_SIZE} (and 1 more)"),
    ],
)
def test_refusals_are_one_line_with_key_and_what_is_allowed(overrides: list[str], expected: str) -> None:
    assert refusal(overrides) == expected


def test_an_unknown_key_comes_before_other_errors() -> None:
    message = refusal(["block_size=0", "seed=-1", "+blok_size=3"])
    assert message.startswith("blok_size: unknown key; did you mean 'block_size'? (allowed here: task, engine, ")
    assert message.endswith(" (and 2 more)")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("devise", "devise: unknown key; did you mean 'device'? (allowed here: task, engine, "),
        ("arrival.rte", "arrival.rte: unknown key; did you mean 'rate'? (allowed here: time_scale, rate, "),
        ("arrival.concurrency", "arrival.concurrency: belongs to arrival=closed_loop only"),
        ("trace.prompt.value", "trace.prompt.value: belongs to trace.prompt=constant only"),
        ("block_size.x", "block_size: holds a value, not keys below it"),
    ],
)
def test_an_override_of_a_key_that_is_not_there_is_explained(key: str, expected: str) -> None:
    assert str(explain_override(key)).startswith(expected)


@pytest.mark.parametrize("key", ["block_size", "model.name", "hydra.swep.dir"])
def test_keys_that_exist_and_keys_of_hydra_are_left_to_hydra(key: str) -> None:
    assert explain_override(key) is None


def test_whole_numbers_are_accepted_where_fractions_are() -> None:
    config = parse(composed("arrival.rate=3", "metrics.percentiles=[50,99.9]", "gpu_memory_utilization=1"))
    assert config.arrival.rate == 3.0  # type: ignore[union-attr]
    assert config.metrics.percentiles == (50.0, 99.9)


def test_the_sampler_gets_its_number_of_requests_and_a_file_none() -> None:
    assert parse(composed()).trace.num_requests == 4000  # type: ignore[union-attr]
    assert parse(composed("trace.num_requests=7")).trace.num_requests == 7  # type: ignore[union-attr]
    assert parse(composed("trace.path=x")).trace.num_requests is None  # type: ignore[union-attr]


def test_configurations_are_frozen() -> None:
    config = parse(composed())
    with pytest.raises(ValueError, match="frozen"):
        config.block_size = 3


@pytest.mark.parametrize(
    "overrides", [[], ["trace=shared_prefix", "trace.zipf_exponent=1e-7", "arrival=sessions", "device.name='a: #b'"]]
)
def test_a_saved_configuration_loads_as_the_same(overrides: list[str], tmp_path: Path) -> None:
    config = parse(composed(*overrides))
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    assert load(path) == config


def test_a_saved_configuration_leaves_out_the_groups_of_other_tasks() -> None:
    assert not {"profile", "validation", "calibration"} & set(OmegaConf.create(to_yaml(parse(composed()))))
    saved = OmegaConf.create(to_yaml(parse(composed("task=validate", "validation.measured=run:a"))))
    assert saved.validation.measured == "run:a" and "calibration" not in saved


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no configuration"):
        load(path)


def key_paths(values: Any, prefix: str = "") -> list[str]:
    if not isinstance(values, dict):
        return [prefix]
    return [path for key, value in values.items() for path in key_paths(value, f"{prefix}.{key}" if prefix else key)]


BASE = OmegaConf.to_container(composed())
junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({"a": 1})
)


@settings(deadline=None)
@given(st.sampled_from(key_paths(BASE)), junk)
def test_any_value_at_any_key_is_accepted_or_refused_in_one_line_that_names_it(key: str, value: Any) -> None:
    cfg = DictConfig(BASE)
    OmegaConf.update(cfg, key, value, merge=False)
    try:
        config = parse(cfg)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert key.rpartition(".")[2] in str(error) or key.endswith(".kind") or "$" in str(value)
    else:
        assert isinstance(config, RunConfig)
