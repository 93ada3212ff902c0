"""Checkpoints of each family: their weights are those of the same model in transformers, without memory for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from harness.config import ModelConfig  # noqa: E402
from harness.config.huggingface.keys import ignored_notes  # noqa: E402
from harness.engines.resolving.system import model_shape  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from simulator.device import Device  # noqa: E402
from simulator.models.memory import size_kv_pool  # noqa: E402
from simulator.models.model import Model  # noqa: E402
from tests.harness.config.builders import CHECKPOINTS, read, write  # noqa: E402
from tests.simulator.builders import num_float32  # noqa: E402

FLOAT32_ROUTERS = {  # layers, experts, width
    "minimax-m2.5": 62 * 256 * 3072, "glm-4.5": 89 * 160 * 5120, "mimo-v2-flash": 47 * 256 * 4096,
}  # fmt: skip
TOWERS = {  # parameters of the towers as transformers builds them; the others' kinds are not known
    "gemma-3-4b": 419_816_304, "gemma-3-27b": 423_060_336, "gemma-4-26b-a4b": 572_792_112, "kimi-k2.5": 471_143_920,
    "llama-4-maverick": 871_932_416, "qwen3-vl-8b": 576_388_336, "qwen3-vl-30b-a3b": 538_631_408,
}  # fmt: skip
FILES = sorted(CHECKPOINTS.glob("*.json"))
_TOWER = ("visual.", "vision_", "multi_modal_projector.", "mm_projector.", "embed_vision", "embed_audio", "audio_tower")


def num_parameters(data: dict[str, Any]) -> int:
    """Parameters of the model of text, as transformers builds it, with the corrections of an expert's score."""
    config = CONFIG_MAPPING[data["model_type"]].from_dict(data)
    kind = transformers.AutoModelForImageTextToText if "text_config" in data else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    sizes |= {name: tensor.numel() for name, tensor in model.named_buffers() if "e_score_correction" in name}
    return sum(size for name, size in sizes.items() if not any(part in name for part in _TOWER))


def shape(path: Path) -> Model:
    return model_shape(ModelConfig(**read(path)), "none", "auto")


@pytest.mark.sample(10)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_weights_are_the_tensors_of_the_checkpoint(path: Path) -> None:
    data = json.loads(path.read_text())
    data.pop("quantization_config", None)
    model = shape(path)
    assert model.weight_bytes() == 2 * (num_parameters(data) + num_float32(model))
    assert num_float32(model) == FLOAT32_ROUTERS.get(path.stem, 0)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("seed-oss-36b", {"attention_bias": False}),
        ("seed-oss-36b", {"attention_out_bias": True, "mlp_bias": True}),
        ("ernie-4.5-0.3b", {"use_bias": True}),
        ("granite-3.3-8b", {"attention_bias": True}),
        ("granite-3.3-8b", {"mlp_bias": True}),
        ("olmo-2-7b", {"attention_bias": True}),
        ("gemma-3-1b", {"attention_bias": True}),
        ("smollm3-3b", {"mlp_bias": True}),
    ],
)
@pytest.mark.sample(4)
def test_biases_are_weights(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    data = json.loads((CHECKPOINTS / f"{name}.json").read_text()) | changed
    assert shape(write(tmp_path, data)).weight_bytes() == 2 * num_parameters(data)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_as_many_layers_have_a_window_as_in_transformers(path: Path) -> None:
    data = json.loads(path.read_text())
    config = CONFIG_MAPPING[data["model_type"]].from_dict(data)
    kinds = getattr(config.get_text_config(), "layer_types", None) or []
    expected = (
        32
        if path.stem == "phi-3-mini-4k"
        else sum(kinds.count(kind) for kind in ("sliding_attention", "chunked_attention"))
    )
    assert shape(path).sizes["num_sliding_layers"] == expected


@pytest.mark.parametrize(
    ("name", "changed", "window", "num_layers"),
    [
        ("exaone-4.0-32b", {"layer_types": None}, 4096, 48),
        ("exaone-4.0-32b", {"layer_types": None, "sliding_window_pattern": 2}, 4096, 32),
        ("exaone-4.0-32b", {"layer_types": None, "sliding_window": None, "sliding_window_pattern": None}, 0, 0),
        ("olmo-3-7b", {"layer_types": None}, 4096, 24),
        ("gemma-3-1b", {}, 512, 22),
        ("gemma-3-1b", {"sliding_window_pattern": None}, 512, 22),
        ("gemma-3-27b", {}, 1024, 52),
        ("phi-4", {"sliding_window": 262144}, 0, 0),
        ("smollm3-3b", {"layer_types": None, "sliding_window": 512}, 0, 0),
    ],
)
def test_windows_of_the_families(
    name: str, changed: dict[str, Any], window: int, num_layers: int, tmp_path: Path
) -> None:
    model = read(write(tmp_path, json.loads((CHECKPOINTS / f"{name}.json").read_text()) | changed))
    assert (model["sliding_window"], model["num_sliding_layers"]) == (window, num_layers)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_a_tower_is_left_out_and_the_run_says_so(path: Path) -> None:
    model = read(path)
    has_tower = "vision_config" in json.loads(path.read_text())
    assert model["ignored_keys"] == (("vision_config",) if has_tower else ())
    notes = ignored_notes(model["ignored_keys"], has_tower=model["tower_parameters"] > 0)
    left_out = "inputs" if model["tower_parameters"] else "the weights and inputs"
    assert notes == [f"the text half of the model is simulated: {left_out} of vision_config are left out"] * has_tower


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_has_the_parameters_of_its_matrices(name: str) -> None:
    assert read(CHECKPOINTS / f"{name}.json")["tower_parameters"] == pytest.approx(TOWERS[name], rel=1e-3)


def test_ranks_share_a_tower_in_memory_only() -> None:
    with_tower = shape(CHECKPOINTS / "qwen3.5-27b.json")
    without = replace(with_tower, tower_parameters=0)
    assert with_tower.weight_bytes(2) == without.weight_bytes(2) and with_tower.tower_parameters > 4e8
    held = [
        size_kv_pool(
            model, Device("H200", 141 << 30, 4.8e12, {"bf16": 1e15}, 0.8, 0.7, 450e9, 1e-5, 1e-3), block_size=16,
            tensor_parallel_size=2, gpu_memory_utilization=0.9, max_num_batched_tokens=8192, max_num_seqs=64,
            shares_states=True,
        ).weight_bytes
        for model in (with_tower, without)
    ]  # fmt: skip
    assert held[0] - held[1] == with_tower.tower_parameters


def test_a_tower_with_sizes_that_are_not_stated_is_left_out(tmp_path: Path) -> None:
    data = json.loads((CHECKPOINTS / "qwen3.5-27b.json").read_text())
    del data["vision_config"]["depth"]
    assert read(write(tmp_path, data))["tower_parameters"] == 0


def test_positions_that_are_scaled_already_stay(tmp_path: Path) -> None:
    assert read(CHECKPOINTS / "gemma-3-4b.json")["max_position_embeddings"] == 131_072
    assert read(CHECKPOINTS / "minimax-m2.5.json")["quantization"] == "fp8_block"


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        (
            "gemma-3-27b",
            {"text_config": {"num_experts": 4, "n_shared_experts": 1}},
            "shared experts (n_shared_experts)",
        ),
        ("minimax-m2.5", {"attn_type_list": [0, 1]}, "state-space or linear-attention layers (attn_type_list)"),
        ("hunyuan-7b", {"use_cla": True}, "keys and values shared by layers (use_cla)"),
        ("phi-4", {"vision_config": {"a": 1}}, "a tower for images or sound (vision_config)"),
        (
            "smollm3-3b",
            {"layer_types": None, "sliding_window": 9, "use_sliding_window": True},
            "config.json: sliding_w",
        ),
        ("exaone-4.0-32b", {"layer_types": None, "sliding_window_pattern": "LGL"}, "config.json: sliding_window_patt"),
        ("deepseek-v3.2", {"num_kv_shared_layers": 2}, "keys and values shared by layers (num_kv_shared_layers)"),
        ("deepseek-v3.2", {"kv_lora_rank": None}, "config.json: kv_lora_rank is missing"),
        ("glm-5.2", {"mlp_layer_types": ["dense"]}, "config.json: mlp_layer_types has 1 values for 78 layers"),
    ],
)
def test_what_a_shape_cannot_say_is_refused(name: str, changed: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = write(tmp_path, json.loads((CHECKPOINTS / f"{name}.json").read_text()) | changed)
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        read(folder)
    assert "\n" not in str(caught.value)
