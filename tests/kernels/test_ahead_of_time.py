"""The kernels, compiled as they are launched, fit every GPU without spills; those of attention have their own file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

import torch  # noqa: E402

from kernels.cache.kv_store import FP8_DTYPE  # noqa: E402
from kernels.experts.moe_routing import route_triton  # noqa: E402
from tests.kernels.launch_calls import (  # noqa: E402
    after_attention,
    around_decode,
    experts_in_float8,
    norms,
    product_in_float8,
    store,
    thresholds,
)
from tests.kernels.occupancy import CUOBJDUMP, LIMITS, compile_launch, recorded  # noqa: E402

if not CUOBJDUMP.exists():
    pytest.skip("this triton comes without cuobjdump", allow_module_level=True)

HALF, F32, I8, U8 = torch.bfloat16, torch.float32, torch.int8, torch.uint8
SHARED_BYTES = 99 * 1024  # of sm_89 and sm_120, the least of these
MOST_SPILLED_BYTES = {("keep_threshold_kernel", 89): 8}  # of bfloat16
MOST_REGISTERS = {
    "rotary_store_kernel": 80,  # 24 warps per multiprocessor and more
    "keep_threshold_kernel": 128,  # one program of 16 warps per multiprocessor
}
MOST_SHARED_BYTES = {
    "rotary_store_kernel": 4096,  # of integers, whose scale is a maximum over the warps
    "keep_threshold_kernel": 8192,
    "route_small_kernel": 48 * 1024,
    "choose_kernel": 48 * 1024,
    "place_kernel": 48 * 1024,
}


def route(tokens: int, experts: int, top_k: int, dtype: torch.dtype = HALF) -> None:
    route_triton(torch.zeros(tokens, experts, dtype=dtype), top_k, dtype == HALF, 16)


# (call, architectures from this one on, the one in the first round)
CALLS: list[tuple[Callable[[], None], int, int]] = [
    (norms, 80, 80), (after_attention, 80, 90), (around_decode, 80, 100), (partial(thresholds, F32), 80, 89),
    (partial(store, HALF), 80, 80), (partial(store, HALF, 256, 16, False), 80, 89), (partial(store, I8), 80, 100),
    (partial(store, U8), 80, 120), (partial(store, FP8_DTYPE), 89, 90),
    (product_in_float8, 89, 89), (partial(product_in_float8, 1, (1, 4096)), 89, 90),
    (partial(product_in_float8, 1), 89, 100), (partial(product_in_float8, kept=HALF), 80, 80),
    (partial(product_in_float8, kept=F32), 80, 90), (partial(product_in_float8, 1, (1, 4096), F32), 80, 80),
    (experts_in_float8, 80, 90), (partial(experts_in_float8, 2048), 80, 0),
    (partial(experts_in_float8, 1, (1, 2048)), 80, 80),
    # Qwen3-30B-A3B, Mixtral and 512 experts; few tokens take one launch, many two.
    (partial(route, 32, 128, 8), 80, 90), (partial(route, 4096, 128, 8), 80, 0), (partial(route, 256, 8, 2), 80, 0),
    (partial(route, 9000, 8, 2), 80, 0), (partial(route, 8, 512, 10), 80, 0), (partial(route, 4096, 512, 10), 80, 0),
    (partial(route, 1, 128, 8, F32), 80, 0), (partial(route, 4096, 512, 10, F32), 80, 0),
]  # fmt: skip


DEAR = (after_attention, experts_in_float8)  # to compile


def marks_of(call: Callable[[], None], capability: int, first: int) -> list[pytest.MarkDecorator]:
    if capability != first:
        return [pytest.mark.slow]
    return [pytest.mark.long] * (getattr(call, "func", call) in DEAR)


@pytest.mark.parametrize(
    ("call", "capability"),
    [
        pytest.param(call, capability, marks=marks_of(call, capability, first))
        for call, least, first in CALLS
        for capability in LIMITS
        if capability >= least
    ],
)
def test_no_kernel_spills_or_takes_too_much(call: Callable[[], None], capability: int) -> None:
    with recorded(capability) as launches:
        call()
    found = [compile_launch(launch, capability) for launch in launches]
    for each in found:
        assert each.spilled_bytes <= MOST_SPILLED_BYTES.get((each.kernel, capability), 0), each
        assert each.shared_bytes <= MOST_SHARED_BYTES.get(each.kernel, SHARED_BYTES), each
        assert each.registers <= MOST_REGISTERS.get(each.kernel, 255), each
    if getattr(call, "func", call) is experts_in_float8:
        assert any(each.kernel == "quantize_tokens_kernel" for each in found) == (capability >= 89)
