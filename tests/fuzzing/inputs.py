"""Small valid inputs of every kind: traces, logs of measured runs, result folders, a calibration, a profile."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tests.harness.builders import ROOT, config, execute_in
from tests.harness.measured.builders import (
    FILES,
    fitted_on,
    made_up,
    pretend_measured,
    write_distserve,
    write_lines,
    write_llmservingsim,
)
from tests.harness.workload.readers.recordings import AIPERF_TURNS, OTEL, TRACELAB, WEKA
from tests.simulator.importers.builders import write_bundle, write_profiling

PROFILE = ROOT / "simulator" / "profiles" / "amd-epyc" / "tiny"
# A simulation that takes some milliseconds.
SMALL = ["model=tiny", "device=laptop-cpu", "plots=false", "progress=false", "trace.num_requests=12", "arrival.rate=30"]
# A run of the real engine that takes some tenths of a second.
REAL = [
    "engine=cpu", "model=tiny", "device=laptop-cpu", "engine.num_threads=1", "engine.warm_up=false", "plots=false",
    "progress=false", "trace=synthetic", "trace/lengths@trace.prompt=uniform", "trace/lengths@trace.output=uniform",
    "trace.prompt.low=1", "trace.prompt.high=40", "trace.output.low=1", "trace.output.high=12", "trace.num_requests=3",
    "arrival=all_at_once", "max_num_batched_tokens=64", "max_num_seqs=4", "max_model_len=256", "num_blocks=64",
]  # fmt: skip

# The model in the profiles of other tools.
PROFILED = [
    "model.name=test", "model.num_layers=3", "model.hidden_size=64", "model.num_attention_heads=4",
    "model.num_kv_heads=2", "model.head_dim=16", "model.intermediate_size=128", "model.vocab_size=1000",
    "model.dtype=bfloat16",
]  # fmt: skip
# The model in a folder of transformers.
MODEL = [
    "model.num_layers=3", "model.hidden_size=64", "model.num_attention_heads=4", "model.num_kv_heads=2",
    "model.head_dim=32", "model.intermediate_size=96", "model.vocab_size=131", "model.max_position_embeddings=256",
]  # fmt: skip
INFERENCE_PERF = [
    {"start_time": i, "end_time": i + 0.9, "error": None,
     "info": {"input_tokens": 18 + i, "output_tokens": 3, "output_token_times": [i + 0.2, i + 0.4, i + 0.6]}}
    for i in range(5)
]  # fmt: skip
LLM_D = {
    "run": {"time": {"duration": "PT9.5S"}},
    "scenario": {"load": {"standardized": {"concurrency": 4, "rate_qps": None}}},
    "results": {"request_performance": {"aggregate": {
        "requests": {"total": 20, "failures": 1, "input_length": {"mean": 30.0}, "output_length": {"mean": 5.0}},
        "latency": {"time_to_first_token": {"units": "s", "mean": 0.1, "p50": 0.1, "p99": 0.3},
                    "time_per_output_token": {"units": "ms/token", "mean": 9.0, "p99p9": 20.0}},
        "throughput": {"request_rate": {"mean": 2.0}, "output_token_rate": {"mean": 10.0}},
    }}},
}  # fmt: skip
SUMMARY_ONLY = {
    "backend": "vllm", "model_id": "m", "completed": 20, "total_input_tokens": 600, "total_output_tokens": 100,
    "request_rate": 3.0, "burstiness": 1.0, "max_concurrency": 8, "mean_ttft_ms": 40.0, "p99_tpot_ms": 12.0,
    "output_throughput": 15.0,
}  # fmt: skip
VLLM_BENCH = {
    "backend": "vllm",
    "model_id": "m",
    "input_lens": [10, 20, 30],
    "output_lens": [3, 1, 2],
    "ttfts": [0.1, 0.2, 0.3],
    "itls": [[0.01, 0.02], [], [0.03]],
    "start_times": [0.0, 0.5, 1.0],
    "errors": ["", "", ""],
}


@dataclass(frozen=True)
class Inputs:
    """Where the inputs of the cases are.

    Attributes:
        traces: by option of the group `trace`.
        measured: as `validation.measured` takes them, the workload after a space.
        runs: complete simulated runs, for task=report.
        own: a run that passes for one of the real engine; the first of `measured`.
        calibration: for cost=roofline.
        profiles: what stands before the folder in `cost.profile`, the folder, what stands behind it, overrides of the
            model that was profiled. The first is of ours, for model=tiny and device=laptop-cpu.
        real: the run of the real engine, None without one.
        model: weights for `MODEL`, None without the real engine.
    """

    traces: dict[str, list[Path]]
    measured: list[tuple[str, Path | None]]
    runs: list[Path]
    own: Path
    calibration: Path
    profiles: list[tuple[str, Path, str, list[str]]]
    real: Path | None
    model: Path | None


def build(folder: Path, *, real_engine: bool) -> Inputs:
    """Write all inputs to `folder`, in a process of its own: one that has used torch or Arrow cannot be forked."""
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        return pool.apply(_build, (folder, real_engine))


def _build(folder: Path, real_engine: bool) -> Inputs:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return _write(folder, real_engine)


def _write(folder: Path, real_engine: bool) -> Inputs:
    folder.mkdir(parents=True)
    runs = [folder / "run_a", folder / "run_b"]
    for path, seed in zip(runs, (0, 1), strict=True):
        execute_in(path, config(*SMALL, f"seed={seed}"))
    own = folder / "own"
    pretend_measured(own, *SMALL)
    real = model = None
    measured = _measured(folder, own)
    if real_engine:
        from tests.engine.models.builders import save  # imported late, as it brings transformers

        real, model = folder / "real", save("qwen3", folder / "model")
        execute_in(real, config(*REAL))
        measured.append((f"run:{real}", None))
    calibration = fitted_on(folder / "calibration.yaml")
    traces, profiles = _traces(folder / "traces"), _profiles(folder / "profiles")
    return Inputs(traces, measured, runs, own, calibration, profiles, real, model)


def _measured(folder: Path, own: Path) -> list[tuple[str, Path | None]]:
    log, workload = write_llmservingsim(folder / "llmservingsim")
    distserve = write_distserve(folder / "measured-x.exp", made_up())
    (folder / "bench.json").write_text(json.dumps(VLLM_BENCH))
    others = [f"distserve:{distserve}", f"vllm_bench:{folder / 'bench.json'}"]
    documents = {"inference_perf": INFERENCE_PERF, "llm_d": LLM_D, "vllm_bench": SUMMARY_ONLY}
    for kind, document in documents.items():
        path = folder / f"{kind}_only.json"
        path.write_text(json.dumps(document))
        others.append(f"{kind}:{path}")
    for kind in ("guidellm", "aiperf"):
        (path,) = FILES.glob(f"{kind}.*")
        others.append(f"{kind}:{shutil.copy(path, folder)}")
    return [(f"run:{own}", None), (f"llmservingsim:{log}", workload), *((name, None) for name in others)]


def _profiles(folder: Path) -> list[tuple[str, Path, str, list[str]]]:
    shutil.copytree(PROFILE, folder / "own")
    write_bundle(folder / "bundle")
    inside = write_profiling(folder / "vidur").relative_to(folder / "vidur")
    return [
        ("", folder / "own", "", []),
        ("llmservingsim:", folder / "bundle", "", PROFILED),
        ("vidur:", folder / "vidur", f"/{inside}", PROFILED),
    ]


def _traces(folder: Path) -> dict[str, list[Path]]:
    folder.mkdir()
    rows = [(0.5 * i, 20 + 7 * i, 1 + 3 * i) for i in range(20)]
    texts = {
        "csv": ["arrival_time,num_prompt_tokens,num_output_tokens", *(f"{t},{p},{o}" for t, p, o in rows)],
        "azure": [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            *(f"2023-11-16 18:15:{40 + t:010.7f},{p},{o}" for t, p, o in rows),
        ],
        "burstgpt": [
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            *(f"{t:.0f},GPT-4,{p},{o},{p + o},API log" for t, p, o in rows),
        ],
        "servegen": ["request_id,timestamp,input_tokens,output_tokens", *(f"{p},{t},{p},{o}" for t, p, o in rows)],
        "sharegpt": [
            "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
            *(f"{p},{o},{p + o},{p / o}" for _, p, o in rows),
        ],
        "sharegpt_multiturn": [
            "conversation_id,turn,input_tokens,output_tokens,new_input_tokens,shared_prefix_tokens",
            *(f"{i},0,{p},{o},{p},0\n{i},1,{p + o + 9},{o},9,{p + o}" for i, (_, p, o) in enumerate(rows)),
        ],
    }
    found = {}
    for name, lines in texts.items():
        found[name] = [folder / f"{name}.csv"]
        found[name][0].write_text("\n".join(lines) + "\n")
    plain = [{"arrival_time": t, "num_prompt_tokens": p, "num_output_tokens": o} for t, p, o in rows]
    found["jsonl"] = [folder / "plain.jsonl", folder / "ids.jsonl"]
    write_lines(found["jsonl"][0], plain)
    ids = [{**row, "token_ids": list(range(int(row["num_prompt_tokens"])))} for row in plain]
    write_lines(found["jsonl"][1], ids)
    found["mooncake"] = [folder / "mooncake.jsonl"]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    blocks = [(int(1000 * t), 512 * p, o, list(range(p))) for t, p, o in rows]
    write_lines(found["mooncake"][0], [dict(zip(names, row, strict=True)) for row in blocks])
    found["bailian"] = [folder / "bailian.jsonl"]
    chats = [(t, 16 * p, o, list(range(p))) for t, p, o in rows]
    parents = [{"chat_id": chat, "parent_chat_id": chat // 2 - 1} for chat in range(len(rows))]
    write_lines(
        found["bailian"][0], [dict(zip(names, row, strict=True)) | ids for row, ids in zip(chats, parents, strict=True)]
    )
    found |= {"weka": [folder / "weka.json"], "otel": [folder / "otel.json"], "tracelab": [folder / "tracelab.jsonl"]}
    for name, records in (("weka", [WEKA]), ("otel", [OTEL]), ("tracelab", TRACELAB)):
        write_lines(found[name][0], records)
    found["mooncake"].append(folder / "aiperf.jsonl")
    write_lines(found["mooncake"][1], AIPERF_TURNS)
    found["jsonl"].append(folder / "waits.jsonl")
    waits = [
        {"request_id": i, "session_id": i // 5, "waits_for": [i - 1][: i % 5], "think_time": 0.1} for i in range(20)
    ]
    write_lines(found["jsonl"][2], [{**row, **wait} for row, wait in zip(plain, waits, strict=True)])
    found["baseten"] = [folder / "baseten.parquet"]
    columns = ("timestamp_start_unix_ms", "input_tokens", "output_tokens")
    pd.DataFrame(rows, columns=columns).to_parquet(found["baseten"][0])
    return found
