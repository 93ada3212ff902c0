"""What the recovered steps of an early vLLM show of its settings, its KV pool, and the steadiness of its step times."""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.recovery.recovered_run import RecoveredRun
from experiments.recovery.replay import replay
from harness.measured import MeasuredRun
from simulator.system import System

WINDOW_S, WINDOW_STEPS = 20, 50
DECISION_MS = 10.0  # no step is as short: a token that is off by more comes from another step


def fixed_parts(found: RecoveredRun, context_token_s: float) -> list[dict[str, float]]:
    """The time in ms of a decode step without the part that is proportional to contexts, in windows of 20 s.

    Only spans without prompts count, and only windows with at least 50 steps in such spans.
    """
    totals: dict[int, list[float]] = {}
    starts = np.cumsum([0, *(span.time_ns for span in found.spans)]) * 1e-9
    for start, span in zip(starts[1:], found.spans[1:], strict=False):
        if span.steps and not any(step.chunks for step in span.steps):
            contexts = sum(step.num_context_tokens for step in span.steps)
            total = totals.setdefault(int(start // WINDOW_S), [0.0, 0])
            total[0] += span.time_ns * 1e-6 - 1e3 * context_token_s * contexts
            total[1] += len(span.steps)
    return [
        {"from_s": window * WINDOW_S, "steps": steps, "ms": round(time / steps, 2)}
        for window, (time, steps) in sorted(totals.items())
        if steps >= WINDOW_STEPS
    ]


def paddings(found: RecoveredRun) -> list[int]:
    """Tokens of padding in steps with several prompts, ascending."""
    sizes = [[chunk.num_tokens for chunk in step.chunks] for span in found.spans for step in span.steps]
    return sorted(max(each) * len(each) - sum(each) for each in sizes if len(each) > 1)


def decided_otherwise(system: System, run: MeasuredRun, found: RecoveredRun, num_blocks: int) -> int:
    """The number of requests that our core serves in other steps than measured, with a KV pool of `num_blocks`."""
    resized = dataclasses.replace(system, pool=dataclasses.replace(system.pool, num_blocks=num_blocks))
    late = replay(resized, run, found.log, found.spans, found.price)
    return int((np.max(np.abs([*late.values()]), axis=0) > DECISION_MS * 1e6).sum())
