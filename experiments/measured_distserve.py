"""How far off are prompts and decodes on different GPUs from what DistServe published of its own engine?

    python -m experiments.measured_distserve <clone of LLMServe/DistServe>

DistServe (OSDI '24) keeps, for OPT-13B with ShareGPT's lengths on A100-80GB, every request of its own runs with a
server for prompts on two GPUs and one for decodes on one (`c21d11`), and the step times profiled for its simulator.
Both are read from the clone: revision 20a1633, simdistserve/benchmarks/alignment/data-ground-truth/opt-13b-sharegpt and
simdistserve/estimators/profile_data/profiler-a100-80g.distserve.json. Nothing is fitted here. The servers are those of
its evaluation/2-benchmark-serving/2-start-api-server.py: 128 prompts and 8,192 tokens a step, 1,024 decodes, 0.95 of
the memory. KV goes over NVLink, at 80 % of what A100's datasheet says (assumed).

The server for prompts gives the client its token at once, so TTFT ends there, and the other has a token less to make.
Compared are means, and how many requests are within the paper's 200 ms to the first token and 100 ms for each other.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from engine.core.work import StepWork
from experiments import RESULTS, provenance, write_result
from harness import run

_REVISION = "20a1633ed6f2be5f456d84d1c283865c3e5112d5"
_RUNS = "simdistserve/benchmarks/alignment/data-ground-truth/opt-13b-sharegpt"
_PROFILE = "simdistserve/estimators/profile_data/profiler-a100-80g.distserve.json"
_CASES = ("300-3", "450-4.5", "600-6", "750-7.5", "900-9", "1050-10.5", "1200-12")  # requests and requests/s
_LIMITS_MS = (200.0, 100.0)
SYSTEM = (
    "engine=sim", "device=a100-80gb", "model=opt-13b", "scheduler=vllm", "scheduler.enable_prefix_caching=false",
    "scheduler.async_scheduling=false", "frontend=none", "block_size=16", "gpu_memory_utilization=0.95",
    "engine.memory_account=vllm_v0", "fleet=disaggregated", "fleet.request_ms=0", "network=nvlink",
    "network.bandwidth=240e9", "max_num_seqs=1024", "fleet.prefill.tensor_parallel_size=2",
    "fleet.prefill.max_num_seqs=128", "max_num_batched_tokens=8192", "arrival=trace", "plots=false", "progress=false",
    "cost=custom", "cost.target=experiments.measured_distserve:profiled",
)  # fmt: skip


class Profiled:
    """Step times as in simdistserve/estimators/time_estimator.py: a prompt step a + b · tokens + c · sum of squares, a
    decode step a + b · context tokens + c · sequences, in ms.

    Args:
        constants: of a model on so many GPUs.
    """

    def __init__(self, constants: dict[str, Any]) -> None:
        self._prompt = constants["prefill"]
        self._decode = constants["decoding_smallbs"], constants["decoding_largebs"]
        self._threshold = constants["decoding_large_small_bs_threshold"]

    def step_ns(self, work: StepWork) -> int:
        lengths = [chunk.num_tokens for chunk in work.chunks if chunk.num_tokens > 1]
        handed_over = [chunk.start + 1 for chunk in work.chunks if chunk.num_tokens == 1]
        time_ms = 0.0
        if lengths:
            a, b, c = self._prompt
            time_ms += a + b * sum(lengths) + c * sum(each**2 for each in lengths) + 1
        if count := work.num_decodes + len(handed_over):
            a, b, c = self._decode[count >= self._threshold]
            time_ms += a + b * (work.num_context_tokens + sum(handed_over)) + c * count
        return max(1, round(1e6 * time_ms))

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.array([self.step_ns(work.after(step) if step else work) for step in range(num_steps)], np.int64)


def profiled(model: Any, device: Any, tensor_parallel_size: int, constants: str) -> Profiled:
    """The cost model of a server, from the text of the profile."""
    return Profiled(json.loads(constants)["facebook/opt-13b"][str(tensor_parallel_size)])


def main(clone: str) -> None:
    """Simulate each run, print and store the table."""
    table = pd.DataFrame(_rows(clone))
    print(table.round(3).to_string(index=False))
    path = RESULTS / "measured_distserve.json"
    write_result(path, {**provenance("experiments.measured_distserve"), "rows": table.round(4).to_dict("records")})


def _rows(clone: str) -> Iterator[dict[str, Any]]:
    constants = _git(clone, "HEAD", _PROFILE)
    for case in _CASES:
        (line, *_) = _git(clone, _REVISION, f"{_RUNS}/distserve-c21d11-{case}.exp").splitlines()
        measured = pd.DataFrame(ast.literal_eval(line)).sort_values("issue_time", ignore_index=True)
        yield {"run": case, **_compared(measured, _simulated(measured, constants))}


def _simulated(measured: pd.DataFrame, constants: str) -> pd.DataFrame:
    """TTFT and TPOT in ms of the requests of a run; a request of one token has no TPOT."""
    trace = pd.DataFrame({"arrival_time": measured["issue_time"] - measured["issue_time"].min()})
    trace["num_prompt_tokens"] = measured["prompt_len"]
    trace["num_output_tokens"] = (measured["output_len"] - 1).clip(lower=1)
    requests = run(*SYSTEM, f"cost.options={{constants: '{constants}'}}", trace=trace).requests
    decoding = requests["finish_time"] - requests["prefill_end_time"]
    return pd.DataFrame(
        {
            "ttft_ms": 1e3 * (requests["prefill_end_time"] - requests["arrival_time"]),
            "tpot_ms": (1e3 * decoding / trace["num_output_tokens"]).where(measured["output_len"] > 1),
        }
    )


def _compared(measured: pd.DataFrame, simulated: pd.DataFrame) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in ("ttft_ms", "tpot_ms"):
        mine = simulated[name].dropna()
        found |= {name: float(mine.mean()), f"{name}_measured": float(measured.loc[mine.index, name].mean())}
        found[f"{name}_error_pct"] = 100 * (found[name] / found[f"{name}_measured"] - 1)
    for label, each in (("within_slo_pct", simulated), ("within_slo_measured_pct", measured)):
        is_within = (each["ttft_ms"] <= _LIMITS_MS[0]) & (each["tpot_ms"].fillna(0) <= _LIMITS_MS[1])
        found[label] = 100 * float(is_within.mean())
    return found


def _git(clone: str, revision: str, path: str) -> str:
    words = ["git", "-C", clone, "show", f"{revision}:{path}"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1])
