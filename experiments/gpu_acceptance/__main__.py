"""Is the engine right and fast on this GPU? Checks, rates and comparisons in one run of under 9 minutes.

    python -m experiments.gpu_acceptance [--sections kernels,models,rates,attention,gemm,graphs,engines] [--out FOLDER]
    python -m experiments.gpu_acceptance --device cpu --quick      the same flow in tiny sizes, without a GPU

    kernels    every Triton kernel against its reference, over the odd shapes of the test suite
    models     attention of real models against the reference in float32
    rates      copy bandwidth and rate of matrix products: the ceilings of what follows
    attention  decode attention as a share of the bandwidth, prefill attention as a share of the matrix rate
    gemm       the models' linear layers as shares of the matrix rate
    graphs     the same tokens with CUDA graphs and without
    engines    256 requests through this engine and every other installed engine; host overhead; memory

The traceback of a section that fails goes to the record, and the other sections run. The record,
gpu_acceptance_<device>.json, is written after each section.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments import RESULTS, ROOT, command_of
from experiments.gpu_acceptance.common import Context, Outcome
from experiments.gpu_acceptance.kernels import odd_shapes, real_shapes
from experiments.gpu_acceptance.rates import attention, gemm, rates
from experiments.gpu_acceptance.serving import engines, graphs

# Sections in the order in which they run, and the time limit of each in seconds.
SECTIONS: dict[str, tuple[Callable[[Context], Outcome], float]] = {
    "rates": (rates, 30),
    "graphs": (graphs, 95),
    "attention": (attention, 60),
    "gemm": (gemm, 20),
    "models": (real_shapes, 30),
    "engines": (engines, 210),
    "kernels": (odd_shapes, 95),
}
_PACKAGES = ("torch", "triton", "transformers", "flash-attn", "nano-vllm", "vllm", "numpy")


class OutOfTimeError(RuntimeError):
    """A section exceeded its time limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sections", default=",".join(SECTIONS), help="those to run, in the order given")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS, help="folder of the record")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not how fast")
    args = parser.parse_args()
    names = args.sections.split(",")
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"--sections: no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; --device cpu --quick runs the flow without one")
    sys.exit(run(torch.device(args.device), names, args.out, args.quick))


def run(device: torch.device, names: list[str], folder: Path, quick: bool) -> int:
    """Run the sections; returns 1 if one failed or missed a check, else 0."""
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_acceptance_{label.lower().replace(' ', '_')}{'_quick' if quick else ''}.json"
    command = command_of("experiments.gpu_acceptance")
    record: dict[str, Any] = {"command": command, "device": label, "environment": _environment(device)}
    record["sections"] = {}
    table = Table("section", "what", "value", "goal", "", title=f"GPU acceptance: {label}", box=None)
    context = Context(device, quick, 0.0)
    for name in names:
        entry = _run_section(name, context, table)
        record["sections"][name] = entry
        path.write_text(json.dumps(record, indent=2) + "\n")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"written to {path}")
    entries = record["sections"].values()
    return int(any("error" in each or any(c["passed"] is False for c in each["checks"]) for each in entries))


def _run_section(name: str, context: Context, table: Table) -> dict[str, Any]:
    section, seconds = SECTIONS[name]
    started = time.monotonic()
    context.deadline = started + seconds
    entry: dict[str, Any] = {"checks": []}
    previous = signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        outcome = section(context)
        entry |= {"checks": [asdict(check) for check in outcome.checks], "record": outcome.record}
        for check in outcome.checks:
            mark = {None: "", True: "[green]ok[/]", False: "[red]missed[/]"}[check.passed]
            table.add_row(name, escape(check.name), escape(check.value), check.goal, mark)
    except Exception as error:
        entry["error"] = traceback.format_exc()
        table.add_row(name, escape(f"{type(error).__name__}: {str(error)[:200]}"), "", "", "[red]failed[/]")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    entry["seconds"] = time.monotonic() - started
    print(f"{name}: {entry['seconds']:.0f} s", flush=True)
    return entry


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError("the section's time is up")


def _environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware; None for versions that are unknown."""
    versions: dict[str, Any] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    found = {"python": platform.python_version(), **versions, "git_revision": revision, "cuda": torch.version.cuda}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"multiprocessors": properties.multi_processor_count, "memory_bytes": properties.total_memory}
    return found


if __name__ == "__main__":
    main()
