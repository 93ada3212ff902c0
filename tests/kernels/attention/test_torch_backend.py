"""The PyTorch attention backend against loops over tokens, and the choice of a backend."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from kernels.attention import torch_decode  # noqa: E402
from kernels.attention.backends import BackendUnavailableError, available_backends, select_backend  # noqa: E402
from kernels.attention.flash_backend import flash_unavailable  # noqa: E402
from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from tests.kernels.builders import Case, Shape, in_float8, make_case, naive_attention, tolerance  # noqa: E402

CPU = torch.device("cpu")
SHAPES = [
    Shape(1, 2, 1, 64),
    Shape(7, 6, 2, 96),
    Shape(16, 4, 4, 64, torch.bfloat16),
    Shape(17, 16, 1, 128),
    Shape(48, 4, 2, 64),
    Shape(256, 3, 1, 256, torch.bfloat16),
]


def run(backend: TorchBackend, case: Case, window: int = 0, sinks: torch.Tensor | None = None) -> torch.Tensor:
    out = torch.full_like(case.q, torch.nan)
    backend.forward(case.q, case.stored(), case.metadata, case.scale, out, window, sinks)
    return out.float()


def edges(size: int) -> list[int]:
    return sorted({1, max(size - 1, 1), size, size + 1, 2 * size, 90})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_step_of_chunks_and_decodes(shape: Shape) -> None:
    size = shape.block_size
    prefills = [(1, 1), (size, size), (size + 9, 9), (2 * size + 1, 1)]
    case = make_case(shape, prefills, [*edges(size), 0])
    expected = naive_attention(case)
    torch.testing.assert_close(run(TorchBackend(), case), expected, atol=tolerance(shape.dtype), rtol=0)


@pytest.mark.parametrize("window", [1, 7, 16, 17, 40, 1000])
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@pytest.mark.sample(9)
def test_windows_and_sinks(shape: Shape, window: int) -> None:
    size = shape.block_size
    prefills = [(1, 1), (size, size), (size + 9, 9), (50, 50), (2 * size + 1, 1)]
    case = make_case(shape, prefills, [*edges(size), 0])
    backend = TorchBackend()  # for layers with and without windows and sinks
    for seen, sinks in ((window, None), (0, torch.linspace(-2, 5, shape.heads)), (window, torch.randn(shape.heads))):
        expected = naive_attention(case, seen, sinks)
        torch.testing.assert_close(run(backend, case, seen, sinks), expected, atol=tolerance(shape.dtype), rtol=0)


def test_a_window_hides_tokens_of_full_blocks_and_leaves_out_others() -> None:
    case = make_case(Shape(16, 4, 2, 64), [], [32])
    torch.testing.assert_close(run(TorchBackend(), case, 20), naive_attention(case, 20), atol=2e-5, rtol=0)
    tables, lengths = torch.arange(60, dtype=torch.int32).view(1, -1), torch.tensor([900], dtype=torch.int32)
    (group,) = torch_decode.plan_decode(lengths, tables, case.k_cache, window=40).groups
    assert group.length == 52 + 12 and group.pieces.tolist() == [53, 54, 55, 56], "of the last 40 of 900 tokens"


@pytest.mark.parametrize(("kind", "what"), [("windows", "windows and sinks"), ("latent", "latent attention")])
def test_flash_attention_is_for_plain_attention_here(kind: Any, what: str) -> None:
    for name in ("flash", "torch_flash"):
        with pytest.raises(BackendUnavailableError, match=f"'{name}': has no {what} here"):
            select_backend(name, CPU, torch.float32, 64, 16, kind=kind)


@pytest.mark.parametrize("tile_bytes", [1, 1 << 14, 1 << 30])
@pytest.mark.parametrize("padding", [1.0, 100.0])
def test_any_grouping_gives_the_same(monkeypatch: pytest.MonkeyPatch, tile_bytes: int, padding: float) -> None:
    monkeypatch.setattr(torch_decode, "MAX_TILE_BYTES", tile_bytes)
    monkeypatch.setattr(torch_decode, "MAX_PADDING", padding)
    case = make_case(Shape(32, 4, 2, 64), [], [40, 0, 3, 3, 97, 16, 15, 17, 64, 0, 64])
    torch.testing.assert_close(run(TorchBackend(), case), naive_attention(case), atol=2e-5, rtol=0)


def test_one_backend_over_steps_and_layers() -> None:
    """The buffers and the plan that a backend keeps do not change the results of later steps or layers."""
    backend = TorchBackend()
    for seed, decodes in enumerate([[5], [300, 20, 7], [1, 0], [64] * 9]):
        case = make_case(Shape(16, 4, 2, 64), [(20, 6)], decodes, seed=seed)
        for layer in range(2):
            other = make_case(Shape(16, 4, 2, 64), [(20, 6)], decodes, seed=seed)
            same_step = Case(**{**vars(other), "metadata": case.metadata, "q": case.q * (layer + 1)})
            torch.testing.assert_close(run(backend, same_step), naive_attention(same_step), atol=2e-5, rtol=0)


@pytest.mark.parametrize("shape", [Shape(16, 4, 2, 64), Shape(7, 3, 3, 96)], ids=str)
def test_float8_cache(shape: Shape) -> None:
    case, scales, expected = in_float8(make_case(shape, [(40, 9), (17, 17)], [0, 33, 129, 16]))
    out = TorchBackend().forward(case.q, case.stored(scales), case.metadata, case.scale)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)


def test_tokens_that_are_padding_give_zeros_and_store_nothing() -> None:
    case = make_case(Shape(4, 2, 1, 64), [(3, 3)], [0, 0])
    padded = Case(**{**vars(case), "q": torch.cat((case.q, case.q[:1]))})
    before = case.k_cache.clone()
    out = run(TorchBackend(), padded)
    assert out[3:].abs().max() == 0 and out.shape[0] == 6
    assert int((case.k_cache.isfinite() != before.isfinite()).sum()) == 3 * 64


def test_auto_takes_the_best_that_can_run() -> None:
    reasons = available_backends(CPU, torch.float32, 64, 16)
    assert list(reasons) == ["flash", "triton", "torch_flash", "torch"] and reasons["torch"] is None
    assert select_backend("auto", CPU, torch.float32, 64, 16).name == "torch"


@pytest.mark.parametrize("name", ["flash", "triton", "xformers"])
def test_backend_that_cannot_run_is_an_error_of_one_line(name: Any) -> None:
    with pytest.raises(BackendUnavailableError) as error:
        select_backend(name, CPU, torch.float32, 64, 16)
    assert name in str(error.value) and "available: torch" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "block_size", "reason"),
    [(torch.float32, 64, 256, "float16"), (torch.bfloat16, 264, 256, "head_dim"), (torch.bfloat16, 64, 16, "256")],
)
def test_flash_names_what_it_cannot_do(dtype: torch.dtype, head_dim: int, block_size: int, reason: str) -> None:
    found = flash_unavailable(torch.device("cuda"), dtype, head_dim, block_size)
    assert found is not None and reason in found
