"""Planning ahead, the real engine generates what it generates otherwise, whatever is preempted, cached or stopped."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.core.plan import StepDraft  # noqa: E402
from engine.core.planning.policy import BasePolicy  # noqa: E402
from engine.core.planning.step_planner import StepPlanner  # noqa: E402
from engine.core.policies import POLICIES  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.prompt_lookup import NgramOptions  # noqa: E402
from engine.runner import model_runner  # noqa: E402
from engine.runner.executors.executor import LocalExecutor  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from tests.compiled import Overlaid  # noqa: E402
from tests.engine.async_scheduling.builders import BRIEF, MIXED, PROMPTS, ahead, rounded, serve  # noqa: E402
from tests.engine.builders import KINDS, MODEL, SETTINGS, STARVED, Late, one_by_one  # noqa: E402


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"policy": "prefill_first", "max_num_batched_tokens": 16}, marks=pytest.mark.long),
        {**STARVED, **KINDS["auto"]},
        pytest.param(
            {**STARVED, "policy": "admission_order", "allocation": "chunk", "max_num_batched_tokens": 24},
            marks=pytest.mark.long,
        ),
        {**STARVED, "host_kv_gib": 2e-3, "offload": True, "preemption": "swap"},
        pytest.param({**STARVED, **KINDS["recompute"]}, marks=pytest.mark.slow),
        pytest.param({**STARVED, **KINDS["partial"]}, marks=pytest.mark.slow),
        pytest.param({**STARVED, **KINDS["swap"], "enable_prefix_caching": False}, marks=pytest.mark.slow),
        pytest.param({**STARVED, "policy": "static"}, marks=pytest.mark.slow),
        pytest.param({"cuda_graphs": True, "max_num_seqs": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_outputs_are_those_of_an_engine_that_does_not_plan_ahead(settings: dict[str, Any], expected: Any) -> None:
    llm = ahead(**settings)
    for _ in range(2):  # the second time with what is cached
        assert serve(llm) == expected
    llm.close()


def test_plans_are_launched_behind_one_another_as_on_a_gpu(expected: Any) -> None:
    """Where the next plan is on the device before the tokens of this one are read."""
    llm = ahead(**STARVED, cuda_graphs=True)
    llm.engine._executor._thread.shutdown()  # type: ignore[attr-defined]
    llm.engine._executor._thread = None  # type: ignore[attr-defined]
    assert serve(llm) == expected


class Readmits(BasePolicy):
    """Now and then preempts somebody and would admit it again for the same step, before its last token is known."""

    num_plans = num_preempted = 0

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        self.num_plans += 1
        if self.num_plans % 6 == 5 and planner.running.decodes.sequences:
            planner.preempt(draft, planner.choose_victim())
            Readmits.num_preempted += 1
        planner.decode(draft)
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens - draft.num_decodes)
        planner.admit(draft, budget, cut="any")


def test_who_was_preempted_comes_back_when_its_tokens_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "readmits", Readmits)
    llm = ahead(policy="readmits")
    outputs = llm.generate(PROMPTS, BRIEF)
    assert [output["token_ids"] for output in outputs] == [tokens[:16] for tokens in one_by_one()[:8]]
    assert Readmits.num_preempted > 0
    llm.close()


@pytest.mark.parametrize("patience", [3, 10**9])
def test_no_token_depends_on_when_copies_end(patience: int, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Late(patience)
    monkeypatch.setattr(model_runner, "side_stream", lambda device: late)
    llm = ahead(**{**STARVED, **KINDS["swap"], "offload": True})
    assert serve(llm) == expected
    assert len(late.copies) > 5


def test_the_next_plan_is_made_and_launched_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, launched, numbers = threading.Semaphore(0), threading.Semaphore(0), itertools.count()
    execute, launch = ModelRunner.execute, LocalExecutor.launch

    def held(*args: Any) -> Any:
        assert made.acquire(timeout=30), "the next plan is not made before the one that runs has ended"
        return execute(*args)

    def noted(*args: Any) -> Any:
        plan = scheduler.schedule(*args)
        if next(numbers):  # not the first plan: each waits for the one after it
            made.release()
        return plan

    def counted(*args: Any) -> None:
        launch(*args)
        launched.release()

    monkeypatch.setattr(ModelRunner, "execute", held)
    monkeypatch.setattr(LocalExecutor, "launch", counted)
    llm = ahead()
    scheduler = llm.engine.scheduler
    llm.engine.scheduler = Overlaid(scheduler, schedule=noted)  # type: ignore[assignment]
    stream = llm.stream(PROMPTS[:3], BRIEF)
    stream.run_step()
    assert [launched.acquire(blocking=False) for _ in range(3)] == [True, True, False], "one step, and the next plan"
    llm.generate(PROMPTS[3:5], BRIEF)
    stream.close()
    llm.close()


@pytest.mark.parametrize(("asynchronous", "num_more"), [(False, 0), (True, 1)])
def test_a_stop_that_nobody_foresaw_costs_a_slot_more(asynchronous: bool, num_more: int) -> None:
    llm = LLM(MODEL, **SETTINGS, async_scheduling=asynchronous, max_lookahead_steps=1)
    tokens = llm.generate(PROMPTS[0], BRIEF)[0]["token_ids"]
    stop = next(token for i, token in enumerate(tokens) if i > 3 and token not in tokens[:i])
    request_params = replace(BRIEF, stop_token_ids=(stop,))
    num_decodes = 0
    stream = llm.stream([PROMPTS[0], PROMPTS[2]], [request_params, BRIEF])
    scheduler = llm.engine.scheduler

    def counted(plan: Any, *args: Any) -> Any:
        nonlocal num_decodes
        num_decodes += plan.num_decodes
        return scheduler.commit(plan, *args)

    llm.engine.scheduler = Overlaid(scheduler, commit=counted)  # type: ignore[assignment]
    outputs = {output.index: output["token_ids"] for output in stream}
    assert outputs[0] == tokens[: tokens.index(stop) + 1]
    assert num_decodes == sum(len(each) - 1 for each in outputs.values()) + num_more
    llm.close()


def test_what_it_cannot_serve_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^async_scheduling=True: must be False with speculation, [^\n]*$"):
        EngineConfig(async_scheduling=True, speculation=NgramOptions())
    llm = ahead()
    assert llm.generate(PROMPTS[:1], BRIEF)[0].finished


def test_random_calls_streams_and_aborts_leave_the_same_tokens(expected: Any) -> None:
    """Requests come and go between any two steps."""
    rng, llm = random.Random(1), ahead(**STARVED)
    open_streams: dict[int, Any] = {}
    num_ended = 0
    for _ in range(150):
        number = rng.randrange(len(PROMPTS))
        stream = open_streams.get(number)
        if stream is None:
            open_streams[number] = llm.stream(PROMPTS[number], MIXED[number])
        elif rng.random() < 0.05:
            open_streams.pop(number).close()
        elif (output := next(stream, None)) is None or output.finished:
            if output is not None:
                assert rounded(output)[0] == expected[number][0]
                num_ended += 1
            del open_streams[number]
        llm.engine.scheduler.check_integrity()
    assert num_ended > 3
    open_streams.clear()
    assert serve(llm) == expected
