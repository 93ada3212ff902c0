"""`LLM` from several threads: their requests share the steps of one engine, and each gets its own outputs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine.api.beam_search import BeamSearchParams  # noqa: E402
from engine.api.calls import EngineClosedError  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.api.turns import Turns  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, make_prompts, one_by_one  # noqa: E402

NUM_THREADS = 6
BRIEF = replace(GREEDY, max_tokens=12)
BEAMS = BeamSearchParams(beam_width=2, max_tokens=4)


@pytest.fixture(scope="module")
def llm() -> LLM:
    torch.set_num_threads(1)
    return LLM(MODEL, **SETTINGS)


def from_threads(work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return [each.result(timeout=120) for each in [pool.submit(work, i) for i in range(2 * NUM_THREADS)]]


def test_each_thread_gets_its_own_outputs(llm: LLM) -> None:
    prompts, expected = make_prompts(), [tokens[:12] for tokens in one_by_one()]
    best = [output.sequences[0].tokens for output in llm.beam_search(prompts, BEAMS)]

    def work(number: int) -> object:
        at = number % (len(prompts) - 2)
        if number % 4 == 3:
            return llm.beam_search(prompts[at : at + 1], BEAMS)[0].sequences[0].tokens == best[at]
        if number % 3 == 0:
            return [found["token_ids"] for found in llm.generate(prompts[at : at + 2], BRIEF)] == expected[at : at + 2]
        if number % 3 == 1:
            last = {found.index: found["token_ids"] for found in llm.stream(prompts[at : at + 2], BRIEF)}
            return [last[i] for i in range(2)] == expected[at : at + 2]
        stream = llm.stream(prompts[at : at + 2], BRIEF)
        next(stream)
        del stream  # abandoned, in the middle of the steps of others
        gc.collect()
        return True

    for _ in range(2):
        assert all(from_threads(work))
    scheduler = llm.engine.scheduler
    llm.generate(prompts[:1], BRIEF)  # takes in what was abandoned last
    assert not scheduler.unfinished and scheduler.blocks.num_used_blocks() == 0
    scheduler.check_integrity()


def test_a_stream_that_a_thread_drops_does_not_wait_for_the_engine(llm: LLM) -> None:
    """Garbage collection drops streams in any thread, also in one that the thread with the engine waits for."""
    streams = [llm.stream(make_prompts()[:2], BRIEF)]
    next(streams[0])
    with llm._calls.turns:
        dropping = threading.Thread(target=streams.clear, daemon=True)
        dropping.start()
        dropping.join(timeout=30)
        assert not dropping.is_alive()
    llm.generate(make_prompts()[:1], BRIEF)
    assert not llm.engine.scheduler.unfinished and llm.engine.scheduler.blocks.num_used_blocks() == 0


def test_closing_ends_the_calls_of_other_threads() -> None:
    llm = LLM(MODEL, **SETTINGS)
    begun = threading.Barrier(3)

    def work() -> str:
        stream = llm.stream(make_prompts()[:2], replace(GREEDY, max_tokens=500))
        next(stream)
        begun.wait(60)
        try:
            for _ in stream:
                pass
        except EngineClosedError:
            return "closed"
        return "ended"

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(work) for _ in range(2)]
        begun.wait(60)
        llm.close()
        assert [each.result(timeout=60) for each in found] == ["closed", "closed"]


def test_a_thread_that_waits_comes_before_one_that_comes_back() -> None:
    turns, order = Turns(), list[str]()
    waits, is_over = threading.Event(), threading.Event()

    def greedy() -> None:
        while not is_over.is_set():
            with turns, turns:
                order.append("greedy")
                waits.wait(0.001)

    thread = threading.Thread(target=greedy)
    thread.start()
    for _ in range(20):
        with turns:
            order.append("other")
    is_over.set()
    thread.join(timeout=60)
    others = [i for i, name in enumerate(order) if name == "other"]
    assert max(b - a for a, b in zip(others, others[1:], strict=False)) <= 3, order
