"""The attention table of a model: with other kinds than grouped-query attention, or several, the mean over layers.

    kind                  table                    what was timed
    latent                `latent_attention`
    gated delta net       gdn_perf                 the convolution and the state; products are GEMMs
    grouped query         as in `attention`

Layers that take what the indexer of another layer found, and an output gate, are priced as layers with an indexer and
without a gate. Delta attention of Kimi and Mamba-2 were not timed for sizes that models of `conf/model` have.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from engine.engine_config import KVDtype
from simulator.importers.aiconfigurator.attention import STARTS, Attention, AttentionShape, after, stored_as
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.latent_attention import latent_module
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.models.block import Block
from simulator.models.grouped_query import GroupedQuery
from simulator.models.latent import Latent
from simulator.models.linear_state import GatedDeltaNet
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

_LONGEST = 131072


class _Kind(NamedTuple):
    """Times of a layer: decodes by batch over the context, and whole prompts over their length."""

    number: int
    decodes: dict[int, MeasuredCurve]
    prompts: MeasuredCurve
    window: int = 0


def is_plain(model: Model) -> bool:
    """Whether all attention is grouped-query attention of one size, with or without windows."""
    attentions = [block for _, block in model.blocks if block.is_attention]
    sizes = {(each.num_heads, each.num_kv_heads, each.kv_dim) for each in attentions if isinstance(each, GroupedQuery)}
    return len(sizes) == 1 and all(isinstance(each, GroupedQuery) for each in attentions)


def attention_table(
    database: Database, attention: Attention, model: Model, ranks: int, *, of_whole_topk: bool
) -> tuple[pd.DataFrame, KVDtype]:
    """One layer's attention, the mean over layers where some have a sliding window, and the KV dtype that it was
    measured with: the first of `priced_kv_dtypes` that the database has."""
    *preferred, last = model.priced_kv_dtypes
    for kv_dtype in preferred:
        with suppress(ProfileError):
            return _attention_with(database, attention, model, ranks, kv_dtype, of_whole_topk), kv_dtype
    return _attention_with(database, attention, model, ranks, last, of_whole_topk), last


def _attention_with(
    database: Database, attention: Attention, model: Model, ranks: int, kv_dtype: KVDtype, of_whole_topk: bool
) -> pd.DataFrame:
    block = model.first(GroupedQuery)
    if block is None or not is_plain(model):
        decodes, chunks = mean_attention(database, attention, model, ranks, kv_dtype, of_whole_topk=of_whole_topk)
    else:
        stored, sizes = stored_as(kv_dtype), model.sizes
        heads, windows = (
            block.num_heads // ranks,
            (sizes["sliding_window"], sizes["num_sliding_layers"] / model.num_layers),
        )
        shape = AttentionShape(heads, block.kv_heads_per_rank(ranks), block.head_dim, stored, *windows)
        decodes, chunks = attention.decodes(shape), attention.chunks(shape)
    return pd.concat(
        [
            decodes.assign(prefill_tokens=0, prefill_context=0),
            chunks.assign(num_decodes=0, decode_context=0),
        ],
        ignore_index=True,
    )


def mean_attention(
    database: Database,
    attention: Attention,
    model: Model,
    ranks: int,
    kv_dtype: KVDtype,
    *,
    of_whole_topk: bool = False,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Decodes and chunks as `Attention` has them, of the mean layer; raises ProfileError if a kind was not measured.

    Args:
        of_whole_topk: as of `latent_module`.
    """
    stored = stored_as(kv_dtype)
    kinds = [
        _kind(database, attention, model, count, block, ranks, stored, of_whole_topk)
        for count, block in model.blocks
        if block.is_attention
    ]
    batches = sorted(set.intersection(*(set(kind.decodes) for kind in kinds)))
    decodes = [
        (batch, context, sum(kind.number * kind.decodes[batch].at(context) for kind in kinds) / model.num_layers)
        for batch in batches
        for context in np.unique(np.concatenate([kind.decodes[batch].sizes for kind in kinds]))
    ]
    sizes = np.unique(np.concatenate([kind.prompts.sizes for kind in kinds]))
    chunks = [
        (int(size), start, sum(k.number * after(k.prompts, size, start, k.window) for k in kinds) / model.num_layers)
        for size in sizes[sizes <= min(kind.prompts.sizes[-1] for kind in kinds)]
        for start in STARTS
    ]
    return (
        pd.DataFrame(decodes, columns=["num_decodes", "decode_context", "time_us"]),
        pd.DataFrame(chunks, columns=["prefill_tokens", "prefill_context", "time_us"]),
    )


def _kind(
    database: Database,
    attention: Attention,
    model: Model,
    count: int,
    block: Block,
    ranks: int,
    stored: str,
    of_whole_topk: bool,
) -> _Kind:
    match block:
        case Latent():
            return _Kind(count, *latent_module(database, model, block, ranks, stored, of_whole_topk=of_whole_topk))
        case GatedDeltaNet():
            return _gated_delta_net(database, model, count, block, ranks)
        case GroupedQuery():
            shape = AttentionShape(block.num_heads // ranks, block.kv_heads_per_rank(ranks), block.head_dim, stored)
            return _Kind(
                count,
                _by_batch(attention.decodes_with(shape, block.window), "num_decodes", "decode_context"),
                attention.prompts_with(shape, block.window),
                block.window,
            )
    raise ProfileError(f"the database has no times of {type(block).__name__}")


def _gated_delta_net(database: Database, model: Model, count: int, block: GatedDeltaNet, ranks: int) -> _Kind:
    where: dict[str, Any] = {
        "num_k_heads": max(1, block.num_key_heads // ranks), "num_v_heads": block.num_heads // ranks,
        "head_k_dim": block.key_dim, "head_v_dim": block.value_dim,
    }  # fmt: skip
    rows = database.rows("linear_attention", "gdn_perf", **where)
    if rows.empty:
        raise ProfileError(f"{database.system}/{database.version} has no gated delta net of {where}")
    # The width of the model does not matter to these kernels: of several that were timed, the median.
    kernels = rows.groupby(["phase", "kernel_source", "batch_size", "seq_len"])["time_us"].median()
    both = kernels.groupby(["phase", "batch_size", "seq_len"]).sum().reset_index()
    decodes, prompts = (both[both["phase"] == phase] for phase in ("generation", "context"))
    prompts = prompts[prompts["batch_size"] == 1]
    if decodes.empty or prompts.empty:
        raise ProfileError(f"{database.system}/{database.version} has no gated delta net of {where} alone")
    ends = np.array([1.0, _LONGEST])
    times = {int(batch): float(time) for batch, time in zip(decodes["batch_size"], decodes["time_us"], strict=True)}
    curves = {batch: MeasuredCurve(ends, np.array([time, time])) for batch, time in times.items()}
    # A chunk continues from the state that its start has left: it takes as long wherever it starts.
    return _Kind(count, curves, measured_curve(prompts, "seq_len")[0], window=1)


def _by_batch(rows: pd.DataFrame, batch: str, context: str) -> dict[int, MeasuredCurve]:
    return {
        size: measured_curve(rows[rows[batch] == size], context)[0].thinned() for size in rows[batch].unique().tolist()
    }
