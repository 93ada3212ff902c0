"""The decode path of CUDA graphs, on the CPU: padded buckets, static rows, several replays per plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.core.sequence import Request  # noqa: E402
from engine.models.model_config import ModelConfig, ModelError  # noqa: E402
from engine.prompt_lookup import NgramOptions  # noqa: E402
from engine.runner import model_runner  # noqa: E402
from engine.runner.executors import executor  # noqa: E402
from engine.runner.graphs.cuda_graphs import Step, bucket_for, buckets, capture_nothing, uses_graphs  # noqa: E402
from engine.runner.graphs.piece_graphs import PieceGraphs, token_sizes  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from kernels.cache import rotary_store  # noqa: E402
from tests.engine.builders import (  # noqa: E402
    GREEDY,
    MODEL,
    SETTINGS,
    DecodeDenseBackend,
    generate,
    make_prompts,
    one_by_one,
    record,
    sample_unseen,
    store_unseen,
)

SAMPLED = SamplingParams(max_tokens=14, temperature=0.8, seed=5)
FILTERED = replace(SAMPLED, top_k=50, top_p=0.9)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 5, "max_num_batched_tokens": 9},
        pytest.param({"num_blocks": 64, "policy": "prefill_first"}, marks=pytest.mark.slow),
        pytest.param({"num_blocks": 64, "max_num_seqs": 11, "max_lookahead_steps": 3}, marks=pytest.mark.long),
        pytest.param({"block_size": 1, "num_blocks": 1600, "max_lookahead_steps": 1}, marks=pytest.mark.slow),
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_buckets_give_the_tokens_of_the_eager_path(settings: dict[str, Any]) -> None:
    assert generate(cuda_graphs=True, **settings) == one_by_one()


@pytest.mark.parametrize(
    "params",
    [pytest.param(GREEDY, marks=pytest.mark.long), pytest.param(SAMPLED, marks=pytest.mark.slow), FILTERED],
    ids=["greedy", "plain", "filtered"],
)
def test_a_decode_step_hangs_on_nothing_that_a_graph_freezes(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays of what was recorded on blank rows give the eager path's tokens, with joins, leaves and preemptions."""
    expected = generate(params)
    monkeypatch.setattr(executor, "select_backend", lambda *_: DecodeDenseBackend(TorchBackend()))
    monkeypatch.setattr(executor, "make_capture", lambda _: record)
    monkeypatch.setattr(model_runner, "sample", sample_unseen)
    monkeypatch.setattr(rotary_store, "store_kv_reference", store_unseen)
    monkeypatch.setattr(executor, "pack_for_cpu", lambda _: None)
    # One block more than is planned with takes what padding stores.
    allocate = executor.kv_cache.allocate
    monkeypatch.setattr(executor.kv_cache, "allocate", lambda model, blocks, *rest: allocate(model, blocks + 1, *rest))
    assert generate(params, cuda_graphs=True, num_blocks=64, max_model_len=200, max_lookahead_steps=16) == expected


def test_nothing_comes_after_a_stop_token() -> None:
    full = one_by_one()[0]
    llm = LLM(MODEL, **SETTINGS, cuda_graphs=True)
    stop = full[12]
    (output,) = llm.generate(make_prompts()[:1], replace(GREEDY, stop_token_ids=(stop,)))
    assert output["token_ids"] == full[: full.index(stop) + 1]
    (output,) = llm.generate(make_prompts()[:1], GREEDY)
    assert output["token_ids"] == full


class Log:
    """A capture that writes down what happens."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed: list[int] = []

    def __call__(self, step: Step) -> Step:
        number, self.captured = self.captured, self.captured + 1
        return lambda: (self.replayed.append(number), step())[1]  # type: ignore[func-returns-value]


def test_graphs_are_captured_up_front_and_replayed_back_to_back(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(executor, "make_capture", lambda _: log)
    llm = LLM(MODEL, **{**SETTINGS, "max_num_seqs": 6}, cuda_graphs=True, max_graph_tokens=0)
    assert log.captured == 4  # of 6, 4, 2 and 1 rows
    llm.generate(make_prompts()[:3], replace(GREEDY, max_tokens=20))
    assert log.captured == 4 and set(log.replayed) <= {1, 2, 3}
    plan_lengths = []
    for i in range(3):
        llm.engine.add(Request(1000 + i, 5, 20, token_ids=[i + 1] * 5), replace(GREEDY, max_tokens=20))
    while report := llm.engine.step(0):
        if not report.plan.prefills:
            plan_lengths.append(report.plan.num_steps)
            assert log.replayed[-report.plan.num_steps :] == [1] * report.plan.num_steps  # the bucket of 4 for 3 rows
    assert plan_lengths == [8, 8, 3]
    llm.generate(make_prompts()[:1], replace(FILTERED, max_tokens=3))
    assert log.captured == 5, "a graph that filters is captured when it is needed"
    llm.generate(make_prompts()[:1], replace(FILTERED, max_tokens=3))
    assert log.captured == 5


@pytest.mark.parametrize("most", [1, 3, 8, 20, 64, 65, 100, 256, 1000])
def test_buckets_cover_every_batch(most: int) -> None:
    sizes = buckets(most)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most
    for n in range(1, most + 1):
        bucket = bucket_for(n, sizes)
        assert n <= bucket < n + (16 if n > 64 else 8)
    assert buckets(256)[:12] == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80]


@pytest.mark.parametrize("most", [1, 7, 16, 20, 64, 256, 300, 512, 2048, 3000])
def test_sizes_of_pieces_cover_every_step(most: int) -> None:
    sizes = token_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    for n in range(1, most + 1):
        size = bucket_for(n, sizes)
        assert n <= size < n + (n / 8 if n > 1024 else 64 if n > 256 else 32)
    assert token_sizes(512) == [16, *range(32, 257, 32), 320, 384, 448, 512]


MOE = replace(
    MODEL, family="qwen3_moe", num_experts=4, num_experts_per_token=2, moe_intermediate_size=32, decoder_sparse_step=1
)


@pytest.mark.parametrize(
    ("model", "settings"),
    [(MOE, {}), (MODEL, {"speculation": NgramOptions(num_speculative_tokens=3)})],
    ids=["moe", "drafts"],
)
def test_pieces_give_the_tokens_of_the_whole_step(
    model: ModelConfig, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left of earlier steps where the tokens of a step are padded."""
    counts: list[int] = []
    run = PieceGraphs.run

    def spoil(self: PieceGraphs, num_tokens: int, *arguments: Any) -> Any:
        counts.append(num_tokens)
        self._attended[num_tokens:] = torch.nan
        return run(self, num_tokens, *arguments)

    monkeypatch.setattr(PieceGraphs, "run", spoil)
    tokens = []
    for most in (0, 64):
        llm = LLM(model, **SETTINGS, **settings, cuda_graphs=True, max_graph_tokens=most)
        tokens.append([output["token_ids"] for output in llm.generate(make_prompts(), replace(GREEDY, max_tokens=12))])
        assert bool(counts) == bool(most)
    assert tokens[0] == tokens[1] and not set(counts) <= {16, 32, 64}, "some are padded"


def test_when_graphs_are_used() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert uses_graphs("auto", cuda, True, "triton") and not uses_graphs("auto", cuda, False, "torch")
    assert not uses_graphs("auto", cpu, True, "torch") and uses_graphs(True, cpu, False, "torch")
    assert not uses_graphs(False, cuda, True, "triton")
    with pytest.raises(ModelError, match="'torch' cannot be captured"):
        uses_graphs(True, cuda, False, "torch")


def test_the_estimate_counts_the_largest_graph_and_what_each_other_adds() -> None:
    from engine.runner.graphs.cuda_graphs import DecodeGraphs

    free = iter([1000, 700, 680])
    graphs = DecodeGraphs(lambda rows, filtered: None, 8, capture_nothing)  # 8, 4, 2 and 1 rows, filtered or not
    assert graphs.capture_bytes(lambda: next(free)) == 300 + 7 * 20
