"""What a server counts for its metrics, and how it writes them: Prometheus' text, under vLLM's names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, abc
from dataclasses import dataclass, field
from typing import Any

from engine.core.plan import PlanStart, StepOutcome, StepPlan, plan_start
from engine.core.scheduler import Scheduler

_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_LATE = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)
_LATENESS = (*(-each for each in reversed(_LATE)), 0.0, *_LATE)
_HISTOGRAMS = {
    "ttft": ("time_to_first_token_seconds", "From a request to its first token."),
    "itl": ("inter_token_latency_seconds", "From a token of a sequence to the next."),
    "e2el": ("e2e_request_latency_seconds", "From a request to its end."),
}


class Histogram:
    """Counts of values up to each bound, and their sum."""

    def __init__(self, bounds: abc.Sequence[float] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_all(self, values: abc.Iterable[float]) -> None:
        ordered = sorted(values)
        self._sum += sum(ordered)
        below = 0
        for at, bound in enumerate(self._bounds):
            count = bisect_right(ordered, bound)
            self._counts[at] += count - below
            below = count
        self._counts[-1] += len(ordered) - below

    def lines(self, name: str, labels: str) -> abc.Iterator[str]:
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}",{labels}}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {total}"


@dataclass
class Tally:
    """Counts of an engine's steps and of the requests of a server.

    Attributes:
        schedulers: returns those that the gauges are of, one for each server; none until there is one.
        num_coming: returns how many requests were received that no scheduler has yet.
        lateness: of a simulation in real time: from when a chunk was due until it was written; below 0: before.
    """

    schedulers: abc.Callable[[], abc.Sequence[Scheduler]] = tuple
    num_coming: abc.Callable[[], int] = int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # sequences, by the reason why
    times: dict[str, Histogram] = field(default_factory=lambda: {name: Histogram() for name in _HISTOGRAMS})
    lateness: Histogram = field(default_factory=lambda: Histogram(_LATENESS))

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their turn, or will when they have come to their scheduler."""
        schedulers = self.schedulers()
        num_free = sum(each.max_num_seqs - each.num_running for each in schedulers)
        return sum(each.num_waiting for each in schedulers) + max(0, self.num_coming() - num_free)

    # As an observer of a server, real or simulated.

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Any, start: PlanStart | None = None) -> None:
        admitted, cached, _ = start or plan_start(plan)
        self.prompt_tokens += admitted
        self.cached_tokens += cached
        self.preemptions += len(plan.preempted)

    def on_commit(self, outcome: StepOutcome) -> None: ...

    def on_refused(self, request: Any, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def text(self, model_name: str) -> str:
        """All of it, as /metrics says it."""
        labels = f'model_name="{model_name}",engine="0"'
        lines: list[str] = []

        def say(kind: str, name: str, help_text: str, *values: float, more: str = "") -> None:
            """A value of each server, or one of all."""
            lines.extend([f"# HELP vllm:{name} {help_text}", f"# TYPE vllm:{name} {kind}"])
            for number, value in enumerate(values):
                lines.append(f'vllm:{name}{{model_name="{model_name}",engine="{number}"{more}}} {value}')

        if schedulers := self.schedulers():
            pools = [scheduler.blocks for scheduler in schedulers]
            used = [1 - blocks.num_free_blocks / blocks.num_blocks for blocks in pools]
            say("gauge", "num_requests_running", "Sequences in the batch.", *(each.num_running for each in schedulers))
            say("gauge", "num_requests_waiting", "Sequences in the queue.", *(each.num_waiting for each in schedulers))
            say("gauge", "kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", *used)
            sizes = f',block_size="{pools[0].block_size}",num_gpu_blocks="{pools[0].num_blocks}"'
            say("gauge", "cache_config_info", "The KV pool.", 1, more=sizes)
        say("counter", "num_preemptions_total", "Sequences that gave way.", self.preemptions)
        say("counter", "prompt_tokens_total", "Prompt tokens of admitted requests.", self.prompt_tokens)
        say("counter", "generation_tokens_total", "Output tokens.", self.output_tokens)
        say("counter", "prefix_cache_queries_total", "Prompt tokens looked for in the cache.", self.prompt_tokens)
        say("counter", "prefix_cache_hits_total", "Of these, found.", self.cached_tokens)
        lines += ["# HELP vllm:request_success_total Ended sequences.", "# TYPE vllm:request_success_total counter"]
        for reason in ("stop", "length", "abort"):
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {self.ended[reason]}')
        for name, (title, help_text) in _HISTOGRAMS.items():
            lines += [f"# HELP vllm:{title} {help_text}", f"# TYPE vllm:{title} histogram"]
            lines += self.times[name].lines(f"vllm:{title}", labels)
        name = "twinserve:chunk_lateness_seconds"
        lines += [
            f"# HELP {name} From when a simulated chunk was due until it was written; below 0: before it.",
            f"# TYPE {name} histogram",
        ]
        lines += self.lateness.lines(name, labels)
        return "\n".join(lines) + "\n"
