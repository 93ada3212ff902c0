"""Operator times that come with the project: profiles of models that have none of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.engines.resolving.system import device_rates, model_shape, resolve
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts.kernels import experts
from simulator.importers.aiconfigurator.experts.like_experts import like_experts
from simulator.importers.aiconfigurator.shipped import FOLDER, compiled_profile
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.archive import find_profile
from tests.harness.builders import config

DENSE = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40, "hidden_size": 4608, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 100352,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 12, "num_experts": 96, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1024, "norm_topk_prob": True,
}  # fmt: skip


def model(name: str, quantization: str = "none") -> Model:
    made = config(f"model={name}")
    return replace(model_shape(made.model, made.weight_format, "auto"), quantization=QUANTIZATIONS[quantization])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("device", "name", "quantization", "ranks", "kernels"),
    [
        ("h100-80gb", "qwen3-30b-a3b", "fp8", 4, ("separate_norms", "marlin", "static_scales")),
        ("b200", "llama-3.1-70b", "nvfp4", 2, ()),
        ("h200", "deepseek-r1", "fp8_block", 4, ("deepgemm",)),
        ("l40s", "qwen3-8b", "fp8", 1, ("piecewise_graphs",)),
        ("a100-80gb", "qwen3-14b", "none", 2, ("separate_norms",)),
        ("rtx-pro-6000", "gpt-oss-20b", "mxfp4", 1, ("marlin",)),
    ],
)
def test_a_compiled_profile_is_that_of_the_archive(
    device: str, name: str, quantization: str, ranks: int, kernels: tuple[str, ...]
) -> None:
    rates, shape = device_rates(config(f"device={device}").device), model(name, quantization)
    system = rates.aiconfigurator_system
    assert system is not None
    archived = find_profile(system, shape, ranks, 256, kernels)
    made = compiled_profile(system, shape, ranks, 256, rates, kernels)
    assert archived is not None and made is not None
    assert set(made.meta.source.get("server", ())) == set(archived.meta.source.get("server", ()))
    assert (made.meta.calls, made.meta.token_buckets) == (archived.meta.calls, archived.meta.token_buckets)
    assert made.tables.keys() == archived.tables.keys()
    for table, rows in archived.tables.items():
        keys = [column for column in rows.columns if column != "time_us"]
        both = rows.merge(made.tables[table], on=keys, suffixes=("", "_made"))
        assert len(both) >= 0.95 * len(rows)  # which points are thinned out may differ
        assert np.allclose(both["time_us"], both["time_us_made"], rtol=5e-3, atol=2e-3), table


def test_experts_that_were_timed_are_like_themselves() -> None:
    database, shape = Database(FOLDER, "h100_sxm"), model("qwen3-30b-a3b")
    measured, _ = experts(database, shape, 2)
    alike = like_experts(database, shape, 2)
    tokens = np.array([1.0, 64.0, 4096.0])
    assert alike.at(tokens) == pytest.approx(measured.at(tokens))


def test_more_weights_take_up_to_as_much_more_time() -> None:
    database, shape = Database(FOLDER, "h100_sxm"), model("mixtral-8x22b")
    block = shape.first(Experts)
    assert block is not None
    wider = replace(block, intermediate_size=int(1.4 * block.intermediate_size))
    blocks = tuple(each._replace(block=wider) if each.block == block else each for each in shape.blocks)
    wide = replace(shape, blocks=blocks)
    tokens = np.array([1.0, 64.0, 4096.0])
    ratio = like_experts(database, wide, 1).at(tokens) / like_experts(database, shape, 1).at(tokens)
    assert (ratio > 1.2).all() and (ratio < 1.41).all()


@pytest.mark.parametrize(
    ("document", "device", "cost", "note"),
    [
        (DENSE, "h100-80gb", "profiled", None),
        (EXPERTS, "l40s", "profiled", "those most like them"),
        (EXPERTS | {"num_experts": 2, "num_experts_per_tok": 1}, "h100-80gb", "roofline", "no measured kernels"),
        (DENSE, "rtx-3090", "profiled", "scaled by the rates of both"),
        (DENSE, "mi300x", "roofline", "no measured kernels"),
    ],
)
def test_any_model_is_priced_by_kernels_where_its_operators_were_timed(
    tmp_path: Path, document: dict[str, object], device: str, cost: str, note: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(document))
    made = config("model=hf", f"model.config={tmp_path}", f"device={device}", "cost=profiled", "max_model_len=2048",
                  "engine.vllm_version=0.16.0", "tensor_parallel_size=2")  # fmt: skip
    system = resolve(made)
    assert system.cost.kind == cost
    assert (note is None) == (not system.notes) and all(note is None or note in each for each in system.notes)
    if cost == "profiled" and device == "h100-80gb":
        assert system.profile is not None and system.profile.meta.source["server"] == ["separate_norms"]
