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
from kernels.attention import decode as decode_attention
from kernels.attention import latent as latent_attention
from kernels.attention import prefill as prefill_attention
from kernels.cache.kv_store import FP8_DTYPE
from kernels.experts import expert_products
from kernels.launch import Launcher
from tests.kernels.launch_calls import (
    after_attention,
    around_decode,
    decode,
    experts_in_float8,
    latent,
    norms,
    prefill,
    product_in_float8,
    store,
)

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
