"""How far off is the simulator? Makes every table of docs/fidelity.md, from measured runs.

    python -m experiments.fidelity vllm --data ../shared/ground_truth        vLLM 0.19 on RTX PRO 6000, two models
    python -m experiments.fidelity database --data ../shared/ground_truth    the same runs, by NVIDIA's operator times
    python -m experiments.fidelity distserve --data ../shared/ground_truth   an early vLLM on A100, four rates
    python -m experiments.fidelity cpu --traces ../shared/traces             our own engine on this machine
    python -m experiments.fidelity gpu --device h200                         our own engine on an H200
    python -m experiments.fidelity gpu --quick --device laptop-cpu           the same flow in tiny sizes, without a GPU

Constants are fitted where the table says so; task=validate scores all simulations. The cpu case profiles the tiny
model and measures workloads with the real engine, all in turns, so that a slow phase of a shared machine affects all of
them alike. Tables go to experiments/results/fidelity_<case>.json,
fitted constants and figures to docs/fidelity/<case>/, profiles to simulator/profiles/. The cpu and gpu cases have the
processor in their names; --resume continues them. The cpu case takes two hours for 5 turns and 1,400 s of
profiling; the gpu case is meant to take 20 minutes. Measurements of both stay in outputs/fidelity, from which --resume
predicts on any machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from experiments import ROOT
from experiments.fidelity.database import database
from experiments.fidelity.distserve import distserve
from experiments.fidelity.lab import Lab
from experiments.fidelity.own_engine import GPU_RATES, cpu, gpu
from experiments.fidelity.vllm import vllm
from harness.results.stored.environment import cpu_model, slug


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("vllm", "database", "distserve", "cpu", "gpu"))
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    parser.add_argument("--profile", default="aiconfigurator:rtx_pro_6000_server", help="database: as cost.profile")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--profiling", type=float, help="seconds, in all: 1400 for cpu, 200 a model for gpu")
    parser.add_argument("--device", help="gpu: which it is, of conf/device")
    parser.add_argument("--models", nargs="+", choices=list(GPU_RATES), default=list(GPU_RATES), help="gpu")
    parser.add_argument("--rates", nargs="+", type=int, help="gpu: requests/s, in place of those of each model")
    parser.add_argument("--runs", type=int, default=2, help="gpu: runs of each workload, for the noise floor")
    parser.add_argument("--quick", action="store_true", help="gpu: check that it runs, in tiny sizes")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run, or score again")
    args = parser.parse_args()
    if args.case == "gpu" and not args.device:
        parser.error("gpu: needs --device")
    args.profiling = args.profiling or {"cpu": 1400, "gpu": 20 if args.quick else 200}.get(args.case)
    os.chdir(ROOT)
    lab = Lab(_name(args), keep=args.resume)
    if args.case == "vllm":
        vllm(lab, args.data)
    elif args.case == "database":
        database(lab, args.data, args.profile)
    elif args.case == "distserve":
        distserve(lab, args.data)
    elif args.case == "cpu":
        cpu(lab, args)
    else:
        gpu(lab, args)


def _name(args: argparse.Namespace) -> str:
    """The case, with what it runs on where that is this machine."""
    if args.case == "cpu":
        return f"cpu_{slug(cpu_model() or 'unknown')}"
    if args.case == "gpu":
        return "gpu_quick" if args.quick else f"gpu_{args.device}"
    return str(args.case)


if __name__ == "__main__":
    main()
