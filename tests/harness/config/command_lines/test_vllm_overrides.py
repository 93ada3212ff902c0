"""What `--hf-overrides` and `--override-generation-config` of vLLM change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.config.command_lines.importing import expand
from harness.config.command_lines.vllm.import_line import translate
from harness.config.command_lines.vllm.serve_line import overrides
from harness.config.run import RunConfig
from tests.harness.builders import config
from tests.harness.config.builders import CHECKPOINTS, write

SERVE = "vllm serve Qwen/Qwen3-8B"


def of(command: str) -> RunConfig:
    return config(*overrides(command))


def hf(values: object) -> str:
    return f"--hf-overrides '{json.dumps(values)}'"


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131_072),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, 81_920),
        ({"rope_theta": 5e6}, 40_960),
    ],
)
def test_overrides_of_a_model_of_ours(values: object, longest: int) -> None:
    assert of(f"{SERVE} {hf(values)}").model.max_position_embeddings == longest


def test_overrides_of_sizes_and_in_parts() -> None:
    model = of(
        f"{SERVE} --hf-overrides.num_hidden_layers 4 --hf-overrides.rope_scaling.factor=2 "
        "--hf-overrides.rope_scaling.rope_type linear"
    ).model
    assert (model.num_layers, model.max_position_embeddings) == (4, 81_920)
    arguments, notes = expand([f"import_vllm={SERVE} {hf({'num_hidden_layers': 4})}", "model=tiny"])
    assert not any("num_layers" in each for each in arguments)
    assert "--hf-overrides: left out, as model is given beside" in notes


def test_overrides_replace_keys_of_the_config_of_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, json.loads((CHECKPOINTS / "gemma-3-4b.json").read_text()))
    values = {"text_config": {"num_hidden_layers": 12, "sliding_window": 256}, "torch_dtype": "float16"}
    model = of(f"vllm serve {folder} {hf(values)}").model
    assert (model.num_layers, model.sliding_window, model.num_sliding_layers, model.dtype) == (12, 256, 10, "float16")
    assert (model.hidden_size, model.intermediate_size) == (2560, 10240), "the other keys of the text half stay"
    folder = write(tmp_path, json.loads((CHECKPOINTS / "olmo-3-7b.json").read_text()))
    assert of(f"vllm serve {folder}").model.max_position_embeddings == 65_536
    model = of(f"vllm serve {folder} {hf({'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}})}").model
    assert model.max_position_embeddings == 131_072, "no key of the file's own scaling is left"


def test_the_longest_answer_of_a_generation_config_is_noted() -> None:
    plain, notes = translate(f"{SERVE} --override-generation-config '{json.dumps({'temperature': 0.5})}'")
    assert plain == overrides(SERVE) and notes == ["--override-generation-config: left out"]
    (note,) = translate(f"{SERVE} --override-generation-config.max_new_tokens 64").notes
    assert note.startswith("--override-generation-config: max_new_tokens=64 cuts answers in vLLM")
