"""LLMServingSim's `profiler/perf` bundles: kernel times of vLLM, one folder per device and model.

    meta.yaml
    tp<N>/dense.csv           layer,tokens,time_us
    tp<N>/per_sequence.csv    layer,sequences,time_us
    tp<N>/attention.csv       prefill_chunk,kv_prefill,n_decode,kv_decode,time_us     one layer
    tp<N>/skew.csv            a batch with all contexts at their mean, all at their maximum, and uneven (optional)

Sizes of matrix products were measured in strides of a tile or less, so a size in between takes the next one's time.
vLLM pads steps to the sizes of its CUDA graphs, decode and mixed ones alike.

FlashAttention 2, by its num_splits_heuristic, splits the contexts of a decode batch among thread blocks only as long as
sequences x KV heads are below 0.8 x 2 x the GPU's multiprocessors. With splits uneven contexts hardly matter; without,
the longest one's thread blocks go on alone. Batches were measured in powers of two, so between the last with splits and
the first without, gains are not taken to lie on a line. That needs the multiprocessors of the device, and the bundle to
be of that device; other kernels are told from these by gains that rise elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.hardware import Device, ModelShape
from simulator.importers.csv_table import read_table
from simulator.profile.files import rank_folder, read_meta
from simulator.profile.profile import Profile, ProfileMeta

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
_FILLED_SHARE = 0.8  # of twice the multiprocessors, from which FlashAttention 2 splits no more


def read_bundle(
    folder: Path,
    model: ModelShape,
    tensor_parallel_size: int,
    max_num_seqs: int,
    device: Device,
) -> Profile:
    """Read the bundle of one device and model for so many ranks; vLLM's graphs depend on `max_num_seqs`, and which
    decode batches are split, on the GPU.

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
            multiprocessors = device.multiprocessors if meta.get("gpu") == device.name else None
            filled = _FILLED_SHARE * 2 * multiprocessors if multiprocessors else math.inf
            first = _padded_from(filled / model.kv_heads_per_rank(tensor_parallel_size), graph_sizes(max_num_seqs))
            tables["uneven"] = gains if first is None else _with_splits_until(gains, first)
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


def _padded_from(batch: float, sizes: tuple[int, ...]) -> int | None:
    """The least batch that is padded to one of `sizes` of `batch` or more; None where there is none, or all are."""
    i = next((i for i, size in enumerate(sizes) if size >= batch), 0)
    return sizes[i - 1] + 1 if i else None


def _with_splits_until(gains: pd.DataFrame, first: int) -> pd.DataFrame:
    """`gains` with rows between the last measured batch of decodes before `first`, whose gain holds up to it, and the
    next: from there on the longest context takes the same time beyond the others. As the time of a token in all
    contexts grows with the batch, the gain falls with it.

    Nothing is changed where gains do not rise the most between these two batches: then other kernels were measured.
    """
    alone = gains[gains["prefill_tokens"] == 0]
    batches, values = alone["num_decodes"].to_numpy(), alone["gain"].to_numpy()
    i = int(np.searchsorted(batches, first))
    if not 0 < i < len(batches) or np.argmax(np.diff(values)) != i - 1:
        return gains
    between = [first, *range(-(-(first + 1) // 8) * 8, int(batches[i]), 8)]
    rows = [(0, n, values[i] * batches[i] / n) for n in between if n < batches[i]]
    if batches[i - 1] < first - 1:
        rows.append((0, first - 1, values[i - 1]))
    return pd.concat([gains, pd.DataFrame(rows, columns=gains.columns)], ignore_index=True)
