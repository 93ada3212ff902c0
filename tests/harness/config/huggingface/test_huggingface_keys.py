"""What a checkpoint says of its KV cache and of its longest context counts, and keys that nobody knows are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness import run
from harness.config.huggingface.configs import resolve_model
from harness.studies.outcome import Run
from tests.harness.config.builders import MODELS, published, read, write

LLAMA = {**published("llama-3.1-8b"), "torch_dtype": "bfloat16"}
TABLE = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [9], "num_output_tokens": [2]})
MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"a": {"weights": {"type": "float", "num_bits": 8}, "input_activations": {"num_bits": 8}}},
    "kv_cache_scheme": {"type": "float", "num_bits": 8, "strategy": "tensor"},
}


def served(folder: Path, *overrides: str) -> Run:
    given = ("model=hf", f"model.config={folder}", "arrival=trace", "plots=false", *overrides)
    return run(*given, trace=TABLE)


def test_the_kv_cache_has_the_format_that_the_checkpoint_asks_for(tmp_path: Path) -> None:
    plain = write(tmp_path, LLAMA)
    bf16 = served(plain).summary
    (tmp_path / "hf_quant_config.json").write_text(pd.Series({"producer": {}, "quantization": MODELOPT}).to_json())
    fp8 = served(plain).summary
    assert (bf16["kv_cache_dtype"], fp8["kv_cache_dtype"]) == ("auto", "fp8")
    assert fp8["kv_block_bytes"] * 2 == bf16["kv_block_bytes"] == 2_097_152
    assert served(plain, "engine.kv_cache_dtype=int8").summary["kv_cache_dtype"] == "int8", "what is asked for counts"
    assert not any("not understood" in note for note in fp8["notes"])


@pytest.mark.parametrize("description", [MODELOPT | {"quant_method": "modelopt"}, COMPRESSED])
def test_each_tool_says_it_in_its_way(tmp_path: Path, description: dict[str, Any]) -> None:
    assert read(write(tmp_path, LLAMA | {"quantization_config": description}))["kv_cache_dtype"] == "fp8"


def test_a_format_of_the_kv_cache_that_is_not_simulated_is_named(tmp_path: Path) -> None:
    description = MODELOPT | {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}
    folder = write(tmp_path, LLAMA | {"quantization_config": description})
    assert any("kv_cache_quant_algo='NVFP4'" in note for note in served(folder).summary["notes"])


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131_072),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, 262_144),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e6}}, 262_144),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192}}, 131_072),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 32.0}}, 131_072),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}}, 1_048_576),
        ({"rope_scaling": None}, 131_072),
    ],
)
def test_rotary_scaling_makes_the_longest_context_longer(tmp_path: Path, rope: dict[str, Any], longest: int) -> None:
    data = {key: value for key, value in LLAMA.items() if not key.startswith("rope")}
    found = read(write(tmp_path, data | rope))
    assert found["max_position_embeddings"] == longest and found["ignored_keys"] == ()


def test_keys_that_nobody_knows_are_named_in_a_note(tmp_path: Path) -> None:
    weights = COMPRESSED | {"sparsity_config": {"format": "sparse-24"}}
    odd = {"attention_chunk_size": 8192, "some_new_thing": 3, "off": False, "quantization_config": weights}
    note = next(note for note in served(write(tmp_path, LLAMA | odd)).summary["notes"] if "not understood" in note)
    assert note.endswith(": some_new_thing, quantization.sparsity_config")


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json")), ids=lambda path: path.stem)
def test_published_files_have_no_unknown_key(path: Path) -> None:
    assert resolve_model({"config": str(path), "name": None})["ignored_keys"] == ()
