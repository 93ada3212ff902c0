"""Do two kernels read or write outside their tensors, or race? By NVIDIA's compute-sanitizer, where it is installed.

python -m experiments.acceptance.sanitizer        launches the kernels once, as the section runs it under the tool
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from experiments import ROOT
from experiments.acceptance.common import Context, SkippedError
from experiments.acceptance.kernels import paged_batch
from kernels.attention.backends import LayerKV, select_backend
from kernels.experts.moe_routing import route_reference, route_triton

TOOLS = ("memcheck", "racecheck")
_PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute", "/usr/bin")


def sanitizer(context: Context) -> None:
    """Attention of a mixed step, and the routing of tokens to experts, under each tool."""
    program = [sys.executable, "-m", "experiments.acceptance.sanitizer"]
    found = shutil.which("compute-sanitizer", path=":".join((*_PLACES, *_folders())))
    if context.rehearse:
        subprocess.run(program, cwd=ROOT, check=True)
    if found is None or not context.is_cuda:
        raise SkippedError("compute-sanitizer is not installed, or there is no GPU")
    for i, tool in enumerate(TOOLS):
        patience_s = (context.seconds_left() - 2) / (len(TOOLS) - i)
        command = [found, "--tool", tool, "--target-processes", "application-only", *program]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience_s)
        except subprocess.TimeoutExpired:
            context.add(f"compute-sanitizer {tool}", "out of time")
            continue
        summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", done.stdout)
        if not summaries:
            context.record[tool] = (done.stdout + done.stderr)[-3000:]
            context.add(f"compute-sanitizer {tool}", f"no summary; status {done.returncode}")
            continue
        if int(summaries[-1]):
            context.record[tool] = done.stdout[-6000:]
        context.add(f"compute-sanitizer {tool}", f"{summaries[-1]} errors", "0", int(summaries[-1]) == 0)


def _folders() -> list[str]:
    """Folders of the search path."""
    return os.environ.get("PATH", "").split(":")


def launch_once() -> None:
    """Launch the kernels on a GPU; on the CPU only prepare their inputs."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    context = Context(device, True, time.monotonic() + 60, Path("unused"))
    caches, q, k, v, metadata = paged_batch(context, (4, 2, 128), [(70, 33)], [1, 300])
    logits = torch.randn(50, 128, device=device)
    if not context.is_cuda:
        return
    backend = select_backend("triton", device, context.dtype, 128, 16)
    backend.forward(q, (k, v), LayerKV(*caches[0]), metadata, 0.1, torch.empty_like(q))
    got, expected = route_triton(logits, 8, True, 16), route_reference(logits, 8, True, 16)
    torch.cuda.synchronize()
    assert torch.equal(got.order, expected.order)


if __name__ == "__main__":
    launch_once()
