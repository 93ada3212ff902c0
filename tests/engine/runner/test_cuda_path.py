"""What the host asks of a GPU, plan by plan: a launch, a copy or a wait more, or another order, fails here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter launches kernels in another way", allow_module_level=True)

from engine.api.llm import LLM  # noqa: E402
from engine.core.sequence import Request  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.cuda_objects import Gpu  # noqa: E402
from tests.cuda_standin import CUDA, GRAPH_BYTES, standing_in  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, make_prompts  # noqa: E402

ON_GPU: dict[str, Any] = {**SETTINGS, "device": "cuda", "dtype": "bfloat16"}
BEGIN = ["rms_norm_kernel", "mm", "rotary_store_kernel"]
BETWEEN = ["mm", "rms_norm_kernel", "mm", "silu_and_mul_kernel", "mm", "rms_norm_kernel"]
PIECES = [["embedding", *BEGIN], [*BETWEEN, *BEGIN[1:]], BETWEEN]  # of a model of two layers
PREFILL, DECODE, SPLIT = "prefill_kernel", "decode_kernel", "join_splits_kernel"
DRAW = ["sample_block_kernel", "sample_join_kernel"]
END_DECODE = ["end_decode_kernel", "add_"]
NUM_DECODE_GRAPHS = 4  # of 8, 4, 2 and 1 rows; then come the pieces of 64, 32 and 16 tokens
SEND = ["host waits for event", "copy to device", "event on main"]
JOIN = ["copy_"] * 7  # a row's token, length, blocks, temperature, top-k, top-p and seed
REWIND = ["zero_"]
FETCH = ["copy to host", "event on main"]
READ = ["host waits for event"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with standing_in(monkeypatch) as made:
        yield made


def step(llm: LLM, gpu: Gpu) -> list[str]:
    """What the next plan asks of the device; events without their numbers."""
    gpu.take()
    assert llm.engine.step(0) is not None
    return [re.sub(r"event \d+", "event", line) for line in gpu.take()]


def add(llm: LLM, number: int, length: int, params: SamplingParams = GREEDY) -> None:
    llm.engine.add(Request(number, length, params.max_tokens or 1, token_ids=[number] * length), params)


def in_pieces(*attention: str) -> list[str]:
    """A step of up to 16 tokens: their pieces were captured last."""
    return ["cat"] * 3 + ["replay 10", *attention, "replay 11", *attention, "replay 12"]


def eager(*attention: str) -> list[str]:
    return [*PIECES[0], *attention, *PIECES[1], *attention, *PIECES[2]]


def sampling(num_columns: int = 3, limits: str = "") -> list[str]:
    """Sampling in a step with prompt chunks, between the events of its time."""
    drawn = [*([limits] if limits else []), *DRAW]
    return ["event on main", "arange", "cat", "index", "mm", *["cat"] * num_columns, *drawn, "copy_"]


def test_what_is_captured_and_what_memory_it_is_counted_with(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU)
    decode = ["begin_decode_kernel", *eager(DECODE, SPLIT), "mm", *DRAW, *END_DECODE]
    assert gpu.graphs == [decode] * NUM_DECODE_GRAPHS + PIECES * 3
    log = gpu.take()
    captured = log.index("capture 0")
    assert log[captured - 2 - len(decode) : captured + 1] == [
        "side 1 waits for main", *(f"{name} [side 1]" for name in decode), "main waits for side 1", "capture 0"
    ], "it runs once, beside the main stream, and is not replayed"  # fmt: skip
    assert [line for line in log if line.startswith("replay")] == [f"replay {i}" for i in range(4, 13)]
    assert not [line for line in log[captured:] if "copy to" in line or "host waits" in line]
    pieces = llm.engine._executor._runner._pieces._by_size.values()  # type: ignore[attr-defined]
    assert not any(each is not None for made in pieces for each in made.residuals), "memory of the pool"
    llm.close()


def test_the_account_of_the_pool_counts_all_graphs(gpu: Gpu) -> None:
    blocks = []
    for most in (0, 64):
        llm = LLM(MODEL, **{**ON_GPU, "num_blocks": None}, max_graph_tokens=most)
        blocks.append(llm.engine._executor.num_blocks * llm.engine._executor.block_bytes)
        llm.close()
    pieces = 9 * GRAPH_BYTES  # three sizes of three pieces
    assert 0 <= blocks[0] - blocks[1] - pieces < 2 * llm.engine._executor.block_bytes


def test_plans_of_prompts_and_decodes_launch_pieces_and_replays(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU)
    add(llm, 1, 5)
    prompt = [*SEND, *REWIND, *in_pieces(PREFILL), *sampling(), "event on main", *FETCH, *READ]
    assert step(llm, gpu) == prompt
    add(llm, 2, 9)
    both = [*in_pieces(PREFILL, DECODE), *sampling(), *END_DECODE, "event on main"]
    assert step(llm, gpu) == [*SEND, *JOIN, *REWIND, "begin_decode_kernel", *both, *FETCH, *READ]
    grown = ["index_put_"]
    assert step(llm, gpu) == [*SEND, *JOIN, *grown, *REWIND, *["replay 2"] * 8, *FETCH, *READ]
    assert step(llm, gpu) == [*SEND, *grown, *REWIND, *["replay 2"] * 8, *FETCH, *READ]
    llm.close()


@pytest.mark.parametrize("settings", [{"max_graph_tokens": 0}, {"cuda_graphs": False}], ids=str)
def test_a_step_without_pieces_launches_kernel_by_kernel(gpu: Gpu, settings: dict[str, Any]) -> None:
    llm = LLM(MODEL, **ON_GPU, **settings)
    add(llm, 1, 5)
    expected = [*SEND, *REWIND, *["cat"] * 3, *eager(PREFILL), *sampling(), "event on main", *FETCH, *READ]
    assert step(llm, gpu) == expected
    llm.close()


def test_a_larger_step_than_all_pieces_runs_without_them(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU, max_graph_tokens=32)
    add(llm, 1, 32)
    assert sum("replay" in name for name in step(llm, gpu)) == 3
    add(llm, 2, 32)  # and a decode
    assert not any("replay" in name for name in step(llm, gpu))
    llm.close()


def test_limits_launch_one_kernel_more_and_capture_their_graph_once(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU)
    add(llm, 1, 5, replace(GREEDY, temperature=0.5, top_k=4, top_p=0.5))
    limited = sampling(5, "keep_threshold_kernel")
    assert step(llm, gpu) == [*SEND, *REWIND, *in_pieces(PREFILL), *limited, "event on main", *FETCH, *READ]
    assert "capture 13" in step(llm, gpu) and "keep_threshold_kernel" in gpu.graphs[13]
    assert step(llm, gpu) == [*SEND, "index_put_", *REWIND, *["replay 13"] * 8, *FETCH, *READ]
    llm.close()


def test_log_probabilities_come_before_the_event_that_the_host_waits_for(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU)
    add(llm, 1, 5, replace(GREEDY, logprobs=2))
    for _ in range(2):
        assert step(llm, gpu)[-7:] == ["copy to host"] * 5 + ["event on main", *READ]
    llm.close()


def test_a_plan_is_launched_before_the_host_waits_for_the_one_before(gpu: Gpu) -> None:
    llm = LLM(MODEL, **ON_GPU, async_scheduling=True)
    add(llm, 1, 5)
    first = [*SEND, *REWIND, *in_pieces(PREFILL), *sampling(), "event on main", *FETCH]
    joined = [*SEND[1:], *JOIN[:1], "index", "index_put_", *JOIN[1:], *REWIND, "replay 3", *FETCH]
    log = step(llm, gpu)
    assert log == [*first, *SEND[:1], *joined, *READ]
    assert step(llm, gpu)[-4:] == ["replay 3", *FETCH, *READ]
    llm.close()


def test_every_plan_copies_once_each_way_and_waits_for_nothing_else(gpu: Gpu) -> None:
    """Also with chunked prompts, joins, leaves and preemptions."""
    llm = LLM(MODEL, **{**ON_GPU, "num_blocks": 64})
    params = SamplingParams(max_tokens=30, temperature=0.8, top_p=0.9, seed=5)
    for number, prompt in enumerate(make_prompts()):
        add(llm, number, len(prompt), params)
    num_preempted, num_plans = 0, 0
    gpu.take()
    while report := llm.engine.step(0):
        log = [re.sub(r"\d+", "", line) for line in gpu.take() if "copy to" in line or "host waits" in line]
        sent = ["host waits for event ", "copy to device"] if "copy to device" in log else []
        assert log == [*sent, "copy to host", "host waits for event "]
        num_preempted += len(report.plan.preempted)
        num_plans += 1
    assert num_preempted > 3 and num_plans > 20
    llm.close()


def test_the_stand_in_notices_what_does_not_belong_there(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    x, host = torch.zeros(4, device=CUDA), torch.zeros(4)
    for look in (lambda: x.sum().item(), x.tolist, lambda: bool(x[0]), lambda: x[x > 0], x.cpu, lambda: x.to("cpu")):
        gpu.take()
        look()
        assert any("host waits" in line for line in gpu.log)
    with pytest.raises(AssertionError, match="host and of the device"):
        torch.add(x, host)
    x.copy_(host, non_blocking=True)
    assert gpu.log[-1] == "host waits for a copy to the device", "which only page-locked memory does beside it"
    monkeypatch.setattr("engine.runner.model_runner.end_decode", lambda sampled, *_: sampled.max().item())
    with pytest.raises(AssertionError, match="while a graph is captured"):
        LLM(MODEL, **ON_GPU)
