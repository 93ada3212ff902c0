"""Resources of the Triton kernels on five GPUs, as the compiler reports them; no GPU is needed.

    python -m tests.kernels.occupancy

Kernels are compiled as the wrappers of `kernels` launch them, in bfloat16, for a cache of each dtype. The command
writes `experiments/results/kernel_occupancy.csv` in 4 minutes: registers and spilled bytes of a thread, shared memory
and warps of a program, how many programs a multiprocessor holds, and what limits them. `waits` are the copies that may
be in flight when the loop over the context multiplies a tile: 0 means that loads and products take turns.
"""

from __future__ import annotations

import csv
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.backends.nvidia
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from experiments import RESULTS, ROOT
from kernels import activation, decode_step, norm
from kernels.attention import decode as decode_attention
from kernels.attention import latent as latent_attention
from kernels.attention import prefill as prefill_attention
from kernels.attention.backends import LayerKV
from kernels.cache import latent_store
from kernels.cache.kv_store import FP8_DTYPE
from kernels.cache.rotary_store import HeadNorms, rotary_store
from kernels.experts import expert_products, moe
from kernels.launch import Launcher
from kernels.linear import fp8_linear
from kernels.sampling import keep_threshold, sampler

CUOBJDUMP = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "u8", torch.int8: "i8", FP8_DTYPE: "fp8e4nv",
}  # fmt: skip
REGISTERS = 65536
TENSOR_COLUMNS = 512
# Warps, programs and bytes of shared memory of a multiprocessor (CUDA C++ Programming Guide, table of compute
# capabilities). A program takes 1 KB of shared memory more than it asks for, and may ask for 1 KB less than there is.
LIMITS = {80: (64, 32, 164), 89: (48, 24, 100), 90: (64, 32, 228), 100: (64, 32, 228), 120: (48, 24, 100)}


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel that was recorded in place of being made."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


@dataclass(frozen=True)
class Occupancy:
    """Resources of one compiled kernel on one architecture."""

    kernel: str
    capability: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    tensor_columns: int
    warps: int
    programs_per_sm: int
    limited_by: str
    waits: str


@contextmanager
def recorded(capability: int, num_sms: int = 132) -> Iterator[list[Launch]]:
    """Launches made in the block, as on a GPU of this compute capability; kernels do not run."""
    launches: list[Launch] = []

    def record(self: Launcher, _grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launches.append(Launch(self._kernel, arguments, constants))

    call, limits, has_float8 = Launcher.__call__, decode_attention.device_limits, expert_products.multiplies_float8
    modules: tuple[Any, ...] = (decode_attention, prefill_attention, latent_attention)
    experts: Any = expert_products
    Launcher.__call__ = record  # type: ignore[method-assign, assignment]
    for module in modules:
        module.device_limits = lambda _: (capability, num_sms)
    experts.multiplies_float8 = lambda _: capability >= 89
    try:
        yield launches
    finally:
        Launcher.__call__ = call  # type: ignore[method-assign]
        for module in modules:
            module.device_limits = limits
        experts.multiplies_float8 = has_float8


def compile_launch(launch: Launch, capability: int) -> Occupancy:
    """Compile the kernel as Triton would for this launch; pointers are taken to be multiples of 16."""
    params = launch.kernel.params
    signature, constants, attributes = {}, {}, {}
    for place, (param, value) in enumerate(zip(params, launch.arguments, strict=False)):
        specialized = isinstance(value, int) and not param.do_not_specialize
        if specialized and value == 1:
            constants[(place,)], signature[param.name] = 1, "constexpr"
            continue
        if isinstance(value, Tensor) or (specialized and value % 16 == 0):
            attributes[(place,)] = [["tt.divisibility", 16]]
        kind = "*" + DTYPES[value.dtype] if isinstance(value, Tensor) else "i32" if isinstance(value, int) else "fp32"
        signature[param.name] = kind
    for place, param in list(enumerate(params))[len(launch.arguments) :]:
        constants[(place,)], signature[param.name] = launch.constants[param.name], "constexpr"
    options = {name: value for name, value in launch.constants.items() if name not in signature}
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return _occupancy(launch.kernel.fn.__name__, capability, compiled)


def _occupancy(name: str, capability: int, compiled: Any) -> Occupancy:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, spilled = (int(re.findall(rf"\b{what}:(\d+)", report)[-1]) for what in ("REG", "STACK"))
    meta = compiled.metadata
    columns = int(getattr(meta, "tmem_size", None) or 0)
    max_warps, max_programs, max_kilobytes = LIMITS[capability]
    most = {
        "registers": REGISTERS // (-(-registers * 32 // 256) * 256 * meta.num_warps),
        "shared memory": max_kilobytes * 1024 // (meta.shared + 1024),
        "warps": max_warps // meta.num_warps,
        "programs": max_programs,
    } | ({"tensor memory": TENSOR_COLUMNS // columns} if columns else {})
    limit = min(most, key=lambda each: most[each])
    waits = " ".join(map(str, waits_in_loops(compiled.asm["ttgir"])))
    return Occupancy(
        name, capability, registers, spilled, meta.shared, columns, meta.num_warps, most[limit], limit, waits
    )


def waits_in_loops(ttgir: str) -> list[int]:
    """For each loop that copies asynchronously: how many copies may be in flight after its first wait."""
    waits, inside = [], False
    for line in ttgir.splitlines():
        inside = inside or "scf.for" in line
        found = re.search(r"ttg\.async_wait.*num = (\d+)", line)
        if inside and found:
            waits.append(int(found[1]))
            inside = False
        inside = inside and "scf.yield" not in line
    return waits


def empty_kv(dtype: torch.dtype, head_dim: int = 128) -> LayerKV:
    """A cache of one block with 8 KV heads."""
    width = head_dim // 2 + 2 if dtype == torch.uint8 else head_dim + 2 if dtype == torch.int8 else head_dim
    keys = torch.zeros(1, 16, 8, width).to(dtype)
    return LayerKV(keys, keys, torch.ones(2, 8) if dtype == FP8_DTYPE else None)


def decode(
    cache: torch.dtype, head_dim: int = 128, group: int = 2, dtype: torch.dtype = torch.bfloat16, window: int = 0
) -> None:
    """Decode attention of 8 sequences with contexts of up to 8,192 tokens and 8 KV heads, in several splits; with a
    window, also with sinks."""
    q = torch.zeros(8, 8 * group, head_dim, dtype=dtype)
    contexts, tables = torch.zeros(8, dtype=torch.int32), torch.zeros(8, 512, dtype=torch.int32)
    sinks = q[0, :, 0] if window else None
    decode_attention.decode_attention(
        q, empty_kv(cache, head_dim), contexts, tables, 1.0, 8192, window=window, sinks=sinks
    )


def prefill(
    cache: torch.dtype,
    head_dim: int = 128,
    group: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    tokens: int = 8192,
    window: int = 0,
) -> None:
    """Attention of one chunk after a prefix: a chunk of 8,192 tokens takes one split, short ones several; with a
    window, also with sinks."""
    q = torch.zeros(tokens, 8 * group, head_dim, dtype=dtype)
    bounds, contexts = torch.tensor([0, tokens], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    tables = torch.zeros(1, 512, dtype=torch.int32)
    sinks = q[0, :, 0] if window else None
    prefill_attention.prefill_attention(
        q, empty_kv(cache, head_dim), bounds, contexts, tables, 1.0, tokens, 8192, window=window, sinks=sinks
    )


def latent(tokens: int = 1, heads: int = 16) -> None:
    """Latent attention of DeepSeek-V2-Lite: 8 decodes, or one chunk; and the store of latents."""
    rows = 8 if tokens == 1 else 1
    q, latents = (torch.zeros(n, heads, 576, dtype=torch.bfloat16) for n in (rows * tokens, 16))
    kv = LayerKV(latents[None, :, :1], latents[None, :, :1, :512])
    bounds, contexts = torch.zeros(rows + 1, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    tables, out = torch.zeros(rows, 512, dtype=torch.int32), torch.zeros(rows * tokens, heads, 512, dtype=q.dtype)
    latent_attention.latent_attention(q, kv, bounds, contexts, tables, 1.0, tokens, 8192, out)
    positions, slots = torch.zeros(2, rows * tokens, dtype=torch.int64)
    parts, weight, table = q[..., 512:], q[0, 0, :512], torch.zeros(64, 64)
    latent_store.latent_store_triton(parts, q[:, 0], weight, 1e-6, table, positions, kv.keys, slots, q)


def norms() -> None:
    """Norms of 64 tokens of Qwen3-0.6B."""
    x, weight = torch.zeros(64, 1024, dtype=torch.bfloat16), torch.ones(1024, dtype=torch.bfloat16)
    norm.rms_norm_triton(x, weight, 1e-6)
    norm.add_rms_norm_triton(x, x, weight, 1e-6)


def store(cache: torch.dtype, head_dim: int = 128, group: int = 2, is_normed: bool = True) -> None:
    """Keys and values of 64 tokens and 8 KV heads, with norms and rotary embedding."""
    positions, slots = torch.zeros(2, 64, dtype=torch.int64)
    kv, qkv = empty_kv(cache, head_dim), torch.zeros(64, 8 * group + 16, head_dim, dtype=torch.bfloat16)
    weight = torch.ones(head_dim, dtype=torch.bfloat16)
    head_norms = HeadNorms(weight, weight, 1e-6) if is_normed else None
    rotary_store(qkv, head_norms, torch.zeros(1024, head_dim), positions, kv, slots)


def after_attention() -> None:
    """A gated MLP's activation, experts (Qwen3-30B-A3B) and sampling of 64 tokens."""
    activation.silu_and_mul_triton(torch.zeros(64, 6144, dtype=torch.bfloat16))
    x = torch.zeros(64, 2048, dtype=torch.bfloat16)
    w13, w2 = torch.zeros(1, dtype=torch.bfloat16).expand(128, 1536, 2048), x[:1, :1].expand(128, 2048, 768)
    moe.fused_moe_triton(x, torch.zeros(64, 128, dtype=torch.bfloat16), w13, w2, 8, True)
    thresholds(torch.bfloat16)
    zeros, integers = torch.zeros(64), torch.zeros(64, dtype=torch.int64)
    sampler.sample_triton(torch.zeros(64, 151936, dtype=torch.bfloat16), zeros, zeros, None, integers, integers)


def thresholds(dtype: torch.dtype) -> None:
    """The limits top_k and top_p of 64 rows of logits."""
    zeros, top_k = torch.zeros(64), torch.zeros(64, dtype=torch.int32)
    keep_threshold.keep_threshold_triton(torch.zeros(64, 151936, dtype=dtype), zeros, top_k, zeros)


def around_decode() -> None:
    """Positions and slots before a decode step, and its tokens after it."""
    integers = torch.zeros(64, dtype=torch.int64)
    decode_step.begin_decode_triton(integers, torch.zeros(64, 512, dtype=torch.int32), 16)
    decode_step.end_decode_triton(integers, integers, integers, torch.zeros(8, 64, dtype=torch.int64), integers[:1])


def product_in_float8(tokens: int = 2048, block: tuple[int, int] = (128, 128), kept: torch.dtype | None = None) -> None:
    """A product with weights in float8, whose inputs are quantised, or stay in the dtype `kept`."""
    x, weight = torch.zeros(tokens, 4096, dtype=kept or torch.bfloat16), torch.zeros(6144, 4096).to(FP8_DTYPE)
    out, scales = torch.empty(tokens, 6144, dtype=x.dtype), torch.ones(6144 // block[0], 4096 // block[1])
    rows, row_scales = (x, None) if kept else fp8_linear.quantize_tokens(x, block[1])
    fp8_linear.fp8_gemm(rows, row_scales, weight, scales, block, out)


def experts_in_float8(tokens: int = 64, block: tuple[int, int] = (128, 128)) -> None:
    """Experts (Qwen3-30B-A3B) with weights in float8; inputs are quantised from 8.9 on."""
    x, weight = torch.zeros(tokens, 2048, dtype=torch.bfloat16), torch.zeros(1, 1, 1, dtype=FP8_DTYPE)
    w13, w2 = (
        expert_products.Fp8Stack(weight.expand(128, n, k), torch.ones(1), block) for n, k in ((1536, 2048), (2048, 768))
    )
    moe.fused_moe_triton(x, torch.zeros(tokens, 128, dtype=torch.bfloat16), w13, w2, 8, True)


def cases(capability: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what, the call that launches it) of every kernel; a float8 cache needs 8.9 or later."""
    half = torch.bfloat16
    caches = {"bf16": half, "int8": torch.int8, "int4": torch.uint8}
    if capability >= 89:
        caches["fp8"] = FP8_DTYPE
        yield "fp8 weights", product_in_float8
    yield "", after_attention
    yield "fp8 weights", experts_in_float8
    yield "", around_decode
    yield "", norms
    for name, cache in caches.items():
        yield f"{name} cache", partial(store, cache)
        yield f"{name} cache", partial(decode, cache)
        yield f"{name} cache", partial(prefill, cache)
        yield f"{name} cache, 16 tokens", partial(prefill, cache, tokens=16)
    for head_dim in (64, 256):
        yield f"bf16 cache, head_dim {head_dim}", partial(decode, half, head_dim)
        yield f"bf16 cache, head_dim {head_dim}", partial(prefill, half, head_dim)
    yield "bf16 cache, window and sinks", partial(decode, half, 64, 8, window=128)
    yield "bf16 cache, window and sinks", partial(prefill, half, 64, 8, window=128)
    yield "latents", latent
    yield "latents", partial(latent, 2048)
    yield "float32", partial(prefill, torch.float32, dtype=torch.float32)
    yield "float32", partial(decode, torch.float32, dtype=torch.float32)


def occupancies(capability: int) -> Iterator[tuple[str, Occupancy]]:
    """(what, resources) of each kernel of `cases`; equal ones are named once."""
    seen = set()
    for what, call in cases(capability):
        with recorded(capability) as launches:
            call()
        for launch in launches:
            found = compile_launch(launch, capability)
            if found not in seen:
                seen.add(found)
                yield what, found


def main() -> None:
    """Compile everything for five architectures, and write the table."""
    with (ROOT / RESULTS / "kernel_occupancy.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["triton", "what", *(column.name for column in fields(Occupancy))])
        for capability in LIMITS:
            for what, found in occupancies(capability):
                table.writerow([triton.__version__, what, *asdict(found).values()])


if __name__ == "__main__":
    main()
