"""What the version of vLLM decides: scheduling, memory and kernels; and which profiles come with the project."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from experiments import composed
from harness.config.command_lines.vllm.import_line import overrides
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from simulator.system import System
from simulator.versions.vllm_versions import vllm_version
from tests.simulator.builders import work


def resolved(*overrides: str) -> System:
    return resolve(composed("scheduler=vllm", *overrides))


def kernels_of(system: System) -> list[str]:
    assert system.profile is not None
    return list(system.profile.meta.source.get("server", ()))


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=qwen3-8b", "quantization=fp8_block"),
        ("model=qwen3-32b", "quantization=fp8_block", "tensor_parallel_size=8"),
        ("model=qwen3-235b-a22b", "quantization=fp8_block", "tensor_parallel_size=4"),
        ("model=qwen3-30b-a3b", "quantization=fp8_block", "device=l40s", "tensor_parallel_size=2"),
        ("model=llama-3.1-70b", "quantization=nvfp4", "device=b200"),
        ("model=qwen3-32b", "quantization=nvfp4", "device=rtx-pro-6000", "tensor_parallel_size=2"),
        ("model=qwen3-8b", "engine.kv_cache_dtype=fp8"),
    ],
    ids=" ".join,
)
@pytest.mark.sample(4)
def test_what_the_database_has_is_not_priced_by_the_roofline(overrides: tuple[str, ...]) -> None:
    system = resolved(*overrides)
    assert system.cost.kind == "profiled" and system.notes == ()


@pytest.mark.parametrize(("stored", "bits", "widening"), [("int4", 4, 1.2), ("fp8", 8, 1.4)])
def test_weights_that_are_widened_are_priced_by_products_in_16_bits(stored: str, bits: int, widening: float) -> None:
    given = ("model=qwen3-14b", "device=a100-80gb", "scheduler.async_scheduling=false")
    plain, narrow = resolved(*given), resolved(*given, f"quantization={stored}")
    assert plain.profile is not None and narrow.profile is not None and "read fewer bytes" in narrow.notes[0]
    profiles = plain.profile, narrow.profile
    tables = [each.tables["tokens"].set_index(["operator", "num_tokens"])["time_us"] for each in profiles]
    for operator in ("qkv_proj", "down_proj"):
        wide, small = (table[operator] for table in tables)
        assert small.iloc[-1] == pytest.approx(widening * wide.iloc[-1])
        assert small.iloc[0] == pytest.approx(bits / 16 * wide.iloc[0], rel=0.04)  # and scales
    pd.testing.assert_series_equal(tables[0]["elementwise"], tables[1]["elementwise"])


def test_a_card_with_the_chip_of_another_takes_its_kernels_longer() -> None:
    given = ("model=qwen3-8b", "scheduler.async_scheduling=true")
    module, card = resolved(*given, "device=h100-80gb"), resolved(*given, "device=h100-pcie")
    for step, longer in (
        (work([], [1000] * 8), 3.35 / 2.039),
        (work([(0, 8192, True)], []), 0.8 / 0.65 * 989.4 / 756.4),
    ):
        times = [system.cost_model().step_ns(step) for system in (module, card)]
        assert times[1] == pytest.approx(longer * times[0], rel=0.06)  # but for launches
    assert "scaled from those on NVIDIA H100 80GB HBM3" in card.step_times_from()


def test_sparse_attention_computes_the_whole_topk_before_0_24() -> None:
    given = ("model=deepseek-v3.2", "device=h200", "tensor_parallel_size=8")
    before, since = (resolved(*given, f"engine.vllm_version={version}") for version in ("0.23.0", "0.24.0"))
    assert kernels_of(before) == ["whole_topk"] and kernels_of(since) == []
    short, late = work([(0, 128, True)] * 64, []), work([(8192, 8192, True)], [])
    for step, least, most in ((short, 1.4, 1.5), (late, 0.99, 1.01)):
        ratio = before.cost_model().step_ns(step) / since.cost_model().step_ns(step)
        assert least < ratio < most


def test_experts_that_are_widened_read_fewer_bytes_at_every_size() -> None:
    given = ("model=qwen3-30b-a3b", "device=a100-80gb")
    profiles = [resolved(*given, f"quantization={stored}").profile for stored in ("none", "fp8")]
    plain, narrow = (each.tables["tokens"].query("operator == 'experts'")["time_us"].array for each in profiles if each)
    assert narrow[0] == pytest.approx(plain[0] / 2, rel=0.01) and narrow[-1] == pytest.approx(1.4 * plain[-1])
    assert (narrow >= 0.5 * plain).all()


def test_what_is_noted_before_the_times_are_found_is_kept() -> None:
    notes = resolved("model=qwen3-next-80b-a3b", "device=mi300x").notes
    assert [text for text in notes if "prefixes are not cached" in text] and "no measured kernels" in notes[-1]


def test_a_version_has_its_front_end_and_what_is_given_counts() -> None:
    chat, newest, own = (
        resolved("frontend=vllm", *more).front_end
        for more in (("engine.vllm_version=0.11.0",), (), ("frontend.request_ms=0", "frontend.processes=4"))
    )
    assert chat is not None and newest is not None and own is not None and resolved().front_end is None
    assert chat.request_ns == 8 * newest.request_ns and chat.latency_ns > newest.latency_ns
    assert own == newest._replace(request_ns=0, processes=4)
    template = ("frontend=vllm", "engine.vllm_version=0.11.0")
    assert resolved(*template, "frontend.endpoint=completions").front_end == newest
    assert resolved(*template, "model=gpt-oss-20b").front_end == newest


def test_a_version_sets_scheduling_memory_and_kernels_and_the_default_is_the_newest() -> None:
    ranks = ("model=llama-3.1-70b", "quantization=fp8", "tensor_parallel_size=4")
    old, newest = resolved(*ranks, "engine.vllm_version=0.10.2"), resolved(*ranks)
    assert (old.scheduler.async_scheduling, newest.scheduler.async_scheduling) == (False, True)
    assert old.pool.outside_bytes < newest.pool.outside_bytes
    assert kernels_of(old) == ["piecewise_graphs", "separate_norms"] and kernels_of(newest) == []
    fused = {
        version: kernels_of(resolved(*ranks, f"engine.vllm_version={version}")) for version in ("0.16.0", "0.17.0")
    }
    assert fused == {"0.16.0": ["separate_norms"], "0.17.0": []}


def test_experts_in_no_groups_were_chosen_by_kernels_beside_theirs() -> None:
    server = ("model=minimax-m2.5-nvfp4", "device=b200", "tensor_parallel_size=2")
    old, newest = (resolved(*server, *more) for more in (("engine.vllm_version=0.21.0",), ()))
    assert kernels_of(old) == ["cutlass_fp4", "routing_kernels"] and kernels_of(newest) == []
    decodes = work([], [1000] * 4)
    both = [system.cost_model().step_ns(decodes) for system in (old, newest)]
    assert both[0] - both[1] > 62 * 4 * 1500


def test_what_is_given_beside_a_version_counts() -> None:
    given = ("engine.vllm_version=0.11.0", "scheduler.async_scheduling=true", "engine.memory_account=vllm")
    system, newest = resolved(*given), resolved()
    assert system.scheduler.async_scheduling and system.pool == newest.pool
    system = resolved("engine.vllm_version=0.10.2", "cost.profile=auto+separate_norms", "tensor_parallel_size=2")
    assert kernels_of(system) == ["separate_norms"]


def test_kernels_that_a_server_was_told_to_run_are_not_asked_of_its_drafter() -> None:
    drafting = ("speculation=draft_model", "model@speculation.drafter=qwen3-0.6b", "scheduler.async_scheduling=false")
    system = resolved("model=gpt-oss-20b", "cost.profile=auto+marlin", *drafting)
    assert kernels_of(system) == ["marlin"] and system.drafter is not None and kernels_of(system.drafter) == []


def test_experts_of_0_12_are_padded_on_hopper_and_those_of_0_15_are_flashinfers() -> None:
    settings = ("model=qwen3-235b-a22b", "quantization=fp8_block", "device=h200", "engine.vllm_version=0.12.0")
    assert "deepgemm" in kernels_of(resolved(*settings, "tensor_parallel_size=4"))
    for version, kernel in (("0.13.0", None), ("0.15.1", "flashinfer_cutlass"), ("0.17.0", None)):
        later = (*settings[:-1], f"engine.vllm_version={version}", "tensor_parallel_size=4")
        found = {"deepgemm", "flashinfer_cutlass"} & set(kernels_of(resolved(*later)))
        assert found == {kernel} - {None}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.9.2", (False, "vllm_0.9")),
        ("v0.13.0", (False, "vllm_0.9")),
        ("0.14", (True, "vllm_0.9")),
        ("0.17.1rc1", (True, "vllm_0.17")),
        ("0.20.0", (True, "vllm")),
        ("0.100.0", (True, "vllm")),
        ("1.0.0", (True, "vllm")),
        (None, (True, "vllm")),
    ],
)
def test_a_version_has_the_defaults_since_the_one_before_it(name: str | None, expected: tuple[Any, ...]) -> None:
    found = vllm_version(name)
    assert (found.async_scheduling, found.memory_account) == expected


def test_a_version_that_yaml_takes_for_a_number_is_one() -> None:
    assert composed("engine.vllm_version=0.19").engine == composed("engine.vllm_version='0.19'").engine


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.vllm_version=newest", "engine.vllm_version=newest: must be a version of vLLM such as 0.19.0"),
        ("engine.vllm_version=0.2.1", "engine.vllm_version=0.2.1: must be 0.9 or newer; see"),
        ("engine.vllm_version=0.20", r"engine.vllm_version=0.2: must be 0.9 or newer \(.*: write 0.20 as 0.20.0\)"),
        ("cost.profile=auto+merlin", "no kernel 'merlin'"),
        ("cost.profile=auto+marlin", "marlin: has no times of Qwen/Qwen3-8B"),
    ],
)
def test_what_is_unknown_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(override)


@pytest.mark.parametrize(
    ("version", "eviction", "cuts_alone", "ends", "pads", "finds", "b200"),
    [
        ("0.19.1", "lru", True, True, "never", False, 8192),
        ("0.22.1", "lru", True, True, "never", False, 8192),
        ("0.23.0", "unhashed_first", True, True, "never", False, 8192),
        ("0.25.1", "unhashed_first", True, True, "or_waits", False, 8192),
        ("0.28.0", "unhashed_first", True, True, "or_waits", False, 16384),
        ("0.29.0", "unhashed_first", True, True, "with_decodes", False, 16384),
        ("0.31.0", "unhashed_first", False, True, "always", False, 16384),
        ("null", "unhashed_first", False, False, "always", True, 16384),
    ],
)
def test_a_version_has_its_rules(
    version: str, eviction: str, cuts_alone: bool, ends: bool, pads: str, finds: bool, b200: int
) -> None:
    line = overrides("vllm serve Qwen/Qwen3-8B")
    made = composed(*line, "device=b200", f"engine.vllm_version={version}")
    assert (made.scheduler.eviction, made.max_num_batched_tokens) == (eviction, b200)
    assert made.scheduler.options == {
        "cuts_alone": cuts_alone,
        "ends_with_giving_way": ends,
        "pads_admissions": pads,
        "finds_verified": finds,
    }
    others = composed("scheduler=vllm", "scheduler.policy=fair", f"engine.vllm_version={version}")
    assert others.scheduler.options == {}, "of other policies"


HEADS = ("speculation=draft_model", "speculation.drafter=null")


@pytest.mark.parametrize(
    ("more", "is_ahead"),
    [
        ((), True),
        (("pipeline_parallel_size=2",), False),
        (("speculation=ngram",), False),
        (HEADS, True),
        ((*HEADS, "engine.vllm_version=0.13.0"), False),
        ((*HEADS, "engine.vllm_version=0.19.0"), True),
        (("speculation=draft_model",), True),
        (("speculation=draft_model", "engine.vllm_version=0.26.0"), False),
    ],
)
def test_steps_are_planned_ahead_where_vllm_does_and_the_core_can(more: tuple[str, ...], is_ahead: bool) -> None:
    assert composed("scheduler=vllm", *more).scheduler.async_scheduling == is_ahead
