"""The loads of inference-perf, the load generator of llm-d's benchmarks, as its source has them (7de5ef2).

A stage begins when all requests of the one before it have been answered and a pause has passed, and it begins with the
first prompt again: `run_stage` asks the generator of the data anew. What is called a constant rate has exponential
gaps, stretched to the stage's duration; a Poisson stage is second after second of such gaps, of as many requests as are
drawn for each (`load_timer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Times = np.ndarray[Any, np.dtype[np.float64]]
_PAUSE = 600.0  # s, in which the longest queue of these stages is served: nothing happens in the rest of it


@dataclass(frozen=True)
class Prompts:
    """`num_groups` groups of `per_group` prompts that share `prefix` tokens, with `question` of their own.

    `span` tokens have an identity in the trace.
    """

    num_groups: int
    per_group: int
    prefix: int
    question: int
    output: int
    span: int

    def identities(self, prompt: int) -> list[int]:
        shared, own = self.prefix // self.span, self.question // self.span
        group, first_own = prompt // self.per_group, self.num_groups * shared
        return [
            *range(group * shared, (group + 1) * shared),
            *range(first_own + prompt * own, first_own + (prompt + 1) * own),
        ]


def constant(rate: float, duration: float, rng: np.random.Generator) -> Times:
    """Times of the requests of a stage with `type: constant`, in s; rate in requests/s."""
    gaps = rng.exponential(1 / rate, int(rate * duration))
    return np.cumsum(gaps * (duration / gaps.sum()))


def poisson(rate: float, duration: float, rng: np.random.Generator) -> Times:
    """The same of a stage with `type: poisson`, which lasts until all rate · duration requests are sent."""
    count, seconds, sent = int(rate * duration), list[Times](), 0
    while sent < count:
        in_second = int(rng.poisson(rate))
        seconds.append(len(seconds) + constant(in_second, 1.0, rng) if in_second else np.empty(0))
        sent += in_second
    return np.concatenate(seconds)[:count]


def shared_prefix(stages: list[tuple[float, float]], prompts: Prompts, seed: int) -> tuple[pd.DataFrame, Numbers]:
    """The trace of Poisson stages of rates in requests/s and durations in s, and the stage of each of its requests."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(prompts.num_groups * prompts.per_group)
    times, sent, stage_of, start = list[Times](), list[Numbers](), list[Numbers](), 0.0
    for stage, (rate, duration) in enumerate(stages):
        times.append(start + poisson(rate, duration, rng))
        start = float(times[-1][-1]) + _PAUSE
        sent.append(np.resize(order, len(times[-1])))
        stage_of.append(np.full(len(times[-1]), stage))
    frame = pd.DataFrame({"arrival_time": np.concatenate(times)})
    frame["num_prompt_tokens"] = prompts.prefix + prompts.question
    frame["num_output_tokens"] = prompts.output
    frame["hash_ids"] = [prompts.identities(int(prompt)) for prompt in np.concatenate(sent)]
    return frame, np.concatenate(stage_of)
