"""How far off is the simulation of vLLM 0.19, with a few fitted constants, and how far is LLMServingSim's?"""

from __future__ import annotations

from pathlib import Path

from experiments.board.published_runs import published_errors, vllm_folder, vllm_settings
from experiments.fidelity.lab import Lab, print_errors


def vllm(lab: Lab, data: Path) -> None:
    """Llama-3.1-8B: constants fitted on it. Qwen3-32B on two GPUs: all-reduce times fitted on its first half."""
    settings = {case: vllm_settings(data, case) for case in ("llama", "qwen")}
    published = {
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
        print_errors(f"{case}, from the queue", {"TwinServe": scored}, {"LLMServingSim": published[case]})
    lab.write(llmservingsim=published)
