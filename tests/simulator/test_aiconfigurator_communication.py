"""All-reduces of NVIDIA's database: its sizes count elements of 16 bits."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from simulator.importers.aiconfigurator.communication import all_gather, all_reduce
from simulator.importers.aiconfigurator.database import Database, find_root

SIZES = [1024, 2048, 4096]


def made_up_database(folder: Path) -> Database:
    """Three sizes of an all-reduce and of an all-gather of 2 GPUs, 1, 2 and 3 ms."""
    data = folder / "data" / "h100_sxm"
    rows = pd.DataFrame({"num_gpus": 2, "message_size": SIZES, "latency": [1.0, 2.0, 3.0]})
    tables = {
        "gemm/vllm/0.24.0/gemm_perf": rows,
        "comm/vllm/0.24.0/custom_allreduce_perf": rows.assign(backend="vllm_graph"),
        "comm/nccl/2.29.2/nccl_perf": rows.assign(op_name="all_gather", nccl_dtype="half"),
    }
    for name, table in tables.items():
        path = data / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        table.to_parquet(path)
    (folder / "h100_sxm.yaml").write_text("gpu: {sm_version: 90}\nnode: {}\n")
    return Database(find_root(folder), "h100_sxm")


def test_message_sizes_are_elements(tmp_path: Path) -> None:
    database = made_up_database(tmp_path)
    reduced, dropped = all_reduce(database, 2)
    gathered = all_gather(database, 2)
    assert reduced.sizes.tolist() == [2 * size for size in SIZES] and not dropped
    assert gathered is not None and gathered.sizes.tolist() == [2 * size for size in SIZES]
    assert reduced.at(4096).item() == 2000.0
