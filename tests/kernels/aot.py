"""Compiles kernels ahead of time for GPUs that this machine need not have, and reads the resources that they use."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Usage:
    """Resources of a compiled kernel: registers and bytes of stack (spills) per thread, bytes of shared memory."""

    registers: int
    stack: int
    shared: int


def compile_kernel(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int, folder: Path, **options: int
) -> Usage:
    """Compile `kernel` for a compute capability such as 90.

    types: Triton's type of each run-time parameter ("*bf16", "i32", ...). Pointers and strides are assumed to be
    divisible by 16, as in real launches. constants: values of the compile-time parameters. options: num_warps and
    num_stages.
    """
    index = {name: place for place, name in enumerate(kernel.arg_names)}
    assert set(types) | set(constants) == set(index), set(types) ^ set(constants) ^ set(index)
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name.endswith("stride")]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={(index[name],): value for name, value in constants.items()},
        attrs={(index[name],): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    report = subprocess.run([CUOBJDUMP, "--dump-resource-usage", binary], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", report.stdout)
    assert found is not None, report.stdout
    return Usage(int(found[1]), int(found[2]), int(compiled.metadata.shared))
