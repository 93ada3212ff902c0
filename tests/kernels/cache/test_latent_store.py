"""Norm, rotary and store of latents in Triton against PyTorch, and that against DeepSeek's complex numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402

from kernels.cache.latent_store import latent_store_reference, latent_store_triton  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_store(triton_device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tokens, heads, rank, rope, slots = 4, 3, 20, 6, torch.tensor([5, -1, 0, 11], device=triton_device)
    q, latent = (
        torch.randn(tokens, size, device=triton_device).to(dtype) for size in (heads * (rope + 3), rank + rope)
    )
    q = q.unflatten(-1, (heads, -1))[..., 3:]
    angles = torch.rand(9, rope // 2, device=triton_device)
    positions = torch.tensor([0, 8, 3, 8], device=triton_device)
    weight = torch.randn(rank, device=triton_device).to(dtype)
    results = []
    for store in (latent_store_triton, latent_store_reference):
        cache = torch.zeros(3, 4, 1, rank + rope, device=triton_device, dtype=dtype)
        out = torch.zeros(tokens, heads, rank + rope, device=triton_device, dtype=dtype)
        table = torch.cat((angles.cos(), angles.sin()), -1)
        store(q, latent, weight, 1e-6, table, positions, cache, slots, out)
        results.append((cache, out))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=2e-2 if dtype == torch.bfloat16 else 2e-6, rtol=0)
    cache, out = results[1]
    assert int(cache.flatten(0, 2).any(-1).sum()) == 3, "padding is stored nowhere"
    turned = torch.view_as_complex(q.float().unflatten(-1, (-1, 2)).contiguous())
    turned = turned * torch.polar(torch.ones_like(angles), angles)[positions][:, None]
    halves = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(out[..., rank:].float(), halves, atol=2e-2, rtol=0)
