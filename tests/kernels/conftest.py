"""The device that Triton kernels are tested on: CUDA, or the CPU where Triton's interpreter runs them."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


class _NothingToRestore:
    def restore(self) -> None:
        pass


def _patch_once(interpreter: ModuleType) -> None:
    """Triton's interpreter searches Triton's language for what to patch whenever a kernel starts or calls a function
    such as `tl.sum`, which takes longer than most of these calls. This process only interprets: it is patched once."""
    patch: Callable[[Any], object] = interpreter._patch_lang
    patched: set[frozenset[int]] = set()

    def patch_new(function: Any) -> _NothingToRestore:
        names = frozenset(id(value) for value in function.__globals__.values() if isinstance(value, ModuleType))
        languages = names & {id(interpreter.tl), id(interpreter.tl.core)}
        if languages not in patched:
            patch(function)
            patched.add(languages)
        return _NothingToRestore()

    interpreter._patch_lang = patch_new  # type: ignore[attr-defined]


if os.environ.get("TRITON_INTERPRET") == "1":
    _patch_once(pytest.importorskip("triton.runtime.interpreter"))

    def pytest_collection_finish() -> None:
        """An engine that closes looks for garbage: not among the modules, which takes 0.3 s."""
        gc.freeze()
        atexit.register(gc.unfreeze)  # Triton reports what the last collection, of the interpreter's end, does not free


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
