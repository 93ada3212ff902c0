"""LLMServingSim's `profiler/perf` bundles: kernel times of vLLM, one folder per device and model.

    meta.yaml
    tp<N>/dense.csv           layer,tokens,time_us
    tp<N>/per_sequence.csv    layer,sequences,time_us
    tp<N>/attention.csv       prefill_chunk,kv_prefill,n_decode,kv_decode,time_us     one layer
    tp<N>/skew.csv            a batch with all contexts at their mean, all at their maximum, and uneven (optional)

Sizes of matrix products were measured in strides of a tile or less, so a size in between takes the next one's time.
vLLM pads steps to the sizes of its CUDA graphs, decode and mixed ones alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.hardware import ModelShape
from simulator.importers.csv_table import read_table
from simulator.profile import Profile, ProfileMeta, rank_folder, read_meta

_ATTENTION = {
    "prefill_chunk": "prefill_tokens",
    "kv_prefill": "prefill_context",
    "n_decode": "num_decodes",
    "kv_decode": "decode_context",
}
_PER_LAYER = {"layernorm": 2}  # others once
_PER_STEP = ("embedding", "final_layernorm", "lm_head", "sampler")
_SKEW = ("n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us")
_LARGEST_GRAPH = 512


def read_bundle(folder: Path, model: ModelShape, tensor_parallel_size: int, max_num_seqs: int) -> Profile:
    """Read the bundle of one device and model for so many ranks; vLLM's graphs depend on `max_num_seqs`.

    Raises:
        ProfileError: something is missing or cannot be read.
    """
    meta = read_meta(folder, "; name the folder of device and model")
    ranks = rank_folder(folder, tensor_parallel_size)
    dense = read_table(ranks / "dense.csv", ("layer", "tokens", "time_us"))
    heads = read_table(ranks / "per_sequence.csv", ("layer", "sequences", "time_us"))
    attention = read_table(ranks / "attention.csv", (*_ATTENTION, "time_us"))
    tables = {
        "tokens": dense.rename(columns={"layer": "operator", "tokens": "num_tokens"}),
        "sequences": heads.rename(columns={"layer": "operator", "sequences": "num_sequences"}),
        "attention": attention.rename(columns=_ATTENTION),
    }
    if (ranks / "skew.csv").exists():
        gains = _gains(read_table(ranks / "skew.csv", _SKEW))
        if len(gains):
            tables["uneven"] = gains
    operators = {*dense["layer"], *heads["layer"]}
    return Profile(
        ProfileMeta(
            device=str(meta.get("gpu", folder.parent.name)),
            model=str(meta.get("model", folder.name)),
            tensor_parallel_size=tensor_parallel_size,
            num_layers=model.num_layers,
            calls={name: _calls(name, model.num_layers) for name in sorted(operators)},
            block_size=_block_size(meta),
            token_buckets=graph_sizes(max_num_seqs),
            padded_steps="all",
            round_up_tokens=True,
            source={"tool": "LLMServingSim", "vllm": meta.get("vllm_version"), "date": meta.get("profiled_at")},
        ),
        tables,
    )


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Token counts for which vLLM captures CUDA graphs: 1, 2, 4, by 8 to 256, by 16 to twice `max_num_seqs` or 512."""
    largest = min(2 * max_num_seqs, _LARGEST_GRAPH)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST_GRAPH + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def _block_size(meta: Mapping[str, Any]) -> int | None:
    """That of the engine whose kernels were timed, None where the bundle does not say."""
    engine = meta.get("engine_effective")
    size = engine.get("block_size") if isinstance(engine, Mapping) else None
    return size if isinstance(size, int) else None


def _calls(operator: str, num_layers: int) -> int:
    return 1 if operator in _PER_STEP else num_layers * _PER_LAYER.get(operator, 1)


def _gains(skew: pd.DataFrame) -> pd.DataFrame:
    """How many standard deviations above the mean uneven contexts count: where the time at the mean and at the maximum
    put the time measured, by the line between them. `nb` of `n` contexts are `kv_big` long, the others `kvs`.
    """
    share = skew["nb"] / skew["n"]
    deviation = np.sqrt(share * (1 - share)) * (skew["kv_big"] - skew["kvs"])
    slope = (skew["t_max_us"] - skew["t_mean_us"]) / (skew["kv_big"] - skew["kv_mean"])
    clear = (skew["t_max_us"] > 1.1 * skew["t_mean_us"]) & (deviation > 0)  # else the line has no direction
    gains = skew.assign(gain=(skew["t_skew_us"] - skew["t_mean_us"]) / (slope * deviation))[clear]
    table = gains.groupby(["pc", "n"])["gain"].median().reset_index()
    table["gain"] = table["gain"].clip(lower=0)
    return table.rename(columns={"pc": "prefill_tokens", "n": "num_decodes"})
