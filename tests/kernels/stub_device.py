"""A GPU that is not there: Triton compiles nothing and launches nothing, and records what it would launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

STREAM = 77


@dataclass
class StubKernel:
    """What compiling a kernel gives; `run` records its arguments in `launched`."""

    launched: list[tuple[Any, ...]] = field(default_factory=list)
    function: int = 5
    packed_metadata: tuple[int, ...] = (4, 1, 0)

    def run(self, *arguments: Any) -> None:
        self.launched.append(arguments)

    def launch_metadata(self, *_: Any) -> None:
        return None


def install(monkeypatch: pytest.MonkeyPatch, device: int = 0) -> list[StubKernel]:
    """Make the stand-in Triton's device; returns the kernels that will be compiled, in order."""
    made: list[StubKernel] = []
    driver = SimpleNamespace(
        get_current_device=lambda: device,
        get_current_stream=lambda _: STREAM,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )

    def compile_stub(self: Any, key: Any, _signature: Any, on: int, *_: Any) -> StubKernel:
        made.append(StubKernel())
        self.device_caches[on][0][key] = made[-1]
        return made[-1]

    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(JITFunction, "_do_compile", compile_stub)
    return made
