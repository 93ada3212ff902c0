"""Logits of every family against transformers with the same weights: prefilled, chunked, cached and decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from engine.models.families import Family  # noqa: E402
from engine.models.hf_config import hf_config  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig  # noqa: E402
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


@pytest.mark.long
def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(checkpoint: tuple[str, Path]) -> None:
    folder = checkpoint[1]
    # Where two experts have nearly equal weights, rounding may change which one is chosen. This affects few tokens.
    worst = torch.median if ModelConfig.load(folder).num_experts else torch.max
    exact = reference_logits(folder, torch.float32, torch.bfloat16)
    rounded = reference_logits(folder, torch.bfloat16, torch.bfloat16)
    bound = 3 * float(worst(torch.cat([relative_error(*pair) for pair in zip(rounded, exact, strict=True)])))
    assert bound < 0.15
    for way, errors in errors_by_way(folder, torch.bfloat16, exact).items():
        assert float(worst(errors)) < bound, way


@pytest.mark.parametrize("family", [family for family in get_args(Family) if not family.startswith("deepseek")])
def test_a_shape_of_the_config_tree_makes_the_same_model_in_transformers(family: str) -> None:
    import transformers

    shape: dict[str, Any] = {
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
        "num_experts": 0,
        "num_experts_per_token": 0,
        "moe_intermediate_size": 0,
    }
    if family in ("qwen3_moe", "mixtral", "gpt_oss"):
        shape |= {"num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32}
    if family == "gpt_oss":
        shape |= {"sliding_window": 128, "num_sliding_layers": 1}
    config = hf_config(shape)
    theirs = transformers.AutoConfig.for_model(**config)
    assert ModelConfig.from_hf(theirs.to_dict() | {"architectures": config["architectures"]}) == ModelConfig.from_hf(
        config
    )
    assert ModelConfig.from_shape(shape).family == family
