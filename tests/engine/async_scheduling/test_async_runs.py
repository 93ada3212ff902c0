"""Random lives of an engine that plans ahead: who is not aborted gets the tokens and the end that it gets otherwise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.api.outputs import RequestOutput  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.policies import POLICIES  # noqa: E402
from engine.core.running.preemption import VICTIM_RULES  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import KINDS, MODEL, SETTINGS, watch_plans  # noqa: E402
from tests.policies import ON_ANY_POOL  # noqa: E402
from tests.selection import few  # noqa: E402

NUM_FOR_A_COMMIT = 3
STOPS = tuple(range(0, 300, 12))
SAMPLED = SamplingParams(temperature=0.9, seed=3)
KINDS_OF_PARAMS = [
    replace(SAMPLED, temperature=0.0),
    replace(SAMPLED, temperature=0.0, stop_token_ids=STOPS),
    replace(SAMPLED, n=3, stop_token_ids=STOPS),
    replace(SAMPLED, n=2, presence_penalty=1.0, min_tokens=1),
    replace(SAMPLED, repetition_penalty=1.2, frequency_penalty=0.5, top_k=50),
    replace(SAMPLED, logprobs=1, prompt_logprobs=1, top_p=0.8),
]


def draw_settings(rng: random.Random) -> dict[str, Any]:
    """An engine with too few blocks, of any rules."""
    policy = rng.choice(ON_ANY_POOL)
    settings: dict[str, Any] = {
        **SETTINGS, **KINDS[rng.choice(sorted(KINDS))], "policy": policy, "async_scheduling": True,
        "num_blocks": rng.choice([30, 30, 45]), "max_num_seqs": rng.choice([3, 8]), "watermark": rng.choice([0.0, 0.1]),
        "max_num_batched_tokens": rng.choice([8, 16, 64]), "allocation": rng.choice(["prompt", "chunk"]),
        "full_hit": rng.choice(["copy", "recompute_block"]), "enable_prefix_caching": rng.random() < 0.8,
        "eviction": rng.choice(["unhashed_first", "lru", "fifo", "lfu"]), "cuda_graphs": rng.random() < 0.2,
        "long_prefill_token_threshold": rng.choice([0, 0, 5]),
    }  # fmt: skip
    if not POLICIES[policy].chooses_victims:
        settings["victim"] = rng.choice(sorted(VICTIM_RULES))
    if settings["enable_prefix_caching"] and rng.random() < 0.4:
        settings |= {"offload": True, "overlap": rng.random() < 0.7, "host_kv_gib": rng.choice([4e-5, 2e-3])}
    return settings


def draw_requests(rng: random.Random) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of which some begin alike, go on from another one or repeat it."""
    stem = [rng.randrange(300) for _ in range(40)]
    requests: list[tuple[list[int], SamplingParams]] = []
    for _ in range(rng.randint(5, 12)):
        before = rng.choice(requests)[0] if requests and rng.random() < 0.3 else stem[: rng.randint(0, 40)]
        prompt = (before + [rng.randrange(300) for _ in range(rng.choice([0, 1, 7, 30]))])[:70] or [1]
        params = replace(rng.choice(KINDS_OF_PARAMS), max_tokens=rng.choice([1, 10, 25, 40]))
        requests.append((prompt, params))
    return requests


def result(output: RequestOutput) -> list[tuple[Any, ...]]:
    return [(each.token_ids, each.finish_reason, each.stop_reason) for each in output.outputs]


class Life:
    """An engine of random settings, whose requests come and go between any two steps."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.settings = draw_settings(self.rng)
        self.requests = draw_requests(self.rng)
        self.results: dict[int, list[tuple[Any, ...]]] = {}
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Serve all requests; `results` are those of whom nobody aborted."""
        rng, llm = self.rng, LLM(MODEL, **self.settings)
        scheduler = llm.engine.scheduler
        waiting, streams, pace = list(enumerate(self.requests)), dict[int, Any](), rng.choice([0.5, 1.0])
        while waiting or streams:
            while waiting and rng.random() < pace:
                number, (prompt, params) = waiting.pop(0)
                streams[number] = llm.stream(prompt, params, priority=[rng.randint(0, 2)])
            if not streams:
                continue
            number = rng.choice([*streams])
            if rng.random() < 0.005:
                streams.pop(number).close()
                self.counts["aborts"] += 1
            elif streams[number].num_unfinished:
                streams[number].run_step()
            else:
                self.results[number] = result(streams.pop(number).finish()[0])
            scheduler.check_integrity()
        assert not scheduler.unfinished and scheduler.blocks.num_used_blocks() == 0
        llm.close()


@pytest.fixture(scope="module")
def ample() -> Iterator[LLM]:
    """An engine that plans nothing ahead, with room for all."""
    llm = LLM(MODEL, **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the plans of all engines do."""
    counts: Counter[str] = Counter()

    def count(plan: StepPlan) -> None:
        counts["plans"] += 1
        counts["preemptions"] += len(plan.preempted)
        counts.update(f"{each.source_tier} to {each.target_tier}" for each in plan.transfers)
        counts["cached tokens"] += sum(each.num_cached_tokens for each in plan.admitted)

    watch_plans(monkeypatch, count)
    return counts


def check(seed: int, ample: LLM) -> Life:
    life = Life(seed)
    life.run()
    prompts, params = zip(*life.requests, strict=True)
    expected = [result(each) for each in ample.generate([*prompts], [*params])]
    for number, outputs in life.results.items():
        assert outputs == expected[number], (seed, number, life.settings)
    return life


@pytest.mark.parametrize("seed", few(range(NUM_FOR_A_COMMIT)))
def test_a_random_life_gives_the_tokens_of_an_engine_that_does_not_plan_ahead(seed: int, ample: LLM) -> None:
    check(seed, ample)


@pytest.mark.slow
def test_many_random_lives(ample: LLM, counts: Counter[str]) -> None:
    for seed in range(NUM_FOR_A_COMMIT, 300):
        life = check(seed, ample)
        counts["results"] += len(life.results)
        counts += life.counts
    assert min(counts[name] for name in ("preemptions", "aborts", "device to host", "host to device")) > 100, counts
