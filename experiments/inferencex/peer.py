"""Estimates that aiconfigurator itself makes of the rows that this experiment simulates.

    python -m venv peer && peer/bin/pip install aiconfigurator==0.12.0
    peer/bin/python experiments/inferencex/peer.py --data <silicon_sample.csv> \
        --out experiments/results/inferencex_peer.csv

The script imports aiconfigurator and pandas and nothing of this project, as their dependencies differ. Each row is
estimated as `aiconfigurator cli estimate --mode agg` does, in database mode SILICON (measured operators only), with the
newest measured version of vLLM, the row's formats of weights, and the KV cache in the format that CASES says, which is
the one that the simulation uses. Rows that aiconfigurator refuses have no times, and its reason in the column error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
from pathlib import Path
from typing import Any

import pandas as pd
from aiconfigurator.cli.api import cli_estimate

# model of the rows: the configuration of aiconfigurator, and the format of its matrices (None: as it says itself)
MODELS: dict[str, tuple[str, str | None]] = {
    "meta-llama/Llama-3.1-70B": ("meta-llama/Meta-Llama-3.1-70B", "row"),
    "nvidia/Llama-3.1-8B-Instruct-FP8": ("meta-llama/Meta-Llama-3.1-8B", "row"),
    "Qwen/Qwen3-32B": ("Qwen/Qwen3-32B", "row"),
    "Qwen/Qwen3-235B-A22B-FP8": ("Qwen/Qwen3-235B-A22B-FP8", None),
    "openai/gpt-oss-120b": ("openai/gpt-oss-120b", None),
}
FP8_KV = {("meta-llama/Llama-3.1-70B", "h200_sxm"), ("meta-llama/Llama-3.1-70B", "b200_sxm")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="silicon_sample.csv of aiconfigurator-core")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = pd.read_csv(args.data)
    rows = rows[(rows["backend"] == "vllm") & (rows["mode"] == "agg") & rows["model_path"].isin(MODELS)]
    estimates = pd.DataFrame([_estimate(row) for row in rows.to_dict("records")])
    versions = {name: importlib.metadata.version(name) for name in ("aiconfigurator", "aiconfigurator-core")}
    estimates["estimator"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    estimates.to_csv(args.out, index=False, float_format="%.6g")
    print(f"{args.out}: {len(estimates)} rows, {estimates['tpot_ms'].isna().sum()} refused")


def _estimate(row: dict[Any, Any]) -> dict[str, Any]:
    model, source = MODELS[row["model_path"]]
    options: dict[str, Any] = {
        "backend_name": "vllm",
        "database_mode": "SILICON",
        "isl": int(row["isl"]),
        "osl": int(row["osl"]),
        "batch_size": int(row["batch_size"]),
        "tp_size": int(row["tp_size"]),
    }
    if source == "row" and isinstance(row["gemm_quant_mode"], str):
        options["gemm_quant_mode"] = row["gemm_quant_mode"]
    if (row["model_path"], row["system"]) in FP8_KV:
        options["kvcache_quant_mode"] = "fp8"
    if source is None:
        options |= {"moe_tp_size": int(row["moe_tp_size"]), "moe_ep_size": int(row["moe_ep_size"])}
    found: dict[str, Any] = {"id": row["id"], "ttft_ms": None, "tpot_ms": None, "backend_version": None, "error": ""}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = cli_estimate(model, row["system"], **options)
    except Exception as error:  # whatever it raises is what the row shows
        lines = str(error).strip().splitlines()
        return {**found, "error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]}
    return {**found, "ttft_ms": result.ttft, "tpot_ms": result.tpot, "backend_version": result.backend_version}


if __name__ == "__main__":
    main()
