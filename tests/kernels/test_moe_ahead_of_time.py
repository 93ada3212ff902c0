"""The kernels that route tokens to experts compile for every architecture as they are launched, without spills."""

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

from kernels.launch import Launcher  # noqa: E402
from kernels.moe_routing import route_triton  # noqa: E402
from tests.kernels.aot import CUOBJDUMP, compile_kernel  # noqa: E402

if not CUOBJDUMP.exists():
    pytest.skip("this triton comes without cuobjdump", allow_module_level=True)

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def launches(
    monkeypatch: pytest.MonkeyPatch, tokens: int, experts: int, top_k: int, dtype: torch.dtype
) -> list[Launch]:
    """(kernel, arguments, constants) of each launch."""
    found: list[Launch] = []

    def record(self: Any, _grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        found.append((self._kernel, arguments, constants))

    monkeypatch.setattr(Launcher, "__call__", record)
    route_triton(torch.zeros(tokens, experts, dtype=dtype), top_k, dtype == torch.bfloat16, 16)
    return found


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
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    experts: int,
    top_k: int,
    dtype: torch.dtype,
    capability: int,
) -> None:
    for kernel, arguments, constants in launches(monkeypatch, tokens, experts, top_k, dtype):
        names = kernel.arg_names[: len(arguments)]
        types = [TYPES[each.dtype] if isinstance(each, torch.Tensor) else "i32" for each in arguments]
        options = {"num_warps": constants.pop("num_warps")}
        usage = compile_kernel(kernel, dict(zip(names, types, strict=True)), constants, capability, tmp_path, **options)
        assert usage.stack == 0, (kernel.fn.__name__, usage)
        assert usage.shared <= 48 * 1024, usage
