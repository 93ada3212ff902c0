"""What was measured on GPUs whose kernels were not timed: points of the board.

other_gpus.csv has runs of `vllm bench serve`, a row each, in ms. 200 prompts of ShareGPT in a Poisson process, for
one to eight RTX 4090 and H100 PCIe, vLLM 0.8.5: results/ of https://github.com/IOG-Foundation/llm-inference-benchmarks
at commit 4990a80 (Apache License 2.0). Constant lengths on an RTX 5090, vLLM 0.22.1 without prefix caching:
docs/models/qwen3/serving-perf-5090.md of https://github.com/pegainfer-project/pegainfer at commit 2a33acc.

The former ran rates from 32 to 1 request/s on one server with the same prompts, so that all rates but the first found
them cached: here, too, they come after a run at the first rate. Its arrivals are those of the script's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.board.ordinary_servers import SHAREGPT, trace_of
from experiments.board.point import Found, Point, refusal
from harness import run
from harness.engines.resolving.known_error import OPEN_LOOP, run_class
from harness.engines.resolving.system import resolve
from harness.errors import TwinServeError

_DATA = Path(__file__).with_suffix(".csv")
_IOG, _PEGAINFER = "IOG Foundation", "pegainfer"
_LINKS = {
    _IOG: "https://github.com/IOG-Foundation/llm-inference-benchmarks/tree/4990a80/results",
    _PEGAINFER: "https://github.com/pegainfer-project/pegainfer/blob/2a33acc/docs/models/qwen3/serving-perf-5090.md",
}
_VERSIONS = {_IOG: "0.8.5", _PEGAINFER: "0.22.1"}
_COLD = 32.0  # requests/s of the first run of a server
_PAUSE_S = 300.0
_UNKNOWN_POOL = "the server's share of the memory is not told, and the model leaves little of it"


def points(data: Path, gpu: str, cost: str = "profiled") -> Found:
    """The points of a GPU of other_gpus.csv; `data` has the messages of ShareGPT."""
    found: list[Point] = []
    left_out: dict[str, int] = {}
    for measured in _runs():
        if measured["gpu"] == gpu:
            try:
                found.append(_point(measured, data / SHAREGPT, cost))
            except TwinServeError as error:
                left_out[refusal(error)] = left_out.get(refusal(error), 0) + 1
    return Found(found, left_out)


def gpus() -> list[str]:
    return list(dict.fromkeys(each["gpu"] for each in _runs()))


def _runs() -> Iterator[dict[str, Any]]:
    for row in pd.read_csv(_DATA).to_dict("records"):
        yield {str(name): value for name, value in row.items()}


def _point(measured: dict[str, Any], sharegpt: Path, cost: str) -> Point:
    source, model, num_gpus = measured["source"], measured["model"], measured["gpus"]
    flags = "--dtype float16" if source == _IOG else "--max-model-len 8192 --no-enable-prefix-caching"
    told = run(
        f"import_vllm=vllm serve {model} {flags} -tp {num_gpus}", f"device={measured['gpu']}", f"cost={cost}",
        f"engine.vllm_version={'0.9.0' if source == _IOG else _VERSIONS[source]}", "scheduler=vllm", "arrival=trace",
        trace=_trace(measured, source, sharegpt),
    )  # fmt: skip
    requests = told.requests.iloc[-int(measured["num_prompts"]) :]
    predicted = {"ttft": 1e3 * float(requests["ttft"].mean()), "tpot": 1e3 * float(requests["tpot"].mean())}
    crowded = measured["gpu"] == "H100-PCIe" and ("70B" in model or "32B" in model)
    # Servers of several RTX 4090 answered later the fewer requests came: up to 8 s at one a second.
    names = ("ttft", "tpot") if num_gpus == 1 or measured["gpu"] == "H100-PCIe" else ("tpot",)
    return Point(
        id=f"{source}:{measured['gpu']}x{num_gpus}:{model}:{measured['rate']:g}", source=source, link=_LINKS[source],
        engine="vLLM", version=_VERSIONS[source], kind=run_class(resolve(told.config), OPEN_LOOP), num_gpus=num_gpus,
        clients=None, prompt=measured["input_tokens"] / measured["num_prompts"],
        output=measured["output_tokens"] / measured["num_prompts"],
        assumed="mean lengths; simulated as vLLM 0.9.0" if source == _IOG else "",
        measured={name: measured[name] for name in names if not pd.isna(measured[name])},
        predicted={name: predicted[name] for name in names}, excluded=_UNKNOWN_POOL if crowded else "",
    )  # fmt: skip


def _trace(measured: dict[str, Any], source: str, sharegpt: Path) -> pd.DataFrame:
    """Requests of the run; where their prompts were cached, after a run that caches them."""
    num_requests, rate = int(measured["num_prompts"]), measured["rate"]
    seed = 0 if source == _IOG else 42
    gaps = np.random.RandomState(seed).gamma(1.0, 1.0, num_requests)

    def arriving(rate: float) -> Any:
        return np.concatenate([[0.0], np.cumsum(gaps / rate)[:-1]])

    table = trace_of({**measured, "workload": "sharegpt" if source == _IOG else "random"}, sharegpt)
    if source != _IOG or rate == _COLD:
        return table.assign(arrival_time=arriving(rate))
    ids = (range(1000 * row, 1000 * row - (-tokens // 16)) for row, tokens in enumerate(table["num_prompt_tokens"]))
    table = table.assign(hash_ids=pd.Series(map(list, ids)), hash_block_size=16)
    both = [table.assign(arrival_time=arriving(_COLD)), table.assign(arrival_time=arriving(rate) + _PAUSE_S)]
    return pd.concat(both, ignore_index=True)
