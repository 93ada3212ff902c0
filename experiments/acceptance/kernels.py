"""Are the kernels right? The test suite's odd shapes, compiled for this device, and shapes of real models."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile

import torch
from torch import Tensor

from experiments import ROOT
from experiments.acceptance.common import Context
from kernels.attention.backends import AttentionMetadata, LayerKV, available_backends, select_backend
from kernels.attention.torch_backend import TorchBackend

HEADS = {"qwen3-0.6b": (16, 8, 128), "qwen3-8b": (32, 8, 128)}
BLOCK_SIZE = 16
WORKERS = 12
_REPORT_S = 4.0  # left for reading what the tests printed
# Rounding errors of bfloat16 operands, and of float32 sums in another order.
LARGEST_ERROR = {torch.bfloat16: 1e-2, torch.float32: 1e-4}


def odd_shapes(context: Context) -> None:
    """The kernel tests in separate processes, as far as the time goes, then a mixed step with each model's heads."""
    real_shapes(context)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *kernel_tests()]
    environment = dict(os.environ)
    if not context.is_cuda:
        environment["TRITON_INTERPRET"] = "1"
    if context.rehearse:
        command += ["-k", "silu or decode_step or takes_padding_only"]
    elif importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(WORKERS)]
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output, text=True) as tests:
            try:
                tests.wait(context.seconds_left() - _REPORT_S)
            except subprocess.TimeoutExpired:
                tests.kill()
                context.add("kernel tests", "cut short")
        output.seek(0)
        report(context, output.read())


def kernel_tests() -> list[str]:
    """The files of tests that run Triton's kernels on a GPU, if there is one."""
    folder = ROOT / "tests" / "kernels"
    return [str(path) for path in sorted(folder.rglob("test_*.py")) if "triton_device" in path.read_text()]


def report(context: Context, output: str) -> None:
    """Report what the tests printed: a line per case, with its outcome after it or, of a worker, before it."""
    outcomes = re.findall(r"^(?:\[gw\d+\].*?)?(PASSED|FAILED|ERROR|SKIPPED) (\S+)", output, re.MULTILINE)
    outcomes += [(b, a) for a, b in re.findall(r"^(\S+::\S+) (PASSED|FAILED|ERROR|SKIPPED)", output, re.MULTILINE)]
    names: dict[str, set[str]] = {}
    for outcome, name in outcomes:
        names.setdefault(outcome, set()).add(name)
    failed = sorted(names.get("FAILED", set()) | names.get("ERROR", set()))
    passed = names.get("PASSED", set()) - set(failed)
    context.record |= {"failed": failed, "passed": len(passed), "skipped": len(names.get("SKIPPED", ()))}
    if failed or not passed:
        context.record["output_tail"] = output[-4000:]
    value = f"{len(passed)} of {len(passed) + len(failed)}"
    context.add("cases that agree with the reference", value, "all", not failed and bool(passed))


def paged_batch(
    context: Context, heads: tuple[int, int, int], prefills: list[tuple[int, int]], contexts: list[int], copies: int = 1
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor, AttentionMetadata]:
    """`copies` random caches, q, k, v and metadata without slots to store to, so that the caches do not change.

    `prefills` are (context after the chunk, chunk); blocks are in random order.
    """
    num_heads, kv_heads, head_dim = heads
    generator = torch.Generator(context.device).manual_seed(0)
    all_contexts = [length for length, _ in prefills] + contexts
    counts = [-(-length // BLOCK_SIZE) for length in all_contexts]
    order = torch.randperm(sum(counts), generator=generator, device=context.device).to(torch.int32)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=context.device)
    for row, blocks in enumerate(order.split(counts)):
        tables[row, : len(blocks)] = blocks
    tokens = sum(chunk for _, chunk in prefills) + len(contexts)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=context.device, dtype=context.dtype)

    shape = (sum(counts), BLOCK_SIZE, kv_heads, head_dim)
    caches = [(random(*shape), random(*shape)) for _ in range(copies)]
    q, k, v = (
        random(tokens, num_heads, head_dim),
        random(tokens, kv_heads, head_dim),
        random(tokens, kv_heads, head_dim),
    )
    bounds = torch.tensor([0] + [chunk for _, chunk in prefills], device=context.device).cumsum(0, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.full((tokens,), -1, dtype=torch.int64, device=context.device),
        num_prefill_tokens=sum(chunk for _, chunk in prefills),
        cu_seqlens_q=bounds,
        prefill_context_lens=torch.tensor([c for c, _ in prefills], dtype=torch.int32, device=context.device),
        prefill_block_tables=tables[: len(prefills)],
        max_seqlen_q=max((chunk for _, chunk in prefills), default=0),
        max_prefill_context=max((c for c, _ in prefills), default=0),
        decode_context_lens=torch.tensor(contexts, dtype=torch.int32, device=context.device),
        decode_block_tables=tables[len(prefills) :],
        max_decode_context=max(contexts, default=0),
    )
    return caches, q, k, v, metadata


def usable_backends(context: Context, head_dim: int) -> list[str]:
    """Names of the attention backends to measure, best first; on a GPU without the reference."""
    reasons = available_backends(context.device, context.dtype, head_dim, BLOCK_SIZE)
    return [name for name, reason in reasons.items() if reason is None and not (context.is_cuda and name == "torch")]


def real_shapes(context: Context) -> None:
    """A mixed step of each model's heads, by every backend, against the reference in float32."""
    part = 1 if not context.rehearse else 16
    prefills = [(1500 // part, 1500 // part), (2047 // part, 513 // part), (300 // part, 1)]
    contexts = [1 + (997 * i) % (3000 // part) for i in range(33 // part + 1)]
    for model, heads in HEADS.items():
        caches, q, k, v, metadata = paged_batch(context, heads, prefills, contexts)
        scale = heads[2] ** -0.5
        wide_q, wide_k, wide_v, *wide_cache = (x.float() for x in (q, k, v, *caches[0]))
        expected = TorchBackend().forward(wide_q, (wide_k, wide_v), LayerKV(*wide_cache), metadata, scale)
        for name in usable_backends(context, heads[2]):
            backend = select_backend(name, context.device, context.dtype, heads[2], BLOCK_SIZE)  # type: ignore[arg-type]
            out = torch.full_like(q, torch.nan)  # values that the backend leaves out stay NaN and fail the check
            backend.forward(q, (k, v), LayerKV(*caches[0]), metadata, scale, out)
            error = float((out.float() - expected).norm() / expected.norm())
            goal = LARGEST_ERROR[context.dtype]
            context.record[f"{model}/{name}"] = error
            context.add(f"attention of {model}, {name}: relative error", f"{error:.1e}", f"< {goal}", error < goal)
