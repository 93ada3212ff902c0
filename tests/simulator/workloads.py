"""Random workloads for tests of the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.kv.eviction import Eviction
from engine.core.kv.reserved.reservation import Contiguous
from engine.core.policies import POLICIES
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Sequence
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import Arrivals
from tests.policies import ON_ANY_POOL


@dataclass(frozen=True)
class Case:
    """A workload of 25 requests and the replicas that serve it; what is not said is drawn from `seed`.

    Attributes:
        extra_blocks: how many blocks the pool has beyond those of the longest request.
        num_drafts: of speculative decoding; None for decodes that grow by one token per step.
    """

    options: SchedulerOptions
    block_size: int
    extra_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    arrivals: str
    contents: str
    max_lookahead_steps: int
    seed: int
    num_replicas: int = 1
    num_host_blocks: int = 0
    offload: OffloadOptions | None = None
    num_drafts: int | None = None
    contiguous: Contiguous | None = None

    def make_scheduler(self, trace: Trace) -> Scheduler:
        longest = int((trace.table["num_prompt_tokens"] + trace.table["num_output_tokens"]).max())
        most = self.max_num_seqs * (1 + (self.num_drafts or 0))
        return make_scheduler(
            self.options,
            num_blocks=-(-longest // self.block_size) + self.extra_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max(self.max_num_batched_tokens, most),
            num_host_blocks=self.num_host_blocks,
            offload=self.offload,
            transfer_block_us=4.0 * self.block_size,
            make_decodes=self._make_decodes,
            contiguous=self.contiguous,
        )

    def _make_decodes(self, block_size: int, longest: int) -> Decodes:
        if self.num_drafts is None:
            return UniformDecodes(block_size)
        ahead = self.options.async_scheduling
        return RaggedDecodes(block_size, longest, self.num_drafts, self._trajectory, plans_ahead=ahead)

    def _trajectory(self, sequence: Sequence) -> NDArray[np.int64]:
        assert self.num_drafts is not None
        rng = np.random.default_rng((self.seed, sequence.request_id, sequence.num_tokens))
        gains = rng.integers(1, 2 + self.num_drafts, sequence.end_length - sequence.num_tokens)
        return np.concatenate([[0], np.cumsum(gains)])


def legal_options(policy: str, victim: Any, **others: Any) -> SchedulerOptions:
    """Without the victim rule where the policy preempts by its own order."""
    victim = "spare_last" if POLICIES[policy].chooses_victims else victim
    return SchedulerOptions(policy=policy, victim=victim, **others)


OPTIONS = st.builds(
    legal_options,
    policy=st.sampled_from(ON_ANY_POOL),
    watermark=st.just(0.02),
    allocation=st.sampled_from(["prompt", "chunk"]),
    eviction=st.sampled_from([rule for rule in get_args(Eviction) if rule not in ("radix", "stored")]),
    victim=st.sampled_from(["spare_last", "last"]),
    full_hit=st.sampled_from(["copy", "recompute_block"]),
    async_scheduling=st.booleans(),
    preemption=st.sampled_from(["recompute", "partial"]),
)


def cases(**fixed: Any) -> st.SearchStrategy[Case]:
    """Cases whose fields are drawn, but those that are given, each as a value or a strategy."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "options": OPTIONS,
        "block_size": st.sampled_from([1, 4, 16]),
        "extra_blocks": st.sampled_from([1, 5, 1000]),
        "max_num_seqs": st.sampled_from([1, 3, 16]),
        "max_num_batched_tokens": st.sampled_from([16, 64, 500]),
        "arrivals": st.sampled_from(["open", "burst", "closed", "sessions"]),
        "contents": st.sampled_from(["none", "hash_ids", "sessions"]),
        "max_lookahead_steps": st.sampled_from([1, 1, 2, 7]),
        "seed": st.integers(0, 10**6),
    }
    given = {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fixed.items()}
    return st.builds(Case, **drawn | given)


def simple_trace(prompts: list[int], outputs: list[int], **columns: object) -> Trace:
    return Trace("t", trace_table({"num_prompt_tokens": prompts, "num_output_tokens": outputs, **columns}), "made")


def make_trace(case: Case) -> Trace:
    rng = np.random.default_rng(case.seed)
    n = 25
    columns: dict[str, object] = {
        "num_prompt_tokens": rng.integers(1, 80, n),
        "num_output_tokens": rng.integers(1, 60, n),
    }
    classes = np.random.default_rng((case.seed, n))
    columns |= {"priority": classes.integers(0, 3, n), "tenant": classes.integers(0, 3, n)}
    columns["deadline"] = classes.integers(0, 10**6, n) * 1e-7
    if case.contents == "hash_ids" and case.arrivals != "sessions":
        counts = -(-np.asarray(columns["num_prompt_tokens"]) // 8)
        columns["hash_ids"] = [100 * rng.integers(0, 2) + np.arange(count) for count in counts]
    if case.contents == "sessions" or case.arrivals == "sessions":
        columns["session_id"] = np.repeat(np.arange(5), 5)
        new = rng.integers(1, 20, (5, 5))
        outputs = rng.integers(1, 20, (5, 5))
        spoken = np.cumsum(new + outputs, axis=1) - outputs
        columns |= {"num_prompt_tokens": spoken.ravel(), "num_output_tokens": outputs.ravel()}
    return Trace("t", trace_table(columns), "made", 8 if "hash_ids" in columns else None)


def make_arrivals(case: Case, trace: Trace) -> Arrivals:
    rng = np.random.default_rng(case.seed)
    n = len(trace.table)
    if case.arrivals == "closed":
        return ClosedLoop(n, 4)
    if case.arrivals == "sessions":
        think = rng.integers(0, 5_000_000, n) * rng.integers(0, 2, n)  # half of the turns come at once
        return Sessions(trace.table["session_id"].to_numpy(), np.sort(rng.integers(0, 10**8, 5)), think)
    # Whole multiples of 10 us: some arrivals hit the end of a step exactly or come together.
    spread = 100 if case.arrivals == "burst" else 20_000
    return OpenLoop(np.sort(rng.integers(0, spread, n)) * 10_000)
