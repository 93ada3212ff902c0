"""Model folders with wrong contents: each is a ModelError of one line, and quickly, whichever file is wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from engine import documents  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.models import build_model, memory_check  # noqa: E402
from engine.models.blocks import CausalLM  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.memory_check import rank_bytes  # noqa: E402
from engine.models.model_config import ModelConfig, ModelError, hf_config  # noqa: E402
from engine.models.weights import checkpoint_tensors, load_random, load_safetensors  # noqa: E402
from kernels.attention.backends import select_backend  # noqa: E402
from tests.engine.models.paged import BLOCK_SIZE, CPU  # noqa: E402

SHAPE: dict[str, Any] = {
    "name": "small", "family": "llama", "num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "num_kv_heads": 2,
    "head_dim": 8, "intermediate_size": 24, "vocab_size": 40, "tie_word_embeddings": False,
    "max_position_embeddings": 9000, "dtype": "float32", "num_experts": 4, "num_experts_per_token": 2,
    "moe_intermediate_size": 16,
}  # fmt: skip
INDEX = "model.safetensors.index.json"
FILES = ("config.json", "generation_config.json", INDEX, "model-1.safetensors", "model-2.safetensors")
# A middle size would be built, and take its time: sizes are either tiny or absurd.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 7, 64, -1, -(10**9), 10**9, 10**18, 10**40, 0.0, 0.5, 2.0, -0.5, 1e-300, 1e30, 1e308,
    float("nan"), float("inf"), "", "4", "x\ny", "\ud800", "../x", "/etc/passwd", "a\0b", "x" * 5000, [], [1], [[]],
    ["LlamaForCausalLM"], [True], [-1], [10**30], ["a"], {}, {"a": 1}, {"rope_type": "llama3"}, {"weight_map": 1},
)  # fmt: skip
RAW = (b"", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"\xff\xfe\x00", b"\xef\xbb\xbf[]")


def build(config: ModelConfig, tp: TensorParallel | None = None) -> CausalLM:
    backend = select_backend("torch", CPU, torch.float32, config.head_dim, BLOCK_SIZE)
    return build_model(config, tp or TensorParallel(), backend, torch.float32, CPU)


def open_folder(folder: Path) -> CausalLM:
    """What the engine does with a model folder."""
    model = build(ModelConfig.load(folder))
    load_safetensors(model, folder)
    return model


def refusal(folder: Path) -> str:
    """The message with which a folder is refused."""
    with pytest.raises(ModelError) as caught:
        open_folder(folder)
    assert type(caught.value) is ModelError and "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    str(caught.value).encode()
    return str(caught.value)


def make_folder(folder: Path, shape: dict[str, Any]) -> Path:
    """A model in two files with an index."""
    folder.mkdir()
    data = hf_config(shape) | {"eos_token_id": 3, "mlp_bias": False}
    model = build(ModelConfig.from_hf(data))
    load_random(model)
    tensors = {tensor.name: tensor.target.clone() for tensor in checkpoint_tensors(model)}
    names = sorted(tensors)
    parts = {FILES[3]: names[::2], FILES[4]: names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    for file, content in ((FILES[0], data), (FILES[1], {"eos_token_id": [3, 4]}), (INDEX, {"weight_map": weight_map})):
        (folder / file).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("models")
    return [make_folder(root / family, SHAPE | {"family": family}) for family in ("llama", "qwen3_moe")]


@pytest.fixture
def folder(originals: list[Path], tmp_path: Path) -> Path:
    """A folder to spoil, which is fine as it is."""
    copy = Path(shutil.copytree(originals[0], tmp_path / "model"))
    open_folder(copy)
    return copy


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("value", ["4", 4.0, True, [4], {}, -4, 0, float("nan"), 10**9, 10**30], ids=str)
@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "vocab_size", "max_position_embeddings", "num_experts", "num_experts_per_tok",
        "moe_intermediate_size", "decoder_sparse_step",
    ],
)  # fmt: skip
def test_every_size_is_a_positive_integer_within_reason(key: str, value: Any, originals: list[Path]) -> None:
    data = json.loads((originals[1] / "config.json").read_text())
    with pytest.raises(ModelError, match=f"^config.json: {key}=.*: must be an integer from"):
        ModelConfig.from_hf(data | {key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps=-1e-06: must be a number from"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
        ({"initializer_range": float("inf")}, "initializer_range=inf"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false': must be true or false"),
        ({"attention_bias": 0}, "attention_bias=0: must be true or false"),
        ({"head_dim": 7}, "head_dim=7: must be even"),
        ({"head_dim": None, "hidden_size": 2}, "leaves no two elements"),
        ({"architectures": "LlamaForCausalLM"}, "architectures='LlamaForCausalLM': must be a list of texts"),
        ({"architectures": [1]}, "must be a list of texts"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>': must be an integer"),
        ({"eos_token_id": [1, True]}, "eos_token_id=True"),
        ({"rope_parameters": [1]}, r"rope_parameters=\[1\]: must be an object"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_parameters: rope_theta='x': must be a number"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta=0"),
        ({"quantization_config": [[[[[[[[1]]]]]]]]}, "must be an object"),
    ],
)
def test_other_values_have_types_and_ranges_too(changes: dict[str, Any], message: str, folder: Path) -> None:
    change(folder / "config.json", **changes)
    if "eos_token_id" in changes:
        (folder / "generation_config.json").unlink()
    assert message.replace("\\", "") in refusal(folder)


def test_llama3_scaling_is_checked(folder: Path) -> None:
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    for key, value in (("factor", 0), ("high_freq_factor", 1.0), ("original_max_position_embeddings", "8192")):
        change(folder / "config.json", rope_parameters=rope | {key: value})
        assert key in refusal(folder)


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: repr(raw[:8]))
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_json_or_no_weights(name: str, raw: bytes, folder: Path) -> None:
    (folder / name).write_bytes(raw)
    assert name in refusal(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_or_a_pipe_or_a_closed_door_in_place_of_a_file(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in refusal(folder)
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    assert name in refusal(folder)
    if name.endswith(".json"):
        (folder / name).unlink()
        (folder / name).touch()

        def closed(*arguments: Any, **options: Any) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(documents, "unzipped", closed)
        assert "cannot be read: Permission denied" in refusal(folder)


@pytest.mark.parametrize(
    "name", ["../model-1.safetensors", "/etc/passwd", "", ".", "..", "a/../../b", "a\0b", "\ud800", "a\nb", 7, None, []]
)
def test_an_index_names_files_in_the_folder_only(name: Any, folder: Path) -> None:
    shutil.copy(folder / FILES[3], folder.parent)
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {"model.norm.weight": name}}))
    assert INDEX in refusal(folder)


def test_files_may_be_links_as_in_hugging_faces_cache(folder: Path) -> None:
    blobs = folder.parent / "blobs"
    blobs.mkdir()
    for name in FILES:
        (folder / name).rename(blobs / name)
        (folder / name).symlink_to(Path("..", "blobs", name))
    open_folder(folder)
    (blobs / FILES[3]).unlink()
    assert f"missing weight files: {FILES[3]}" in refusal(folder)


def test_names_of_files_may_be_too_long_for_the_system(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "x" * 500}}))
    assert "missing weight files" in refusal(folder)
    with pytest.raises(ModelError, match="cannot be read|no such"):
        ModelConfig.load("x" * 5000)


def test_a_model_that_does_not_fit_is_refused_before_it_is_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "config.json", hidden_size=1 << 20, intermediate_size=1 << 20)
    assert "GiB of memory" in refusal(folder)
    model = build(ModelConfig.from_shape(SHAPE))
    needed = rank_bytes(model.config, 1, torch.float32)
    monkeypatch.setattr(memory_check, "free_main_memory", lambda: needed - 1)
    with pytest.raises(ModelError, match="the weights take"):
        build(model.config)
    monkeypatch.setattr(memory_check, "free_main_memory", lambda: needed)
    build(model.config)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_the_bytes_of_a_rank_are_those_of_its_matrices(family: str, size: int) -> None:
    shape = SHAPE | {"family": family, "num_attention_heads": 4, "head_dim": 64, "vocab_size": 42}
    config = ModelConfig.from_shape(shape)
    if family == "qwen3_moe":
        config = replace(config, decoder_sparse_step=2)
    for tied in (False, True):
        config = replace(config, tie_word_embeddings=tied)
        model = build(config, TensorParallel(size - 1, size))
        unique = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters() if parameter.dim() > 1}
        tables = {buffer.data_ptr(): buffer.nbytes for buffer in model.buffers()}
        assert rank_bytes(config, size, torch.float32) == sum(unique.values()) + sum(tables.values())


@pytest.mark.parametrize("key", [key for key in SHAPE if key not in ("name", "family")])
def test_a_shape_without_a_field_names_it(key: str) -> None:
    shape = {name: value for name, value in (SHAPE | {"family": "qwen3_moe"}).items() if name != key}
    with pytest.raises(ModelError, match=f"{key}"):
        LLM(shape)


def mutate_json(data: Any, rng: random.Random) -> Any:
    """A copy of a JSON value in which one value at any depth is another one, is gone, or is there twice."""
    if rng.random() < 0.2 or not isinstance(data, dict | list) or not data:
        return rng.choice(VALUES)
    if isinstance(data, list):
        i = rng.randrange(len(data))
        return [*data[:i], mutate_json(data[i], rng), *data[i:]] if rng.random() < 0.5 else data[:i] + data[i + 1 :]
    key = rng.choice(list(data))
    kept = {name: value for name, value in data.items() if name != key}
    choice = rng.random()
    if choice < 0.15:
        return kept
    return {**kept, f"{key}x" if choice < 0.2 else key: mutate_json(data[key], rng)}


def mutate_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Cut off, with some bytes changed, put in or taken out; most of it near the beginning, where headers are."""
    end = min(len(raw), rng.choice([9, 60, len(raw)]))
    at = rng.randrange(end + 1)
    some = rng.choice([bytes(rng.randrange(256) for _ in range(rng.randint(1, 8))), b'"', b"{", b"9" * 30, b"\xff" * 8])
    mutations: list[Callable[[], bytes]] = [
        lambda: raw[:at],
        lambda: raw[:at] + some + raw[at:],
        lambda: raw[:at] + some + raw[at + len(some) :],
        lambda: raw[:at] + raw[at + len(some) :],
        lambda: raw + some,
    ]
    return rng.choice(mutations)()


def spoil(folder: Path, rng: random.Random) -> None:
    path = folder / rng.choice(FILES)
    if path.suffix == ".json" and rng.random() < 0.8:
        path.write_text(json.dumps(mutate_json(json.loads(path.read_text()), rng)))
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))


@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(150, 8000, 150))])
def test_spoilt_folders_are_refused_or_opened(first: int, originals: list[Path], tmp_path: Path) -> None:
    refused = 0
    for seed in range(first, first + 150):
        rng = random.Random(seed)
        original = rng.choice(originals)
        folder = Path(shutil.copytree(original, tmp_path / str(seed)))
        try:
            spoil(folder, rng)
            open_folder(folder)
        except ModelError as error:
            assert "\n" not in str(error) and len(str(error)) < 2000, f"seed {seed}: {error}"
            str(error).encode()
            refused += 1
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(folder)
    assert refused > 75
