"""How far off is a simulation of what ordinary users measured, entered as they would enter it?

    python -m experiments.ordinary_servers --data <runs.jsonl>                   6 minutes
    python -m experiments.ordinary_servers --data <runs.jsonl> --cost roofline

runs.jsonl has results of `vllm bench serve` from docs/performance-lab of gpustack/gpustack, one object a line: page,
command of the server, workload, versions, lengths in tokens, latencies in ms. A server of vLLM is entered by its own
command line and version. SGLang and TensorRT-LLM are not simulated: their servers are entered as the newest vLLM of the
same model and GPUs. Requests arrive at once or from so many clients as the run had, with the run's mean lengths. What
is refused is named. Writes experiments/results/ordinary_servers.json, without --cost.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import RESULTS, provenance, write_result
from harness import run
from harness.errors import TwinServeError
from harness.results.unserved import unserved_text
from harness.workload.sampling import draw_sharegpt

_DEVICES = {"a100": "a100-80gb", "h100": "h100-80gb", "h200": "h200"}
_ENGINES = {"vllm": "vLLM", "python3": "SGLang", "trtllm-serve": "TensorRT-LLM"}
_OTHER_SERVICE = ("--speculative", "--ep", "--enable-expert-parallel", "--dp", "--enable-dp-attention", "EAGLE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cost", choices=("profiled", "roofline"), default="profiled")
    args = parser.parse_args()
    rows, refused = [], []
    for line in args.data.read_text(encoding="utf-8").splitlines():
        measured = json.loads(line)
        try:
            rows.append(_row(measured, args.cost))
            print(_text(rows[-1]), flush=True)
        except TwinServeError as error:
            without_folders = re.sub(r"(?<!\w)/(?:[\w.-]+/)+", "", str(error))  # those of the measured machine
            refused.append({"run": _name(measured), "error": without_folders})
            print(f"{_name(measured)}  refused: {error}", flush=True)
    table = pd.DataFrame(rows)
    document = {
        **provenance("experiments.ordinary_servers"),
        "errors_pct": _summary(table),
        "by_cost": {str(key): _summary(part) for key, part in table.groupby(table["engine"] + ", " + table["cost"])},
        "by_class": {str(key): _summary(part) for key, part in table.groupby("class")},
        "rows": rows,
        "refused": refused,
    }
    if args.cost == "profiled":
        write_result(RESULTS / "ordinary_servers.json", document)
    worst = sorted(document["by_class"].items(), key=lambda each: -each[1]["tpot"])
    print(pd.DataFrame(dict(worst)).T.round(1).to_string())
    print(pd.DataFrame(document["by_cost"]).T.round(1).to_string())
    print(f"all {document['errors_pct']}; {len(refused)} refused")


def _name(measured: dict[str, Any]) -> str:
    return f"{measured['page'].removesuffix('.md')}:{measured['line']}"


def _row(measured: dict[str, Any], cost: str) -> dict[str, Any]:
    """The simulated beside the measured figures of a run; raises TwinServeError where it cannot be simulated."""
    device = next(name for key, name in _DEVICES.items() if key in measured["page"])
    engine = _ENGINES[measured["command"].split()[0]]
    command = _command(measured, engine)
    overrides = [f"import_vllm={command}", f"device={device}", f"cost={cost}"]
    version = measured["versions"].get("vLLM")
    if engine == "vLLM" and version:
        overrides.append(f"engine.vllm_version={version.removeprefix('v')}")
    if measured["max_concurrency"]:
        overrides += ["arrival=closed_loop", f"arrival.concurrency={int(measured['max_concurrency'])}"]
    else:
        overrides.append("arrival=all_at_once")
    found = run(*overrides, trace=_trace(measured))
    summary = found.summary
    if unserved := unserved_text(summary):
        raise TwinServeError(f"not all served in the simulation: {unserved}")
    simulated = {
        "output_throughput": summary["output_throughput"],
        "tpot": summary["mean_tpot_ms"],
        "ttft": summary["mean_ttft_ms"],
    }
    told = {
        "output_throughput": measured["output_throughput"],
        "tpot": measured["mean_tpot_ms"],
        "ttft": measured["mean_ttft_ms"],
    }
    weights = summary["quantization"]
    return {
        "run": _name(measured),
        "engine": engine,
        "class": f"{engine}, {summary['model']}, {weights}, {device}",
        "cost": "roofline" if "roofline" in summary["cost_source"] else "measured kernels",
        "workload": measured["workload"] or "ShareGPT",
        "measured": told,
        "simulated": simulated,
        **{f"{name}_error_pct": 100 * (simulated[name] / told[name] - 1) for name in told},
    }


def _command(measured: dict[str, Any], engine: str) -> str:
    """The command line of vLLM for a server."""
    command = str(measured["command"])
    if any(word in command for word in _OTHER_SERVICE):
        raise TwinServeError("speculation, data or expert parallelism")
    if measured["page"].partition("/")[0] not in command.lower():
        raise TwinServeError("the command names another model than the page")
    if engine == "vLLM":
        tokens = re.search(r"--max-num-batched-tokens \d+", measured["workload"] or "")
        return re.sub(r"--max-num-batched-tokens \d+", tokens[0], command) if tokens else command
    model = re.search(r"(?:--model-path|--model|trtllm-serve)[ =](\S+)", command)
    ranks = re.search(r"--(?:tp-size|tp_size|tp)[ =](\d+)", command)
    assert model is not None
    return f"vllm serve {model[1]} -tp {ranks[1] if ranks else 1}"


def _trace(measured: dict[str, Any]) -> pd.DataFrame:
    """Requests of the run's mean lengths: constant ones of a random data set, else distributed as ShareGPT's."""
    num_requests = int(measured["num_prompts"])
    lengths = {"num_prompt_tokens": measured["input_tokens"], "num_output_tokens": measured["output_tokens"]}
    columns: dict[str, Any] = {"arrival_time": np.zeros(num_requests)}
    drawn = draw_sharegpt(num_requests, turns="first", rng=np.random.default_rng(0))
    for name, total in lengths.items():
        mean = total / num_requests
        shape = np.ones(num_requests)
        if "random" not in (measured["workload"] or ""):
            shape = drawn[name] / drawn[name].mean()
        columns[name] = np.maximum(1, np.rint(mean * shape)).astype(np.int64)
    return pd.DataFrame(columns)


def _summary(table: pd.DataFrame) -> dict[str, float]:
    """Number of runs, and the median of the absolute errors in percent."""
    names = ("tpot", "output_throughput", "ttft")
    medians = {name: float(table[f"{name}_error_pct"].abs().median()) for name in names}
    return {"runs": len(table), **medians, "tpot_signed": float(table["tpot_error_pct"].median())}


def _text(row: dict[str, Any]) -> str:
    errors = ", ".join(f"{name} {row[f'{name}_error_pct']:+.1f} %" for name in ("tpot", "output_throughput", "ttft"))
    return f"{row['run']}  {row['class']}, {row['cost']}, {row['workload'][:30]}: {errors}"


if __name__ == "__main__":
    main()
