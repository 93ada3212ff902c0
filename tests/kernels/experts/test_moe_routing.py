"""The routing kernels against PyTorch, for routings as uneven as they get: pairs, tiles and ends are equal."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels.experts import moe_routing  # noqa: E402
from kernels.experts.moe_routing import Routing, route_reference, route_triton  # noqa: E402


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` returns NaN or a huge integer, so that elements that a kernel does not write are noticed."""
    torch.manual_seed(0)
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        out = empty(*args, **kwargs)
        return out.fill_(torch.nan if out.is_floating_point() else 1 << 30)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs with several tokens each, even for few tokens."""
    monkeypatch.setattr(moe_routing, "_MOST_PROGRAMS", 16)
    monkeypatch.setattr(moe_routing, "_LARGE_ELEMENTS", 1024)


def check(logits: Tensor, top_k: int, block_m: int, renormalizes: tuple[bool, ...] = (True, False)) -> None:
    for renormalize in renormalizes:
        expected = route_reference(logits.cpu(), top_k, renormalize, block_m)
        got = Routing(*(each.cpu() for each in vars(route_triton(logits, top_k, renormalize, block_m)).values()))
        torch.testing.assert_close(got.weights, expected.weights, rtol=1e-6, atol=1e-30, equal_nan=True)
        for name in ("order", "tile_experts", "tile_starts", "expert_ends"):
            assert torch.equal(getattr(got, name), getattr(expected, name)), name


SIZES = [(1, 128, 8, 16), (3, 5, 2, 1), (17, 60, 4, 4), (40, 3, 3, 16), (60, 128, 8, 16), (300, 6, 1, 64)]


@pytest.mark.parametrize(("tokens", "experts", "top_k", "block_m"), SIZES)
def test_random_logits(triton_device: str, tokens: int, experts: int, top_k: int, block_m: int) -> None:
    check(torch.randn(tokens, experts, device=triton_device), top_k, block_m, (tokens != 60,))


@pytest.mark.parametrize("tokens", [6, 18])
def test_adversarial_logits(triton_device: str, tokens: int) -> None:
    """All tokens to the same experts; most experts empty; ties of all kinds; infinities; NaN, alone and everywhere."""
    experts = 33
    same = torch.arange(experts, dtype=torch.float32).expand(tokens, experts)
    few = torch.full((tokens, experts), -torch.inf)
    few[:, [2, 30, 31, 32]] = torch.randn(tokens, 4)
    ties = torch.randint(-1, 2, (tokens, experts)).float() * torch.tensor([1.0, -0.0])[torch.arange(tokens) % 2, None]
    odd = torch.randn(tokens, experts)
    odd[0, 7], odd[1, 3], odd[2], odd[3, [1, 4]] = torch.nan, -torch.nan, torch.nan, torch.inf
    odd[4], odd[5] = -torch.inf, 3e38
    for i, logits in enumerate((same, same.flip(1), few, torch.zeros(tokens, experts), ties, odd)):
        check(logits.contiguous().to(triton_device), 4, 16, (i % 2 == 0,))


def test_bfloat16_logits_with_a_stride(triton_device: str) -> None:
    """The router's logits are bfloat16, in which ties are common."""
    wide = torch.randn(20, 48, device=triton_device).to(torch.bfloat16)
    check(wide[:, :40], 8, 16, (True,))


def test_programs_take_several_rounds_and_write_several_tiles_of_an_expert(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe_routing, "_LARGE_ELEMENTS", 64)
    monkeypatch.setattr(moe_routing, "_SMALL_ELEMENTS", 64)
    logits = torch.randn(40, 16, device=triton_device)
    logits[:, 5] = 9.0
    check(logits, 2, 2, (True,))


def test_the_order_of_equal_logits_is_that_of_the_experts() -> None:
    routing = route_reference(torch.tensor([[1.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), 3, True, 16)
    assert routing.order.tolist() == [2, 3, 0, 4, 1, 5]  # expert 0: 0 + 2 and 1 + 0; expert 1; expert 2
    assert routing.expert_ends.tolist() == [2, 4, 6, 6]
    assert routing.tile_experts.tolist()[:4] == [0, 1, 2, 4] and routing.tile_starts.tolist()[:4] == [0, 2, 4, 0]
