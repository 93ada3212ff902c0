"""Are the kernels right? Shapes of real models, then the test suite's odd shapes, compiled for this device."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import torch

from experiments import ROOT
from experiments.acceptance.attention import HEADS, backend_of, paged_batch, usable_backends
from experiments.acceptance.context import Context
from kernels.attention.backends import LayerKV
from kernels.attention.torch_backend import TorchBackend

# Rounding errors of bfloat16 operands, and of float32 sums in another order.
LARGEST_ERROR = {torch.bfloat16: 1e-2, torch.float32: 1e-4}


def kernels(context: Context) -> None:
    """Attention of real models, then every test of a Triton kernel, against the references."""
    real_shapes(context)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels"]
    if context.rehearse:
        command += ["-k", "silu or decode_step or takes_padding_only"]
    elif importlib.util.find_spec("xdist") is not None:
        command += ["-n", "12"]
    environment = {**os.environ, **({} if context.is_cuda else {"TRITON_INTERPRET": "1"})}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    context.record["failed"] = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    context.add("kernel tests", done.stdout.splitlines()[-1], "all pass", done.returncode == 0)


def real_shapes(context: Context) -> None:
    """A mixed step of each model's heads, by every backend, against the reference in float32."""
    part = 1 if not context.rehearse else 16
    prefills = [(1500 // part, 1500 // part), (2047 // part, 513 // part), (300 // part, 1)]
    contexts = [1 + (997 * i) % (3000 // part) for i in range(33 // part + 1)]
    for model, heads in HEADS.items():
        (kv,), q, metadata = paged_batch(context, heads, prefills, contexts)
        scale = heads[2] ** -0.5
        wide = LayerKV(kv.keys.float(), kv.values.float())
        expected = TorchBackend().forward(q.float(), wide, metadata, scale)
        for name in usable_backends(context, heads[2]):
            out = torch.full_like(q, torch.nan)  # values that the backend leaves out stay NaN and fail the check
            backend_of(context, name, heads[2]).forward(q, kv, metadata, scale, out)
            error = float((out.float() - expected).norm() / expected.norm())
            goal = LARGEST_ERROR[context.dtype]
            context.record[f"{model}/{name}"] = error
            context.add(f"attention of {model}, {name}: relative error", f"{error:.1e}", f"< {goal}", error < goal)
