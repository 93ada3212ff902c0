"""Published logs of vLLM runs: settings of run.py for them, and the points of the board that they make."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments import FIDELITY, composed
from experiments.board.point import Found, Point
from harness.engines.resolving.known_error import OPEN_LOOP, run_class
from harness.engines.resolving.system import resolve
from harness.validation.validate import validate

DISTSERVE_RATES = ("100-1", "200-2", "250-2.5", "300-3")  # requests and requests/s
DISTSERVE_POOL = 3389  # KV blocks at 3 requests/s, of 3,387 to 3,390 that its steps show (docs/fidelity.md)
_VLLM = {
    "llama": ("Llama-3.1-8B", ["model=llama-3.1-8b"], "sharegpt-llama-3.1-8b-300-sps10.jsonl"),
    "qwen": ("Qwen3-32B", ["model=qwen3-32b", "tensor_parallel_size=2"], "sharegpt-qwen3-32b-300-sps10.jsonl"),
}


_LINKS = {
    "LLMServingSim": "https://github.com/casys-kaist/LLMServingSim",
    "DistServe": "https://github.com/LLMServe/DistServe",
}
_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el", "throughput": "output_throughput"}


def points(data: Path, source: str, case: str, every: int = 1) -> Found:
    """The point of a run: of `LLMServingSim`, with the profile that comes with the project, or of `DistServe`, with
    constants that were fitted to its run at 1 request/s."""
    if source == "LLMServingSim":
        settings = [text for text in vllm_settings(data, case) if not text.startswith("cost.profile")]
    else:
        settings = [*distserve_settings(data, case), f"cost.calibration={FIDELITY / 'distserve' / 'constants.yaml'}"]
    config = composed("task=validate", "plots=false", *settings)
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        document = validate(config, Path(folder))
    errors = {each["metric"]: each for each in document["errors"] if each["statistic"] == "mean"}
    system, is_early = resolve(config), source == "DistServe"
    kind = run_class(system, OPEN_LOOP)
    peer = {} if is_early else published_errors(vllm_folder(data, case) / "llmservingsim_vs_vllm_summary.txt")
    measured = {name: errors[key]["measured"] for name, key in _METRICS.items()}
    point = Point(
        id=f"{source}:{case}", source=source, link=_LINKS[source], engine="vLLM",
        version="early" if is_early else "0.19.0",
        kind=kind._replace(cost="linear, fitted") if is_early else kind, num_gpus=system.num_gpus, clients=None,
        prompt=0.0, output=0.0, assumed="", fitted=is_early and case == DISTSERVE_RATES[0], measured=measured,
        predicted={name: errors[key]["simulated"] for name, key in _METRICS.items()},
        peer={name: measured[name] * (1 + peer[f"{name} mean"] / 100) for name in _METRICS if f"{name} mean" in peer},
        peer_name="LLMServingSim" if peer else "",
    )  # fmt: skip
    return Found([point], {})


def published_errors(path: Path) -> dict[str, float]:
    """The error table of another simulator: lines such as `TTFT Mean  7097.2  6815.7  -4.0%`."""
    names = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2el"}
    rows = re.findall(r"^(\w+) (\w+)\s+[\d.]+\s+[\d.]+\s+([+-][\d.]+)%", path.read_text(), re.MULTILINE)
    return {f"{names[metric]} {statistic.lower()}": float(error) for metric, statistic, error in rows}


def vllm_folder(data: Path, case: str) -> Path:
    """The folder of LLMServingSim's run of a case."""
    return data / "llmservingsim_vllm" / "RTXPRO6000" / _VLLM[case][0]


def vllm_settings(data: Path, case: str) -> list[str]:
    """Overrides for vLLM 0.19 on RTX PRO 6000; cases llama and qwen."""
    _, model, workload = _VLLM[case]
    measured = vllm_folder(data, case)
    return [
        "engine=sim", "device=rtx-pro-6000", "scheduler=vllm", "scheduler.eviction=lru", "max_num_seqs=128",
        "max_num_batched_tokens=2048",
        "cost=profiled", *model, f"cost.profile=llmservingsim:{measured / 'profile'}",
        f"validation.measured=llmservingsim:{measured}",
        f"validation.workload={data / 'llmservingsim_vllm' / workload}",
    ]  # fmt: skip


def distserve_settings(data: Path, rate: str) -> list[str]:
    """Overrides for the early vLLM of DistServe on an A100.

    They are the settings of the server in DistServe's evaluation/2-benchmark-serving/2-start-api-server.py, except that
    the run at 2 requests/s pads without limit, as its steps show.
    """
    folder = data / "distserve_vllm_opt13b"
    return [
        "engine=sim", "device=a100-80gb", "model=opt-13b", "scheduler=vllm_v0", "max_num_batched_tokens=65536",
        "max_num_seqs=1024", "gpu_memory_utilization=0.92", "engine.memory_account=vllm_v0", "cost=linear",
        f"validation.measured=distserve:{folder / f'measured-vllm-{rate}.exp'}",
        f"validation.workload={folder / f'workload-vllm-{rate}.exp'}",
        *(["scheduler.max_padding=65536"] if rate == "200-2" else []),
    ]  # fmt: skip
