"""Attention of models that have other kinds than grouped-query attention, or several kinds: the mean over the layers.

    kind                  table                    what was timed
    latent                mla_*_module_perf        the whole attention with its products, of DeepSeek-V3's sizes
    sparse latent         dsa_*_module_perf        the same with the indexer, of DeepSeek-V3.2's and GLM-5's
    gated delta net       gdn_perf                 the convolution and the state; products are GEMMs
    grouped query         as in `attention`

The tables of latent attention time a module of vLLM. Only that of B200 was taken again with the fused kernels that a
server compiles (aiconfigurator's pull request 1423, of July 2026): 4 decodes take 43 us in it, 98 before, and 93 on
B300 and 97 on GB200 as they stand. So B200's stands for the Blackwell systems of `_AS_B200`, whose GPUs have as many
multiprocessors and read memory about as fast. On other systems norms and rotary embeddings are in the table as
chains of small kernels, too, whose launches take as long on any GPU. So what B200's table lost is taken off there, by
tokens: the median over its sizes of 0.22.0, at aiconfigurator's commit 095f58a51c4c, less those of 0.24.0. Sparse
attention was not taken again on any, and is as it was timed. TensorRT-LLM's module has fused kernels everywhere: 4
decodes take 55 us on H200 and 37 on B200 in its tables.

Layers that take what the indexer of another layer found, and an output gate, are priced as layers with an indexer and
without a gate. Delta attention of Kimi and Mamba-2 were not timed for sizes that models of `conf/model` have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from engine.engine_config import KVDtype
from simulator.importers.aiconfigurator.attention import STARTS, Attention, AttentionShape, after
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import TRTLLM
from simulator.models.block import Block
from simulator.models.grouped_query import GroupedQuery
from simulator.models.latent import Latent
from simulator.models.linear_state import GatedDeltaNet
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

_PRODUCTS = {"none": "bfloat16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
_TIMED = {7168: "DeepseekV32ForCausalLM", 6144: "GlmMoeDsaForCausalLM"}  # by hidden size
_LONGEST = 131072
_FUSED = "b200_sxm"
_AS_B200 = ("b300_sxm", "gb200", "gb300")
# Tokens, and the time of norms and rotary embeddings that the module of B200 took longer before, in us.
_SMALL_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
_SMALL_US = (44.4, 51.2, 60.7, 65.0, 70.9, 83.0, 139.7, 443.8, 1605.0)


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


def mean_attention(
    database: Database, attention: Attention, model: Model, ranks: int, kv_dtype: KVDtype
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Decodes and chunks as `Attention` has them, of the mean layer; raises ProfileError if a kind was not measured."""
    stored = "bfloat16" if kv_dtype == "auto" else kv_dtype
    kinds = [
        _kind(database, attention, model, count, block, ranks, stored)
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
    database: Database, attention: Attention, model: Model, count: int, block: Block, ranks: int, stored: str
) -> _Kind:
    match block:
        case Latent():
            return _latent(database, model, count, block, ranks, stored)
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


def _latent(database: Database, model: Model, count: int, block: Latent, ranks: int, stored: str) -> _Kind:
    name = model.format_of("attention").name
    architecture = _TIMED.get(model.hidden_size) if block.index_topk else "DeepseekV3ForCausalLM"
    sizes = (block.kv_rank, block.rope_dim, block.query_rank)
    if name not in _PRODUCTS or architecture is None or sizes not in ((512, 64, 1536), (512, 64, 2048)):
        raise ProfileError(f"{database.system}/{database.version} has no latent attention in {name} of {model.name}")
    family, table = ("sparse_attention", "dsa") if block.index_topk else ("mla", "mla")
    where: dict[str, Any] = {
        "num_heads": block.num_heads // ranks, "kv_cache_dtype": stored, "gemm_type": _PRODUCTS[name],
        "architecture": architecture, "tp_size": 1,
    }  # fmt: skip
    if table == "mla" and database.system in _AS_B200:
        database.versions[family] = f"{database.version} of {_FUSED}"
        database = database.of_system(_FUSED)
    decodes = database.rows(family, f"{table}_generation_module_perf", **where)
    prompts = database.rows(family, f"{table}_context_module_perf", batch_size=1, step=0, **where)
    if decodes.empty or prompts.empty:
        raise ProfileError(f"{database.system}/{database.version} has no latent attention of {where}")
    if table == "mla" and database.system != _FUSED and database.backend != TRTLLM:
        decodes, prompts = _fused(decodes, "batch_size"), _fused(prompts, "isl")
    return _Kind(count, _by_batch(decodes, "batch_size", "step"), measured_curve(prompts, "isl")[0])


def _fused(rows: pd.DataFrame, tokens: str) -> pd.DataFrame:
    """`rows` without the launches of small kernels that a server fuses; half of a time stays in any case."""
    launches = np.interp(rows[tokens], _SMALL_TOKENS, _SMALL_US)
    return rows.assign(time_us=np.maximum(rows["time_us"] - launches, rows["time_us"] / 2))


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
