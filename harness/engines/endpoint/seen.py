"""The tables of a run against a server: what its clients saw, and what the server told of itself meanwhile.

What neither says is empty: a request's first step, its preemptions, its blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from engine.core.sequence import Request
from harness.engines.endpoint.answers import Answer
from harness.engines.endpoint.server_metrics import Readings
from harness.record.record import Record, RecordedRun
from harness.record.recorded import Recorded
from harness.record.recorder import STATUSES, Recorder
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET
from harness.record.step_columns import step_columns
from harness.results.tables import Gaps
from harness.workload.trace import Trace
from simulator.table import Table, table_of

_UNSEEN = (
    "num_recomputed_tokens", "num_preemptions", "num_swaps", "num_partial_preemptions", "num_host_cached_tokens",
    "num_disk_cached_tokens", "parked_time",
)  # fmt: skip
_EMPTY = Recorder().recorded()


class ClientRecorder:
    """What a client sees of a server: answers in place of steps."""

    def __init__(self) -> None:
        self.readings = Readings()
        self.under_way: dict[int, Answer] = {}
        self.answers: list[Answer] = []
        self.now_ns = 0

    @property
    def num_done(self) -> int:
        return len(self.answers)

    def on_sent(self, answer: Answer) -> None:
        self.under_way[answer.row] = answer

    def on_end(self, answer: Answer, now_ns: int) -> None:
        del self.under_way[answer.row]
        self.answers.append(answer)
        self.now_ns = now_ns

    def record_spans(self) -> None:
        """A client sees no spans."""

    def end(self, unfinished: Sequence[Request]) -> None:
        """Requests that have not ended are known already."""

    def forget(self) -> None:
        """What is left of answers is small."""

    def recorded(self) -> Recorded:
        rows = [_row(each, each.status) for each in self.answers]
        rows += [_row(each, "unfinished") for each in self.under_way.values()]
        matrix = np.array(rows, dtype=np.int64).reshape(-1, len(REQUEST_COLUMNS))
        seen = [*self.answers, *self.under_way.values()]
        errors = {each.row: each.error for each in seen if each.error is not None}
        lags = {each.row: each.issued_ns - each.arrival_ns for each in seen}
        return _EMPTY._replace(request_rows=matrix, errors=errors, lags=lags, gaps=self._gaps())

    def _gaps(self) -> Gaps:
        """Gaps between tokens; those of a chunk share the time since the chunk before."""
        every = [gap for each in self.answers for gap in each.gaps]
        values, weights = zip(*every, strict=True) if every else ((), ())
        return Gaps(np.array(values, dtype=np.float64) * NS, np.array(weights, dtype=np.int64))

    def steps(self) -> Table:
        first = np.array([each.first_ns for each in self.answers if each.first_ns is not None], dtype=np.int64)
        return table_of(self.readings.steps(first, _empty_steps))


class ClientRecord(Record):
    """The tables of `recorder`."""

    def __init__(self, recorder: ClientRecorder) -> None:
        super().__init__([recorder])
        self._recorder = recorder

    def tables(self, trace: Trace, unfinished: Sequence[Sequence[Request]]) -> RecordedRun:
        recorded = super().tables(trace, unfinished)
        requests = recorded.request_rows
        answers = self._recorder.answers
        told = {each.row: each.num_prompt_tokens for each in answers if each.num_prompt_tokens is not None}
        prompts = requests["num_prompt_tokens"].to_numpy().copy()
        prompts[[*told]] = [*told.values()]
        cached = {each.row: each.num_cached_tokens for each in answers if each.num_cached_tokens is not None}
        hits = np.full(len(requests), np.nan)
        hits[[*cached]] = [*cached.values()]
        unseen = dict.fromkeys(_UNSEEN, np.nan)
        requests = requests.assign(**unseen | {"num_prompt_tokens": prompts, "num_cached_tokens": hits})
        gaps = {each.row: [gap * NS for gap, count in each.gaps for _ in range(count)] for each in answers}
        itls = [gaps.get(row, []) for row in range(len(requests))]
        return replace(recorded, request_rows=requests, step_rows=self._recorder.steps(), itls=itls)


def notes_on(answers: Sequence[Answer], trace: Trace, readings: Readings) -> list[str]:
    """What a reader of the results must know of how they were seen."""
    notes = []
    kinds: Counter[str] = Counter(each.error.partition(":")[0] for each in answers if each.error is not None)
    if kinds:
        first = next(each.error for each in answers if each.error is not None)
        counted = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        notes.append(f"{sum(kinds.values()):,} requests failed: {counted}; the first with {first}")
    if retries := sum(each.num_retries for each in answers):
        notes.append(f"{retries:,} attempts were repeated; latencies count from the intended arrival")
    asked = trace.rows["num_prompt_tokens"].tolist()
    other = [each for each in answers if each.num_prompt_tokens not in (None, asked[each.row])]
    if other:
        share = sum(each.num_prompt_tokens or 0 for each in other) / sum(asked[each.row] for each in other) - 1
        notes.append(f"{len(other):,} prompts have other lengths than in the trace, {share:+.1%}, as the server counts")
    shared, tokens = sum(each.num_shared for each in answers), sum(each.num_tokens for each in answers)
    if shared > 0:
        notes.append(
            f"{shared / tokens:.1%} of tokens came in a chunk with others; they share the time since the chunk before"
        )
    if readings.all:
        notes.append(f"queue, batch, KV cache and hits: {len(readings.all):,} readings of the server's /metrics")
    return notes


def _row(answer: Answer, status: str) -> tuple[int, ...]:
    finish_ns = answer.last_ns if status == "finished" else None
    times = (UNSET if each is None else each for each in (None, answer.first_ns, finish_ns))
    seen = answer.row, STATUSES.index(status), answer.arrival_ns, *times, answer.num_tokens
    return (*seen, *(0,) * (len(REQUEST_COLUMNS) - len(seen)))


def _empty_steps(num_rows: int) -> pd.DataFrame:
    columns = step_columns([_EMPTY.steps])
    zeros = {name: np.zeros(num_rows, values.dtype) for name, values in columns.items()}
    return pd.DataFrame({**zeros, "step": np.arange(num_rows)})
