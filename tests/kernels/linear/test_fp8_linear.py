"""Float8 weights in plain PyTorch, against products in float64 and the rounding of e4m3."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.linear.fp8_linear import fp8_linear  # noqa: E402
from kernels.linear.fp8_numbers import dequantize_weight, quantize_tokens_reference, quantize_weight  # noqa: E402

HALF_STEP = 2.0**-4  # e4m3 has three bits behind the leading one: a number is rounded by at most 1/16 of itself
SMALLEST = 2.0**-10 / 448  # half of the smallest e4m3 number, as a share of the largest one of a block
# (N, K, block), odd sizes and blocks that the matrix ends in.
SHAPES = [(1, 1, (1, 1)), (7, 33, (1, 33)), (130, 70, (1, 70)), (130, 260, (128, 128)), (65, 31, (32, 64))]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def largest_of_blocks(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    out = torch.empty_like(weight)
    for row in range(0, weight.shape[0], block[0]):
        for column in range(0, weight.shape[1], block[1]):
            part = slice(row, row + block[0]), slice(column, column + block[1])
            out[part] = weight[part].abs().max()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k", "block"), SHAPES)
def test_a_weight_is_rounded_by_at_most_a_sixteenth(n: int, k: int, block: tuple[int, int], dtype: torch.dtype) -> None:
    weight = (torch.randn(n, k) * torch.logspace(-3, 2, k)).to(dtype)
    quantized, scales = quantize_weight(weight, block)
    assert scales.shape == (-(-n // block[0]), -(-k // block[1]))
    error = (dequantize_weight(quantized, scales, block) - weight.float()).abs()
    bound = HALF_STEP * weight.float().abs() + SMALLEST * largest_of_blocks(weight.float(), block)
    assert bool((error <= 1.0001 * bound).all())


def test_what_float8_can_hold_is_kept_exactly() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()].reshape(2, -1)
    for factor in (1.0, 2.0**-20, 2.0**30):
        quantized, scales = quantize_weight(numbers * factor, (1, numbers.shape[1]))
        assert torch.equal(dequantize_weight(quantized, scales, (1, numbers.shape[1])), numbers * factor)


def test_zeros_stay_zeros() -> None:
    for quantized, scales in (
        quantize_weight(torch.zeros(3, 5), (1, 5)),
        quantize_tokens_reference(torch.zeros(3, 5), 5),
    ):
        assert bool((quantized.float() == 0).all()) and bool(scales.isfinite().all()) and bool((scales > 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "k", "block"), SHAPES)
def test_the_product_is_that_of_the_dequantised_weights(
    n: int, k: int, block: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight, bias = torch.randn(5, k).to(dtype), torch.randn(n, k), torch.randn(n).to(dtype)
    quantized, scales = quantize_weight(weight, block)
    product = fp8_linear(x, quantized, scales, block, bias)
    assert product.dtype == dtype
    exact = x.double() @ dequantize_weight(quantized, scales, block).double().T + bias.double()
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(product.double(), exact, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize(("n", "k", "block"), [(64, 1000, (1, 1000)), (200, 512, (128, 128))])
def test_error_of_a_product_in_float8(n: int, k: int, block: tuple[int, int]) -> None:
    """Roundings of single numbers are at most 1/16 and 1/16/sqrt(3) = 3.6 % on average of squares, those of inputs and
    weights are independent, and the roundings of a sum of many products average out to the same share of it."""
    x, weight = torch.randn(32, k), torch.randn(n, k)
    exact = x @ weight.T
    w = dequantize_weight(*quantize_weight(weight, block), block)
    quantized, scales = quantize_tokens_reference(x, block[1])
    for inputs, bound in ((x, 0.036), (dequantize_weight(quantized, scales, (1, block[1])), 0.036 * 2**0.5)):
        assert 0.01 < float((inputs @ w.T - exact).norm() / exact.norm()) < bound
