"""Experts with float8 weights: of checkpoints of three layouts, quantised while they are loaded, shared by ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from engine.api.llm import LLM  # noqa: E402
from engine.models.layers.experts import Experts  # noqa: E402
from engine.models.layers.fp8 import Fp8Experts  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig, ModelError  # noqa: E402
from engine.models.quantization import Fp8Weights  # noqa: E402
from engine.models.weights import dequantize_for_cpu  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.models.builders import EXPERTS, SIZES, prompts, relative_error  # noqa: E402
from tests.engine.models.float8 import FP8, LAYOUTS, SETTINGS, build, generate, make_pair, quantized, save_plain  # noqa: E402
from tests.engine.models.paged import PagedModel, run_all_ways  # noqa: E402


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with experts in its first and last layers, of magnitudes that differ from expert to expert."""
    sizes = SIZES | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 64, "intermediate_size": 128}
    config = transformers.Qwen3MoeConfig(**sizes, norm_topk_prob=True, mlp_only_layers=[1])
    folder = save_plain(config, tmp_path_factory.mktemp("experts"))
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if ".experts." in name:
            tensors[name] *= 0.5 + 0.5 * int(name.split(".experts.")[1].split(".")[0])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_dequantised_weights(plain: Path, tmp_path: Path, layout: str) -> None:
    """Of products with float8 weights, and of weights that are dequantised after they were loaded."""
    small, wide = make_pair(plain, tmp_path, layout)
    expected, *found = (
        PagedModel.build(ModelConfig.load(path), torch.float32, TensorParallel(), path) for path in (wide, small, small)
    )
    dequantize_for_cpu(found[1].model)
    counts = [sum(isinstance(each, Fp8Experts) for each in model.model.modules()) for model in found]
    assert counts == [4, 0]
    logits = run_all_ways(expected, prompts())
    for model in found:
        for way, ours in run_all_ways(model, prompts()).items():
            assert float(relative_error(torch.cat(ours), torch.cat(logits[way])).max()) < 1e-5, way


@pytest.mark.parametrize("layout", ["block", *(pytest.param(e, marks=pytest.mark.slow) for e in ("tensor", "channel"))])
def test_tokens_are_those_of_the_dequantised_weights(plain: Path, tmp_path: Path, layout: str) -> None:
    small, wide = make_pair(plain, tmp_path, layout)
    tokens = generate(small)
    assert tokens == generate(wide)
    assert len({token for answer in tokens for token in answer}) > 10


@pytest.mark.slow
def test_experts_are_quantised_while_they_are_loaded(plain: Path, tmp_path: Path) -> None:
    _, wide = make_pair(plain, tmp_path, "channel")
    assert generate(plain, quantization="fp8") == generate(wide) != generate(plain)


@pytest.mark.slow
def test_random_weights_can_be_quantised() -> None:
    shape: dict[str, Any] = {"name": "mine", "num_layers": 2, "hidden_size": 128, "num_attention_heads": 2}
    shape |= {"num_kv_heads": 2, "head_dim": 64, "intermediate_size": 256, "vocab_size": 131, "dtype": "float32"}
    shape |= {"num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 128}
    config = ModelConfig.from_shape(shape | {"tie_word_embeddings": True, "max_position_embeddings": 256})
    config = replace(config, initializer_range=0.1)
    answers = {}
    for name in ("none", "fp8", "fp8_block"):
        llm = LLM(config, **SETTINGS, quantization=name, load_format="random")
        answers[name] = [output["token_ids"] for output in llm.generate(prompts(), SamplingParams(max_tokens=12))]
    assert answers["none"] != answers["fp8"] != answers["fp8_block"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_share_experts_and_scales(plain: Path, tmp_path: Path, layout: str) -> None:
    """The weights of the ranks are those of a single rank, and the sum of their outputs is its output."""
    small, _ = make_pair(plain, tmp_path, layout)
    whole = build(small).layers[2].mlp.experts
    ranks = [build(small, TensorParallel(rank, 2)).layers[2].mlp.experts for rank in range(2)]
    w13 = torch.cat([rank.w13.dequantized().unflatten(1, (2, -1)) for rank in ranks], dim=2).flatten(1, 2)
    assert torch.equal(w13, whole.w13.dequantized())
    assert torch.equal(torch.cat([rank.w2.dequantized() for rank in ranks], dim=2), whole.w2.dequantized())
    x, logits = torch.randn(7, 64), torch.randn(7, 4)
    parts = [rank(x, logits, 2, True) for rank in ranks]
    torch.testing.assert_close(parts[0] + parts[1], whole(x, logits, 2, True))


@pytest.mark.slow
def test_two_ranks_answer_as_one(plain: Path, tmp_path: Path) -> None:
    small, _ = make_pair(plain, tmp_path, "block")
    assert generate(small, tensor_parallel_size=2) == generate(small)


@pytest.mark.parametrize(("block", "ranks", "rows"), [((32, 32), 4, 16), ((128, 32), 1, 64)])
@pytest.mark.parametrize("scale_name", [None, "weight_scale_inv"])
def test_ranks_cannot_cut_blocks(block: tuple[int, int], ranks: int, rows: int, scale_name: Any) -> None:
    """With 128 rows per block, that of the gate's last rows would reach into those of the up projection."""
    experts = Experts("experts", 4, 64, 64, TensorParallel(0, ranks), Fp8Weights(block, scale_name))
    advice = "use fewer ranks" if scale_name else "use quantization=fp8 or fewer ranks"
    with pytest.raises(ModelError, match=f"fp8_block: experts.0.gate_proj has {rows} rows on a rank, .*; {advice}$"):
        list(experts.checkpoint_tensors())


@pytest.mark.parametrize(
    ("key", "name"),
    [("modules_to_not_convert", "model.layers.0.mlp.gate"), ("ignore", "re:.*mlp.gate$"), ("ignore", "*.mlp.gate*")],
)
def test_a_checkpoint_may_say_that_routers_are_not_quantised(plain: Path, key: str, name: str) -> None:
    config = json.loads((plain / "config.json").read_text())
    fp8 = ModelConfig.from_hf(config | {"quantization_config": FP8 | {key: ["lm_head", name]}}).fp8
    assert fp8 == Fp8Weights(scale_name="weight_scale", per_tensor=True)


def test_a_quantised_router_is_refused_by_tensor(plain: Path, tmp_path: Path) -> None:
    small, _ = make_pair(plain, tmp_path, "channel")
    tensors, name = load_file(small / "model.safetensors"), "model.layers.0.mlp.gate.weight"
    tensors[name], tensors[f"{name}_scale"], _ = quantized(tensors[name], "channel")
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(
        ModelError, match="gate.weight has dtype F8_E4M3, not one of .*; unexpected tensors: .*"
    ) as error:
        build(small)
    assert "\n" not in str(error.value)
