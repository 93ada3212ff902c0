"""Loading weights from checkpoints (single, sharded, faulty, tied), random weights, and packed weights."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from engine.models import build_model, weights  # noqa: E402
from engine.models.blocks import CausalLM  # noqa: E402
from engine.models.layers.linear import linear, packed  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig, ModelError  # noqa: E402
from engine.models.weights import checkpoint_tensors, load_random, load_safetensors, pack_for_cpu  # noqa: E402
from kernels.attention.backends import select_backend  # noqa: E402
from tests.engine.models.builders import VARIANTS, prompts, relative_error, save  # noqa: E402
from tests.engine.models.paged import BLOCK_SIZE, CPU, PagedModel, run_all_ways  # noqa: E402

Edit = Callable[[dict[str, Any]], Any]


def build(folder: Path, tp: TensorParallel | None = None, **changes: Any) -> CausalLM:
    data = json.loads((folder / "config.json").read_text()) | changes
    config = ModelConfig.from_hf(data)
    backend = select_backend("torch", CPU, torch.float32, config.head_dim, BLOCK_SIZE)
    return build_model(config, tp or TensorParallel(), backend, torch.float32, CPU)


def full_tensors(model: CausalLM) -> dict[str, Tensor]:
    return {tensor.name: tensor.target.clone() for tensor in checkpoint_tensors(model)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return {family: save(family, tmp_path_factory.mktemp(family)) for family in VARIANTS}


@pytest.fixture
def edited(folders: dict[str, Path], tmp_path: Path) -> Callable[[Edit], Path]:
    """A function that copies the Qwen3 checkpoint and applies a change to the tensors of the copy."""

    def edit(change: Edit) -> Path:
        tensors = load_file(folders["qwen3"] / "model.safetensors")
        change(tensors)
        (tmp_path / "config.json").write_text((folders["qwen3"] / "config.json").read_text())
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return edit


@pytest.mark.parametrize("family", VARIANTS)
def test_a_model_holds_exactly_the_tensors_of_the_file(family: str, folders: dict[str, Path]) -> None:
    model = build(folders[family])
    load_safetensors(model, folders[family])
    loaded, file = full_tensors(model), load_file(folders[family] / "model.safetensors")
    assert loaded.keys() == file.keys()
    stored = {tensor.name for tensor in checkpoint_tensors(model) if tensor.store is not None}  # in another layout
    assert all(torch.equal(loaded[name], file[name]) for name in file.keys() - stored)
    assert sum(p.numel() for p in model.parameters()) == sum(tensor.numel() for tensor in file.values())


@pytest.mark.parametrize("rank", range(2))
def test_experts_in_mxfp4_are_those_that_transformers_makes_of_them(
    rank: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    """On two ranks, each of which has one and a half groups of 32 columns of an expert's width of 96."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # takes seconds

    tensors = load_file(folders["gpt_oss"] / "model.safetensors")
    plain, generator = dict(tensors), torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks, scales = (
            torch.randint(*limits, (experts, rows, columns // 32, *more), generator=generator, dtype=torch.uint8)
            for limits, more in (((0, 256), (16,)), ((118, 128), ()))
        )
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32).contiguous()
    for folder, content in ((tmp_path / "packed", tensors), (tmp_path / "plain", plain)):
        folder.mkdir()
        save_file(content, folder / "model.safetensors")
    config = folders["gpt_oss"]
    tp = TensorParallel(rank, 2)
    packed_model = build(config, tp, quantization_config={"quant_method": "mxfp4"})
    plain_model = build(config, tp)
    load_safetensors(packed_model, tmp_path / "packed")
    load_safetensors(plain_model, tmp_path / "plain")
    for ours, expected in zip(packed_model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_sharded_files_are_read_as_one(folders: dict[str, Path], tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = build(tmp_path)
    load_safetensors(model, tmp_path)
    file = load_file(folders["qwen3_moe"] / "model.safetensors")
    assert all(torch.equal(tensor, file[name]) for name, tensor in full_tensors(model).items())
    next(tmp_path.glob("*-00002-of-*.safetensors")).unlink()
    with pytest.raises(ModelError, match="missing weight files: model-00002-of-"):
        load_safetensors(model, tmp_path)


def test_tied_embeddings_are_one_parameter(folders: dict[str, Path], edited: Callable[[Edit], Path]) -> None:
    model = build(folders["qwen3"], tie_word_embeddings=True)
    load_safetensors(model, folders["qwen3"])  # this file has an lm_head.weight, which is ignored
    load_safetensors(model, edited(lambda tensors: tensors.pop("lm_head.weight")))
    assert model.head.weight is model.embedding.weight
    assert "lm_head.weight" not in full_tensors(model)


@pytest.mark.parametrize("family", VARIANTS)
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_their_slices_only(
    family: str, size: int, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class CountingSlice:
        def __init__(self, inner: Any) -> None:
            self.get_shape, self.get_dtype, self.inner = inner.get_shape, inner.get_dtype, inner

        def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
            read.append(self.inner[index].numel())
            return self.inner[index]

    class CountingFile:
        def __init__(self, path: Path, **options: Any) -> None:
            self.file = safe_open(path, **options)
            self.keys = self.file.keys

        def __enter__(self) -> CountingFile:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def get_slice(self, name: str) -> CountingSlice:
            return CountingSlice(self.file.get_slice(name))

    safe_open = weights.safe_open
    monkeypatch.setattr(weights, "safe_open", CountingFile)
    monkeypatch.setattr(torch, "empty", lambda *shape: torch.full(shape, torch.nan))
    held = {}
    for rank in range(size):
        read.clear()
        model = build(folders[family], TensorParallel(rank, size))
        load_safetensors(model, folders[family])
        vocabularies = [model.embedding] if model.head.is_tied else [model.embedding, model.head]
        padding = sum(layer.weight.numel() - layer.rows.size * 64 for layer in vocabularies)
        assert sum(read) == sum(p.numel() for p in model.parameters()) - padding
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        held[rank] = sum(read)
    assert max(held.values()) < 0.75 * sum(p.numel() for p in build(folders[family]).parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing tensors: model.norm.weight$"),
        (
            lambda t: [t.pop(name) for name in list(t) if "q_norm" in name or "lm_head" in name],
            "missing tensors: lm_head",
        ),
        (lambda t: t.update(other=torch.ones(2)), "unexpected tensors: other$"),
        (
            lambda t: t.update({"lm_head.weight": torch.ones(131, 65)}),
            r"lm_head.weight has shape \[131, 65\], not \[131, 64\]",
        ),
        (lambda t: t.update({"lm_head.weight": torch.ones(131, 64, dtype=torch.int8)}), "lm_head.weight has dtype I8"),
        (lambda t: t.clear(), "missing tensors: .* and 32 more$"),
    ],
)
def test_a_wrong_tensor_is_named(change: Edit, message: str, edited: Callable[[Edit], Path]) -> None:
    folder = edited(change)
    model = build(folder)
    load_random(model)
    before = full_tensors(model)
    with pytest.raises(ModelError, match=message) as error:
        load_safetensors(model, folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in full_tensors(model).items())


def test_spare_tensors_of_old_checkpoints_are_ignored(edited: Callable[[Edit], Path]) -> None:
    folder = edited(lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16)}))
    load_safetensors(build(folder), folder)


def test_unreadable_folders_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    model = build(folders["qwen3"])
    with pytest.raises(ModelError, match="no weights, neither model.safetensors nor"):
        load_safetensors(model, tmp_path)
    with pytest.raises(ModelError, match="no such model folder"):
        load_safetensors(model, tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"garbage" * 10)
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_safetensors(model, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="not an index"):
        load_safetensors(model, tmp_path)


def test_random_weights_depend_on_the_seed_only(folders: dict[str, Path]) -> None:
    model, same, other = (build(folders["qwen3_moe"]) for _ in range(3))
    load_random(model, 1)
    load_random(same, 1)
    load_random(other, 2)
    tensors, again, others = full_tensors(model), full_tensors(same), full_tensors(other)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, again[name])
        if "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor))
        else:
            assert not torch.equal(tensor, others[name])
            assert float(tensor.std()) == pytest.approx(0.1, rel=0.15)
            assert abs(float(tensor.mean())) < 0.02
    distinct = {tensor.flatten()[0].item() for name, tensor in tensors.items() if "norm" not in name}
    assert len(distinct) == sum("norm" not in name for name in tensors)


@pytest.mark.parametrize("size", [3, 8])
def test_ranks_that_cannot_share_a_model_are_refused(size: int, folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=f"tensor_parallel_size={size} does not divide num_attention_heads=4"):
        build(folders["qwen3"], TensorParallel(0, size))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen3", {"intermediate_size": 97}, "tensor_parallel_size=2 does not divide intermediate_size=97"),
        ("qwen3_moe", {"moe_intermediate_size": 33}, "does not divide moe_intermediate_size=33"),
        ("qwen3_moe", {"intermediate_size": 97}, "does not divide intermediate_size=97"),
        (
            "qwen3",
            {"num_attention_heads": 6, "num_key_value_heads": 3},
            "neither divides nor is a multiple of num_kv_heads=3",
        ),
    ],
)
def test_sizes_that_two_ranks_cannot_share(
    family: str, changes: dict[str, int], message: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(ModelError, match=message):
        build(folders[family], TensorParallel(0, 2), **changes)


def test_dense_sizes_do_not_matter_where_every_layer_has_experts(folders: dict[str, Path]) -> None:
    build(folders["qwen3_moe"], TensorParallel(0, 2), intermediate_size=97, mlp_only_layers=[])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_a_packed_model_computes_the_same(dtype: Any, tied: bool, folders: dict[str, Path]) -> None:
    data = json.loads((folders["qwen2"] / "config.json").read_text()) | {"tie_word_embeddings": tied}
    config = ModelConfig.from_hf(data)
    plain = PagedModel.build(config, dtype, TensorParallel(), folders["qwen2"])
    other = PagedModel.build(config, dtype, TensorParallel(), folders["qwen2"])
    pack_for_cpu(other.model)
    assert other.model.head.weight.is_mkldnn == (platform.machine() == "x86_64" and has_mkldnn(dtype))
    expected = run_all_ways(plain, prompts())
    for way, logits in run_all_ways(other, prompts()).items():
        errors = relative_error(torch.cat(logits), torch.cat(expected[way]))
        assert float(errors.max()) < (1e-5 if dtype == torch.float32 else 0.03)


def has_mkldnn(dtype: Any) -> bool:
    available = torch.backends.mkldnn.is_available()
    return available and (dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


@pytest.mark.parametrize("num_tokens", [0, 1, 33, 127, 129, 1024, 1025, 2100])
def test_packed_weights_multiply_any_number_of_tokens(num_tokens: int) -> None:
    x, weight, bias = torch.randn(num_tokens, 48), torch.randn(64, 48), torch.randn(64)
    if not weights._has_packed_layout(weight):
        pytest.skip("this processor has no packed layout")
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(linear(x, packed(weight), bias), expected, rtol=1e-4, atol=1e-4)
