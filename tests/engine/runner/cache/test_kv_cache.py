"""The memory of the KV cache on a CPU: zeroed, of its shape, and on huge pages where the system lends them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch  # noqa: E402

from engine.runner.cache import kv_cache  # noqa: E402
from kernels.cache.kv_store import FP8_DTYPE  # noqa: E402
from tests.simulator.builders import small_model  # noqa: E402

CPU = torch.device("cpu")


def allocate(num_blocks: int, dtype: torch.dtype) -> torch.Tensor:
    return kv_cache.allocate(small_model(), num_blocks, 16, 1, dtype, CPU)


class Refusing(mmap.mmap):
    """Memory of a system without huge pages."""

    def madvise(self, *args: int) -> None:
        raise OSError("no such advice")


@pytest.mark.parametrize("memory", ["huge pages", "refused", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8_DTYPE])
@pytest.mark.parametrize("num_blocks", [1, 300])
def test_a_cache_is_zeroed_and_can_be_written(
    num_blocks: int, dtype: torch.dtype, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory == "refused":
        monkeypatch.setattr(mmap, "mmap", Refusing)
    if memory == "none":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    cache = allocate(num_blocks, dtype)
    assert cache.shape == (2, 2, num_blocks, 16, 2, 16) and cache.dtype == dtype and cache.is_contiguous()
    assert not cache.float().any()
    cache[1, 1, -1] = 1.0
    assert cache.float().sum() == 16 * 2 * 16


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without advice on huge pages")
def test_a_cache_asks_for_huge_pages() -> None:
    cache = allocate(1 << 12, torch.float32)
    mapping = next(fields for first, last, fields in mappings() if first <= cache.data_ptr() < last)
    assert "hg" in mapping["VmFlags"].split()


def mappings() -> Iterator[tuple[int, int, dict[str, str]]]:
    """First address, end and fields of every mapping of this process."""
    entries: list[tuple[int, int, dict[str, str]]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            first, last = (int(address, 16) for address in line.split()[0].split("-"))
            entries.append((first, last, {}))
        else:
            entries[-1][2][name] = value
    yield from entries
