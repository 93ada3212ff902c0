"""What ordinary users measured, entered as they would enter it: points of the board.

runs.jsonl has results of `vllm bench serve` from docs/performance-lab of gpustack/gpustack, one object a line: page,
command of the server, workload, versions, lengths in tokens, latencies in ms. A server of vLLM is entered by its own
command line and version, one of SGLang by its command line and with the times of SGLang's kernels. TensorRT-LLM is not
simulated: its servers are entered as the newest vLLM of the same model and GPUs. Requests arrive at once or from so
many clients as the run had, with the run's mean lengths.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.board.point import Found, Point, refusal
from experiments.inferencex.other_engines import DEVICES, is_untimed, sglang_kernels
from harness import run
from harness.engines.resolving.known_error import AT_ONCE, CLOSED_LOOP, run_class
from harness.engines.resolving.system import resolve
from harness.errors import TwinServeError
from harness.results.measures.unserved import unserved_text

_DEVICES = {"a100": "a100-80gb", "h100": "h100-80gb", "h200": "h200"}
_ENGINES = {"vllm": "vLLM", "python3": "SGLang", "trtllm-serve": "TensorRT-LLM"}
_OTHER_SERVICE = {
    "speculation, of which the share of accepted drafts is not told": ("--speculative", "EAGLE"),
    "data-parallel ranks of SGLang": ("--dp", "--enable-dp-attention"),
}
_MODELS = ("deepseek-ai/DeepSeek-V3.2",)  # that commands name by a folder
SHAREGPT = Path("distserve_vllm_opt13b/workload-vllm-300-3.exp")  # in the folder of measurements
# Of pages whose card was no SXM module, by its own figures, and how their servers differed from the commands shown.
_SETTINGS = {
    # 74 GB of weights and KV of one sequence of 32,000 tokens are read in 43.3 ms: 1.7 TB/s, as a card on PCIe can. A
    # default server has no room for such a sequence; the page's peak tokens/s times the time of a step say that 16
    # sequences of 2,100 tokens, 8 of 4,200 or one of 32,100 ran at a time: 34,000 tokens, as with 0.95 of the memory.
    "qwen3-32b/h100.md": ("device=h100-pcie", "gpu_memory_utilization=0.95"),
    # 71 GB of weights and KV of 8 such sequences in 43.5 ms.
    "qwen3-14b/h100.md": ("device=h100-pcie",),
}
_PAGES = "https://github.com/gpustack/gpustack/blob/main/docs/performance-lab/"
# Pages on which constants were fitted: of the front end, and of weights of few bits.
_FITTED = ("qwen3-14b/a100.md", "qwen3-8b/h100-latency.md", "gpt-oss-20b/h100.md")


def points(
    data: Path, silicon: Path, page: str, every: int = 1, cost: str = "profiled", history: Path | None = None
) -> Found:
    """The points of a page of runs.jsonl; `every` n-th of them. `silicon` lies beside the times of SGLang's kernels,
    and `history` has old ones."""
    found: list[Point] = []
    left_out: dict[str, int] = {}
    for measured in [each for each in _runs(data) if each["page"] == page][::every]:
        try:
            found.append(_first_point(measured, silicon, cost, data.parents[1] / SHAREGPT, history))
        except TwinServeError as error:
            reason = refusal(error)
            left_out[reason] = left_out.get(reason, 0) + 1
    return Found(found, left_out)


def pages(data: Path) -> list[str]:
    """The pages that runs are from."""
    return list(dict.fromkeys(each["page"] for each in _runs(data)))


def _runs(data: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]


def _first_point(measured: dict[str, Any], silicon: Path, cost: str, sharegpt: Path, history: Path | None) -> Point:
    """A point by the first tables that have its operators."""
    kernels = [""]
    if _engine(measured) == "SGLang" and cost == "profiled":
        system = next(name for name, known in DEVICES.items() if known == _device(measured))
        kernels = sglang_kernels(silicon, system, _version(measured), history)
    *preferred, last = kernels
    for each in preferred:
        try:
            return _point(measured, each, cost, sharegpt)
        except TwinServeError as error:
            if not is_untimed(error):
                raise
    return _point(measured, last, cost, sharegpt)


def _device(measured: dict[str, Any]) -> str:
    return next(name for key, name in _DEVICES.items() if key in measured["page"])


def _engine(measured: dict[str, Any]) -> str:
    return _ENGINES[measured["command"].split()[0]]


def _version(measured: dict[str, Any]) -> str:
    return str(measured["versions"].get(_engine(measured)) or "").removeprefix("v")


def _point(measured: dict[str, Any], kernels: str, cost: str, sharegpt: Path) -> Point:
    """The simulated beside the measured figures of a run; raises TwinServeError where it cannot be simulated."""
    if measured.get("median_itl_ms") == 0:
        raise TwinServeError("tokens reached the client in pieces: half of them have no time between them")
    device, engine, version = _device(measured), _engine(measured), _version(measured)
    key, scheduler = ("import_sglang", "sglang") if engine == "SGLang" else ("import_vllm", "vllm")
    overrides = [f"{key}={_command(measured, engine)}", f"device={device}", f"cost={cost}", f"scheduler={scheduler}"]
    if engine == "vLLM" and version:
        overrides.append(f"engine.vllm_version={version}")
    if engine == "SGLang":
        overrides += [f"cost.profile={kernels}"] if kernels else []
    clients = measured["max_concurrency"] and int(measured["max_concurrency"])
    settings = _SETTINGS.get(measured["page"], ())
    overrides += [each for each in settings if engine == "vLLM" or each.startswith("device=")]
    if clients:
        overrides += ["arrival=closed_loop", f"arrival.concurrency={clients}"]
    else:
        overrides.append("arrival=all_at_once")
    found = run(*overrides, trace=trace_of(measured, sharegpt))
    summary = found.summary
    if unserved := unserved_text(summary):
        raise TwinServeError(f"not all served in the simulation: {unserved}")
    names = {"ttft": "mean_ttft_ms", "tpot": "mean_tpot_ms", "throughput": "output_throughput"}
    num_requests = measured["num_prompts"]
    return Point(
        id=f"{measured['page'].removesuffix('.md')}:{measured['line']}", source="gpustack",
        link=f"{_PAGES}{measured['page']}#L{measured['line']}", engine=engine, version=version,
        kind=run_class(resolve(found.config), CLOSED_LOOP if clients else AT_ONCE), num_gpus=found.config.num_gpus,
        clients=clients, prompt=measured["input_tokens"] / num_requests,
        output=measured["output_tokens"] / num_requests,
        assumed=", ".join(
            ("simulated as the newest vLLM" if engine == "TensorRT-LLM" else "mean lengths", *settings)
        ),
        fitted=measured["page"] in _FITTED and engine == "vLLM",
        measured={name: measured[key] for name, key in names.items()},
        predicted={name: summary[key] for name, key in names.items()},
    )  # fmt: skip


def _command(measured: dict[str, Any], engine: str) -> str:
    """The command line of vLLM or SGLang for a server."""
    command = str(measured["command"]).replace("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.6 --quantization fp8")
    for reason, words in _OTHER_SERVICE.items():
        if any(word in command for word in words):
            raise TwinServeError(reason)
    family = measured["page"].partition("/")[0].removesuffix("x")  # glm-4.x
    if family not in command.lower():
        raise TwinServeError("the command names another model than the page")
    if engine == "vLLM":
        tokens = re.search(r"--max-num-batched-tokens \d+", measured["workload"] or "")
        return re.sub(r"--max-num-batched-tokens \d+", tokens[0], command) if tokens else command
    if engine == "SGLang":
        return command
    model = re.search(r"trtllm-serve (\S+)", command)
    ranks = re.search(r"--(?:tp_size|tp)[ =](\d+)", command)
    assert model is not None
    experts = " --enable-expert-parallel" if re.search(r"--(?:ep_size|ep)[ =](?!1\b)\d+", command) else ""
    name = next((name for name in _MODELS if name.lower().endswith(f"/{Path(model[1]).name.lower()}")), model[1])
    return f"vllm serve {name} -tp {ranks[1] if ranks else 1}{experts}"


def trace_of(measured: dict[str, Any], sharegpt: Path) -> pd.DataFrame:
    """Requests of the run's mean lengths: constant ones of a random data set, else distributed as ShareGPT's."""
    num_requests = int(measured["num_prompts"])
    lengths = {"num_prompt_tokens": measured["input_tokens"], "num_output_tokens": measured["output_tokens"]}
    columns: dict[str, Any] = {"arrival_time": np.zeros(num_requests)}
    is_random = "random" in (measured["workload"] or "")
    drawn = {} if is_random else _sharegpt_of_benchmark(num_requests, sharegpt)
    for name, total in lengths.items():
        mean = total / num_requests
        shape = drawn[name] / drawn[name].mean() if drawn else np.ones(num_requests)
        columns[name] = np.maximum(1, np.rint(mean * shape)).astype(np.int64)
    return pd.DataFrame(columns)


def _sharegpt_of_benchmark(num_requests: int, messages: Path) -> dict[str, np.ndarray]:
    """Lengths as `vllm bench serve` draws them of ShareGPT; columns num_prompt_tokens, num_output_tokens.

    It takes the first two messages of a conversation, whoever wrote them, of at least 4 tokens each, at most 1,024 the
    first and 2,048 both (`is_valid_sequence` of its benchmarks/datasets.py). The file has conversations in pieces, of
    which many begin with an answer: prompts and outputs have 217 and 202 tokens in the mean of these runs, and 111 and
    328 in exchanges that a person begins. So both are drawn from messages of the same file at any place, which
    DistServe drew as outputs (its 0-prepare-dataset.py): `messages` has 300, a quarter of them of at most 17 tokens.
    """
    rng = np.random.default_rng(0)
    lengths = np.array([each["output_len"] for each in json.loads(messages.read_text(encoding="utf-8"))])
    first, second = (rng.choice(lengths, 4 * num_requests) for _ in range(2))
    valid = (np.minimum(first, second) >= 4) & (first <= 1024) & (first + second <= 2048)
    return {"num_prompt_tokens": first[valid][:num_requests], "num_output_tokens": second[valid][:num_requests]}
