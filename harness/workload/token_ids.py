"""Token ids for the requests of a trace, so that a real engine can serve it and its prefix cache hits for real.

A trace with token ids keeps them. One with hash ids gets tokens drawn from a generator seeded by each id: equal ids,
equal tokens. A conversation, and a prompt that begins with an earlier one of a trace with `waits_for`, goes on with
what the engine really answered. All other prompts are drawn on their own.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from engine.core.sequence import Request
from harness.workload.content import dense_hash_ids
from harness.workload.lines import continued_rows
from harness.workload.trace import Trace, deadlines_ns, tenants
from simulator.quantities import MAX_TOKENS

Tokens = NDArray[np.int64]


class PromptSource:
    """Makes the `Request` of each row; `on_finish` tells it what a turn of a conversation led to.

    Prompts of `max_model_len` tokens and more, which are refused, get no tokens.
    """

    def __init__(self, trace: Trace, vocab_size: int, seed: int, max_model_len: int = MAX_TOKENS + 1) -> None:
        table = trace.rows
        self._lengths = table["num_prompt_tokens"].tolist()
        self._outputs = table["num_output_tokens"].tolist()
        self._priorities = table["priority"].tolist() if "priority" in table else None
        self._num_sequences = trace.num_sequences.tolist()
        self._tenants, self._deadlines = tenants(trace), deadlines_ns(trace)
        self._token_ids = table["token_ids"].tolist() if "token_ids" in table else None
        self._hash_ids = dense_hash_ids(trace) if "hash_ids" in table else None
        self._sessions = table["session_id"].tolist() if "session_id" in table else None
        self._span = trace.hash_block_size
        self._vocab_size = vocab_size
        self._seed = seed
        self._max_model_len = max_model_len
        self._histories: dict[int, list[int]] = {}  # by session, or by row where a session is no chain
        self._continued = continued_rows(trace) if "waits_for" in table and self._token_ids is None else None
        self._num_to_come = Counter(self._continued)  # prompts to be made that begin with a row

    def make(self, row: int, arrival_ns: int) -> Request:
        """The request of a row that arrives at `arrival_ns`."""
        length = self._lengths[row]
        return Request(
            row,
            length,
            self._outputs[row],
            arrival_ns,
            token_ids=self._prompt(row, length) if length < self._max_model_len else None,
            priority=self._priorities[row] if self._priorities else 0,
            num_sequences=self._num_sequences[row],
            tenant=self._tenants[row] if self._tenants else 0,
            session=self._sessions[row] if self._sessions else None,
            deadline=arrival_ns + self._deadlines[row] if self._deadlines else None,
        )

    def on_finish(self, request: Request) -> None:
        """Remember what was said, for the requests of the session that begin with it."""
        row = request.request_id
        if self._sessions is None or (self._continued is not None and not self._num_to_come[row]):
            return
        token_ids = request.sequences[0].token_ids
        assert token_ids is not None
        self._histories[self._sessions[row] if self._continued is None else row] = token_ids

    def _prompt(self, row: int, length: int) -> list[int]:
        if self._token_ids is not None:
            own: list[int] = self._token_ids[row].tolist()
            return own
        if self._hash_ids is not None:
            assert self._span is not None
            span = min(self._span, length)  # of a single block: the start of what the id stands for
            blocks = [self._draw((1, int(h)), span) for h in self._hash_ids[row]]
            history = self._history(row) if self._continued is not None else []
            drawn: list[int] = np.concatenate(blocks)[len(history) : length].tolist()
            return history[:length] + drawn
        history = self._history(row)
        return history[:length] + self._draw((0, row), max(0, length - len(history))).tolist()

    def _history(self, row: int) -> list[int]:
        """What was said before a row of a session; forgotten with the last row that begins with it."""
        if self._continued is None:
            return self._histories.get(self._sessions[row], []) if self._sessions is not None else []
        earlier = self._continued[row]
        self._num_to_come[earlier] -= 1
        return self._histories.get(earlier, []) if self._num_to_come[earlier] else self._histories.pop(earlier, [])

    def _draw(self, stream: tuple[int, int], count: int) -> Tokens:
        rng = np.random.default_rng((self._seed, *stream))
        return rng.integers(0, self._vocab_size, count)
