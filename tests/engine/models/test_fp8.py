"""Float8 weights: of float8 checkpoints of three layouts, quantised while they are loaded, and shared by ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from engine.api.llm import LLM  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig, ModelError  # noqa: E402
from engine.models.quantization import Fp8Weights  # noqa: E402
from engine.runner.executors import executor  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.models.builders import SIZES, prompts  # noqa: E402
from tests.engine.models.float8 import CHANNELS, FLOAT8, FP8, LAYOUTS, SETTINGS, build, generate, make_pair, save_plain  # noqa: E402


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.Qwen3Config(**(SIZES | {"intermediate_size": 128}), head_dim=32)
    return save_plain(config, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sample(1)
def test_a_float8_checkpoint_gives_the_tokens_of_its_dequantised_weights(
    plain: Path, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, wide = make_pair(plain, tmp_path, layout)
    tokens = generate(small)
    assert tokens == generate(wide)
    with monkeypatch.context() as patch:  # products with float8 weights instead of weights dequantised when loaded
        patch.setattr(executor, "dequantize_for_cpu", lambda model: None)
        assert generate(small) == tokens
    assert len({token for answer in tokens for token in answer}) > 10
    with pytest.raises(ModelError, match="^quantization=none: the weights of the checkpoint are fp8"):
        generate(small, quantization="none")


@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
def test_weights_are_quantised_while_they_are_loaded(plain: Path, tmp_path: Path, name: str) -> None:
    """In blocks of 128 x 128 the matrix of query, key and value cannot be: its keys have 64 rows."""
    if name == "fp8_block":
        with pytest.raises(ModelError, match="k_proj has 64 rows .* 128 x 128 weights; use quantization=fp8 or fewer"):
            generate(plain, quantization=name)
        return
    _, wide = make_pair(plain, tmp_path, "channel")
    assert generate(plain, quantization=name) == generate(wide) != generate(plain)


def test_random_weights_can_be_quantised() -> None:
    shape = {"name": "qwen3", "num_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "num_kv_heads": 2}
    shape |= {"head_dim": 64, "intermediate_size": 256, "vocab_size": 131, "tie_word_embeddings": True}
    config = ModelConfig.from_shape(shape | {"max_position_embeddings": 256, "dtype": "float32"})
    config = replace(config, initializer_range=0.1)
    answers = {}
    for name in ("none", "fp8", "fp8_block"):
        llm = LLM(config, **SETTINGS, quantization=name, load_format="random")
        answers[name] = [output["token_ids"] for output in llm.generate(prompts(), SamplingParams(max_tokens=12))]
    assert answers["none"] != answers["fp8"] != answers["fp8_block"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_share_weights_and_scales(plain: Path, tmp_path: Path, layout: str) -> None:
    small, _ = make_pair(plain, tmp_path, layout)
    whole = build(small).layers[1]
    ranks = [build(small, TensorParallel(rank, 2)).layers[1] for rank in range(2)]

    def shares(path: str, dim: int) -> Tensor:
        parts = [rank.get_submodule(path).dequantized() for rank in ranks]
        if path.endswith(("qkv_proj.weight", "gate_up_proj.weight")):
            sizes = [part.size for part in ranks[0].get_submodule(path.removesuffix(".weight")).parts]
            pairs = zip(*(part.split(sizes) for part in parts), strict=True)
            return torch.cat([torch.cat(pair, dim) for pair in pairs])
        return torch.cat(parts, dim)

    columns = ("attention.qkv_proj.weight", "mlp.gate_up_proj.weight")
    for path in (*columns, "attention.o_proj.weight", "mlp.down_proj.weight"):
        assert torch.equal(shares(path, 0 if path in columns else 1), whole.get_submodule(path).dequantized()), path


def test_ranks_cannot_cut_blocks(plain: Path, tmp_path: Path) -> None:
    small, _ = make_pair(plain, tmp_path, "block")
    wide = Fp8Weights((64, 64), "weight_scale_inv")
    with pytest.raises(
        ModelError, match=r"k_proj has 32 rows on a rank, .* blocks of 64 x 64 weights; use fewer ranks$"
    ):
        build(small, TensorParallel(0, 2), fp8=wide)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "awq"}, "quant_method='awq' is not supported, only 'fp8' and 'compressed-tensors'"),
        (FP8 | {"activation_scheme": "static"}, "activation_scheme='static' is not supported, only 'dynamic'"),
        (FP8 | {"fmt": "e5m2"}, "fmt='e5m2' is not supported, only 'e4m3'"),
        (FP8 | {"weight_block_size": [128]}, r"blocks of \[128\] weights: must be two of 32, 64"),
        (FP8 | {"weight_block_size": [128, 100]}, r"blocks of \[128, 100\] weights: must be two of 32, 64"),
        (FP8 | {"modules_to_not_convert": ["model.layers.0.mlp.up_proj"]}, "names 'model.layers.0.mlp.up_proj'"),
        (CHANNELS | {"format": "pack-quantized"}, "format='pack-quantized' is not supported, only 'float-quantized'"),
        (CHANNELS | {"config_groups": {}}, "config_groups has 0 groups: only one is supported"),
        (CHANNELS | {"config_groups": {"group_0": {"weights": FLOAT8 | {"num_bits": 4}}}}, "num_bits=4"),
        (
            CHANNELS | {"config_groups": {"group_0": {"weights": FLOAT8 | {"strategy": "group"}}}},
            "strategy='group' is not supported, only 'channel', 'tensor' and 'block'",
        ),
    ],
)
def test_other_quantisations_are_refused_by_name(plain: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((plain / "config.json").read_text())
    with pytest.raises(ModelError, match=message) as error:
        ModelConfig.from_hf(config | {"quantization_config": changes})
    assert "\n" not in str(error.value)


def test_checkpoints_of_another_format_are_refused_by_tensor(plain: Path, tmp_path: Path) -> None:
    small, wide = make_pair(plain, tmp_path, "channel")
    with pytest.raises(ModelError, match="dtype F8_E4M3, not one of F32, BF16, F16"):
        build(small, fp8=None)
    with pytest.raises(ModelError, match="missing tensors: .*weight_scale"):
        build(wide, fp8=Fp8Weights(scale_name="weight_scale"))
