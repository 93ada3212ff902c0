"""The real engine with a prefix cache that goes on in host memory: the same tokens, aborts and errors included."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm_engine import LLMEngine  # noqa: E402
from engine.api.step_report import StepReport  # noqa: E402
from engine.core.kv.tiers.tier import DEVICE, HOST  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.sequence import Request, SequenceStatus  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.runner.executors.executor import LocalExecutor  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import MODEL, SETTINGS, generate  # noqa: E402

NUM_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
BRIEF = SamplingParams(max_tokens=20, temperature=0.0)
# With 32 blocks, or with 60 for several at a time, each drives others out of the device.
PROMPTS = [[(7 * i + number) % 300 for i in range(70)] for number in range(3)]
SMALL: dict[str, Any] = {"num_blocks": 60, "max_num_seqs": 3, "host_kv_gib": 0.02, "offload": True}


@pytest.mark.parametrize(
    "settings",
    [
        {"preemption": "swap", "num_blocks": 46},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"overlap": False}, marks=pytest.mark.slow),
        pytest.param({"policy": "prefill_first", "max_lookahead_steps": 3}, marks=pytest.mark.slow),
    ],
)
def test_tokens_do_not_depend_on_where_the_prefix_comes_from(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    without = generate(BRIEF, enable_prefix_caching=False, max_num_batched_tokens=512)
    assert generate(BRIEF, **{**SMALL, **settings}) == without


def make_engine(**settings: Any) -> LLMEngine:
    torch.set_num_threads(1)
    config = EngineConfig(load_format="random", **{**SETTINGS, **SMALL, **settings})
    return LLMEngine(config, LocalExecutor(config, MODEL), max_model_len=512)


def serve(engine: LLMEngine, prompt: list[int], request_id: int) -> tuple[list[int], list[StepReport]]:
    """The tokens of one request, and what was executed for it."""
    request = Request(request_id, len(prompt), NUM_TOKENS, token_ids=prompt.copy())
    engine.add(request, GREEDY)
    reports = run_to_the_end(engine)
    tokens = request.sequences[0].token_ids
    assert tokens is not None
    return tokens[len(prompt) :], reports


def run_to_the_end(engine: LLMEngine) -> list[StepReport]:
    reports = []
    while (report := engine.step(0)) is not None:
        engine.scheduler.check_integrity()
        reports.append(report)
    return reports


def moves(plan: StepPlan) -> set[tuple[str, str]]:
    return {(transfer.source_tier, transfer.target_tier) for transfer in plan.transfers}


def test_a_prompt_that_left_the_device_comes_back_from_the_host() -> None:
    engine = make_engine(num_blocks=32)
    first, _ = serve(engine, PROMPTS[0], 0)
    others = [report for i in (1, 2) for report in serve(engine, PROMPTS[i], i)[1]]
    assert any((DEVICE, HOST) in moves(report.plan) for report in others)
    again, reports = serve(engine, PROMPTS[0], 3)
    assert again == first
    (request,) = reports[-1].outcome.finished
    assert (HOST, DEVICE) in moves(reports[0].plan) and reports[0].plan.parked == request.sequences
    assert request.num_cached_tokens == request.sequences[0].cached_by_tier[HOST] > 40


def test_an_abort_while_hits_are_coming_leaves_the_engine_sound() -> None:
    engine = make_engine(num_blocks=32)
    tokens = [serve(engine, prompt, i)[0] for i, prompt in enumerate(PROMPTS)]
    request = Request(3, len(PROMPTS[0]), NUM_TOKENS, token_ids=PROMPTS[0].copy())
    engine.add(request, GREEDY)
    executed = engine.execute(0)
    assert executed is not None and executed.plan.parked == request.sequences
    engine.commit(executed, 1)
    engine.abort(3)
    assert request.sequences[0].status is SequenceStatus.ABORTED
    engine.scheduler.check_integrity()
    assert [serve(engine, prompt, 10 + i)[0] for i, prompt in enumerate(PROMPTS)] == tokens
    assert not engine.scheduler.blocks.num_used_blocks()


def test_a_failed_step_leaves_an_empty_cache_and_an_engine_that_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(num_blocks=32)
    tokens = [serve(engine, prompt, i)[0] for i, prompt in enumerate(PROMPTS)]
    engine.add(Request(3, len(PROMPTS[0]), NUM_TOKENS, token_ids=PROMPTS[0].copy()), GREEDY)
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "execute", lambda inputs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step(0)
    engine.reset()
    assert [serve(engine, prompt, 10 + i)[0] for i, prompt in enumerate(PROMPTS)] == tokens


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"host_kv_gib": 0.0}, "offload=True: needs host memory"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching=False: blocks that leave"),
        ({"enable_chunked_prefill": False}, "overlap=True: a prompt whose first part"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EngineConfig(**{**SETTINGS, **SMALL, **settings})
