"""Latent attention, whole and sparse: modules of vLLM that the database timed with all their products.

    kind             table                what was timed
    latent           mla_*_module_perf    the whole attention with its products, of DeepSeek-V3's sizes
    sparse latent    dsa_*_module_perf    the same with the indexer, of DeepSeek-V3.2's and GLM-5's

**Prompts** of sparse attention. The module launches its kernels one by one: a lone token takes 1.5 ms on any GPU, and
so do 2,048, for which the GPU needs 1.2. Prompts that share a step share these launches. So a prompt takes its share of
a batch that fills a step, `_STEP` tokens or more, and the launches are a least time of a step without a CUDA graph
(`launches_us`).

**Small kernels.** Only B200's table of latent attention was taken again with the fused kernels that a server compiles
(aiconfigurator's pull request 1423, of July 2026): 4 decodes take 43 us in it, 98 before, and 93 on B300 and 97 on
GB200 as they stand. So B200's stands for the Blackwell systems of `_AS_B200`, whose GPUs have as many multiprocessors
and read memory about as fast. On other systems norms and rotary embeddings are in the table as chains of small kernels,
too, whose launches take as long on any GPU. So what B200's table lost is taken off there, by tokens: the median over
its sizes of 0.22.0, at aiconfigurator's commit 095f58a51c4c, less those of 0.24.0. Sparse attention was not taken again
on any, and is as it was timed. TensorRT-LLM's module has fused kernels everywhere: 4 decodes take 55 us on H200 and 37
on B200 in its tables.

**The whole top-k.** The tables' vLLM 0.24 tells FlashMLA's kernel over a 16-bit cache how many of the `index_topk`
tokens of a query exist (`topk_length` of its flashmla_sparse.py). Versions before compute all of them, so that a query
at the start of a prompt takes as long as one with `index_topk` tokens before it. What a token takes there and the
indexer's share, which grows with the context, are a parabola through the table's prompts of twice `index_topk` and
more, which meets them within 2 %. The kernel over an 8-bit cache computes all of them in any version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import TRTLLM
from simulator.models.latent import Latent
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

_PRODUCTS = {"none": "bfloat16", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
_TIMED = {7168: "DeepseekV32ForCausalLM", 6144: "GlmMoeDsaForCausalLM"}  # by hidden size
_STEP, _FEW = 8192, 64
_FUSED = "b200_sxm"
_AS_B200 = ("b300_sxm", "gb200", "gb300")
# Tokens, and the time of norms and rotary embeddings that the module of B200 took longer before, in us.
_SMALL_TOKENS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
_SMALL_US = (44.4, 51.2, 60.7, 65.0, 70.9, 83.0, 139.7, 443.8, 1605.0)


def latent_module(
    database: Database, model: Model, block: Latent, ranks: int, stored: str, *, of_whole_topk: bool = False
) -> tuple[dict[int, MeasuredCurve], MeasuredCurve]:
    """Times in us of a layer: decodes by batch over the context, and a prompt's over its length; in a full step, if
    attention is sparse.

    Args:
        stored: the KV cache as the database calls it: bfloat16, fp8.
        of_whole_topk: FlashMLA's kernel computes `index_topk` tokens for each query, however many there are.

    Raises:
        ProfileError: the database lacks it.
    """
    decodes, prompts = _rows(database, model, block, ranks, stored)
    by_batch = {
        size: measured_curve(decodes[decodes["batch_size"] == size], "step")[0].thinned()
        for size in decodes["batch_size"].unique().tolist()
    }
    if not block.index_topk:
        return by_batch, measured_curve(prompts[prompts["batch_size"] == 1], "isl")[0]
    of_prompt = _share_of_step(prompts)
    if not of_whole_topk or stored != "bfloat16":
        return by_batch, of_prompt
    return {size: _from(curve, block.index_topk) for size, curve in by_batch.items()}, _whole(
        of_prompt, block.index_topk
    )


def launches_us(database: Database, model: Model, ranks: int, stored: str) -> float:
    """What launching the kernels of the mean layer's sparse attention takes: the least time of up to `_FEW` tokens."""
    of_layers = [
        count * float(prompts.loc[prompts["isl"] * prompts["batch_size"] <= _FEW, "time_us"].min())
        for count, block in model.of_kind(Latent)
        if block.index_topk
        for _, prompts in [_rows(database, model, block, ranks, stored)]
    ]
    return sum(of_layers) / model.num_layers


def _rows(
    database: Database, model: Model, block: Latent, ranks: int, stored: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of decodes and of prompts; raises ProfileError where there are none."""
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
    prompts = database.rows(family, f"{table}_context_module_perf", step=0, **where)
    if decodes.empty or prompts.empty:
        raise ProfileError(f"{database.system}/{database.version} has no latent attention of {where}")
    if table == "mla" and database.system != _FUSED and database.backend != TRTLLM:
        decodes = _fused(decodes, decodes["batch_size"])
        prompts = _fused(prompts, prompts["batch_size"] * prompts["isl"])
    return decodes, prompts


def _fused(rows: pd.DataFrame, tokens: pd.Series) -> pd.DataFrame:
    """`rows` without the launches of small kernels that a server fuses; half of a time stays in any case."""
    launches = np.interp(tokens, _SMALL_TOKENS, _SMALL_US)
    return rows.assign(time_us=np.maximum(rows["time_us"] - launches, rows["time_us"] / 2))


def _share_of_step(prompts: pd.DataFrame) -> MeasuredCurve:
    """The time of a prompt over its length, as its share of the smallest batch that fills a step."""
    tokens = prompts["batch_size"] * prompts["isl"]
    full = prompts.assign(tokens=tokens)[tokens >= _STEP].sort_values("tokens").drop_duplicates("isl")
    curve, _ = measured_curve(full.assign(time_us=full["time_us"] / full["batch_size"]), "isl")
    first = curve.sizes[0]
    if first == 1:
        return curve
    return MeasuredCurve(np.append(1.0, curve.sizes), np.append(curve.times_us[0] / first, curve.times_us))


def _from(curve: MeasuredCurve, context: float) -> MeasuredCurve:
    """`curve` with the time of `context` for all below it."""
    sizes = np.union1d(curve.sizes, [context])
    return MeasuredCurve(sizes, curve.at(np.maximum(sizes, context)))


def _whole(prompts: MeasuredCurve, topk: int) -> MeasuredCurve:
    """`prompts` with as much work for each of their first `topk` tokens as for those after them."""
    sizes, times = prompts
    late = sizes >= 2 * topk
    growth, of_token, _ = np.polyfit(sizes[late], times[late], 2, w=1 / times[late])
    early = np.minimum(sizes, topk)
    return prompts._replace(times_us=times + of_token * early + growth * early**2 - prompts.at(early))
