"""How far off the simulator is: every table of docs/fidelity.md, against runs that were really measured.

    python experiments/fidelity.py vllm --data ../shared/ground_truth        vLLM 0.19 on RTX PRO 6000, two models
    python experiments/fidelity.py distserve --data ../shared/ground_truth   an early vLLM on A100, four rates
    python experiments/fidelity.py cpu --traces ../shared/traces             our own engine on this machine
    python experiments/fidelity.py gpu --device h200                         our own engine on an H200
    python experiments/fidelity.py gpu --quick --device laptop-cpu           the same flow in tiny sizes, without a GPU

Constants are fitted where the table says so, by task=calibrate, and scored by task=validate; the cpu case profiles the
tiny model, measures workloads with the real engine and executes the steps of the first measurements again, all in
turns, so that a slow phase of a shared machine hits all alike and the fastest of each is from a quiet one. Tables go to
experiments/results/fidelity_<case>.json, fitted constants and figures to docs/fidelity/<case>/, profiles to
simulator/profiles/; the cpu and gpu cases have the processor in their names and go on with --resume. The cpu case takes
nearly three hours for 20 turns and 1,400 s of profiling; the gpu case is meant to take 20 minutes. What both measure is
in outputs/fidelity, from which --resume predicts on any machine.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments.fidelity.lab import Lab, print_errors  # noqa: E402
from experiments.fidelity_own import GPU_RATES, cpu, gpu  # noqa: E402
from experiments.fidelity.published import DISTSERVE_POOL, DISTSERVE_RATES, distserve_settings, vllm_folder, vllm_settings  # noqa: E402
from harness.results.tables import cpu_model, slug  # noqa: E402


def published_errors(path: Path) -> dict[str, float]:
    """The error table of another simulator: lines such as `TTFT Mean  7097.2  6815.7  -4.0%`."""
    names = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2el"}
    rows = re.findall(r"^(\w+) (\w+)\s+[\d.]+\s+[\d.]+\s+([+-][\d.]+)%", path.read_text(), re.MULTILINE)
    return {f"{names[metric]} {statistic.lower()}": float(error) for metric, statistic, error in rows}


def vllm(lab: Lab, data: Path) -> None:
    """Llama-3.1-8B: constants fitted on it. Qwen3-32B on two GPUs: all-reduce times fitted on its first half."""
    settings = {case: vllm_settings(data, case) for case in ("llama", "qwen")}
    theirs = {
        case: published_errors(vllm_folder(data, case) / "llmservingsim_vs_vllm_summary.txt") for case in settings
    }
    all_reduce = "calibration.constants=[all_reduce_0mib_us,all_reduce_1mib_us,all_reduce_16mib_us]"

    def fit(suffix: str, *more: str) -> tuple[Path, Path]:
        llama = lab.calibrate(f"llama_constants{suffix}", *settings["llama"], *more)
        first = [f"cost.calibration={llama}", all_reduce, "calibration.part=first_half"]
        return llama, lab.calibrate(f"qwen_constants{suffix}", *settings["qwen"], *first)

    fitted, both = fit("")
    plain = lab.validate("llama_uncalibrated", *settings["llama"])
    llama = lab.validate("llama", *settings["llama"], f"cost.calibration={fitted}", figures=True)
    use_both = f"cost.calibration={both}"
    qwen = lab.validate("qwen", *settings["qwen"], use_both, figures=True)
    second = lab.validate("qwen_second_half", *settings["qwen"], use_both, "validation.score=second_half")
    queued = {
        case: lab.validate(
            f"{case}_queued", *settings[case], f"cost.calibration={file}", "validation.latency_from=queued"
        )
        for case, file in (("llama", fitted), ("qwen", both))
    }
    print_errors(
        "from the arrival", {"Llama, no constants": plain, "Llama": llama, "Qwen": qwen, "its 2nd half": second}
    )
    for width in (700, 2000):  # us, where 500 is what the cost model says
        wider_fitted, wider_both = fit(f"_{width}", f"calibration.widths={{step_overhead_us:{width}}}")
        wider = {
            "Llama": lab.validate(f"llama_{width}", *settings["llama"], f"cost.calibration={wider_fitted}"),
            "Qwen": lab.validate(f"qwen_{width}", *settings["qwen"], f"cost.calibration={wider_both}"),
        }
        print_errors(f"from the arrival, fitted with a width of {width} us for step_overhead_us", wider)
    for case, scored in queued.items():
        print_errors(f"{case}, from the queue", {"TwinServe": scored}, {"LLMServingSim": theirs[case]})
    lab.write(llmservingsim=theirs)


def distserve(lab: Lab, data: Path) -> None:
    """OPT-13B: constants fitted to the steps at 1 request/s, the other rates predicted; but how the server at 2
    requests/s pads is taken from its own run."""
    settings = {rate: distserve_settings(data, rate) for rate in DISTSERVE_RATES}
    steps = "calibration.objective=steps"
    fitted = lab.calibrate("constants", *settings["100-1"], steps)
    scored = {
        rate: lab.validate(
            rate, *settings[rate], f"cost.calibration={fitted}", "validation.recover_steps=true", figures=True
        )
        for rate in DISTSERVE_RATES
    }
    print_errors("requests and requests/s; constants fitted on the first", scored)
    own = {}
    for rate in DISTSERVE_RATES[1:]:  # what the form of the model can do at best: each run by constants of its own
        constants = lab.calibrate(f"own_{rate}", *settings[rate], steps)
        own[rate] = lab.validate(f"own_{rate}", *settings[rate], f"cost.calibration={constants}")
    print_errors("the same, constants fitted on each run itself", own)
    crowded = {"predicted": scored["300-3"]}
    changes = {"true_pool": (1.0, [f"num_blocks={DISTSERVE_POOL}"])}
    changes |= {f"{factor}_times_as_long": (factor, []) for factor in (0.99, 1.01, 1.02)}
    for name, (factor, more) in changes.items():
        constants = lab.scaled(fitted, factor)
        crowded[name] = lab.validate(f"300-3_{name}", *settings["300-3"], f"cost.calibration={constants}", *more)
    print_errors("3 requests/s, which queue for the KV pool: of its true size, and steps longer or shorter", crowded)
    lab.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("vllm", "distserve", "cpu", "gpu"))
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--profiling", type=float, help="seconds, in all: 1400 for cpu, 200 a model for gpu")
    parser.add_argument("--device", help="gpu: which it is, of conf/device")
    parser.add_argument("--models", nargs="+", choices=list(GPU_RATES), default=list(GPU_RATES), help="gpu")
    parser.add_argument("--quick", action="store_true", help="gpu: whether it runs, not how far off it is")
    parser.add_argument("--resume", action="store_true", help="go on where it was interrupted, or score again")
    args = parser.parse_args()
    if args.case == "gpu" and not args.device:
        parser.error("gpu: needs --device")
    args.profiling = args.profiling or {"cpu": 1400, "gpu": 20 if args.quick else 200}.get(args.case)
    os.chdir(ROOT)
    lab = Lab(_name(args), keep=args.resume)
    if args.case == "vllm":
        vllm(lab, args.data)
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
