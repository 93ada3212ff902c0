"""One layer's attention: decodes by batch and context, prompt chunks by their length and what is cached before them.

The tables hold batches of equal contexts, and whole prompts without a cached prefix. A chunk of s tokens after p others
takes as long as a prompt of p + s tokens beyond one of p tokens, which has the same query-key pairs:
T(s after p) = T(p + s) - T(p), and at least T(s).

Attention of f times as many query and KV heads is the work of f times the batch, which prices head counts that were
not measured: T(f·heads, f·kv_heads, batch) = T(heads, kv_heads, f·batch). Otherwise the next larger number of query
heads with the same KV heads stands in, such as 32 for the 28 of Qwen2.5-7B: decodes read the same KV, and prompts are
priced by at most a quarter too high.

Where some layers have a sliding window, times are the mean over the layers: the tables hold both kinds. Of what is
cached before a chunk, a layer with a window reads the window only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from engine.engine_config import KVDtype
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.profile.profile import ProfileError

STARTS = (0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MOST_PADDING = 1.25
_FACTORS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class AttentionShape(NamedTuple):
    """Attention of a model's layers on one rank.

    Attributes:
        kv_dtype: as the database calls it: bfloat16, fp8.
        window: tokens that some layers attend to.
        windowed_share: the share of the layers that do; the others attend to all tokens.
    """

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    window: int = 0
    windowed_share: float = 0.0


class Attention:
    """Attention kernels of one database.

    Attributes:
        num_dropped: outliers among the points that were used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.num_dropped = 0

    def decodes(self, shape: AttentionShape) -> pd.DataFrame:
        """Columns num_decodes, decode_context, time_us of a layer; raises ProfileError if it was not measured."""
        table = self.decodes_with(shape, 0)
        if not shape.windowed_share:
            return table
        windowed = self.decodes_with(shape, shape.window)
        parts = []
        for batch, rows in table.groupby("num_decodes"):
            inner = windowed[windowed["num_decodes"] == batch]
            if inner.empty:
                continue
            contexts = np.union1d(rows["decode_context"], inner["decode_context"])
            contexts = contexts[contexts <= rows["decode_context"].max()]
            times = [np.interp(contexts, each["decode_context"], each["time_us"]) for each in (rows, inner)]
            mean = (1 - shape.windowed_share) * times[0] + shape.windowed_share * times[1]
            parts.append(pd.DataFrame({"num_decodes": batch, "decode_context": contexts, "time_us": mean}))
        return pd.concat(parts, ignore_index=True)

    def chunks(self, shape: AttentionShape) -> pd.DataFrame:
        """Columns prefill_tokens, prefill_context, time_us of a layer; raises ProfileError if it was not measured."""
        whole = self.prompts_with(shape, 0)
        windowed = self.prompts_with(shape, shape.window) if shape.windowed_share else None
        rows = []
        for chunk in whole.sizes:
            for start in STARTS:
                time = after(whole, chunk, start, 0)
                if windowed is not None:
                    inner = after(windowed, chunk, start, shape.window)
                    time += shape.windowed_share * (inner - time)
                rows.append((int(chunk), start, time))
        return pd.DataFrame(rows, columns=["prefill_tokens", "prefill_context", "time_us"])

    def decodes_with(self, shape: AttentionShape, window: int) -> pd.DataFrame:
        """As `decodes`, of layers with this window only."""
        rows, factor = self._find("generation_attention_perf", shape, window)
        rows = rows.assign(context=rows["isl"] + rows["step"])
        parts = []
        for batch, group in rows.groupby("batch_size"):
            curve, dropped = measured_curve(group, "context")
            self.num_dropped += dropped
            thin = curve.thinned()
            columns = {"num_decodes": batch, "decode_context": thin.sizes, "time_us": thin.times_us}
            parts.append(pd.DataFrame(columns))
        table = pd.concat(parts, ignore_index=True)
        return _scaled_batches(table, factor) if factor > 1 else table

    def prompts_with(self, shape: AttentionShape, window: int) -> MeasuredCurve:
        """Time of one whole prompt over its length."""
        rows, factor = self._find("context_attention_perf", shape, window)
        single = rows[rows["batch_size"] == factor]
        if single.empty:
            raise ProfileError(f"{self._database.system}: no attention of {shape.heads} heads over one prompt")
        whole, dropped = measured_curve(single, "isl")
        self.num_dropped += dropped
        return whole

    def _find(self, table: str, shape: AttentionShape, window: int) -> tuple[pd.DataFrame, int]:
        """The rows of a head count that was measured, and the batch that stands for one sequence."""
        heads, kv_heads, head_dim, kv_dtype = shape.heads, shape.kv_heads, shape.head_dim, shape.kv_dtype
        rows = self._database.rows("attention", table, head_dim=head_dim, kv_cache_dtype=kv_dtype, window_size=window)
        if window and "window_size" not in rows.columns:  # an old table, without windows
            rows = rows.iloc[:0]
        # Old tables write 0 KV heads where each query head has its own.
        if len(rows):
            own = rows["num_key_value_heads"] == 0
            rows = rows.assign(num_key_value_heads=rows["num_key_value_heads"].where(~own, rows["num_heads"]))
            for factor in _FACTORS:
                if heads % factor == 0 and kv_heads % factor == 0:
                    wanted = (rows["num_heads"] == heads // factor) & (
                        rows["num_key_value_heads"] == kv_heads // factor
                    )
                    if wanted.any():
                        return rows[wanted], factor
            same = rows[rows["num_key_value_heads"] == kv_heads]
            more = same[(same["num_heads"] > heads) & (same["num_heads"] <= _MOST_PADDING * heads)]
            if len(more):
                return more[more["num_heads"] == more["num_heads"].min()], 1
        raise ProfileError(
            f"{self._database.system}/{self._database.version} has no {table} of {heads} heads, {kv_heads} KV heads, "
            f"head_dim={head_dim}, KV cache in {kv_dtype}" + (f", window={window}" if window else "")
        )


def stored_as(kv_dtype: KVDtype) -> str:
    """A KV dtype as the database calls it."""
    return "bfloat16" if kv_dtype == "auto" else kv_dtype


def _scaled_batches(table: pd.DataFrame, factor: int) -> pd.DataFrame:
    """`table` with the batches that stand for `num_decodes / factor` sequences, the smallest for one."""
    table = table[table["num_decodes"] % factor == 0]
    return table.assign(num_decodes=table["num_decodes"] // factor).reset_index(drop=True)


def after(whole: MeasuredCurve, chunk: float, start: int, window: int) -> float:
    """Time of a chunk after `start` tokens, of which at most `window` are attended to (0: all)."""
    start = min(start, window) if window else start
    if not start:
        return float(whole.at(chunk))
    before, after = (_prompt(whole, size, window) for size in (start, start + chunk))
    return max(after - before, float(whole.at(chunk)))


def _prompt(whole: MeasuredCurve, num_tokens: float, window: int) -> float:
    """Time of a whole prompt: beyond the last measured one it grows with the query-key pairs, in a window as tokens."""
    last = whole.sizes[-1]
    if num_tokens <= last or window:
        return float(whole.at(num_tokens))
    return float(whole.times_us[-1]) * (num_tokens * (num_tokens + 1)) / (last * (last + 1))
