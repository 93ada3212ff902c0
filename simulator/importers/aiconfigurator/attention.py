"""One layer's attention: decodes by batch and context, prompt chunks by their length and what is cached before them.

The tables hold batches of equal contexts, and whole prompts without a cached prefix. A chunk of s tokens after p others
takes as long as a prompt of p + s tokens beyond one of p tokens, which has the same query-key pairs:
T(s after p) = T(p + s) - T(p), and at least T(s).

Attention of f times as many query and KV heads is the work of f times the batch, which prices head counts that were
not measured: T(f·heads, f·kv_heads, batch) = T(heads, kv_heads, f·batch).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.profile.profile import ProfileError

_STARTS = (0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_FACTORS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


class Attention:
    """Attention kernels of one database.

    Attributes:
        num_dropped: outliers among the points that were used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.num_dropped = 0

    def decodes(self, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, window: int) -> pd.DataFrame:
        """Columns num_decodes, decode_context, time_us of one layer; raises ProfileError if nothing was measured."""
        rows, factor = self._find("generation_attention_perf", heads, kv_heads, head_dim, kv_dtype, window)
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

    def chunks(self, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, window: int) -> pd.DataFrame:
        """Columns prefill_tokens, prefill_context, time_us of one layer; raises ProfileError if not measured."""
        rows, factor = self._find("context_attention_perf", heads, kv_heads, head_dim, kv_dtype, window)
        single = rows[rows["batch_size"] == factor]
        if single.empty:
            raise ProfileError(f"{self._database.system}: no attention of {heads} heads over one prompt")
        whole, dropped = measured_curve(single, "isl")
        self.num_dropped += dropped
        return pd.DataFrame(
            [(int(chunk), start, _after(whole, chunk, start, window)) for chunk in whole.sizes for start in _STARTS],
            columns=["prefill_tokens", "prefill_context", "time_us"],
        )

    def _find(
        self, table: str, heads: int, kv_heads: int, head_dim: int, kv_dtype: str, window: int
    ) -> tuple[pd.DataFrame, int]:
        """The rows of a head count that was measured, and the batch that stands for one sequence."""
        rows = self._database.rows("attention", table, head_dim=head_dim, kv_cache_dtype=kv_dtype, window_size=window)
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
        raise ProfileError(
            f"{self._database.system}/{self._database.version} has no {table} of {heads} heads, {kv_heads} KV heads, "
            f"head_dim={head_dim}, KV cache in {kv_dtype}" + (f", window={window}" if window else "")
        )


def _scaled_batches(table: pd.DataFrame, factor: int) -> pd.DataFrame:
    """`table` with the batches that stand for `num_decodes / factor` sequences, the smallest for one."""
    table = table[table["num_decodes"] % factor == 0]
    return table.assign(num_decodes=table["num_decodes"] // factor).reset_index(drop=True)


def _after(whole: MeasuredCurve, chunk: float, start: int, window: int) -> float:
    """Time of a chunk after `start` tokens, of which at most `window` are attended to (0: all)."""
    start = min(start, window) if window else start
    if not start:
        return float(whole.at(chunk))
    return max(float(_prompt(whole, start + chunk) - _prompt(whole, start)), float(whole.at(chunk)))


def _prompt(whole: MeasuredCurve, num_tokens: float) -> float:
    """Time of a whole prompt: beyond the last measured one it grows with the query-key pairs."""
    last = whole.sizes[-1]
    growth = (num_tokens * (num_tokens + 1)) / (last * (last + 1)) if num_tokens > last else 1.0
    return float(np.interp(min(num_tokens, last), whole.sizes, whole.times_us)) * growth
