"""Compiles kernels ahead of time for GPUs that this machine need not have, and reads the resources that they use."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
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


def diagonal(*axes: Iterable[Any]) -> list[Any]:
    """The product of the axes as parameters of a test: those beside the diagonal, which has every value, are slow.

    A tuple on an axis stands for several parameters.
    """
    values = [list(axis) for axis in axes]
    kept = {tuple(place % len(axis) for axis in values) for place in range(max(map(len, values)))}
    cases = []
    for places in itertools.product(*(range(len(axis)) for axis in values)):
        parts = [axis[place] for axis, place in zip(values, places, strict=True)]
        flat = [value for part in parts for value in (part if isinstance(part, tuple) else (part,))]
        cases.append(pytest.param(*flat, marks=[] if places in kept else pytest.mark.slow))
    return cases


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
