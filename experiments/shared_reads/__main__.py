"""What decode attention takes where sequences share prefixes, simulated against measurements of others.

    python -m experiments.shared_reads

`pat_a100.csv` are the bars of `plot/fig/sample_kernel.png` in flashserve/PAT (7b205e3, the artefact of "PAT:
Accelerating LLM Decoding via Prefix-Aware Attention", ASPLOS 2026): the speed of kernels on an A100 80GB, in pixels of
which the fastest kernel has 71. `nodes` and `tokens` are a tree of prefixes by level: so many nodes of so many tokens
each; the last are the sequences, whose order in the batch is random (`generate_tree_seqs`). FlashAttention 2, vLLM's,
and FlashInfer know nothing of the sharing, but sequences have the same blocks of KV (`block_table`). `relay` reads the
first level once for all sequences, and the rest from copies that each sequence has of its own
(`RelayAttention`): what that takes is known, so that its bar is the scale of the others. Left out are those in which
it reads less than 400 MB, and those with bars of fewer than 4 pixels.

The rate at which a kernel takes KV that others have just read is the one number for each that is chosen so that its
bars are met; conf/device/a100-80gb.yaml has FlashAttention's. Those of the H100 and H200 are from NVIDIA's times of
decode attention (FlashAttention 3) in simulator/profiles/operators: the same KV is read again and again there, so that
up to the size of the L2 cache it comes from it. It is the median, over sizes of models and batches, of the KV that
33.6 MB have more than 8.4 MB over the time that they take longer. Writes experiments/results/shared_reads.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from engine.core.work import StepWork
from experiments import RESULTS, ROOT, provenance, write_result
from simulator.costs.shared_reads import SharedReads

_BARS = Path(__file__).parent / "pat_a100.csv"
_TABLES = ROOT / "simulator" / "profiles" / "operators" / "data"
_MEMORY = 1.70e12  # bytes/s of KV from memory, where NVIDIA's table ends
_REUSE = {"flash_attention": 3.5e12, "flashinfer": 5.5e12}  # and from the cache
_AT_ONCE = 2 * 108  # thread blocks on the multiprocessors of an A100
_TOKEN_BYTES = 2 * 2 * 128  # key and value of a head in 16 bits
_LEAST_BYTES, _LEAST_PIXELS = 400e6, 4
_SMALL_MB, _LARGE_MB = 8.4, 33.6


def main() -> None:
    errors: dict[str, dict[str, list[float]]] = {}
    for row in pd.read_csv(_BARS).to_dict("records"):
        nodes, tokens = ([*map(int, str(row[key]).split())] for key in ("nodes", "tokens"))
        apart = nodes[-1] * (sum(tokens) - tokens[0])
        if apart * row["kv_heads"] * _TOKEN_BYTES < _LEAST_BYTES:
            continue
        for kernel in ("flash_attention", "flashinfer"):
            if row[kernel] < _LEAST_PIXELS:
                continue
            measured = row["relay"] / row[kernel]
            for name, shared_reads in _readings(_REUSE[kernel]).items():
                error = _tokens(nodes, tokens, shared_reads) / apart / measured - 1
                errors.setdefault(kernel, {}).setdefault(name, []).append(100 * error)
    found = {kernel: {name: _statistics(each) for name, each in of.items()} for kernel, of in errors.items()}
    rates = {device: _reuse_bandwidth(device) for device in ("h100_sxm", "h200_sxm")}
    for kernel, of in found.items():
        for name, each in of.items():
            print(f"{kernel}, {name}: {each}")
    print(f"bytes/s from the cache: {rates}")
    document = {**provenance("experiments.shared_reads"), "errors_percent": found, "kv_reuse_bandwidth": rates}
    write_result(RESULTS / "shared_reads.json", document)


def _readings(reuse: float) -> dict[str, SharedReads]:
    return {
        "simulated": SharedReads(_AT_ONCE, _MEMORY / reuse),
        "each reads all of its context": SharedReads(_AT_ONCE, 1.0),
        "the cache takes no time": SharedReads(_AT_ONCE, 0.0),
    }


def _tokens(nodes: list[int], tokens: list[int], shared_reads: SharedReads) -> float:
    """Tokens of KV that take as long when they are read from memory."""
    total, distinct = nodes[-1] * sum(tokens), sum(n * each for n, each in zip(nodes, tokens, strict=True))
    work = StepWork([], nodes[-1], total, total * sum(tokens))
    work.num_saved_tokens, work.num_shared_tokens = total - distinct, distinct - nodes[-1] * tokens[-1]
    return max(total - nodes[-1] * shared_reads.unread(work), shared_reads.least * total)


def _statistics(errors: list[float]) -> dict[str, float]:
    signed = pd.Series(errors)
    return {
        "cases": len(signed),
        "median": round(float(signed.median()), 1),
        "median_absolute": round(float(signed.abs().median()), 1),
        "p90_absolute": round(float(signed.abs().quantile(0.9)), 1),
    }


def _reuse_bandwidth(device: str) -> float:
    [path] = (_TABLES / device / "attention" / "vllm").glob("*/generation_attention_perf.parquet")
    table: Any = pd.read_parquet(path)
    table = table[(table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")]
    table = table[(table["head_dim"] == 128) & (table["window_size"] == 0) & (table["batch_size"] >= 4)]
    heads = table["num_key_value_heads"].where(table["num_key_value_heads"] > 0, table["num_heads"])
    context = table["isl"] + table["step"]
    table = table.assign(heads=heads, megabytes=table["batch_size"] * context * heads * _TOKEN_BYTES / 1e6)
    table = table[(context >= 256) & (table["batch_size"] * heads <= 132)]  # a thread block for each multiprocessor
    rates = []
    for _, rows in table.groupby(["batch_size", "num_heads", "heads"]):
        small, large = (rows[(rows["megabytes"] / size - 1).abs() < 0.02] for size in (_SMALL_MB, _LARGE_MB))
        if len(small) == len(large) == 1:
            added = large["megabytes"].iloc[0] - small["megabytes"].iloc[0]
            rates.append(1e9 * added / (large["latency"].iloc[0] - small["latency"].iloc[0]))
    return round(float(pd.Series(rates).median()), -11)


if __name__ == "__main__":
    main()
