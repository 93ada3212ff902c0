"""Writes the operator times in simulator/profiles/operators: what compiling a profile reads of NVIDIA's database.

    pip install -e '.[kernels-db]'
    python -m experiments.operator_tables --root <folder of aiconfigurator_core>     a minute

Of each table the newest version, the columns that are read, and latencies of four digits. Tables are those of
`simulator.importers.aiconfigurator.database`, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES, Apache License
2.0; NOTICE in the folder says so.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.importers.aiconfigurator.database import Database, find_root
from simulator.importers.aiconfigurator.experts.kernels import DISTRIBUTION
from simulator.importers.aiconfigurator.shipped import FOLDER

SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "a100_sxm", "l40s", "rtx_pro_6000_server")
TABLES = (  # family, table, and whose kernels, if not vLLM's
    ("gemm", "gemm_perf", None), ("quantize", "computescale_perf", None), ("quantize", "scale_matrix_perf", None),
    ("attention", "context_attention_perf", None), ("attention", "generation_attention_perf", None),
    ("moe", "moe_perf", None), ("comm", "custom_allreduce_perf", None), ("comm", "custom_allreduce_perf", "trtllm"),
    ("comm", "nccl_perf", "nccl"), ("comm", "moe_a2a_perf", None), ("linear_attention", "gdn_perf", None),
    ("mla", "mla_context_module_perf", None), ("mla", "mla_generation_module_perf", None),
    ("sparse_attention", "dsa_context_module_perf", None), ("sparse_attention", "dsa_generation_module_perf", None),
)  # fmt: skip
NOTICE = """Operator times of aiconfigurator-core (https://github.com/ai-dynamo/aiconfigurator), Copyright (c) 2025-2026
NVIDIA CORPORATION & AFFILIATES, Apache License 2.0. Changed by experiments/operator_tables.py of TwinServe: tables,
columns and rows that it does not read are left out, and latencies are rounded to four digits.
"""
_UNREAD = ("framework", "version", "power", "beam_width")
_DIGITS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of aiconfigurator_core, if it is not installed")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    args = parser.parse_args()
    root = find_root(args.root)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "NOTICE").write_text(NOTICE)
    for system in args.systems:
        shutil.rmtree(FOLDER / "data" / system, ignore_errors=True)
        shutil.copyfile(root / f"{system}.yaml", FOLDER / f"{system}.yaml")
        database = Database(root, system)
        size = sum(_write(database, root, *table) for table in TABLES)
        print(f"{system}: {size / 1e6:.2f} MB", flush=True)


def _write(database: Database, root: Path, family: str, table: str, source: str | None) -> int:
    """Writes one table of a system; returns its size in bytes."""
    folder = database.folder(family, source, table)
    if folder is None or not (path := folder / f"{table}.parquet").is_file():
        return 0
    rows = pq.read_table(path).to_pandas()
    rows = rows.drop(columns=[name for name in _UNREAD if name in rows.columns])
    if "distribution" in rows.columns:
        rows = rows[rows["distribution"] == DISTRIBUTION]
    latency = rows["latency"].to_numpy(dtype=np.float64)
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.where(latency > 0, latency, 1.0))))
    rows["latency"] = (np.round(latency * scale) / scale).astype(np.float32)
    out = FOLDER / path.relative_to(root)
    out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), out, compression="zstd", compression_level=22)
    return out.stat().st_size


if __name__ == "__main__":
    main()
