"""Small profiles in the formats of other tools."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import yaml

from tests.simulator.builders import attention, by_tokens


def write_bundle(folder: Path) -> None:
    """A bundle of LLMServingSim that says what `builders.profile` says."""
    ranks = folder / "tp1"
    ranks.mkdir(parents=True)
    dense = by_tokens(0.5).rename(columns={"operator": "layer", "num_tokens": "tokens"})
    dense.to_csv(ranks / "dense.csv", index=False)
    pd.DataFrame({"layer": "lm_head", "sequences": [1, 64, 256], "time_us": [20.0, 30.0, 70.0]}).to_csv(
        ranks / "per_sequence.csv", index=False
    )
    names = dict(prefill_tokens="prefill_chunk", prefill_context="kv_prefill", num_decodes="n_decode")
    attention().rename(columns=names | {"decode_context": "kv_decode"}).to_csv(ranks / "attention.csv", index=False)
    (folder / "meta.yaml").write_text(yaml.safe_dump({"gpu": "device", "model": "owner/Test"}))


def write_profiling(root: Path) -> Path:
    """Files of Vidur for `builders.MODEL` on 1 and 2 ranks; returns the folder of device and model."""
    folder = root / "compute" / "a100" / "owner" / "model"
    folder.mkdir(parents=True)
    sizes = {"n_embd": 64, "n_kv_head": 2, "num_tensor_parallel_workers": 1}
    dense = pd.DataFrame({"num_tokens": [1, 64, 512]}).assign(**sizes, n_head=4, n_expanded_embd=128)
    operators = ("emb", "attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "add")
    for i, operator in enumerate(operators, start=1):
        dense[f"time_stats.{operator}.median"] = i * 1e-3 * (1 + dense["num_tokens"] / 64)
    pd.concat([dense, dense.assign(num_tensor_parallel_workers=2)]).to_csv(folder / "mlp.csv", index=False)
    rows = [(0, n, c) for n in (1, 8) for c in (15, 255)] + [(s, 1, p) for s in (64, 128) for p in (0, 64)]
    table = pd.DataFrame(rows, columns=["prefill_chunk_size", "batch_size", "kv_cache_size"]).assign(
        **sizes, n_q_head=4
    )
    table["time_stats.attn_decode.median"] = 1e-5 * table["batch_size"] * (table["kv_cache_size"] + 1)
    table["time_stats.attn_prefill.median"] = 1e-4 * table["prefill_chunk_size"]
    table["time_stats.attn_kv_cache_save.median"] = 5e-3
    pd.concat([table, table.assign(num_tensor_parallel_workers=2)]).to_csv(folder / "attention.csv", index=False)
    link = root / "network" / "a100_dgx"
    link.mkdir(parents=True)
    pd.DataFrame(
        {"size": [2048, 4096], "num_workers": 2, "devices_per_node": 2, "time_stats.all_reduce.median": [0.02, 0.03]}
    ).to_csv(link / "all_reduce.csv", index=False)
    return folder


def write_gains(bundle: Path, gains: dict[int, float]) -> None:
    """A skew file by which uneven contexts have these gains, by the batch: half of the contexts 100 longer than the
    mean, half shorter."""
    rows = [(n, n // 2, 0, 0, 100, 300, 200, 10.0, 20.0, 10.0 + 10.0 * gain) for n, gain in gains.items()]
    names = ["n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"]
    pd.DataFrame(rows, columns=names).to_csv(bundle / "tp1" / "skew.csv", index=False)
