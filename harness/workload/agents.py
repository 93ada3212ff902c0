"""Draws sessions of agents that call tools and start sub-agents."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.config import AgenticTrace
from harness.config.schema.traffic.lengths import LengthsConfig
from harness.errors import ConfigError
from harness.workload.sampling import draw_lengths, num_drawn
from harness.workload.trace import Trace, trace_table
from simulator.quantities import MAX_TOKENS

BLOCK_SIZE = 64  # tokens per hash id


def agentic(config: AgenticTrace, rng: np.random.Generator) -> Trace:
    """Sessions whose requests wait for each other, until there are as many requests as asked for.

    All prompts begin with the whole blocks of one system prompt; what else they share, `waits_for` says.
    """
    count = num_drawn(config)
    drawing = _Drawing(config, rng)
    session = 0
    while len(drawing.rows) < count:
        drawing.agent(session, [])
        session += 1
    rows = drawing.rows[:count]
    if (longest := max(row.prompt for row in rows)) > MAX_TOKENS:
        raise ConfigError(
            f"trace.turns={config.turns:g}: a prompt of {longest} tokens, where {MAX_TOKENS} are the limit"
        )
    columns = {
        "num_prompt_tokens": [row.prompt for row in rows],
        "num_output_tokens": [row.output for row in rows],
        "session_id": [row.session for row in rows],
        "waits_for": [np.array(row.waits_for, dtype=np.int64) for row in rows],
        "think_time": [row.think_time for row in rows],
        "hash_ids": [row.line.hash_ids(row.prompt) for row in rows],
    }
    return Trace("agentic", trace_table(columns), "drawn agents", hash_block_size=BLOCK_SIZE)


class _Line:
    """A prompt that grows: its first blocks are those of the system prompt, the others its own."""

    def __init__(self, num_shared: int, first_own: int) -> None:
        self._num_shared = num_shared
        self._first_own = first_own

    def hash_ids(self, num_tokens: int) -> npt.NDArray[np.int64]:
        num_own = max(0, -(-num_tokens // BLOCK_SIZE) - self._num_shared)
        num_shared = min(self._num_shared, -(-num_tokens // BLOCK_SIZE))
        return np.concatenate([np.arange(num_shared), np.arange(self._first_own, self._first_own + num_own)])


@dataclass(frozen=True)
class _Row:
    session: int
    line: _Line
    prompt: int
    output: int
    waits_for: list[int]
    think_time: float


@dataclass
class _Drawing:
    config: AgenticTrace
    rng: np.random.Generator
    rows: list[_Row] = field(default_factory=list)
    num_lines: int = 0

    def agent(self, session: int, waits_for: list[int], *, is_sub: bool = False) -> int:
        """Draw the requests of an agent that starts when these rows are done, and of its sub-agents; returns the last
        of its rows."""
        config, rng = self.config, self.rng
        self.num_lines += 1
        line = _Line(config.system_tokens // BLOCK_SIZE, self.num_lines * MAX_TOKENS)
        num_turns = int(rng.geometric(1 / config.turns))
        prompt, think_time = config.system_tokens + self._length(config.task), 0.0
        while True:
            output = self._length(config.output)
            row = len(self.rows)
            self.rows.append(_Row(session, line, prompt, output, waits_for, think_time))
            num_turns -= 1
            if not num_turns:
                return row
            prompt, waits_for, num_results, think_time = prompt + output, [row], 1, 0.0
            if not is_sub and rng.random() < config.subagent_share:
                num_results = config.num_subagents
                waits_for += [self.agent(session, [row], is_sub=True) for _ in range(num_results)]
            else:
                think_time = float(rng.exponential(config.tool_time))
            prompt += sum(self._length(config.tool_result) for _ in range(num_results))

    def _length(self, lengths: LengthsConfig) -> int:
        return int(draw_lengths(lengths, 1, self.rng)[0])
