"""A cached launch runs the kernel that Triton would run, with the same arguments."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled in the interpreter", allow_module_level=True)

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernels.launch import Launcher  # noqa: E402
from tests.kernels import stub_device  # noqa: E402

MEMORY = torch.zeros(4096, dtype=torch.uint8)
DTYPES = [torch.bfloat16, torch.float8_e4m3fn]


def make_kernel() -> Any:
    @triton.jit(do_not_specialize=["splits"])
    def kernel(
        x_ptr: Any, y_ptr: Any, scale: Any, row_stride: Any, splits: Any, out_ptr: Any, width: tl.constexpr,
        flag: tl.constexpr,
    ) -> None:  # fmt: skip
        pass

    return kernel


def random_tensor(draw: random.Random) -> torch.Tensor:
    """A view of MEMORY at an address that is a multiple of 4, often of 16."""
    dtype, start = draw.choice(DTYPES), draw.choice([0, 16, 32, 48, 4])
    return MEMORY[start : start + 64].view(dtype)


def random_call(draw: random.Random) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    grid = tuple(draw.randint(1, 9) for _ in range(draw.randint(1, 3)))
    numbers = [1, 2, 16, 17, 4096, 2**31 - 1, 2**31]
    arguments = (
        random_tensor(draw), random_tensor(draw), draw.random(), draw.choice(numbers), draw.choice(numbers),
        random_tensor(draw),
    )  # fmt: skip
    return (
        grid,
        arguments,
        {"width": 16, "flag": draw.random() < 0.5, "num_warps": 4},
    )


def addresses(values: tuple[Any, ...]) -> list[Any]:
    return [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values]


def test_every_launch_is_the_one_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random launches run the same compiled kernel, grid, stream and arguments, addresses in place of tensors."""
    compiled = stub_device.install(monkeypatch)
    kernel = make_kernel()
    launch, draw = Launcher(kernel), random.Random(0)
    num_cached = 0
    for _ in range(1500):
        grid, arguments, constants = random_call(draw)
        launch(grid, *arguments, **constants)
        ours = [(each, each.launched.pop()) for each in compiled if each.launched]
        kernel[grid](*arguments, **constants)
        theirs = [(each, each.launched.pop()) for each in compiled if each.launched]
        assert len(ours) == len(theirs) == 1 and ours[0][0] is theirs[0][0]
        (mine, reference) = ours[0][1], theirs[0][1]
        assert mine[:6] == reference[:6] == ((*grid, 1, 1)[:3] + (stub_device.STREAM, 5, (4, 1, 0)))
        assert addresses(mine[9:]) == addresses(reference[9:])
        num_cached += not any(isinstance(value, torch.Tensor) for value in mine)
    assert num_cached > 300 and len(compiled) > 100


def test_repeated_launches_do_not_enter_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = stub_device.install(monkeypatch)
    kernel = make_kernel()
    launch = Launcher(kernel)
    x, wide = torch.zeros(32), 2**40
    arguments = (x, x, 0.5, 32, 3, x)
    for splits in (3, 4, 999):  # is not specialised
        launch((2,), *arguments[:4], splits, x, width=16, flag=True)
        monkeypatch.setattr(kernel, "run", None)
    assert len(compiled) == 1 and len(compiled[0].launched) == 3
    with pytest.raises(TypeError):  # 64 bits are Triton's own matter
        launch((2,), *arguments[:4], wide, x, width=16, flag=True)


def test_devices_have_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launcher(make_kernel())
    x = torch.zeros(32)
    for device in (0, 1):
        compiled = stub_device.install(monkeypatch, device)
        for _ in range(2):
            launch((2,), x, x, 0.5, 32, 3, x, width=16, flag=True)
        assert len(compiled) == 1 and len(compiled[0].launched) == 2
