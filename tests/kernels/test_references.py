"""The PyTorch versions of norm, rotary, activation and experts against their formulas in float64."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.activation import silu_and_mul  # noqa: E402
from kernels.experts.moe import fused_moe  # noqa: E402
from kernels.experts.moe_routing import route_reference  # noqa: E402
from kernels.norm import add_rms_norm, rms_norm  # noqa: E402
from kernels.rotary import rotary_reference  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def test_rms_norm() -> None:
    x, weight = torch.randn(3, 2, 10), torch.randn(10)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 0.1), expected.float())
    normed, total = add_rms_norm(x[:, 0], x[:, 1], weight, 0.1)
    assert torch.equal(total, x[:, 0] + x[:, 1])
    assert torch.equal(normed, rms_norm(total, weight, 0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_turns_pairs_by_their_angle(dtype: torch.dtype) -> None:
    """Elements i and i + half are a complex number, which is rotated by position * frequency[i]."""
    angles = torch.arange(20)[:, None] / 100.0 ** (torch.arange(4) / 4)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    q, k = torch.randn(3, 2, 8).to(dtype), torch.randn(3, 1, 8).to(dtype)
    positions = torch.tensor([0, 19, 3])
    turn = torch.polar(torch.ones(3, 1, 4), angles[positions].unsqueeze(1))
    for x, got in zip((q, k), rotary_reference(q, k, cos_sin, positions), strict=True):
        turned = torch.complex(x[..., :4].float(), x[..., 4:].float()) * turn
        torch.testing.assert_close(got, torch.cat((turned.real, turned.imag), dim=-1).to(dtype))


def test_silu_and_mul() -> None:
    x = torch.randn(3, 14)
    kept = x.clone()
    gate, up = x.double().split(7, dim=1)
    torch.testing.assert_close(silu_and_mul(x), (gate * gate.sigmoid() * up).float())
    assert torch.equal(x, kept)


@pytest.mark.parametrize("renormalize", [True, False])
def test_fused_moe(renormalize: bool) -> None:
    tokens, hidden, width, experts, top_k = 6, 5, 3, 4, 2
    x, logits = torch.randn(tokens, hidden), torch.randn(tokens, experts)
    w13, w2 = torch.randn(experts, 2 * width, hidden), torch.randn(experts, hidden, width)
    expected = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        chances = logits[token].double().softmax(0)
        chosen = chances.argsort(descending=True)[:top_k]
        norm = chances[chosen].sum() if renormalize else 1.0
        for expert in chosen:
            gate, up = (w13[expert].double() @ x[token].double()).split(width)
            expected[token] += chances[expert] / norm * (w2[expert].double() @ (gate * gate.sigmoid() * up))
    torch.testing.assert_close(fused_moe(x, logits, w13, w2, top_k, renormalize), expected.float())


@pytest.mark.parametrize("block_m", [1, 4, 16])
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 3, 1), (7, 5, 2), (40, 6, 3), (3, 50, 8)])
def test_tiles_cover_every_pair_once(tokens: int, experts: int, top_k: int, block_m: int) -> None:
    logits = torch.randn(tokens, experts)
    chosen = logits.topk(top_k).indices
    tiles = route_reference(logits, top_k, True, block_m)
    covered = []
    for expert, start in zip(tiles.tile_experts.tolist(), tiles.tile_starts.tolist(), strict=True):
        if expert < experts:
            pairs = tiles.order[start : min(start + block_m, int(tiles.expert_ends[expert]))].tolist()
            assert pairs and all(chosen.flatten()[pair] == expert for pair in pairs)
            covered += pairs
    assert sorted(covered) == list(range(tokens * top_k))
