"""Which choices of tiles, warps and pipeline stages are fastest for the attention kernels on this device?

Every candidate is compiled first, in parallel processes that leave the result in Triton's cache, then measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import torch

from experiments.acceptance import rates
from experiments.acceptance.common import Context
from experiments.acceptance.kernels import HEADS, paged_batch
from kernels.attention.backends import LayerKV, available_backends, select_backend
from kernels.attention.configs import (
    DecodeConfig,
    PrefillConfig,
    decode_candidates,
    device_limits,
    prefill_candidates,
    use_configs,
)
from kernels.cache.kv_store import FP8_DTYPE

MODEL = "qwen3-8b"
DECODES, PREFILLS = ((8, 8192), (128, 1024)), ((1, 8192), (16, 512))
WORKERS = 10
_COMPILING_SHARE = 0.5  # of the section's time
BLOCK_SIZE = 16
Candidate = DecodeConfig | PrefillConfig


def decode(context: Context) -> None:
    """Decode attention: the share of the bandwidth of every candidate."""
    bandwidth, _ = rates.ceilings(context)
    heads = HEADS[MODEL]
    dtypes = [context.dtype]
    if available_backends(context.device, context.dtype, heads[2], BLOCK_SIZE, FP8_DTYPE)[_backend(context)] is None:
        dtypes.append(FP8_DTYPE)
    for dtype in dtypes:
        found = decode_candidates(device_limits(context.device)[0], heads[2], context.dtype.itemsize, dtype)

        def share(shape: tuple[int, int], dtype: torch.dtype = dtype) -> float:
            seconds = rates.decode_seconds(context, _backend(context), heads, *shape, dtype)
            return rates.decode_bytes(context, heads, *shape, dtype) / seconds / bandwidth

        shapes = [(2, 64)] if context.rehearse else DECODES
        _sweep(context, f"decode {str(dtype).removeprefix('torch.')}", "decode", found, shapes, share, dtype)


def prefill(context: Context) -> None:
    """Prefill attention: the share of the matrix rate of every candidate."""
    _, flops = rates.ceilings(context)
    heads = HEADS[MODEL]
    found = prefill_candidates(device_limits(context.device)[0], heads[2], context.dtype.itemsize, context.dtype)

    def share(shape: tuple[int, int]) -> float:
        seconds = rates.prefill_seconds(context, _backend(context), heads, *shape)
        return rates.prefill_flops(heads, *shape) / seconds / flops

    shapes = [(1, 64)] if context.rehearse else PREFILLS
    _sweep(context, "prefill", "prefill", found, shapes, share, context.dtype)


def _sweep(
    context: Context,
    what: str,
    kernel: str,
    candidates: Sequence[Candidate],
    shapes: Sequence[tuple[int, int]],
    share: Callable[[tuple[int, int]], float],
    dtype: torch.dtype,
) -> None:
    """Measure the table's own choice, then every candidate; the record has all shares, the terminal the best ones."""
    candidates = candidates[: 2 if context.rehearse else None]
    if context.is_cuda:
        _compile_all(context, kernel, candidates, dtype)
    shares: dict[str, dict[str, float]] = {}
    context.record[what] = shares
    for candidate in [None, *candidates]:
        name = (
            "as built" if candidate is None else " ".join(f"{key}={value}" for key, value in asdict(candidate).items())
        )
        shares[name] = {}
        for shape in shapes:
            try:
                with _using(kernel, candidate):
                    shares[name]["x".join(map(str, shape))] = share(shape)
            except Exception as error:  # does not fit this device
                shares[name]["error"] = 0.0
                context.record.setdefault("errors", {})[f"{what} {name}"] = f"{type(error).__name__}: {error}"[:300]
                break
        context.save()
    for sizes in ("x".join(map(str, shape)) for shape in shapes):
        ranked = sorted(((each.get(sizes, 0.0), name) for name, each in shares.items()), reverse=True)
        built = shares["as built"].get(sizes, 0.0)
        context.add(f"{what} {sizes}: {ranked[0][1]}", f"{ranked[0][0]:.0%}; as built {built:.0%}")


def _compile_all(context: Context, kernel: str, candidates: Sequence[Candidate], dtype: torch.dtype) -> None:
    """Launch every candidate once in another process. Whatever goes wrong there shows again when it is measured."""
    started, patience_s = time.monotonic(), _COMPILING_SHARE * context.seconds_left()
    pool = ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))
    jobs = [pool.submit(_compile, kernel, candidate, dtype) for candidate in candidates]
    for job in jobs:
        with contextlib.suppress(Exception):
            job.result(timeout=max(0.0, patience_s - (time.monotonic() - started)))
    pool.shutdown(wait=False, cancel_futures=True)
    context.record[f"compiled in s, {kernel} {dtype}"] = round(time.monotonic() - started, 1)


def _compile(kernel: str, candidate: Candidate, dtype: torch.dtype) -> None:
    context = Context(torch.device("cuda"), True, time.monotonic() + 60, Path("unused"))
    heads = HEADS[MODEL]
    with _using(kernel, candidate):
        if kernel == "decode":
            for shape in DECODES:
                rates.decode_seconds(context, "triton", heads, *shape, dtype)
            return
        caches, q, k, v, metadata = paged_batch(context, heads, [(8192, 8192)], [])
        backend = select_backend("triton", context.device, context.dtype, heads[2], BLOCK_SIZE)
        backend.forward(q, (k, v), LayerKV(*caches[0]), metadata, heads[2] ** -0.5, torch.empty_like(q))
    torch.cuda.synchronize()


def _using(kernel: str, candidate: Candidate | None) -> AbstractContextManager[None]:
    if kernel == "decode":
        return use_configs(decode=candidate if isinstance(candidate, DecodeConfig) else None)
    return use_configs(prefill=candidate if isinstance(candidate, PrefillConfig) else None)


def _backend(context: Context) -> str:
    return "triton" if context.is_cuda else "torch"
