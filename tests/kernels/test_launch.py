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

from kernels.attention import decode, prefill  # noqa: E402
from kernels.attention.metadata import AttentionMetadata  # noqa: E402
from kernels.attention.triton_backend import TritonBackend  # noqa: E402
from kernels.cache.layer_kv import LayerKV  # noqa: E402
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


@pytest.mark.parametrize("window", [0, 20])
def test_layers_launch_what_the_first_one_did(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of a step in four layers by one backend, and by a new one for each layer: the same kernels with the
    same arguments, but for the addresses of scratch memory. One layer has an address that needs another kernel."""
    compiled = stub_device.install(monkeypatch)
    cache = torch.zeros(4, 2, 64, 16, 2, 32)
    scales = torch.zeros(64)
    step = AttentionMetadata(
        slot_mapping=torch.zeros(303, dtype=torch.int64),
        num_prefill_tokens=300,
        cu_seqlens_q=torch.tensor([0, 300], dtype=torch.int32),
        prefill_context_lens=torch.tensor([900], dtype=torch.int32),
        prefill_block_tables=torch.zeros(1, 57, dtype=torch.int32),
        max_seqlen_q=300,
        max_prefill_context=900,
        decode_context_lens=torch.tensor([500, 600, 700], dtype=torch.int32),
        decode_block_tables=torch.zeros(3, 57, dtype=torch.int32),
        max_decode_context=700,
    )
    device_limits = lambda _: (90, 132)  # noqa: E731
    monkeypatch.setattr(decode, "device_limits", device_limits)
    monkeypatch.setattr(prefill, "device_limits", device_limits)

    def launched(backend: TritonBackend, layer: int) -> list[tuple[Any, ...]]:
        q, out = torch.zeros(2, 303, 4, 32)
        sinks = scales[4 * layer + (layer == 2) : 4 * layer + (layer == 2) + 4]
        known = {"q": q, "keys": cache[layer, 0], "values": cache[layer, 1], "out": out, "sinks": sinks}
        backend.forward(q, LayerKV(known["keys"], known["values"]), step, 0.5, out, window, sinks)
        found = [(each, each.launched.pop(0)) for each in compiled for _ in range(len(each.launched))]
        named = [(kernel, [_named(each, known) for each in addresses(values)]) for kernel, values in found]
        return [(id(kernel), *values[:6], *values[9:]) for kernel, values in named]

    backend = TritonBackend()
    for layer in range(4):
        repeated, made = launched(backend, layer), launched(TritonBackend(), layer)
        assert repeated == made
        assert len(made) == (2 if window else 4), "prompts and decodes, without a window in splits that are joined"


def _named(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """An address as the tensor it lies in and the offset; None for one in no tensor."""
    if not isinstance(value, int) or value < 1 << 20:
        return value
    for name, tensor in tensors.items():
        if 0 <= (offset := value - tensor.data_ptr()) < tensor.numel() * tensor.element_size():
            return name, offset
    return None
