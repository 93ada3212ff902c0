"""The Triton kernels of float8 weights against their PyTorch references, on odd shapes and tails."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels import runtime  # noqa: E402
from kernels.cache.kv_store import FP8_DTYPE  # noqa: E402
from kernels.linear import fp8_gemm, fp8_linear, fp8_numbers  # noqa: E402

# (T, N, K, block)
SHAPES = [
    (1, 16, 32, (1, 32)),
    (3, 70, 100, (1, 100)),
    (17, 130, 260, (32, 64)),
    (5, 40, 300, (128, 128)),
    (70, 33, 31, (1, 31)),
]
# All shapes in float32, some of them in a narrow dtype.
CASES = [
    *((*shape, torch.float32) for shape in SHAPES),
    pytest.param(*SHAPES[2], torch.bfloat16, marks=pytest.mark.slow),
    (*SHAPES[1], torch.bfloat16),
    (*SHAPES[3], torch.float16),
]


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` returns NaN, so that elements that a kernel does not write are noticed."""
    torch.manual_seed(0)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(torch.nan))


def close(actual: torch.Tensor, expected: torch.Tensor, rounding: float) -> bool:
    return bool((actual.float() - expected.float()).abs().max() <= rounding * expected.float().abs().max())


@pytest.mark.parametrize(("t", "n", "k", "block", "dtype"), CASES)
def test_product_with_inputs_as_they_are(
    triton_device: str, t: int, n: int, k: int, block: tuple[int, int], dtype: torch.dtype
) -> None:
    """x is a slice of a wider tensor, so that its rows are not contiguous."""
    x = torch.randn(t, k + 16, device=triton_device).to(dtype)[:, :k]
    weight, scales = fp8_numbers.quantize_weight(torch.randn(n, k, device=triton_device), block)
    out = torch.empty(t, n, dtype=dtype, device=triton_device)
    fp8_gemm.fp8_gemm(x, None, weight, scales, block, out)
    expected = fp8_linear.fp8_linear_reference(x, weight, scales, block)
    assert close(out, expected, 2e-6 if dtype == torch.float32 else 2.0**-7)


@pytest.mark.parametrize(("t", "n", "k", "block", "dtype"), CASES)
def test_product_with_quantised_inputs(
    triton_device: str, t: int, n: int, k: int, block: tuple[int, int], dtype: torch.dtype
) -> None:
    if triton_device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no arithmetic in float8 there")
    x = torch.randn(t, k, device=triton_device).to(dtype)
    quantized, x_scales = fp8_numbers.quantize_tokens(x, block[1])
    expected, expected_scales = fp8_numbers.quantize_tokens_reference(x, block[1])
    torch.testing.assert_close(x_scales, expected_scales)
    # Compiled division may differ in the last bit; the interpreter's rounding loses carries and the smallest numbers.
    differing = (quantized.float() != expected.float()).float().mean()
    assert differing <= (0.08 if runtime.INTERPRETED else 0.002)
    weight, scales = fp8_numbers.quantize_weight(torch.randn(n, k, device=triton_device), block)
    out = torch.empty(t, n, dtype=dtype, device=triton_device)
    fp8_gemm.fp8_gemm(quantized, x_scales, weight, scales, block, out)
    wide = fp8_numbers.dequantize_weight(quantized, x_scales, (1, block[1]))
    product = fp8_linear.fp8_linear_reference(wide, weight, scales, block)
    # Products of Hopper in float8 keep 13 to 14 bits of their sums (DeepSeek-V3, section 3.3.2).
    exact = 1e-5 if runtime.INTERPRETED else 2.0**-10
    assert close(out, product, exact if dtype == torch.float32 else 2.0**-7)


@pytest.mark.parametrize("block", [(1, 31), (32, 32)])
def test_programs_cover_each_tile_whatever_their_order(
    triton_device: str, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tiles of tokens in bands of two, beside three tiles of outputs that share a scale or not."""
    monkeypatch.setattr(fp8_gemm, "gemm_tile", lambda *_: fp8_gemm.Tile(16, 16, 16, 4, 2))
    monkeypatch.setattr(fp8_gemm, "_TILES_DOWN", 2)
    x = torch.randn(70, 31, device=triton_device)
    weight, scales = fp8_numbers.quantize_weight(torch.randn(33, 31, device=triton_device), block)
    out = torch.empty(70, 33, device=triton_device)
    fp8_gemm.fp8_gemm(x, None, weight, scales, block, out)
    assert close(out, fp8_linear.fp8_linear_reference(x, weight, scales, block), 2e-6)


@pytest.mark.parametrize(("tokens", "columns"), [(3, 32), (5, 128)])
def test_scales_by_groups_are_those_by_tokens(triton_device: str, tokens: int, columns: int) -> None:
    x = torch.randn(tokens, 300, device=triton_device)
    plain, scales = fp8_numbers.quantize_tokens(x, columns)
    other, by_groups = fp8_numbers.quantize_tokens(x, columns, by_groups=True, multiple=4)
    assert by_groups.shape[0] == other.shape[0] == -(-tokens // 4) * 4 and by_groups.stride() == (1, len(other))
    assert torch.equal(other[:tokens].float(), plain.float()) and torch.equal(by_groups[:tokens], scales)


@pytest.mark.parametrize("tokens", [256, 259, 1030])
def test_many_tokens_of_blocks(triton_device: str, tokens: int) -> None:
    if triton_device != "cuda" or not fp8_linear._cublas_has_blocks(torch.device("cuda", 0)):
        pytest.skip("cuBLAS multiplies no blocks there")
    x = torch.randn(tokens, 1024, device=triton_device, dtype=torch.bfloat16)
    weight, scales = fp8_numbers.quantize_weight(torch.randn(384, 1024, device=triton_device), (128, 128))
    wide = fp8_numbers.dequantize_weight(*fp8_numbers.quantize_tokens(x, 128), (1, 128))
    expected = fp8_linear.fp8_linear_reference(wide, weight, scales, (128, 128))
    assert close(fp8_linear.fp8_linear(x, weight, scales, (128, 128)), expected, 2.0**-7)


def test_every_float8_number_is_decoded_exactly(triton_device: str) -> None:
    """The identity times a matrix of all numbers but the two NaNs, which weights do not hold."""
    numbers = torch.arange(256, dtype=torch.uint8, device=triton_device).view(FP8_DTYPE)
    weight = numbers.where(numbers.float().isfinite(), torch.zeros_like(numbers)).reshape(16, 16)
    out = torch.empty(16, 16, device=triton_device)
    scales = torch.ones(16, 1, device=triton_device)
    fp8_gemm.fp8_gemm(torch.eye(16, device=triton_device), None, weight, scales, (1, 16), out)
    assert torch.equal(out, weight.float().T)


def test_no_tokens(triton_device: str) -> None:
    quantized, scales = fp8_numbers.quantize_tokens(torch.zeros(0, 32, device=triton_device), 32)
    assert quantized.shape == (0, 32) and scales.shape == (0, 1)
