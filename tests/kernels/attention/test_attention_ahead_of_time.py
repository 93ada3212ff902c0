"""The attention kernels, compiled as they are launched: no spills, and as many programs as the table promises.

The loop over the context must wait for one tile of keys and values only, while the next is on its way.
"""

from __future__ import annotations

import itertools
import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

import torch  # noqa: E402

from kernels.attention.configs import decode_config, latent_config, prefill_config  # noqa: E402
from kernels.cache.kv_store import FP8_DTYPE  # noqa: E402
from tests.kernels.launch_calls import decode, latent, prefill  # noqa: E402
from tests.kernels.occupancy import CUOBJDUMP, LIMITS, compile_launch, recorded  # noqa: E402

if not CUOBJDUMP.exists():
    pytest.skip("this triton comes without cuobjdump", allow_module_level=True)

HALF, F32 = torch.bfloat16, torch.float32
FOR_A_COMMIT = (90, 128, 2, HALF, 0)
FAST = {FOR_A_COMMIT, (100, 64, 8, HALF, 128)}
SHAPES = [
    pytest.param(*shape, marks=[] if shape == FOR_A_COMMIT else pytest.mark.long if shape in FAST else pytest.mark.slow)
    for capability in LIMITS
    for head_dim, group, cache, *window in [
        (128, 2, HALF), (64, 1, HALF), (80, 5, HALF), (96, 7, HALF), (128, 16, HALF), (256, 4, HALF),
        (64, 8, HALF, 128), (128, 4, HALF, 4096), (64, 8, FP8_DTYPE, 128),  # gpt-oss and Mistral-7B v0.1
        (64, 4, FP8_DTYPE), (128, 2, FP8_DTYPE), (256, 8, FP8_DTYPE), (128, 4, torch.int8), (128, 4, torch.uint8),
        (256, 8, torch.int8), (128, 2, F32), (256, 1, F32),
    ]
    if capability >= 89 or cache != FP8_DTYPE
    for shape in [(capability, head_dim, group, cache, *(window or [0]))]
]  # fmt: skip


@pytest.mark.parametrize(("capability", "head_dim", "group", "cache", "window"), SHAPES)
def test_decode(capability: int, head_dim: int, group: int, cache: torch.dtype, window: int) -> None:
    dtype = F32 if cache == F32 else HALF
    with recorded(capability) as launches:
        decode(cache, head_dim, group, dtype, window)
    usage, *join = (compile_launch(launch, capability) for launch in launches)
    assert usage.spilled_bytes == 0 and len(join) == (window != 128), usage
    assert all(each.spilled_bytes == 0 for each in join), join
    assert usage.shared_bytes <= (LIMITS[capability][2] - 1) * 1024, usage
    assert usage.programs_per_sm >= decode_config(capability, head_dim, dtype.itemsize, cache).programs_per_sm, usage
    assert min(map(int, usage.waits.split()), default=0) >= 2, usage


@pytest.mark.parametrize("tokens", [8192, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("capability", "head_dim", "group", "cache", "window"), SHAPES)
def test_prefill(capability: int, head_dim: int, group: int, cache: torch.dtype, window: int, tokens: int) -> None:
    dtype = F32 if cache == F32 else HALF
    with recorded(capability) as launches:
        prefill(cache, head_dim, group, dtype, tokens, window)
    assert len(launches) == (1 if tokens == 8192 or window == 128 else 2), (
        "a chunk of 8,192 tokens fills the device, three tokens do not"
    )
    usage = compile_launch(launches[0], capability)
    config = prefill_config(capability, head_dim, tokens * group, dtype.itemsize, cache)
    assert usage.spilled_bytes == 0, usage
    assert usage.shared_bytes <= (LIMITS[capability][2] - 1) * 1024, usage
    assert usage.programs_per_sm >= config.programs_per_sm, usage
    assert capability not in (90, 100) or cache == F32 or head_dim == 256 or usage.programs_per_sm >= 2, usage
    assert min(map(int, usage.waits.split()), default=2) >= 2, usage


@pytest.mark.parametrize(
    ("capability", "tokens"),
    [
        pytest.param(*each, marks=pytest.mark.long if each == (90, 1) else pytest.mark.slow)
        for each in itertools.product(LIMITS, (1, 2048))
    ],
)
def test_latent_attention(capability: int, tokens: int) -> None:
    with recorded(capability) as launches:
        latent(tokens)
    usage, *others = (compile_launch(launch, capability) for launch in launches)
    # On an H100, tiles of 64 rows and keys take half the time of smaller ones, though they spill a little.
    most_spilled, least_wait = (256, 1) if capability == 90 and tokens > 1 else (0, 2)
    assert usage.spilled_bytes <= most_spilled and not any(each.spilled_bytes for each in others), (usage, others)
    assert usage.programs_per_sm >= latent_config(capability, tokens * 16).programs_per_sm, usage
    assert min(map(int, usage.waits.split())) >= least_wait, usage
