"""Logits of every family against transformers with the same weights: prefilled, chunked, cached and decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import Family, ModelConfig, hf_config  # noqa: E402
from tests.engine.models.builders import VARIANTS, prompts, reference_logits, relative_error, save  # noqa: E402
from tests.engine.models.paged import PagedModel, run_all_ways  # noqa: E402


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, save(request.param, tmp_path_factory.mktemp(request.param))


def errors_by_way(folder: Path, dtype: Any, expected: list[Tensor]) -> dict[str, Tensor]:
    """Relative error of every token, by the way of computing it (see `run_all_ways`)."""
    model = PagedModel.build(ModelConfig.load(folder), dtype, TensorParallel(), folder)
    first, second, third = expected
    expected_by_way = {"prefill": expected, "chunked": [first], "cached": [third[12:]], "decode": [second]}
    logits = run_all_ways(model, prompts())
    assert logits.keys() == expected_by_way.keys()
    return {
        way: torch.cat([relative_error(*pair) for pair in zip(logits[way], expected_by_way[way], strict=True)])
        for way in logits
    }


def test_float32_logits_are_those_of_transformers(checkpoint: tuple[str, Path]) -> None:
    folder = checkpoint[1]
    expected = reference_logits(folder, torch.float32, torch.float32)
    for way, errors in errors_by_way(folder, torch.float32, expected).items():
        assert float(errors.max()) < 1e-5, way


def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(checkpoint: tuple[str, Path]) -> None:
    family, folder = checkpoint
    exact = reference_logits(folder, torch.float32, torch.bfloat16)
    rounded = reference_logits(folder, torch.bfloat16, torch.bfloat16)
    bound = 3 * max(float(relative_error(*pair).max()) for pair in zip(rounded, exact, strict=True))
    assert bound < 0.15
    for way, errors in errors_by_way(folder, torch.bfloat16, exact).items():
        # Where two experts have nearly equal weights, rounding may change which one is chosen. This affects few tokens.
        worst = errors.median() if family == "qwen3_moe" else errors.max()
        assert float(worst) < bound, way


@pytest.mark.parametrize("family", get_args(Family))
def test_a_shape_of_the_config_tree_makes_the_same_model_in_transformers(family: str) -> None:
    import transformers

    shape = {
        "name": f"some-{family}",
        "family": family,
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 131,
        "tie_word_embeddings": True,
        "max_position_embeddings": 16384,
        "dtype": "bfloat16",
        "num_experts": 8 if family == "qwen3_moe" else 0,
        "num_experts_per_token": 2 if family == "qwen3_moe" else 0,
        "moe_intermediate_size": 32 if family == "qwen3_moe" else 0,
    }
    config = hf_config(shape)
    theirs = transformers.AutoConfig.for_model(**config)
    assert ModelConfig.from_hf(theirs.to_dict() | {"architectures": config["architectures"]}) == ModelConfig.from_hf(
        config
    )
    assert ModelConfig.from_shape(shape).family == family
