"""Small valid inputs of every kind: traces, logs of measured runs, result folders, a calibration, a profile."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.harness.builders import ROOT, config, execute_in
from tests.harness.measured_builders import (
    fitted_on,
    made_up,
    pretend_measured,
    write_distserve,
    write_lines,
    write_llmservingsim,
)

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
        calibration: for cost=roofline.
        real: the run of the real engine, None without one.
    """

    traces: dict[str, list[Path]]
    measured: list[tuple[str, Path | None]]
    runs: list[Path]
    calibration: Path
    profile: Path
    real: Path | None


def build(folder: Path, *, real_engine: bool) -> Inputs:
    """Write all inputs to `folder`."""
    folder.mkdir(parents=True)
    runs = [folder / "run_a", folder / "run_b"]
    for path, seed in zip(runs, (0, 1), strict=True):
        execute_in(path, config(*SMALL, f"seed={seed}"))
    pretend_measured(folder / "own", *SMALL)
    log, workload = write_llmservingsim(folder / "llmservingsim")
    distserve = write_distserve(folder / "measured-x.exp", made_up())
    measured = [(f"run:{folder / 'own'}", None), (f"llmservingsim:{log}", workload), (f"distserve:{distserve}", None)]
    (folder / "bench.json").write_text(json.dumps(VLLM_BENCH))
    measured.append((f"vllm_bench:{folder / 'bench.json'}", None))
    real = None
    if real_engine:
        real = folder / "real"
        execute_in(real, config(*REAL))
        measured.append((f"run:{real}", None))
    shutil.copytree(PROFILE, folder / "profile")
    calibration = fitted_on(folder / "calibration.yaml")
    return Inputs(_traces(folder / "traces"), measured, runs, calibration, folder / "profile", real)


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
    return found
