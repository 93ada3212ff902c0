"""The kernel of head norms, rotary and KV store against its PyTorch reference: odd shapes and all kinds of caches."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels import runtime  # noqa: E402
from kernels.cache import kv_integers, kv_store, rotary_store  # noqa: E402
from kernels.cache.layer_kv import LayerKV  # noqa: E402
from kernels.cache.rotary_store import HeadNorms  # noqa: E402

# (query heads, KV heads, head_dim): a group that is no power of two, halves that are none, the widest head.
SHAPES = [(4, 2, 64), (7, 1, 96), (3, 3, 12), (16, 2, 128), (2, 1, 256)]
SLOTS = [3, -1, 0, 20, -1]


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` returns NaN, so that elements that a kernel does not write are noticed."""
    torch.manual_seed(0)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(torch.nan))


class Inputs:
    """Inputs of five tokens, of which two are padding; qkv is a slice of a wider tensor."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, normed: bool, device: str) -> None:
        heads, kv_heads, head_dim = shape
        all_heads = heads + 2 * kv_heads
        wide = torch.randn(5, (all_heads + 1) * head_dim, device=device).to(dtype)
        self.qkv = wide[:, : all_heads * head_dim].view(5, all_heads, head_dim)
        weights = torch.randn(2, head_dim, device=device).to(dtype)
        self.norms = HeadNorms(weights[0], weights[1], 1e-5) if normed else None
        angles = torch.rand(50, head_dim // 2, device=device) * 6
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        self.positions = torch.tensor([0, 49, 7, 7, 0], device=device)
        self.slots = torch.tensor(SLOTS, device=device)

    def run(self, function: object, caches: list[torch.Tensor], scales: torch.Tensor | None = None) -> torch.Tensor:
        assert callable(function)
        kv = LayerKV(caches[0], caches[1], scales)
        out: torch.Tensor = function(self.qkv, self.norms, self.cos_sin, self.positions, kv, self.slots)
        return out


def both(
    inputs: Inputs, cache: torch.Tensor, scales: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """(q of the kernel, of the reference, caches of the kernel, of the reference); each cache a copy of `cache`."""
    ours, theirs = [cache.clone(), cache.clone()], [cache.clone(), cache.clone()]
    got = inputs.run(rotary_store.rotary_store, ours, scales)
    return got, inputs.run(rotary_store.rotary_store_reference, theirs, scales), ours, theirs


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    # The interpreter truncates to bfloat16 where compiled code rounds to nearest, here up to three times.
    bound = 4e-2 if got.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(got, expected, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cache_of_the_inputs_dtype(triton_device: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Padding is not stored, and slots that are not written keep their NaN; values are copied as they are."""
    normed = (SHAPES.index(shape) % 2 == 0) == (dtype == torch.float32)
    inputs = Inputs(shape, dtype, normed, triton_device)
    cache = torch.full((3, 7, *shape[1:]), torch.nan, device=triton_device, dtype=dtype)
    got, expected, ours, theirs = both(inputs, cache)
    assert got.shape == (5, shape[0], shape[2]) and got.is_contiguous() and got.dtype == dtype
    close(got, expected)
    close(ours[0], theirs[0])
    assert torch.equal(ours[1].nan_to_num(7.0), theirs[1].nan_to_num(7.0))
    assert int(ours[0].isfinite().all(dim=-1).sum()) == 3 * shape[1]


@pytest.mark.parametrize("normed", [True, False])
def test_a_float8_cache(triton_device: str, normed: bool) -> None:
    """Values are scaled by head and clamped to the largest float8 number."""
    inputs = Inputs((6, 3, 96), torch.float32, normed, triton_device)
    scales = torch.tensor([[1.0, 0.1, 0.001], [0.01, 0.3, 5.0]], device=triton_device)
    cache = torch.zeros(3, 7, 3, 96, device=triton_device).to(kv_store.FP8_DTYPE)
    got, expected, ours, theirs = both(inputs, cache, scales)
    close(got, expected)
    # Compiled division may differ in the last bit; the interpreter's rounding loses carries and the smallest numbers.
    allowed = 0.08 if runtime.INTERPRETED else 0.01
    for stored, reference in zip(ours, theirs, strict=True):
        written = reference.float() != 0
        assert int(written.sum()) > 650 and not stored.float()[~written].any()
        assert (stored.float() != reference.float())[written].float().mean() <= allowed


@pytest.mark.parametrize("stored", [kv_integers.INT8_DTYPE, kv_integers.INT4_DTYPE], ids=str)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_a_cache_of_integers(triton_device: str, shape: tuple[int, int, int], stored: torch.dtype) -> None:
    inputs = Inputs(shape, torch.float32, stored == kv_integers.INT8_DTYPE, triton_device)
    inputs.qkv[0, -1], inputs.qkv[2, -1, 5] = 0.0, 1e9  # a row of zeros, and one beyond the largest scale
    width = kv_integers.row_width(shape[2], stored)
    cache = torch.zeros(3, 7, shape[1], width, device=triton_device, dtype=stored)
    got, expected, ours, theirs = both(inputs, cache)
    close(got, expected)
    for mine, reference in zip(ours, theirs, strict=True):
        numbers, wanted = (kv_integers.dequantize_blocks(x, torch.float32) for x in (mine, reference))
        step = wanted.abs().amax(-1, keepdim=True) / kv_integers.LARGEST[stored]
        # An integer next to the middle of two may be either, as may the last bit of a scale.
        assert bool(((numbers - wanted).abs() <= step * 1.01).all())
        assert (mine != reference).float().mean() <= 0.01
    assert torch.equal(ours[1], theirs[1]), "values are quantised as they are"


def test_no_tokens(triton_device: str) -> None:
    inputs = Inputs((4, 2, 64), torch.float32, True, triton_device)
    inputs.qkv, inputs.positions, inputs.slots = inputs.qkv[:0], inputs.positions[:0], inputs.slots[:0]
    caches = torch.zeros(2, 1, 7, 2, 64, device=triton_device)
    assert inputs.run(rotary_store.rotary_store, list(caches)).shape == (0, 4, 64)
