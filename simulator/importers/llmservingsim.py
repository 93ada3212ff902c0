"""LLMServingSim's `profiler/perf` bundles: kernel times of vLLM, one folder per device and model.

    meta.yaml
    tp<N>/dense.csv           layer,tokens,time_us
    tp<N>/per_sequence.csv    layer,sequences,time_us
    tp<N>/attention.csv       prefill_chunk,kv_prefill,n_decode,kv_decode,time_us     one layer
    tp1/moe.csv               tokens,activated_experts,time_us     router and experts of one layer
    tp<N>/skew.csv            a batch with all contexts at their mean, all at their maximum, and uneven (optional;
                              unused if meta.yaml says skew_profile: enabled: false)

Sizes of matrix products were measured in strides of a tile or less, so a size in between takes the time of the next
larger one. vLLM pads steps to the sizes of its CUDA graphs, decode steps and mixed steps alike.

FlashAttention 2, by its num_splits_heuristic, splits the contexts of a decode batch among thread blocks only as long as
sequences x KV heads are below 0.8 x 2 x the GPU's multiprocessors. With splits, different lengths of contexts hardly
matter; without splits, the thread blocks of the longest context go on alone. Batches were measured in powers of two, so
gains are not interpolated linearly between the last batch with splits and the first without. That is done only if the
number of multiprocessors is known, the bundle is of the device to simulate, and gains rise the most just there, as
otherwise other kernels were measured.

Experts were timed by how many of them the tokens of a step use. Tokens choose independently and evenly here, so that n
tokens use E·(1 - (1 - k/E)^n) of E experts in expectation, as in the roofline. Only one rank was measured: experts that
several ranks share are refused.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simulator.device import Device
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.profile.csv_table import read_table
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import META, Profile, ProfileError, check_numbers, check_texts
from simulator.profile.profile_folder import rank_folder, read_meta
from simulator.quantities import RANGES

_ATTENTION = {
    "prefill_chunk": "prefill_tokens",
    "kv_prefill": "prefill_context",
    "n_decode": "num_decodes",
    "kv_decode": "decode_context",
}
_PER_LAYER = {"layernorm": 2}  # calls per layer; other operators are called once
_PER_STEP = ("embedding", "final_layernorm", "lm_head", "sampler")
_EXPERTS = {"tokens": "num_tokens", "activated_experts": "activated_experts", "time_us": "time_us"}
_SKEW = {
    "n": "num_decodes",
    "nb": "num_decodes",
    "pc": "prefill_tokens",
    "kvs": "decode_context",
    "kv_big": "decode_context",
    "kv_mean": "decode_context",
    "t_mean_us": "time_us",
    "t_max_us": "time_us",
    "t_skew_us": "time_us",
}
_FILLED_SHARE = 0.8  # FlashAttention 2 splits contexts below this share of twice the multiprocessors


def read_bundle(
    folder: Path,
    model: Model,
    tensor_parallel_size: int,
    max_num_seqs: int,
    device: Device,
) -> Profile:
    """Read the bundle of one device and model for `tensor_parallel_size` ranks.

    The sizes of vLLM's graphs depend on `max_num_seqs`; which decode batches are split depends on `device`.

    Raises:
        ProfileError: something is missing or cannot be read.
    """
    meta = read_meta(folder, "; name the folder of device and model")
    ranks = rank_folder(folder, tensor_parallel_size)
    dense = _read(ranks / "dense.csv", {"tokens": "num_tokens", "time_us": "time_us"}, "layer")
    heads = _read(ranks / "per_sequence.csv", {"sequences": "num_sequences", "time_us": "time_us"}, "layer")
    attention = _read(ranks / "attention.csv", {**_ATTENTION, "time_us": "time_us"})
    if experts := model.first(Experts):
        dense = pd.concat([dense, _experts(ranks, experts, dense["tokens"])], ignore_index=True)
    tables = {
        "tokens": dense.rename(columns={"layer": "operator", "tokens": "num_tokens"}),
        "sequences": heads.rename(columns={"layer": "operator", "sequences": "num_sequences"}),
        "attention": attention.rename(columns=_ATTENTION),
    }
    if (ranks / "skew.csv").exists() and _is_enabled(meta, "skew_profile"):
        gains = _gains(_read(ranks / "skew.csv", _SKEW))
        if len(gains):
            multiprocessors = device.multiprocessors if meta.get("gpu") == device.name else None
            filled = _FILLED_SHARE * 2 * multiprocessors if multiprocessors else math.inf
            kv_heads = max(1, model.sizes["num_kv_heads"] // tensor_parallel_size)
            first = _padded_from(filled / kv_heads, graph_sizes(max_num_seqs))
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


def _read(path: Path, quantities: Mapping[str, str], *texts: str) -> pd.DataFrame:
    """The table in a CSV file; `quantities` says what its columns of numbers hold."""
    table = read_table(path, (*texts, *quantities))
    for name in texts:
        check_texts(path.name, table[name])
    for name, quantity in quantities.items():
        check_numbers(path.name, table[name], quantity)
    return table


def _block_size(meta: Mapping[str, Any]) -> int | None:
    """The block size of the engine whose kernels were timed; None if the bundle does not say."""
    engine = meta.get("engine_effective")
    size = engine.get("block_size") if isinstance(engine, Mapping) else None
    if isinstance(size, int) and not RANGES["block_size"].holds(size):
        raise ProfileError(f"{META}: engine_effective.block_size={size}: must be {RANGES['block_size']}")
    return size if isinstance(size, int) else None


def _is_enabled(meta: Mapping[str, Any], part: str) -> bool:
    """Whether a part of the bundle is to be used; `<part>: {enabled: false}` in meta.yaml says no."""
    settings = meta.get(part)
    return not (isinstance(settings, Mapping) and settings.get("enabled") is False)


def _calls(operator: str, num_layers: int) -> int:
    return 1 if operator in _PER_STEP else num_layers * _PER_LAYER.get(operator, 1)


def _experts(ranks: Path, experts: Experts, sizes: pd.Series[int]) -> pd.DataFrame:
    """Rows of an operator `experts` for numbers of tokens within `sizes`, interpolated in tokens and experts used.

    Raises:
        ProfileError: experts were not measured for these ranks, or cannot be read.
    """
    if ranks.name != "tp1" and not (ranks / "moe.csv").exists():
        raise ProfileError(f"no moe.csv in {str(ranks)!r}: LLMServingSim measures experts on one rank only")
    table = _read(ranks / "moe.csv", _EXPERTS).sort_values("activated_experts")
    rows = {size: table[table["tokens"] == size] for size in table["tokens"].unique().tolist()}
    measured = sorted(rows)
    numbers = [n for n in sorted({*sizes, *rows}) if measured[0] <= n <= measured[-1]]
    times = []
    for n in numbers:
        used = experts.num_experts * (1 - (1 - experts.num_used / experts.num_experts) ** n)
        around = [measured[bisect.bisect(measured, n) - 1], measured[bisect.bisect_left(measured, n)]]
        times.append(np.interp(n, around, [_with_experts(rows[size], used) for size in around]))
    return pd.DataFrame({"layer": "experts", "tokens": numbers, "time_us": times})


def _with_experts(row: pd.DataFrame, used: float) -> float:
    """The time for one number of tokens if they use `used` experts; more than were measured continue the last line."""
    experts, times = row["activated_experts"].to_numpy(np.float64), row["time_us"].to_numpy(np.float64)
    if used <= experts[-1] or len(experts) == 1:
        return float(np.interp(used, experts, times))
    return float(times[-1] + (used - experts[-1]) * (times[-1] - times[-2]) / (experts[-1] - experts[-2]))


def _gains(skew: pd.DataFrame) -> pd.DataFrame:
    """The gains: uneven contexts take as long as if each were their mean plus `gain` standard deviations.

    The measured time of uneven contexts is looked up on the line through the time with all contexts at their mean and
    the time with all at their maximum. `nb` of the `n` contexts are `kv_big` long, the others `kvs`.
    """
    share = (skew["nb"] / skew["n"]).where(skew["nb"] <= skew["n"])
    deviation = np.sqrt(share * (1 - share)) * (skew["kv_big"] - skew["kvs"])
    slope = (skew["t_max_us"] - skew["t_mean_us"]) / (skew["kv_big"] - skew["kv_mean"])
    clear = (skew["t_max_us"] > 1.1 * skew["t_mean_us"]) & (deviation > 0)  # else the line has no direction
    gains = skew.assign(gain=(skew["t_skew_us"] - skew["t_mean_us"]) / (slope * deviation))[clear]
    table = gains.groupby(["pc", "n"])["gain"].median().reset_index()
    table["gain"] = table["gain"].clip(lower=0)
    return table.rename(columns={"pc": "prefill_tokens", "n": "num_decodes"})


def _padded_from(batch: float, sizes: tuple[int, ...]) -> int | None:
    """The smallest batch that is padded to a size of `batch` or more; None if no batch is, or if all are."""
    i = next((i for i, size in enumerate(sizes) if size >= batch), 0)
    return sizes[i - 1] + 1 if i else None


def _with_splits_until(gains: pd.DataFrame, first: int) -> pd.DataFrame:
    """`gains` with rows added between the last measured batch with splits and the first measured batch without.

    `first` is the smallest batch without splits. Up to it the gain of the batch before it holds. From `first` on the
    longest context takes a constant time beyond the others; the time per token of all contexts grows with the batch, so
    the gain falls with the batch.

    `gains` is returned as it is if gains do not rise the most between these two batches: other kernels were measured.
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
