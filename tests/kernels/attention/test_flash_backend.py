"""What the flash backend passes to flash-attn; a slow stand-in in PyTorch replaces the library."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # noqa: E402

from engine.engine_config import EngineConfig, override  # noqa: E402
from kernels.attention import flash_backend  # noqa: E402
from kernels.attention.flash_backend import FlashBackend, _other_signature  # noqa: E402
from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from tests.kernels.builders import Shape, make_case, naive_attention  # noqa: E402


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention whose last query sees all keys, as in flash-attn; q [n, heads, d], k and v [c, kv_heads, d]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(0, 1) for x in (k, v))
    visible = torch.ones(q.shape[0], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[0])
    scores = (q.transpose(0, 1) @ k.transpose(1, 2) * scale).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def pages(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    return cache[table[: -(-length // cache.shape[1])].long()].flatten(0, 1)[:length]


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    block_table: torch.Tensor,
) -> torch.Tensor:
    assert causal and cu_seqlens_k.dtype == cu_seqlens_q.dtype == block_table.dtype == torch.int32
    assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == cu_seqlens_k.diff().max()
    out = []
    for row, length in enumerate(cu_seqlens_k.diff().tolist()):
        keys, values = (pages(x, block_table[row], length) for x in (k, v))
        out.append(attend(q[cu_seqlens_q[row] : cu_seqlens_q[row + 1]], keys, values, softmax_scale))
    return torch.cat(out)


def with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    causal: bool,
) -> torch.Tensor:
    assert causal and cache_seqlens.dtype == block_table.dtype == torch.int32 and block_table.stride(-1) == 1
    out = torch.zeros_like(q)
    for row, length in enumerate(cache_seqlens.tolist()):
        if length:
            keys, values = (pages(x, block_table[row], length) for x in (k_cache, v_cache))
            out[row] = attend(q[row], keys, values, softmax_scale)
    return out


def test_step_of_chunks_and_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=with_kvcache)
    monkeypatch.setitem(sys.modules, "flash_attn", library)
    backend = FlashBackend()
    for seed in range(2):
        case = make_case(Shape(256, 4, 2, 64), [(5, 5), (270, 9), (256 + seed, 1)], [0, 1, 257], seed=seed)
        out = torch.full_like(case.q, torch.nan)
        backend.forward(case.q, case.stored(), case.metadata, case.scale, out)
        torch.testing.assert_close(out, naive_attention(case), atol=2e-5, rtol=0)


def test_flash_attn_itself() -> None:
    """Runs only with CUDA and an installed flash-attn."""
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    pytest.importorskip("flash_attn")
    case = make_case(Shape(256, 4, 2, 64, torch.bfloat16), [(5, 5), (270, 9)], [0, 1, 257], device="cuda")
    expected = naive_attention(case)
    out = FlashBackend().forward(case.q, case.stored(), case.metadata, case.scale)
    torch.testing.assert_close(out.cpu().float(), expected, atol=2e-2, rtol=0)


def test_torch_flash_takes_the_chunks_that_begin_their_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels, which `decodes` stands in for, get the rest."""

    def kernel(
        q: Any, k: Any, v: Any, bounds: Any, bounds_k: Any, longest: int, _k: int, *flags: Any, scale: float
    ) -> Any:
        assert flags == (0.0, True, False) and longest == bounds.diff().max()
        parts = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        return torch.cat([attend(q[a:b], k[a:b], v[a:b], scale) for a, b in parts]), None

    backend = flash_backend.TorchFlashBackend()
    monkeypatch.setattr(flash_backend, "_flash_attention", kernel)
    monkeypatch.setattr(backend, "_triton", TorchBackend())
    case = make_case(Shape(16, 4, 2, 64), [(5, 5), (37, 37), (1, 1)], [1, 20], seed=1)
    kv = case.stored()
    out = torch.full_like(case.q, torch.nan)
    for begins in (True, False):  # without being told so, it leaves all to Triton
        metadata = replace(case.metadata, begins_prompts=begins)
        backend.forward(case.q, kv, metadata, case.scale, out)
        torch.testing.assert_close(out, naive_attention(case), atol=2e-5, rtol=0)


def test_another_signature_is_named_in_one_line() -> None:
    assert flash_backend.other_signature(torch.ops.aten._flash_attention_forward.default._schema) is None
    other = flash_backend.other_signature(torch.ops.aten._flash_attention_backward.default._schema)
    assert other is not None and "has another aten::_flash_attention_backward(" in other and "\n" not in other
    library = SimpleNamespace(flash_attn_varlen_func=varlen, flash_attn_with_kvcache=attend, __version__="9")
    assert _other_signature(library) == (
        "flash-attn 9 has no flash_attn_with_kvcache with cache_seqlens, block_table, softmax_scale, causal"
    )


def test_blocks_are_pages_of_flash_attn_unless_others_are_asked_for() -> None:
    assert EngineConfig().block_size == 16 and EngineConfig(attention_backend="flash").block_size == 256
    assert override(EngineConfig(), {"attention_backend": "flash"}).block_size == 256
    assert override(EngineConfig(), {"attention_backend": "flash", "block_size": 512}).block_size == 512
    chosen = EngineConfig(attention_backend="flash", block_size=256)
    assert override(chosen, {"attention_backend": "triton"}).block_size == 256
    settings = {"attention_backend": "flash"}
    assert override(override(EngineConfig(), settings), {"attention_backend": "auto"}) == EngineConfig()
    for config, more in ((EngineConfig(), {"block_size": 16}), (EngineConfig(block_size=16), {})):
        with pytest.raises(ValueError, match=r"^block_size=16: must be a multiple of 256 with attention_backend=flash"):
            override(config, settings | more)
    with pytest.raises(ValueError, match=r"^unknown setting chooses_block_size"):
        override(EngineConfig(), {"chooses_block_size": True})
