"""Vidur's profiling CSV files: medians in milliseconds of the kernels of one layer, for several degrees of parallelism.

    <root>/compute/<device>/<owner>/<model>/mlp.csv         time_stats.<operator>.median by num_tokens
    <root>/compute/<device>/<owner>/<model>/attention.csv   prefill and decode attention, writing the KV cache
    <root>/network/<device>_<link>/all_reduce.csv           by bytes and workers; needed with several ranks

Vidur measures no LM head and no sampler: the LM head takes the time of the MLP's first projection times the ratio of
their parameters, and sampling is left out. The host's time is not in these files either.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from simulator.device import Device
from simulator.models.model import Model
from simulator.profile.csv_table import read_table
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile, ProfileError, check_numbers

_MS = 1e3  # in microseconds
_OPERATORS = {  # name there: name here, calls per layer (0: once per step)
    "emb": ("embedding", 0),
    "input_layernorm": ("input_norm", 1),
    "attn_pre_proj": ("qkv_proj", 1),
    "attn_rope": ("rotary", 1),
    "attn_post_proj": ("o_proj", 1),
    "post_attention_layernorm": ("post_norm", 1),
    "mlp_up_proj": ("gate_up_proj", 1),
    "mlp_act": ("activation", 1),
    "mlp_down_proj": ("down_proj", 1),
    "add": ("residual_add", 2),
}
_REQUIRED = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_SHAPE = {"n_embd": "hidden_size", "n_kv_head": "num_kv_heads"}
_DENSE_SHAPE = {**_SHAPE, "n_head": "num_attention_heads", "n_expanded_embd": "intermediate_size"}
_ATTENTION_SHAPE = {**_SHAPE, "n_q_head": "num_attention_heads"}
_RANKS = "num_tensor_parallel_workers"
_SIZES = {  # columns that say what was measured
    "num_tokens": "num_tokens",
    "batch_size": "num_decodes",
    "prefill_chunk_size": "prefill_tokens",
    "kv_cache_size": "prefill_context",
}


def read_profiling(folder: Path, model: Model, tensor_parallel_size: int, max_num_seqs: int, device: Device) -> Profile:
    """Read the files of one device and model for `tensor_parallel_size` ranks.

    Raises:
        ProfileError: something is missing, cannot be read, or was measured for another shape.
    """
    dense = _select(folder / "mlp.csv", _DENSE_SHAPE, model, tensor_parallel_size, ("num_tokens",))
    attention = _select(
        folder / "attention.csv",
        _ATTENTION_SHAPE,
        model,
        tensor_parallel_size,
        ("batch_size", "prefill_chunk_size", "kv_cache_size", _median("attn_prefill"), _median("attn_decode")),
    )
    tokens, calls = _tokens(dense, attention, model.num_layers)
    tables = {
        "tokens": tokens,
        "sequences": _lm_head(tokens, model, max_num_seqs),
        "attention": _attention(attention),
    }
    source = {"tool": "Vidur", "lm_head": "scaled from gate_up_proj by parameters", "sampler": "not measured"}
    if tensor_parallel_size > 1:
        path, tables["all_reduce"] = _all_reduce(folder, tensor_parallel_size)
        source["all_reduce"] = path.parent.name
    meta = ProfileMeta(
        device=folder.parent.parent.name,
        model=model.name,  # the files hold no names, but sizes, which `_select` has compared
        tensor_parallel_size=tensor_parallel_size,
        num_layers=model.num_layers,
        calls={**calls, "lm_head": 1},
        source=source,
    )
    return Profile(meta, tables)


def _median(operator: str) -> str:
    return f"time_stats.{operator}.median"


def _select(
    path: Path, shape: dict[str, str], model: Model, tensor_parallel_size: int, columns: tuple[str, ...]
) -> pd.DataFrame:
    """The rows of a file for this shape and these ranks."""
    table = read_table(path, (*shape, _RANKS, *columns))
    for column, attribute in {**shape, _RANKS: "tensor_parallel_size"}.items():
        check_numbers(path.name, table[column], attribute)
    for column, attribute in shape.items():
        wanted = model.sizes.get(attribute, 0)
        if wanted not in set(table[column]):
            there = ", ".join(map(str, sorted(set(table[column]))))
            raise ProfileError(f"{str(path)!r}: {column} {there}, but {model.name} has {attribute}={wanted}")
        table = table[table[column] == wanted]
    if tensor_parallel_size not in set(table[_RANKS]):
        there = ", ".join(map(str, sorted(set(table[_RANKS])))) or "none"
        raise ProfileError(f"{str(path)!r}: no rows for {tensor_parallel_size} ranks (measured: {there})")
    table = table[table[_RANKS] == tensor_parallel_size]
    for column in table.columns:
        if column in _SIZES:
            check_numbers(path.name, table[column], _SIZES[column])
        elif column.endswith(".median"):
            check_numbers(path.name, table[column], "time_us", unit=_MS, may_be_missing=True)
    return table


def _tokens(dense: pd.DataFrame, attention: pd.DataFrame, num_layers: int) -> tuple[pd.DataFrame, dict[str, int]]:
    """The table of operators by tokens, and how often a step calls each operator; unmeasured ones are left out.

    Raises:
        ProfileError: a projection was not measured.
    """
    parts, calls = [], {}
    for name, (operator, per_layer) in _OPERATORS.items():
        part = _median_by(dense, "num_tokens", _median(name), operator)
        if len(part):
            parts.append(part)
            calls[operator] = per_layer * num_layers or 1
        elif name in _REQUIRED:
            raise ProfileError(f"mlp.csv: no {_median(name)} above 0 for this model with this tensor_parallel_size")
    store = attention.assign(num_tokens=attention[["prefill_chunk_size", "batch_size"]].max(axis=1))
    part = _median_by(store, "num_tokens", _median("attn_kv_cache_save"), "kv_store")
    if len(part):
        parts.append(part)
        calls["kv_store"] = num_layers
    return pd.concat(parts, ignore_index=True), calls


def _median_by(table: pd.DataFrame, axis: str, column: str, operator: str) -> pd.DataFrame:
    """Times of an operator over `axis`; an empty table if its column is missing or empty."""
    times = (table.groupby(axis)[column].median() * _MS).dropna() if column in table else pd.Series(dtype=float)
    times = times[times > 0]
    return pd.DataFrame({"operator": operator, axis: times.index, "time_us": times.to_numpy()})


def _lm_head(tokens: pd.DataFrame, model: Model, max_num_seqs: int) -> pd.DataFrame:
    projection = tokens[tokens["operator"] == "gate_up_proj"].set_index("num_tokens")["time_us"]
    sizes = [size for size in projection.index if size <= max_num_seqs] or [projection.index[0]]
    gate_up = next(weights for _, weights in model.matrices() if weights.name == "gate_up_proj")
    ratio = model.vocab_size * model.hidden_size / (gate_up.rows * gate_up.columns)
    times = projection.loc[sizes] * ratio
    return pd.DataFrame({"operator": "lm_head", "num_sequences": sizes, "time_us": times.to_numpy()})


def _attention(table: pd.DataFrame) -> pd.DataFrame:
    """Prefills of one sequence, and decodes of equal contexts; Vidur's decode contexts exclude the new token."""
    is_decode = table["prefill_chunk_size"] == 0
    decode = pd.DataFrame(
        {
            "prefill_tokens": 0,
            "prefill_context": 0,
            "num_decodes": table["batch_size"],
            "decode_context": table["kv_cache_size"] + 1,
            "time_us": table[_median("attn_decode")] * _MS,
        }
    )[is_decode]
    prefill = pd.DataFrame(
        {
            "prefill_tokens": table["prefill_chunk_size"],
            "prefill_context": table["kv_cache_size"],
            "num_decodes": 0,
            "decode_context": 0,
            "time_us": table[_median("attn_prefill")] * _MS,
        }
    )[~is_decode]
    keys = ["prefill_tokens", "prefill_context", "num_decodes", "decode_context"]
    return pd.concat([decode, prefill]).dropna().groupby(keys)["time_us"].median().reset_index()


def _all_reduce(folder: Path, tensor_parallel_size: int) -> tuple[Path, pd.DataFrame]:
    """All-reduces within one node, from the first link of this device that was measured with as many ranks."""
    device = folder.parent.parent.name
    root = folder.parent.parent.parent.parent / "network"
    paths = sorted(root.glob(f"{device}_*/all_reduce.csv"))
    for path in paths:
        table = read_table(path, ("size", "num_workers", "devices_per_node", _median("all_reduce")))
        here = (table["num_workers"] == tensor_parallel_size) & (table["devices_per_node"] == tensor_parallel_size)
        if here.any():
            check_numbers(path.name, table[here]["size"], "num_bytes")
            check_numbers(path.name, table[here][_median("all_reduce")], "time_us", unit=_MS)
            times = table[here].groupby("size")[_median("all_reduce")].median() * _MS
            return path, pd.DataFrame({"num_bytes": times.index, "time_us": times.to_numpy()})
    names = ", ".join(path.parent.name for path in paths) or "none"
    raise ProfileError(
        f"{str(root)!r}: no all_reduce.csv of {device} for {tensor_parallel_size} ranks (there: {names})"
    )
