"""Models and devices may be named as people name them: by their checkpoints, folders, and GPUs."""

from pathlib import Path

import pytest

from engine.documents import read_yaml
from harness.api import run
from harness.config.command_lines.importing import expand
from harness.config.command_lines.known_models import OTHER_CONTEXT, SAME_SIZES
from harness.config.composing import CONF
from harness.errors import ConfigError


def written(group: str) -> dict[str, str]:
    """The published name in each file of a group that states one."""
    names = {path.stem: read_yaml(path)["name"] for path in sorted((CONF / group).glob("*.yaml"))}
    return {option: name for option, name in names.items() if name is not None}


@pytest.mark.parametrize("group", ["model", "device"])
def test_each_published_name_means_its_option_however_it_is_spelt(group: str) -> None:
    for option, name in written(group).items():
        if name == option:
            continue
        for spelt in (option, option.upper(), name, name.lower(), name.partition("/")[2] or name):
            assert expand([f"{group}={spelt}", "task=run"]).overrides == [f"{group}={option}", "task=run"], spelt
        assert expand([f"{group}='{name}'"]).overrides == [f"{group}={option}"]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("device=h100", "device=h100-80gb"),
        ("device=A100", "device=a100-80gb"),
        ("device=RTX 4090", "device=rtx-4090"),
        ("device=4090", "device=rtx-4090"),
        ("device=h100,A100,h200", "device=h100-80gb,a100-80gb,h200"),
        ("model=llama-3.1-8b-instruct", "model=llama-3.1-8b"),
        ("model=Qwen/Qwen3-8B,qwen3-14b", "model=qwen3-8b,qwen3-14b"),
        ("model=Qwen/Qwen3-8B-FP8", "model=qwen3-8b quantization=fp8_block"),
        (
            "model=qwen/qwen3-30b-a3b-instruct-2507-fp8",
            "model=qwen3-30b-a3b model.max_position_embeddings=262144 quantization=fp8_block",
        ),
    ],
)
def test_other_names(given: str, made: str) -> None:
    assert expand([given]).overrides == made.split()


@pytest.mark.parametrize(
    "text", ["device=h20", "device=tpu,h100x", "model=Owen/Qven3", "+device=h100", "model='a,b'", "-m"]
)
def test_what_names_no_option_stays(text: str) -> None:
    assert expand([text]).overrides == [text]


def test_what_is_given_beside_a_checkpoint_counts() -> None:
    assert expand(["model=Qwen/Qwen3-8B-FP8", "quantization=int8"]).overrides == ["model=qwen3-8b", "quantization=int8"]


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert expand([f"model={tmp_path}"]).overrides == ["model=hf", f"model.config={tmp_path}"]


def test_other_checkpoints_have_the_sizes_of_models_that_are_there() -> None:
    assert {*SAME_SIZES.values(), *(same for same, _ in OTHER_CONTEXT.values())} <= {*written("model").values()}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model=a/b",
            r"^model=a/b: none that comes with the project .*any other is read: model=<its folder>, or model=hf://a/b",
        ),
        ("model=gpt-oss", r"did you mean 'gpt-oss-120b' or 'gpt-oss-20b'\?$"),
    ],
)
def test_a_model_that_is_not_there(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(override)
