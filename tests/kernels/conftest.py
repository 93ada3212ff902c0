"""The device that Triton kernels are tested on: CUDA, or the CPU where Triton's interpreter runs them."""

from __future__ import annotations

import pytest


@pytest.fixture
def triton_device() -> str:
    """Either "cuda" or "cpu"; skips the test if kernels can run neither compiled nor interpreted."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from kernels.runtime import INTERPRETED

    torch.set_num_threads(1)
    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA, or TRITON_INTERPRET=1")
    return "cuda"
