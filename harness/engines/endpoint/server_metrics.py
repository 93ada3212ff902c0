"""What a server tells of itself at /metrics, in Prometheus' text format, sampled while a run goes on.

Each quantity has the names of vLLM and of SGLang. Counts of several ranks or models are summed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from harness.results.tables import Floats, Ints
from harness.workload.rows.value_checks import MAX_EXACT

NAMES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "queries": (
        "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total",
    ),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retractions_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "used_tokens": ("sglang:num_used_tokens",),
}  # fmt: skip
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SIZE = re.compile(r"[0-9]{1,12}")
_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True)
class Reading:
    """The metrics at one time: values by quantity, of those that the server tells; the KV pool, where it tells it."""

    time_ns: int
    values: Mapping[str, float]
    num_blocks: int | None = None
    block_size: int | None = None


def parse(text: str, time_ns: int) -> Reading:
    """Reads the text of /metrics; lines that are none, or whose number no count or share can have, are left out."""
    found: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for name, labelled, number in _LINE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value <= MAX_EXACT:
            found.setdefault(name, []).append(value)
        if name == _CONFIG:
            labels = dict(_LABEL.findall(labelled))
    values = {}
    for quantity, names in NAMES.items():
        if name := next((name for name in names if name in found), None):
            values[quantity] = sum(found[name]) / (len(found[name]) if quantity == "usage" else 1)
    sizes = {key: int(labels[key]) for key in ("num_gpu_blocks", "block_size") if _SIZE.fullmatch(labels.get(key, ""))}
    return Reading(time_ns, values, sizes.get("num_gpu_blocks"), sizes.get("block_size"))


@dataclass
class Readings:
    """The readings of a run, in order."""

    all: list[Reading] = field(default_factory=list)

    def add(self, text: str, time_ns: int) -> None:
        reading = parse(text, time_ns)
        if reading.values:
            self.all.append(reading)

    @property
    def pool(self) -> tuple[int, int] | None:
        """Blocks of the KV pool and tokens of each, where the server tells; SGLang counts tokens."""
        for each in self.all:
            if each.num_blocks and each.block_size:
                return each.num_blocks, each.block_size
            used, usage = each.values.get("used_tokens"), each.values.get("usage")
            if used and usage:
                return round(used / usage), 1
        return None

    def change(self, quantity: str) -> float | None:
        """By how much a counter grew from the first reading to the last; None where the server does not tell it."""
        values = [each.values[quantity] for each in self.all if quantity in each.values]
        return values[-1] - values[0] if len(values) > 1 else None

    def steps(self, first_tokens_ns: Ints, columns: Callable[[int], pd.DataFrame]) -> pd.DataFrame:
        """A row for the time from each reading to the next: what ran and waited at its start, and what the counters
        counted in it.

        Args:
            first_tokens_ns: when first tokens came, which are no work of decodes.
            columns: makes an empty steps table of so many rows.
        """
        if len(self.all) < 2:
            return columns(0)
        times = np.array([each.time_ns for each in self.all])
        table = columns(len(times) - 1)
        table["start_time"], table["duration"] = times[:-1] * 1e-9, np.diff(times) * 1e-9
        num_blocks = self.pool[0] if self.pool else 0
        levels = {"num_running": "running", "num_waiting": "waiting"}
        for column, quantity in levels.items():
            table[column] = np.rint(self._values(quantity)[:-1]).astype(np.int64)
        table["num_used_blocks"] = np.rint(self._values("usage")[:-1] * num_blocks).astype(np.int64)
        first = np.histogram(first_tokens_ns, times)[0]
        table["num_decode_seqs"] = np.maximum(self._counted("output_tokens") - first, 0)
        hits = self._counted("hits")
        table["num_cached_tokens"] = hits
        table["num_first_admitted_tokens"] = self._counted("queries")
        table["num_prefill_tokens"] = np.maximum(self._counted("prompt_tokens") - hits, 0)
        table["num_preempted"] = self._counted("preemptions")
        return table

    def _values(self, quantity: str) -> Floats:
        return np.array([each.values.get(quantity, 0.0) for each in self.all])

    def _counted(self, quantity: str) -> Ints:
        return np.maximum(np.rint(np.diff(self._values(quantity))), 0).astype(np.int64)
