"""A long life of one engine, of random calls, stops, aborts, bad prompts and errors; after it, it is as good as new."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from engine import LLM, RequestAbortedError, SamplingParams  # noqa: E402
from engine.api.calls import Stream  # noqa: E402
from engine.api.llm_engine import LLMEngine  # noqa: E402
from engine.api.token_collector import TokenCollector  # noqa: E402
from engine.core.scheduler import Scheduler  # noqa: E402
from engine.runner.inputs.step_inputs import StepBuilder  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from tests.engine.api.builders import save_folder  # noqa: E402

SETTINGS: dict[str, Any] = {
    "device": "cpu", "block_size": 4, "num_blocks": 120, "max_num_seqs": 8, "max_num_batched_tokens": 48,
    "max_model_len": 160,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=30)
PROMPTS = ["the quick", "größer 漢", "stop. Stop!", "the lazy dog jumps over the quick brown fox"]
BAD: list[Any] = [[[1], [10**6]], [[]], [None], [[1.5]], ["\ud800"], [[1] * 200], [[1], {"text": 1}]]
PLACES = [
    (Scheduler, "schedule"), (Scheduler, "commit"), (Scheduler, "add"), (Scheduler, "abort"), (LLMEngine, "reset"),
    (StepBuilder, "build"), (ModelRunner, "execute"), (TokenCollector, "collect"),
]  # fmt: skip
ERRORS = (KeyboardInterrupt, MemoryError, OSError)


class Soak:
    """Calls `llm` at random; `run` does it for a number of engine steps."""

    def __init__(self, llm: LLM, seed: int, patched: pytest.MonkeyPatch) -> None:
        self.llm, self.rng, self.patched = llm, random.Random(seed), patched
        self.streams: list[Stream] = []
        self.num_steps = self.num_failures = 0
        step = llm.engine.step

        def counted(now_ns: int) -> Any:
            self.num_steps += 1
            return step(now_ns)

        patched.setattr(llm.engine, "step", counted)

    def run(self, num_steps: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self.open: 10, self.advance: 60, self.give_up: 4, self.generate: 3, self.refuse: 3, self.fail: 1,
        }  # fmt: skip
        while self.num_steps < num_steps:
            try:
                self.rng.choices(list(weights), list(weights.values()))[0]()
            except (*ERRORS, RequestAbortedError):
                self.num_failures += 1
        self.streams.clear()

    def params(self) -> SamplingParams:
        rng = self.rng
        params = SamplingParams(temperature=rng.choice([0.0, 1.0]), max_tokens=rng.choice([1, 5, 20, 60]))
        changes: list[dict[str, Any]] = [
            {}, {}, {"stop": ["e", "to", "zz"]}, {"stop_token_ids": list(range(100))}, {"n": 3}, {"logprobs": 2},
            {"prompt_logprobs": 1}, {"top_k": 5, "top_p": 0.9}, {"presence_penalty": 1.0, "bad_words": ["the"]},
        ]  # fmt: skip
        return replace(params, **rng.choice(changes))

    def prompts(self) -> list[Any]:
        rng = self.rng
        return [
            rng.choice([rng.choice(PROMPTS), [rng.randrange(300) for _ in range(rng.randint(1, 90))]])
            for _ in range(rng.randint(1, 4))
        ]

    def open(self) -> None:
        if len(self.streams) < 6:
            self.streams.append(self.llm.stream(self.prompts(), self.params()))

    def advance(self) -> None:
        if self.streams:
            stream = self.rng.choice(self.streams)
            if next(stream, None) is None:
                self.streams.remove(stream)

    def give_up(self) -> None:
        if self.streams:
            stream = self.streams.pop(self.rng.randrange(len(self.streams)))
            if self.rng.random() < 0.5:
                stream.close()

    def generate(self) -> None:
        prompts = self.prompts()
        outputs = self.llm.generate(prompts, self.params())
        assert len(outputs) == len(prompts) and all(output.finished for output in outputs)

    def refuse(self) -> None:
        with pytest.raises(ValueError):
            self.llm.generate(self.rng.choice(BAD), self.params())

    def fail(self) -> None:
        """Let the next call of a method fail, before or after its work."""
        owner, name = self.rng.choice(PLACES)
        error, after = self.rng.choice(ERRORS), self.rng.random() < 0.5
        real = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            setattr(owner, name, real)
            if after:
                real(*args, **kwargs)
            raise error

        self.patched.setattr(owner, name, failing)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def kernels_as_needed() -> None:
    """All are compiled first, as otherwise memory grows while sizes come up."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_steps", "asynchronous"),
    [(200, True), *(pytest.param(20_000, ahead, marks=pytest.mark.slow) for ahead in (False, True))],
)
def test_an_engine_outlives_anything(
    num_steps: int, asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    folder = save_folder(tmp_path)
    llm = LLM(folder, **SETTINGS, async_scheduling=asynchronous)
    soak, used = Soak(llm, 0, monkeypatch), []
    ignored: list[Any] = []  # errors in `Stream.__del__`, which Python does not raise
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: ignored.append(hook.exc_type))
    for part in range(1, 11):
        soak.run(num_steps * part // 10)
        used.append(resident_bytes())
    monkeypatch.undo()
    assert set(ignored) <= set(ERRORS)
    assert soak.num_failures > num_steps // 100
    expected = [output["token_ids"] for output in LLM(folder, **SETTINGS).generate(PROMPTS, GREEDY)]
    for _ in range(2):
        assert [output["token_ids"] for output in llm.generate(PROMPTS, GREEDY)] == expected
    assert not llm.engine.scheduler.unfinished and llm.engine.scheduler.blocks.num_used_blocks() == 0
    llm.engine.scheduler.check_integrity()
    assert used[-1] - used[2] < 6 << 20, [f"{bytes_ >> 20} MiB" for bytes_ in used]
