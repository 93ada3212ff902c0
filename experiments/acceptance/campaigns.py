"""Profiles of two models by task=profile, and the fidelity of simulations of the smaller one, as experiments.fidelity
measures it.

What was measured lies in outputs/fidelity/gpu_<device>. From there `python -m experiments.fidelity gpu --resume`
continues on any machine: it scores what is there and measures what is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from experiments import FIDELITY, RESULTS, ROOT
from experiments.acceptance.common import Context
from experiments.fidelity.lab import SCRATCH
from experiments.fidelity.own_engine import GPU_CONTEXT, QUICK

SMALL, LARGE = "qwen3-0.6b", "qwen3-8b"
RATE = 20  # requests/s of the fidelity section; one rate of three, for want of time
START_UP_S = 30.0  # of a profiling job, and of writing its tables


def profile_small(context: Context) -> None:
    _profile(context, "tiny" if context.rehearse else SMALL)


def profile_large(context: Context) -> None:
    _profile(context, "tiny" if context.rehearse else LARGE)


def fidelity(context: Context) -> None:
    """Serve, execute the steps again, predict and score; a profile that is there already is used."""
    command = [sys.executable, "-m", "experiments.fidelity", "gpu", "--resume", "--device"]
    if context.rehearse:
        command += ["laptop-cpu", "--quick"]
    else:
        command += [device_of(torch.cuda.get_device_name()), "--models", SMALL, "--rates", str(RATE)]
        command += ["--profiling", "40"]  # where profile_small left no profile
    printed = _run(command)
    context.record["printed"] = printed[-8000:]
    context.add("fidelity of simulations", "scored")
    if context.rehearse:  # what it leaves beside the measurements says nothing
        (ROOT / RESULTS / "fidelity_gpu_quick.json").unlink()
        shutil.rmtree(ROOT / FIDELITY / "gpu_quick")


def _profile(context: Context, model: str) -> None:
    kind, case = ("cpu", "gpu_quick") if context.rehearse else ("gpu", f"gpu_{device_of(torch.cuda.get_device_name())}")
    budget_s = 20 if context.rehearse else max(10.0, context.seconds_left() - START_UP_S)
    out = SCRATCH / case / f"profile_{model}"
    sizes = QUICK if context.rehearse else [f"max_model_len={GPU_CONTEXT}"]
    command = [
        sys.executable, "run.py", "task=profile", "progress=false", f"engine={kind}", f"model={model}", *sizes,
        f"profile.time_budget_s={budget_s:.0f}", f"profile.out={out}",
        f"hydra.run.dir={SCRATCH / case / 'profiling'}",
    ]  # fmt: skip
    printed = _run(command)
    context.record["printed"] = printed[-2000:]
    tables = sorted((ROOT / out).glob("*.csv"))
    rows = sum(len(path.read_text().splitlines()) - 1 for path in tables)
    context.add(f"profile of {model}", f"{rows} points in {len(tables)} tables", "> 0", rows > 0)


def device_of(name: str) -> str:
    """The file of conf/device for a GPU that calls itself `name`.

    Raises:
        LookupError: there is none.
    """
    words = set(name.lower().replace("-", " ").split())
    for path in sorted(Path(ROOT / "conf" / "device").glob("*.yaml")):
        parts = {part for part in path.stem.split("-") if not part.endswith("gb")}
        if parts <= words:
            return path.stem
    raise LookupError(f"no file of conf/device is named after {name!r}")


def _run(command: list[str]) -> str:
    """What a command prints.

    Raises:
        RuntimeError: it fails; the message has the end of what it printed.
    """
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} ended with status {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout
