"""The kernels of experts that are not in `test_ahead_of_time` compile as they are launched, without spills."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

import torch  # noqa: E402

from kernels import fp8_experts, fp8_linear  # noqa: E402
from kernels.kv_store import FP8_DTYPE  # noqa: E402
from kernels.launch import Launcher  # noqa: E402
from kernels.moe import moe_block_m  # noqa: E402
from kernels.moe_routing import Routing, route_triton  # noqa: E402
from tests.kernels.aot import CUOBJDUMP, Usage, compile_kernel  # noqa: E402

if not CUOBJDUMP.exists():
    pytest.skip("this triton comes without cuobjdump", allow_module_level=True)

TYPES = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.uint8: "*u8", FP8_DTYPE: "*fp8e4nv"
}  # fmt: skip
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """(kernel, arguments, constants) of each launch that the test makes; kernels do not run."""
    found: list[Launch] = []

    def record(self: Any, _grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        found.append((self._kernel, arguments, constants))

    monkeypatch.setattr(Launcher, "__call__", record)
    return found


def compiled(launch: Launch, capability: int, folder: Path) -> Usage:
    kernel, arguments, constants = launch
    names = kernel.arg_names[: len(arguments)]
    types = [TYPES[each.dtype] if isinstance(each, torch.Tensor) else "i32" for each in arguments]
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    return compile_kernel(kernel, dict(zip(names, types, strict=True)), constants, capability, folder, **options)


# Qwen3-30B-A3B, Mixtral and 512 experts; few tokens take one launch, many two.
SHAPES = [(32, 128, 8), (4096, 128, 8), (1, 128, 8), (256, 8, 2), (9000, 8, 2), (8, 512, 10), (4096, 512, 10)]


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(each, marks=pytest.mark.slow) for each in (80, 89, 100, 120))]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [*SHAPES[:1], *(pytest.param(*each, marks=pytest.mark.slow) for each in SHAPES[1:])]
)
def test_routing_does_not_spill(
    tmp_path: Path,
    launches: list[Launch],
    tokens: int,
    experts: int,
    top_k: int,
    dtype: torch.dtype,
    capability: int,
) -> None:
    route_triton(torch.zeros(tokens, experts, dtype=dtype), top_k, dtype == torch.bfloat16, 16)
    for launch in launches:
        usage = compiled(launch, capability, tmp_path)
        assert usage.stack == 0, (launch[0].fn.__name__, usage)
        assert usage.shared <= 48 * 1024, usage


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(each, marks=pytest.mark.slow) for each in (80, 89, 100, 120))]
)
@pytest.mark.parametrize("block", [(128, 128), pytest.param((1, 2048), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("tokens", [2048, pytest.param(1, marks=pytest.mark.slow)])
def test_products_of_experts_in_float8_do_not_spill(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launches: list[Launch],
    tokens: int,
    block: tuple[int, int],
    capability: int,
) -> None:
    """The first product of Qwen3-30B-A3B: 8 of 128 experts per token; inputs stay as they are on sm_80."""
    monkeypatch.setattr(fp8_experts, "multiplies_float8", lambda _: capability >= 89)
    x, experts = torch.zeros(tokens, 2048, dtype=torch.bfloat16), torch.zeros(1, 1, 1, dtype=FP8_DTYPE)
    stack = fp8_experts.Fp8Stack(experts.expand(128, 1536, 2048), torch.ones(1), block)
    integers = torch.zeros(1, dtype=torch.int32)
    routing = Routing(torch.ones(1), integers, integers, integers, integers)
    out = torch.zeros(1, dtype=torch.bfloat16)
    fp8_experts.fp8_grouped_product(x, stack, out, routing, 8, False, moe_block_m(tokens * 8, 128))
    kernels = [launch[0] for launch in launches]
    quantize = [fp8_linear.quantize_tokens_kernel] if capability >= 89 else []
    assert kernels == [*quantize, fp8_experts.fp8_grouped_gemm_kernel]
    usage = compiled(launches[-1], capability, tmp_path)
    assert usage.stack == 0, usage
    assert usage.shared <= 99 * 1024, usage  # of sm_89, the least of these
