"""The key `quantization`: which engines take which formats, what results say, and one account of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from harness.engines.resolving.system import model_shape, resolve
from harness.errors import ConfigError
from harness.terminal import run
from tests.harness.builders import config

TRACE = ["trace=synthetic", "trace.num_requests=5", "arrival=all_at_once", "progress=false"]


def test_null_takes_the_format_of_the_model() -> None:
    assert config().weight_format == "none"
    assert config("model.quantization=int4").weight_format == "int4"
    assert config("model.quantization=int4", "quantization=fp8").weight_format == "fp8"
    assert resolve(config("quantization=fp8")).model.quantization.name == "fp8"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["quantization=fp4"],
            "quantization='fp4': choose one of none, fp8, fp8_block, int8, int4, int4_32, nvfp4, nvfp4_w4a16",
        ),
        (["quantization=mxfp4"], "quantization=mxfp4: quantises experts only, and Qwen/Qwen3-8B has none; use fp8"),
        (["quantization=int4", "engine=cpu"], "quantization=int4: engine=cpu has none, fp8, fp8_block; use one of"),
        (["quantization=int8", "device=b200"], "quantization=int8: NVIDIA B200 has no rate flops.int8 .there: bf16"),
        (["quantization=int8", "device=b200", "cost=linear"], "quantization=int8: NVIDIA B200 has no rate flops.int8"),
    ],
)
def test_what_nothing_can_run_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}") as error:
        resolve(config(*overrides))
    assert "\n" not in str(error.value)


def test_results_and_their_headline_name_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(config(*TRACE, "quantization=fp8", "engine.kv_cache_dtype=fp8"), tmp_path)
    assert (summary["quantization"], summary["kv_cache_dtype"]) == ("fp8", "fp8")
    assert "fp8 weights" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("experts", [0, 4])
def test_simulator_and_engine_count_the_same_bytes(name: Literal["fp8", "fp8_block"], ranks: int, experts: int) -> None:
    """Those of a rank's parameters, norms and scales included; the engine's own check leaves out the norms."""
    torch = pytest.importorskip("torch")
    from engine.models import build_model
    from engine.models.layers.parallel import TensorParallel
    from engine.models.memory_check import rank_bytes
    from engine.models.model_config import ModelConfig
    from engine.models.quantization import chosen
    from kernels.attention.backends import select_backend

    sizes = ["model=tiny", "model.name=qwen3", "model.hidden_size=512", "model.num_attention_heads=8"]
    sizes += ["model.num_experts=4", "model.num_experts_per_token=2"] if experts else []
    sizes += ["model.moe_intermediate_size=256"] if experts else []
    settings = config(*sizes, "model.num_kv_heads=4", "model.intermediate_size=512", f"quantization={name}")
    fp8 = chosen(None, name, is_random=True)
    model_config = replace(ModelConfig.from_shape(settings.model.model_dump()), fp8=fp8)
    backend = select_backend("torch", torch.device("cpu"), torch.float32, 64, 16)
    tp = TensorParallel(0, ranks)
    model = build_model(model_config, tp, backend, torch.float32, torch.device("cpu"))
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert held == model_shape(settings.model, name, "auto").weight_bytes(ranks)
    norms = sum(p.numel() * 4 for p in model.parameters() if p.dim() == 1)
    rotary = model_config.max_position_embeddings * 64 * 4
    assert held - norms + rotary == rank_bytes(model_config, ranks, torch.float32)


TINY = [
    "engine=cpu", "model=tiny", "engine.num_threads=1", "num_blocks=300", "max_num_batched_tokens=256",
    "max_num_seqs=8", "trace/lengths@trace.prompt=constant", "trace/lengths@trace.output=constant",
    "trace.prompt.value=20", "trace.output.value=4",
]  # fmt: skip
EXPERTS = [
    "model.name=tiny-moe", "model.num_experts=4", "model.num_experts_per_token=2", "model.moe_intermediate_size=128"
]  # fmt: skip


def test_the_real_engine_serves_quantised_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    summary = run(config(*TRACE, *TINY, "quantization=fp8"), tmp_path)
    assert summary["completed"] == 5 and summary["quantization"] == "fp8" and not summary["simulated"]
    with pytest.raises(ConfigError, match="^engine=cpu: quantization=fp8_block: .*gate_proj has 608 rows on a rank"):
        run(config(*TRACE, *TINY, "quantization=fp8_block"), tmp_path / "blocks")


@pytest.mark.parametrize("name", ["fp8_block", pytest.param("fp8", marks=pytest.mark.slow)])
@pytest.mark.long
def test_the_real_engine_serves_quantised_experts(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    summary = run(config(*TRACE, *TINY, *EXPERTS, f"quantization={name}"), tmp_path)
    assert summary["completed"] == 5 and summary["quantization"] == name and not summary["simulated"]


def test_experts_in_other_formats_are_for_the_simulator() -> None:
    with pytest.raises(ConfigError, match="^quantization=mxfp4: engine=cpu has none, fp8, fp8_block; use one of"):
        resolve(config("engine=cpu", "model=tiny", *EXPERTS, "quantization=mxfp4"))
