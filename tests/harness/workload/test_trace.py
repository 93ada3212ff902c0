"""The trace table, and real traces against figures that were measured independently of this project."""

from pathlib import Path

import numpy as np
import pytest

from harness.config import AzureTrace, MooncakeTrace, ShareGptTrace
from harness.workload.readers import load_trace
from harness.workload.trace import Trace, conversation_columns, trace_table
from tests.harness.builders import TRACES


def real_trace(config: AzureTrace | MooncakeTrace | ShareGptTrace) -> Trace:
    if not Path(str(config.path)).exists():
        pytest.skip(f"real trace {config.path} is not here")
    return load_trace(config, seed=0)


AZURE = AzureTrace(path=str(TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv"), on_bad_row="error")
MOONCAKE = MooncakeTrace(path=str(TRACES / "mooncake/conversation_trace.jsonl"), on_bad_row="error")
SHAREGPT = ShareGptTrace(path=str(TRACES / "sharegpt/sharegpt_v3_first_exchange_lengths.csv"), on_bad_row="error")


def figures(lengths: np.ndarray) -> str:
    p90, p99 = np.percentile(lengths, [90, 99])
    shown = (lengths.min(), np.median(lengths), lengths.mean(), p90, p99, lengths.max())
    return "/".join(str(round(float(value))) for value in shown)


@pytest.mark.parametrize(
    ("config", "num_rows", "inputs", "outputs"),
    [
        (AZURE, 19_366, "2/1020/1155/2734/4142/14050", "7/129/211/424/601/1000"),
        (MOONCAKE, 12_031, "891/6909/12035/27367/85400/126195", "1/350/343/597/1119/2000"),
        (SHAREGPT, 58_000, "1/36/248/759/2863/3973", "1/283/325/682/999/2384"),
    ],
)
def test_golden_lengths(
    config: AzureTrace | MooncakeTrace | ShareGptTrace, num_rows: int, inputs: str, outputs: str
) -> None:
    table = real_trace(config).table
    assert len(table) == num_rows
    assert figures(table["num_prompt_tokens"].to_numpy()) == inputs
    assert figures(table["num_output_tokens"].to_numpy()) == outputs


@pytest.mark.parametrize(("config", "cv", "rate"), [(AZURE, "1.09", "5.53"), (MOONCAKE, "3.03", "3.40")])
def test_golden_arrivals(config: AzureTrace | MooncakeTrace | ShareGptTrace, cv: str, rate: str) -> None:
    times = real_trace(config).table["arrival_time"].to_numpy()
    gaps = np.diff(times)
    assert f"{gaps.std() / gaps.mean():.2f}" == cv
    assert f"{len(gaps) / times[-1]:.2f}" == rate


def test_mooncake_prefix_hits_of_an_infinite_cache() -> None:
    trace = real_trace(MOONCAKE)
    assert trace.hash_block_size == 512
    seen: set[int] = set()
    cached = 0
    for length, ids in zip(trace.table["num_prompt_tokens"], trace.table["hash_ids"], strict=True):
        hits = next((k for k, block in enumerate(ids.tolist()) if block not in seen), len(ids))
        cached += min(512 * hits, length)
        seen.update(ids.tolist())
    assert f"{cached / trace.table['num_prompt_tokens'].sum():.3f}" == "0.374"


def test_table_is_complete_and_typed() -> None:
    table = trace_table(
        {
            "num_prompt_tokens": [5, 7],
            "num_output_tokens": [1, 2],
            "arrival_time": np.array([1700158546680590000, 1700158546680590100]),
            "priority": [0, -1],
            "tenant": [4, -4],
            "deadline": [1, 2.5],
            "session_id": [3, 3],
            "hash_ids": [np.array([1, 2]), np.array([1, 3])],
        },
        ticks_per_second=10**9,
    )
    integers = ["request_id", "num_prompt_tokens", "num_output_tokens", "priority", "session_id", "turn"]
    assert all(table[name].dtype == np.int64 for name in integers)
    assert table["arrival_time"].tolist() == [0.0, 1e-7]
    assert table["deadline"].tolist() == [1.0, 2.5] and table["tenant"].tolist() == [4, -4]
    assert table["turn"].tolist() == [0, 1]
    assert [ids.tolist() for ids in table["hash_ids"]] == [[1, 2], [1, 3]]
    assert "token_ids" not in table


def test_trace_without_times_says_so() -> None:
    lengths = {"num_prompt_tokens": [5], "num_output_tokens": [1]}
    assert not Trace("t", trace_table(lengths), "test").has_times
    assert Trace("t", trace_table(lengths | {"arrival_time": [4.0]}), "test").has_times


def test_prompts_of_a_conversation_hold_what_was_said_before() -> None:
    columns = conversation_columns(
        num_turns=np.array([1, 3]), new_tokens=np.array([10, 5, 6, 7]), output_tokens=np.array([1, 2, 3, 4])
    )
    assert columns["session_id"].tolist() == [0, 1, 1, 1]
    assert columns["turn"].tolist() == [0, 0, 1, 2]
    assert columns["num_prompt_tokens"].tolist() == [10, 5, 5 + 2 + 6, 13 + 3 + 7]
