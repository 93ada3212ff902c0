"""Models read from a `config.json`: real ones give the sizes of `conf/model`, unknown ones are refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.config import load, parse, to_yaml
from harness.config.explaining import explain_override
from harness.errors import ConfigError
from tests.harness.builders import composed
from tests.harness.config.builders import MODELS, published, read, write

FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
FLOAT8 = {"type": "float", "num_bits": 8}
# Values that a key can be spoilt with: a middle size would be a model.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 3, -1, 10**9, 10**40, 0.5, 1e308, float("nan"), "", "4", "x\ny", "\ud800", "x" * 5000,
    [], [1], [[]], ["LlamaForCausalLM"], ["GptOssForCausalLM"], ["sliding_attention"], {}, {"a": 1},
    {"quant_method": "fp8"}, {"quant_method": ["fp8"]}, {"quant_algo": {}},
    {"quant_method": "compressed-tensors", "config_groups": {"a": 1}},
)  # fmt: skip
RAW = (b"", b"null", b"[]", b"[" * 100_000, b"1" * 10_000, b"\xff\xfe\x00", b'{"architectures": ["LlamaForCausalLM"]}')


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    message.encode()
    return message.removeprefix(f"model.config={str(path)!r}: ")


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_file_gives_the_sizes_of_the_config_tree(path: Path) -> None:
    ours = parse(composed(f"model={path.stem}")).model.model_dump()
    assert read(path) == ours | {"name": path.stem}


def test_a_run_is_reproduced_without_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path, published("gpt-oss-20b"))
    config = parse(composed("model=hf", f"model.config={folder}"))
    (tmp_path / "config.json").unlink()
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    assert load(tmp_path / "run.yaml") == config
    assert str(folder) not in to_yaml(config)


def test_a_key_that_is_given_counts(tmp_path: Path) -> None:
    folder = write(tmp_path, published("qwen3-8b"))
    given = ["model.name=mine", "model.dtype=float16", "model.quantization=fp8", "+model.num_layers=2"]
    chosen = ["model=hf", f"model.config='{folder}'", *given]
    model = parse(composed(*chosen, "max_model_len=1024", "model.max_position_embeddings=1024")).model
    assert (model.name, model.dtype, model.quantization, model.num_layers) == ("mine", "float16", "fp8", 2)
    assert model.max_position_embeddings == 1024 and model.hidden_size == 4096
    with pytest.raises(ConfigError, match="^model.num_sliding_layers=2: must be from 1 to num_layers=2 with"):
        parse(composed(*chosen, "+model.num_sliding_layers=2"))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("Qwen3-8B/config.json", "Qwen3-8B"),
        ("models--Qwen--Qwen3-8B/snapshots/b968826d/config.json", "Qwen/Qwen3-8B"),
        ("Qwen--Qwen3-8B_config.json", "Qwen/Qwen3-8B"),
    ],
)
def test_a_model_is_named_after_where_it_lies(place: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(published("qwen3-8b")))
    assert read(path)["name"] == name


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("llama-3.1-8b", {"kv_lora_rank": 512}, "multi-head latent attention (kv_lora_rank) cannot be simulated"),
        ("llama-3.1-8b", {"index_topk": 2048}, "sparse attention (index_topk) cannot be simulated"),
        ("llama-3.1-8b", {"vision_config": {}, "text_config": {"a": 1}}, "a tower for images or sound (text_config)"),
        ("llama-3.1-8b", {"text_config": {"linear_num_key_heads": 16}}, "state-space or linear-attention layers ("),
        ("llama-3.1-8b", {"is_encoder_decoder": True}, "an encoder beside the decoder (is_encoder_decoder)"),
        ("llama-3.1-8b", {"mamba_d_state": 128}, "state-space or linear-attention layers (mamba_d_state)"),
        ("llama-3.1-8b", {"block_configs": [{}]}, "layers of different sizes (block_configs)"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 768}, "shared experts (shared_expert_intermediate_size)"),
        (
            "qwen3-30b-a3b",
            {"first_k_dense_replace": 1},
            "dense layers among those with experts (first_k_dense_replace)",
        ),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0]}, "dense layers among those with experts (mlp_only_layers)"),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, "dense layers among those with experts (decoder_sparse_step=2)"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layers of type 'linear_attention' cannot be"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "config.json: layer_types has 1 values for 24 layers"),
        ("llama-3.1-8b", {"architectures": ["OPTForCausalLM"]}, "architecture ['OPTForCausalLM'] is not known, only"),
        ("llama-3.1-8b", {"torch_dtype": "float8"}, "config.json: dtype='float8': must be float32, bfloat16, float16"),
        ("llama-3.1-8b", {"num_key_value_heads": 3}, "config.json: num_key_value_heads=3 does not divide 32 heads"),
        ("llama-3.1-8b", {"hidden_size": None}, "config.json: hidden_size is missing"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    name: str, changed: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    assert refusal(write(tmp_path, published(name) | changed)).startswith(expected)


@pytest.mark.parametrize(
    ("name", "changed", "window", "num_layers"),
    [
        ("mistral-7b", {"sliding_window": 4096}, 4096, 32),  # v0.1
        ("mistral-7b", {"sliding_window": 32768}, 0, 0),  # the longest context
        ("qwen3-8b", {"sliding_window": 4096, "use_sliding_window": False}, 0, 0),
        ("qwen3-8b", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4096, 8),
        ("qwen3-8b", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 36}, 0, 0),
        ("gpt-oss-20b", {"layer_types": None}, 128, 12),
        ("gpt-oss-20b", {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 21}, 128, 3),
        ("llama-3.1-8b", {"sliding_window": 128}, 0, 0),
    ],
)
def test_layers_with_a_sliding_window(
    name: str, changed: dict[str, Any], window: int, num_layers: int, tmp_path: Path
) -> None:
    model = read(write(tmp_path, published(name) | changed))
    assert (model["sliding_window"], model["num_sliding_layers"]) == (window, num_layers)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (FP8, "fp8"),
        (FP8 | {"weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "a.0.mlp.gate"]}, "fp8_block"),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (compressed(FLOAT8 | {"strategy": "channel"}, {"num_bits": 8}), "fp8"),
        (compressed(FLOAT8 | {"strategy": "block", "block_structure": [128, 128]}, {"num_bits": 8}), "fp8_block"),
        (compressed({"type": "int", "num_bits": 8}, {"num_bits": 8}), "int8"),
        (compressed({"type": "int", "num_bits": 4, "group_size": 128}, None), "int4"),
        (compressed({"type": "float", "num_bits": 4, "group_size": 16}, {"num_bits": 4}), "nvfp4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": None}, "int4"),
    ],
)
def test_formats_of_weights(quantization: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = write(tmp_path, published("qwen3-8b") | {"quantization_config": quantization})
    assert read(folder)["quantization"] == expected


_LAYERS = [f"model.layers.{layer}.self_attn" for layer in range(36)]


@pytest.mark.parametrize(
    ("name", "quantization", "main", "parts"),
    [
        ("qwen3-8b", FP8 | {"modules_to_not_convert": _LAYERS[:18]}, "fp8", {}),
        ("qwen3-8b", FP8 | {"modules_to_not_convert": _LAYERS[:19]}, "fp8", {"attention", "attention_output"}),
        ("qwen3-8b", FP8 | {"ignore": ["re:.*gate_proj"]}, "fp8", {"mlp"}),
        ("qwen3-8b", FP8 | {"ignore": [f"{layer}.q_proj" for layer in _LAYERS]}, "fp8", {"attention"}),
        ("qwen3-30b-a3b", FP8 | {"ignore": ["model.layers.*.mlp.gate", "model.layers.0*"]}, "fp8", {}),
        ("gpt-oss-20b", {"quant_method": "mxfp4", "ignore": ["model.layers.*.self_attn"]}, "mxfp4", {}),
        ("qwen3-8b", {"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4_32", {}),
        (
            "qwen3-8b",
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}},
            },
            "nvfp4",
            {"attention", "attention_output"},
        ),
    ],
)
def test_parts_that_are_left_as_they_are(
    name: str, quantization: dict[str, Any], main: str, parts: set[str], tmp_path: Path
) -> None:
    model = read(write(tmp_path, published(name) | {"quantization_config": quantization}))
    assert (model["quantization"], model["part_formats"]) == (main, dict.fromkeys(parts, "none"))


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (FP8 | {"weight_block_size": [64, 64]}, "weight_block_size=[64, 64]"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "bits=8, group_size=128"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "bits=4, group_size=64"),
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes'"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            "quant_algo='MIXED_PRECISION' without quantized_layers",
        ),
        ({"quant_method": "mxfp4"}, "mxfp4 of a model without experts"),
        (compressed({"type": "int", "num_bits": 8}, None), "weights of type='int', num_bits=8 with input_activations"),
        ({"quant_method": "compressed-tensors"}, "config_groups in no format"),
    ],
)
def test_other_formats_of_weights_are_refused(quantization: dict[str, Any], expected: str, tmp_path: Path) -> None:
    folder = write(tmp_path, published("qwen3-8b") | {"quantization_config": quantization})
    assert refusal(folder).startswith(f"weights in a format that cannot be simulated: {expected}")
    assert read(folder, quantization="fp8")["quantization"] == "fp8"


def test_modelopt_says_its_format_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path, published("llama-3.1-8b"))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    assert read(folder)["quantization"] == "fp8"


def test_the_option_belongs_to_one_model_only(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path / 'config.json'}: cannot be read: No such file or directory"
    with pytest.raises(ConfigError, match="model.config: missing; give it as model.config=..."):
        parse(composed("model=hf"))
    with pytest.raises(ConfigError, match="model.config=5: must be the path of a config.json"):
        parse(composed("model=hf", "model.config=5"))
    assert explain_override("model.config") == "model.config: belongs to model=hf only"
    assert explain_override("model.hf_overrides.a") == "model.hf_overrides.a: belongs to model=hf only"
    with pytest.raises(ConfigError, match="model.hf_overrides=5: must be keys of a config.json with values"):
        parse(composed("model=hf", f"model.config={tmp_path}", "model.hf_overrides=5"))


def test_spoilt_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    draw = random.Random(5)
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    num_refused = 0
    for _ in range(400):
        data = published(draw.choice(names))
        keys = [*data, "quantization_config", "dtype", "text_config", "layer_types", "head_dim", "kv_lora_rank"]
        for key in draw.sample(keys, draw.randint(1, 3)):
            data[key] = draw.choice(VALUES)
        write(tmp_path, data)
        try:
            read(tmp_path)
        except (ConfigError, ValidationError) as error:
            assert isinstance(error, ConfigError), data
            num_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1000
            str(error).encode()
    assert 100 < num_refused < 400
    for raw in RAW:
        (tmp_path / "config.json").write_bytes(raw)
        refusal(tmp_path)
