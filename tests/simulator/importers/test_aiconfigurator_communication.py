"""All-reduces of NVIDIA's database: its sizes count elements of 16 bits."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from simulator.importers.aiconfigurator.communication import all_gather, all_reduce, fused_bytes
from simulator.importers.aiconfigurator.database import Database, find_root

SIZES = [1024, 2048, 4096]


def made_up_database(folder: Path, sm_version: int = 90, backend: str = "vllm") -> Database:
    """Three sizes of an all-reduce and of an all-gather of 2 GPUs, 1, 2 and 3 ms; half of it if fused with a norm."""
    data = folder / "data" / "h100_sxm"
    rows = pd.DataFrame({"num_gpus": 2, "message_size": SIZES, "latency": [1.0, 2.0, 3.0]})
    tables = {
        f"gemm/{backend}/0.24.0/gemm_perf": rows,
        f"comm/{backend}/0.24.0/custom_allreduce_perf": rows.assign(backend=f"{backend}_graph"),
        "comm/trtllm/1.3.0/custom_allreduce_perf": rows.assign(latency=rows["latency"] / 2),
        "comm/nccl/2.29.2/nccl_perf": rows.assign(op_name="all_gather", nccl_dtype="half"),
    }
    for name, table in tables.items():
        path = data / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        table.to_parquet(path)
    (folder / "h100_sxm.yaml").write_text(f"gpu: {{sm_version: {sm_version}}}\nnode: {{}}\n")
    return Database(find_root(folder), "h100_sxm", backend)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_message_sizes_are_elements(tmp_path: Path, backend: str) -> None:
    database = made_up_database(tmp_path, backend=backend)
    reduced, dropped = all_reduce(database, 2, 0.0)
    gathered = all_gather(database, 2)
    assert reduced.sizes.tolist() == [2 * size for size in SIZES] and not dropped
    assert gathered is not None and gathered.sizes.tolist() == [2 * size for size in SIZES]
    assert reduced.at(4096).item() == 2000.0


@pytest.mark.parametrize(
    ("sm_version", "ranks", "mib"),
    [
        (80, 2, 0),
        (89, 2, 0),
        (90, 2, 64),
        (90, 8, 0.5),
        (100, 4, 32),
        (103, 8, 2),
        (103, 4, 64),
        (107, 8, 1),
        (120, 2, 0),
        (90, 1, 0),
        (90, 16, 0),
    ],
)
def test_hopper_and_data_centre_blackwell_fuse_all_reduces_with_norms(
    tmp_path: Path, sm_version: int, ranks: int, mib: float
) -> None:
    assert fused_bytes(made_up_database(tmp_path, sm_version), ranks) == mib * (1 << 20)


def test_small_all_reduces_take_the_time_of_the_fused_kernel(tmp_path: Path) -> None:
    reduced, _ = all_reduce(made_up_database(tmp_path), 2, 4096.0)
    assert reduced.times_us.tolist() == [500.0, 1000.0, 3000.0]
