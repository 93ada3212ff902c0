"""The tables of a run, the same for every engine.

Columns of the requests table (times in s since the start of the replay, NaN where a thing never happened):

    request_id, and those of session_id, turn, priority, tenant and deadline (s after the arrival) that the trace has
    server                                   which one it was sent to, from 0; -1 if it never arrived
    status, error                            finished, rejected, aborted or unfinished; why it was rejected
    arrival_time, replay_lag                 when it was meant to come; how much later it was issued, on a real clock
    first_scheduled_time, first_token_time, finish_time
    num_sequences                            samples of the prompt
    num_prompt_tokens, num_requested_tokens, num_output_tokens      prompt; asked for; really generated (all sequences)
    num_cached_tokens                        prompt tokens found in the prefix cache at the first admission
    num_host_cached_tokens, num_disk_cached_tokens      of these, from host memory and from the disk
    num_store_cached_tokens                  and from a store that servers share; only where they do
    prefill_server, prefill_end_time         which one computed its prompt, -1: `server`, and until when; only where
                                             prompts have servers of their own
    parked_time                              s that it was admitted and waited for KV from elsewhere, in sum
    num_recomputed_tokens, num_preemptions
    num_swaps, num_partial_preemptions       preemptions that moved its KV to the host, or left it some blocks
    ttft, tpot, e2el, queue_time             s

and of the steps table:

    step, server, lane, start_time, duration    s; which server ran it, for which lane of its pipeline
    num_prefill_seqs, num_decode_seqs, num_prefill_tokens
    num_context_tokens                       sum of the contexts of the decodes, and of those that are padding
    num_padding_tokens                       computed for nobody: one for each ended sequence of a padded static batch,
                                             what brings each prompt of such a step to the length of the longest, or an
                                             admission to a decode with drafts, and decodes whose end was not foreseen
    num_drafted_tokens, num_accepted_tokens  speculative drafts that decodes verified, and those of them accepted
    num_running, num_waiting, num_used_blocks, num_preempted
    num_saved_blocks                         how many more blocks would be in use if none was in several block tables
    num_first_admitted_tokens, num_cached_tokens    prompt tokens of first admissions; of these, found in the cache
    num_kv_tokens                            slots of the used blocks that hold a token; a shared one counts once
    num_reserved_slots                       slots of the used blocks kept for tokens to come: under paging, of prompt
                                             tokens not computed yet; of a contiguous reservation, up to its
                                             sequence's end. The other slots of used blocks are internal waste:
                                             num_used_blocks * block_size - num_kv_tokens - num_reserved_slots
    num_external_slots                       slots of free blocks while no hole is large enough for the next request
    num_blocks_out, num_blocks_in            KV blocks copied from the device to the host, and to the device
    num_blocks_to_disk, num_blocks_from_disk    KV blocks copied from the host to the disk, and from there to the device
    transfer_time                            s that the step waited for such copies; part of its duration
    schedule_time, prepare_time, execute_time, sample_time          s; NaN in a simulation

Of a server that was driven from outside (engine=openai) the steps are not known. A row is the time between two readings
of its metrics, what it does not tell is 0, and columns of requests that clients do not see are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from simulator.table import Table, frame_of

if TYPE_CHECKING:
    import pandas as pd

# Columns of the steps table that say what the scheduler decided; older results have them too.
DECISIONS = (
    "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens", "num_running", "num_waiting",
    "num_used_blocks", "num_preempted", "num_first_admitted_tokens", "num_cached_tokens",
)  # fmt: skip

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = Union[Table, "pd.DataFrame"]
"""What functions take that read columns, by the words that both kinds of tables know."""


def percentiles_of(values: Floats, percentiles: Sequence[float]) -> Floats:
    """What `np.percentile` gives of at least one value, bit for bit, without the masked arrays that it imports, which
    take as long as half of a short run's tables."""
    ordered = np.sort(values)
    return interpolated(len(values), percentiles, lambda places: ordered[places.astype(np.int64)])


def interpolated(count: int, percentiles: Sequence[float], at: Callable[[Floats], Floats]) -> Floats:
    """Percentiles of `count` values of which `at` tells those at some places of their order, from 0."""
    position = (count - 1) * (np.asarray(percentiles, dtype=np.float64) / 100)
    below = np.floor(position)
    low, high = at(below), at(np.minimum(below + 1, count - 1))
    # numpy interpolates from the nearer end, to stay monotonic under rounding
    part = position - below
    return np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))


@dataclass(frozen=True, eq=False)
class Gaps:
    """Every gap between consecutive tokens of the same request, pooled over all requests of a run. Tokens that come
    with one step, as accepted drafts do, count as one, as `vllm bench serve` counts the chunks of a stream.

    values: float64[n], seconds, in any order. weights: int64[n], how many gaps have that value.
    """

    values: Floats
    weights: Ints

    def __post_init__(self) -> None:
        assert self.values.shape == self.weights.shape and self.values.ndim == 1, "one weight per value"

    @property
    def count(self) -> int:
        """Number of gaps."""
        return int(self.weights.sum())

    def mean(self) -> float:
        """Seconds; NaN without gaps."""
        return float((self.values * self.weights).sum() / self.count) if self.count else math.nan

    def std(self) -> float:
        """Population standard deviation in seconds; NaN without gaps."""
        if not self.count:
            return math.nan
        return math.sqrt(float(((self.values - self.mean()) ** 2 * self.weights).sum()) / self.count)

    def percentiles(self, percentiles: Sequence[float]) -> Floats:
        """What `np.percentile(np.repeat(values, weights), percentiles)` gives, bit for bit, without expanding.

        Returns float64[len(percentiles)] in seconds, NaN without gaps.
        """
        if not self.count:
            return np.full(len(percentiles), math.nan)
        order = np.argsort(self.values)
        ends = np.cumsum(self.weights[order])
        return interpolated(
            self.count, percentiles, lambda places: self.values[order[np.searchsorted(ends, places, side="right")]]
        )


@dataclass(frozen=True, eq=False)
class RunResult:
    """What one run leaves behind, whichever engine made it.

    request_rows: one row per request; times and latencies in s, NaN where a thing never happened; status is
    finished, rejected, aborted or unfinished. step_rows: one row per engine step of each server, in time order,
    times in s; empty of an engine that tells nothing of its steps. `requests` and `steps` are the same as
    DataFrames. num_blocks: size of the KV block pool of a server, None where it is not known. complete: False for a
    run that ended early. meta: settings, versions, hardware, notes; `ended_early` says why the run ended before all
    was served, None for a complete one. spans: what each sequence did when, as `harness.record.span_log` has it;
    only of a run with perfetto=true, and not stored with the tables. itls: the gaps between the tokens of each
    request, in s, of a run against a server.
    """

    request_rows: Rows
    step_rows: Rows
    gaps: Gaps
    num_blocks: int | None
    block_size: int
    complete: bool
    meta: dict[str, Any]
    spans: pd.DataFrame | None = None
    itls: Sequence[Sequence[float]] | None = None

    @cached_property
    def requests(self) -> pd.DataFrame:
        return frame_of(self.request_rows)

    @cached_property
    def steps(self) -> pd.DataFrame:
        return frame_of(self.step_rows)

    @property
    def num_servers(self) -> int:
        return int(self.meta.get("num_servers") or 1)

    @property
    def are_steps_sampled(self) -> bool:
        """Whether a row of `steps` is the time between two readings of a server's metrics, and no step."""
        return bool(self.meta.get("sampled_steps"))

    @property
    def num_lanes(self) -> int:
        """Plans that a server has under way at a time: one for each stage of a pipeline."""
        return int(self.meta.get("pipeline_parallel_size") or 1)

    @property
    def num_tracks(self) -> int:
        """Lanes of all servers."""
        return self.num_servers * self.num_lanes

    @property
    def pool_blocks(self) -> float:
        """KV blocks of a server, NaN where they are not known."""
        return math.nan if self.num_blocks is None else self.num_blocks

    @property
    def pools(self) -> list[dict[str, Any]]:
        """Of a fleet of several pools what each is, with its `servers` and their `num_blocks`; nothing where all
        servers are alike."""
        return list(self.meta.get("pools") or ())

    @property
    def fleet_blocks(self) -> float:
        """KV blocks of all servers, NaN where they are not known."""
        if self.pools:
            return float(sum(pool["num_blocks"] * len(pool["servers"]) for pool in self.pools))
        return self.pool_blocks * self.num_servers

    def of_servers(self, servers: Sequence[int]) -> RunResult:
        """The steps of some of the servers, which are alike, as if there were no others. The requests are all."""
        pool = next((pool for pool in self.pools if servers[0] in pool["servers"]), None)
        meta = {**self.meta, "num_servers": len(servers), "pools": None, "only_servers": list(servers)}
        if pool is not None:
            meta["pipeline_parallel_size"] = pool["pipeline_parallel_size"]
            meta["config"] = {**self.meta.get("config", {}), "max_num_seqs": pool["max_num_seqs"]}
        steps = self.step_rows.iloc[np.flatnonzero(np.isin(self.step_rows["server"].to_numpy(), servers))]
        return replace(
            self, step_rows=steps, num_blocks=self.num_blocks if pool is None else pool["num_blocks"], meta=meta
        )


def slot_uses(result: RunResult) -> dict[str, Ints] | None:
    """What the KV slots are used for in each step, after Kwon et al. 2023, section 3: with `tokens`, `reserved` for
    tokens to come, never filled by their holders (`internal`), free and of no use to the next request (`external`).

    int64[num_steps] each; None for results of an earlier version, which did not record it.
    """
    steps = result.step_rows
    if "num_kv_tokens" not in steps:
        return None
    names = {"tokens": "num_kv_tokens", "reserved": "num_reserved_slots", "external": "num_external_slots"}
    uses = {use: steps[column].to_numpy(dtype=np.int64) for use, column in names.items()}
    held = steps["num_used_blocks"].to_numpy(dtype=np.int64) * result.block_size
    return {**uses, "internal": held - uses["tokens"] - uses["reserved"]}
