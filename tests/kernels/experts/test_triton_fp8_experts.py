"""The Triton kernels of experts with float8 weights against products in float32, for routings at their extremes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels import activation  # noqa: E402
from kernels.experts import expert_products, moe  # noqa: E402
from kernels.experts.expert_products import Fp8Stack, grouped_product  # noqa: E402
from kernels.experts.moe_routing import route_reference  # noqa: E402
from kernels.linear.fp8_numbers import dequantize_weight, quantize_tokens_reference, quantize_weight  # noqa: E402

# (tokens, experts, top_k, the only experts that are chosen, rows of a tile)
ROUTINGS = {
    "one token": (1, 8, 2, None, 16),
    "most experts without tokens": (5, 16, 2, (3, 11), 16),
    "all tokens to one expert": (37, 4, 1, (2,), 16),
    "all tokens to the last expert": (16, 5, 1, (4,), 16),
    "a row more than tiles hold": (33, 2, 2, None, 32),
}
# (N, K, block)
SHAPES = [(70, 100, (1, 100)), (40, 100, (32, 64)), (40, 300, (128, 128)), (64, 128, (128, 128)), (33, 31, (1, 31))]
# A routing takes one of the shapes in each dtype.
CASES = [
    pytest.param(routing, SHAPES[(place + turn) % len(SHAPES)], dtype, marks=[pytest.mark.slow] * turn)
    for turn, dtype in enumerate((torch.float32, torch.bfloat16))
    for place, routing in enumerate(ROUTINGS)
]


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` returns NaN or a huge integer, so that elements that a kernel does not write are noticed."""
    torch.manual_seed(0)
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        out = empty(*args, **kwargs)
        return out.fill_(torch.nan if out.is_floating_point() else 1 << 30)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(params=[False, True], ids=["inputs as they are", "quantised inputs"])
def is_quantized(request: pytest.FixtureRequest, triton_device: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Quantised inputs are those of the reference: the interpreter's own rounding to e4m3 loses carries."""
    if request.param and triton_device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no arithmetic in float8 there")
    monkeypatch.setattr(expert_products, "multiplies_float8", lambda _: request.param)
    monkeypatch.setattr(expert_products, "quantize_tokens", quantize_tokens_reference)
    return bool(request.param)


def make_stack(experts: int, n: int, k: int, block: tuple[int, int], device: str) -> Fp8Stack:
    """Experts of which each has larger weights than the one before, and whose blocks differ in size."""
    sizes = torch.logspace(-1, 1, k) * torch.logspace(-1, 1, n).unsqueeze(1)
    pairs = [quantize_weight(torch.randn(n, k) * sizes * 1.5**expert, block) for expert in range(experts)]
    weight, scales = (torch.stack(parts).to(device) for parts in zip(*pairs, strict=True))
    return Fp8Stack(weight, scales, block)


def logits_of(tokens: int, experts: int, chosen: tuple[int, ...] | None, device: str) -> Tensor:
    logits = torch.randn(tokens, experts)
    if chosen is not None:
        logits[:, list(chosen)] += 100.0
    return logits.to(device)


def rounded(x: Tensor, columns: int, is_quantized: bool) -> Tensor:
    """Inputs as the product sees them, in float32."""
    if not is_quantized:
        return x.float()
    columns = min(columns, x.shape[1])
    return dequantize_weight(*quantize_tokens_reference(x, columns), (1, columns))


def product(x: Tensor, stack: Fp8Stack, experts: Tensor, is_quantized: bool) -> Tensor:
    """float32: the product of each row with the matrix of its expert."""
    wide = torch.stack([dequantize_weight(w, s, stack.block) for w, s in zip(stack.weight, stack.scales, strict=True)])
    return torch.einsum("pk,pnk->pn", rounded(x, stack.block[1], is_quantized), wide[experts])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Row by row, because the rows of experts with small weights are small."""
    rounding = 2e-5 if actual.dtype == torch.float32 else 2.0**-7
    error = (actual.float() - expected).abs().amax(dim=1)
    assert bool((error <= rounding * expected.abs().amax(dim=1)).all()), error


@pytest.mark.parametrize(("routing", "shape", "dtype"), CASES)
def test_grouped_product(
    triton_device: str,
    is_quantized: bool,
    routing: str,
    shape: tuple[int, int, tuple[int, int]],
    dtype: torch.dtype,
) -> None:
    """With a row per token, then with a row per pair and the router's weights."""
    (tokens, experts, top_k, chosen, block_m), (n, k, block) = ROUTINGS[routing], shape
    stack = make_stack(experts, n, k, block, triton_device)
    logits = logits_of(tokens, experts, chosen, triton_device)
    route = route_reference(logits, top_k, False, block_m)
    choices = logits.sort(dim=1, descending=True).indices[:, :top_k].flatten()
    for x_divisor, weighted in ((top_k, False), (1, True)):
        rows = tokens * top_k // x_divisor
        x = (torch.randn(rows, k, device=triton_device) * torch.logspace(-1, 1, k, device=triton_device)).to(dtype)
        out = torch.empty(tokens * top_k, n, dtype=dtype, device=triton_device)
        grouped_product(x, stack, out, route, x_divisor, weighted, block_m)
        expected = product(x.repeat_interleave(x_divisor, dim=0), stack, choices, is_quantized)
        assert_close(out, expected * route.weights.flatten().unsqueeze(1) if weighted else expected)


@pytest.mark.parametrize("block", [pytest.param(None, marks=pytest.mark.slow), (32, 32)], ids=str)
def test_fused_moe(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, is_quantized: bool, block: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(moe, "silu_and_mul", activation.silu_and_mul_triton)
    tokens, experts, top_k, hidden, width = 21, 6, 2, 64, 32
    x = torch.randn(tokens, hidden, device=triton_device) / 50
    logits = logits_of(tokens, experts, (0, 3, 5), triton_device)
    w13, w2 = (
        make_stack(experts, n, k, block or (1, k), triton_device) for n, k in ((2 * width, hidden), (hidden, width))
    )
    got = moe.fused_moe_triton(x, logits, w13, w2, top_k, True)
    weights, choices = moe.choose_experts(logits, top_k, True)
    gate_up = product(x.repeat_interleave(top_k, dim=0), w13, choices.flatten(), is_quantized)
    down = product(activation.silu_and_mul_reference(gate_up), w2, choices.flatten(), is_quantized)
    expected = (down.view(tokens, top_k, hidden) * weights.unsqueeze(2)).sum(dim=1)
    # An activation on the edge between two e4m3 numbers may be rounded to either one.
    results = [(got, 1e-2 if is_quantized else 2e-5)]
    if not is_quantized:
        results.append((moe.fused_moe_reference(x, logits, w13, w2, top_k, True), 2e-5))
    for result, bound in results:
        assert float((result - expected).norm() / expected.norm()) < bound


def test_no_tokens(triton_device: str, is_quantized: bool) -> None:
    w13, w2 = (make_stack(2, n, 16, (1, 16), triton_device) for n in (32, 16))
    empty = torch.zeros(0, 16, device=triton_device)
    assert moe.fused_moe_triton(empty, empty[:, :2], w13, w2, 1, True).shape == (0, 16)
