"""Which choices of tiles, warps and pipeline stages are fastest for the attention kernels on this device?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from experiments.acceptance.attention import (
    HEADS,
    cache_dtypes,
    ceilings,
    decode_share,
    prefill_share,
    usable_backends,
)
from experiments.acceptance.context import Context
from kernels.attention.configs import decode_candidates, device_limits, prefill_candidates, use_configs

MODEL = "qwen3-8b"
DECODES, PREFILLS = ((8, 8192), (128, 1024)), ((1, 8192), (16, 512))


def configurations(context: Context) -> None:
    """Decode attention with a cache of each dtype, then prefill attention: the table's choice and every other one."""
    bandwidth, flops = ceilings(context)
    heads = HEADS[MODEL]
    backend = "triton" if "triton" in usable_backends(context, heads[2]) else "torch"
    capability = device_limits(context.device)[0]
    for shape in DECODES if not context.rehearse else [(2, 64)]:
        for dtype in cache_dtypes(context, backend, heads[2]):
            candidates: list[Any] = decode_candidates(capability, heads[2], context.dtype.itemsize, dtype)
            _rank(
                context, f"decode {dtype} {shape}", candidates, lambda each: use_configs(decode=each),
                lambda: decode_share(context, backend, heads, shape, dtype, bandwidth),  # noqa: B023
            )  # fmt: skip
    for shape in PREFILLS if not context.rehearse else [(1, 64)]:
        candidates = prefill_candidates(capability, heads[2], context.dtype.itemsize, context.dtype)
        _rank(
            context, f"prefill {shape}", candidates, lambda each: use_configs(prefill=each),
            lambda: prefill_share(context, backend, heads, shape, flops),  # noqa: B023
        )  # fmt: skip


def _rank(
    context: Context, what: str, candidates: list[Any], using: Callable[[Any], AbstractContextManager[None]],
    share: Callable[[], float],
) -> None:  # fmt: skip
    """Measure every candidate, the first of which is the table's; the record has all shares."""
    shares: dict[str, float] = {}
    for candidate in candidates[: 2 if context.rehearse else None]:
        name = " ".join(f"{key}={value}" for key, value in asdict(candidate).items())
        try:
            with using(candidate):
                shares[name] = share()
        except Exception as error:  # does not fit this device
            context.record.setdefault("errors", {})[f"{what} {name}"] = f"{type(error).__name__}: {error}"[:300]
    context.record[what] = shares
    best = max(shares, key=lambda each: shares[each])
    context.add(f"{what}: {best}", f"{shares[best]:.0%}; the table's {next(iter(shares.values())):.0%}")
