"""Sessions whose requests wait for several others: when these arrive, what prompts share, and how they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import run
from harness.config import SessionsArrival
from harness.errors import TraceError
from harness.workload.arrivals import Sessions, make_arrivals
from harness.workload.content import block_identities
from harness.workload.readers.own import frame
from harness.workload.rows.sieve import RowRules
from harness.workload.token_ids import PromptSource
from harness.workload.trace import Trace
from tests.harness.workload.builders import SECOND, drive

FORK = {  # a main agent (0, 3, 4) whose first answer starts two others: 1, and 2, which goes on from it
    "request_id": [10, 11, 12, 13, 14],
    "session_id": [0] * 5,
    "num_prompt_tokens": [32, 20, 44, 60, 90],
    "num_output_tokens": [8, 4, 6, 10, 2],
    "waits_for": [[], [10], [10], [10, 11, 12], [13]],
    "think_time": [0.0, 0.0, 1.0, 0.0, 2.0],
}
RUN = ("model=qwen3-0.6b", "block_size=16", "plots=false", "arrival=sessions", "arrival.rate=5")


def read(columns: dict[str, Any], **rules: Any) -> Trace:
    return frame.read(pd.DataFrame(columns), "test", RowRules(**rules))


def test_a_fork_and_its_join_arrive_when_the_last_of_those_that_they_wait_for_has_ended() -> None:
    config = SessionsArrival(rate=1.0, think_time="trace")  # type: ignore[arg-type]
    arrivals = make_arrivals(read(FORK), config, np.random.default_rng(0))
    arrived, finished = drive(arrivals, [each * SECOND for each in (3, 5, 1, 2, 1)])
    assert [(row, time / SECOND) for time, row in arrived] == [(0, 0), (1, 3), (2, 4), (3, 8), (4, 12)]
    assert finished == {0: 3 * SECOND, 1: 8 * SECOND, 2: 5 * SECOND, 3: 10 * SECOND, 4: 13 * SECOND}


def test_rows_that_wait_for_none_come_with_the_start_of_their_session() -> None:
    sessions = Sessions(np.array([0, 1, 0]), np.array([5, 7]), np.zeros(3, np.int64), [[], [], []])
    assert drive(sessions, [1, 1, 1])[0] == [(5, 0), (5, 2), (7, 1)]


@given(data=st.data())
def test_no_request_arrives_before_the_end_of_one_that_it_waits_for(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20))
    session_id = [data.draw(st.integers(0, 3)) for _ in range(count)]
    waits_for: list[list[int]] = []
    for row in range(count):
        earlier = [each for each in range(row) if session_id[each] == session_id[row]]
        waits_for.append(data.draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else [])
    starts = np.sort(data.draw(st.lists(st.integers(0, 9), min_size=len({*session_id}), max_size=len({*session_id}))))
    think = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    sessions = Sessions(np.array(session_id), starts, np.array(think), waits_for)
    services = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    arrived, finished = drive(sessions, services, data.draw(st.integers(0, 2)))
    assert sorted(row for _, row in arrived) == list(range(count))
    for time, row in arrived:
        ends = [finished[each] for each in waits_for[row]]
        assert not ends or time == max(ends) + think[row]


def chains(with_waits: bool) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for session in range(12):
        prompt = 0
        for turn in range(int(rng.integers(1, 6))):
            prompt, output = prompt + int(rng.integers(5, 90)), int(rng.integers(1, 60))
            waits_for = [len(rows) - 1] if turn else []
            row = {"request_id": len(rows), "num_prompt_tokens": prompt, "num_output_tokens": output}
            rows.append({**row, "session_id": session, "think_time": float(rng.exponential()), "waits_for": waits_for})
            prompt += output
    return pd.DataFrame(rows).drop(columns=[] if with_waits else ["waits_for", "request_id"])


@pytest.mark.parametrize("think_time", ["trace", "2.0"])
def test_a_chain_is_a_session_bit_for_bit(think_time: str) -> None:
    given = (*RUN, f"arrival.think_time={think_time}", "num_blocks=60")
    one, other = (run(*given, trace=chains(with_waits)) for with_waits in (False, True))
    pd.testing.assert_frame_equal(one.requests, other.requests, check_exact=True)
    pd.testing.assert_frame_equal(one.steps, other.steps, check_exact=True)
    assert one.requests["num_cached_tokens"].sum() > 0


def test_prompts_share_what_they_go_on_from() -> None:
    identities = block_identities(read(FORK), 8)
    assert identities is not None
    blocks = [identities(row).all() for row in range(5)]
    assert blocks[2][:5] == blocks[0] and blocks[3][:5] == blocks[0], "both begin with prompt and answer of 0"
    assert blocks[2][5:] and not {*blocks[2][5:]} & {*blocks[3]}, "their own tokens are no longer shared"
    assert not {*blocks[1]} & {*blocks[0]}, "a shorter prompt is a new one"
    assert blocks[4][:8] == blocks[3]


def test_real_prompts_go_on_with_what_was_answered() -> None:
    source = PromptSource(read(FORK), 1000, seed=0)
    first = source.make(0, 0)
    tokens = first.sequences[0].token_ids
    assert tokens is not None
    tokens += [7] * 8
    source.on_finish(first)
    prompts = [source.make(row, 0).sequences[0].token_ids for row in (1, 2, 3)]
    assert [prompt is not None and prompt[:40] == tokens for prompt in prompts] == [False, True, True]
    assert not source._histories, "forgotten with the last that begins with it"


def test_hash_ids_tell_what_an_answer_becomes_part_of() -> None:
    columns: dict[str, Any] = {**FORK, "hash_block_size": [16] * 5}
    columns["hash_ids"] = [[1, 2], [8, 9], [1, 2, 5], [1, 2, 3, 4], [6, 2, 3, 4, 20, 21]]
    trace = read(columns)
    identities = block_identities(trace, 8)
    assert identities is not None
    blocks = [identities(row).all() for row in range(5)]
    assert blocks[0] == blocks[2][:5] and blocks[0][:4] == blocks[3][:4]
    assert len(blocks[3]) == 7, "the prompt of 4 is another one, so nobody tells what the answer of 3 is"
    source = PromptSource(trace, 1000, seed=0)
    first = source.make(0, 0)
    tokens = first.sequences[0].token_ids
    assert tokens is not None
    tokens += [7] * 8
    source.on_finish(first)
    prompt = source.make(2, 0).sequences[0].token_ids
    assert prompt is not None and prompt[:40] == tokens and len(prompt) == 44


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"waits_for": [[], [10], [10], [10, 99], [13]]}, "names no earlier request of the session"),
        ({"waits_for": [[11], [], [10], [], [13]]}, "names no earlier request of the session"),
        ({"session_id": [0, 0, 0, 0, 1]}, "names no earlier request of the session"),
        ({"request_id": [10, 11, 11, 13, 14]}, "request_id is that of an earlier request"),
        ({"waits_for": [[], ["a"], [10], [10], [13]]}, "waits_for is not a list of whole numbers"),
    ],
)
def test_rows_that_wait_for_what_is_not_there_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read({**FORK, **change})
    kept = read({**FORK, **change}, on_bad_row="drop")
    assert len(kept.table) < 5
    assert all((rows < row).all() for row, rows in enumerate(kept.table["waits_for"]))


@pytest.mark.parametrize("lacking", ["request_id", "session_id"])
def test_waits_for_names_requests_of_a_session(lacking: str) -> None:
    with pytest.raises(TraceError, match=f"waits_for without {lacking}"):
        read({name: values for name, values in FORK.items() if name != lacking})


def test_a_file_is_read_in_order_of_time_and_what_is_cut_off_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [dict(zip(FORK, values, strict=True)) for values in zip(*FORK.values(), strict=True)]
    times = [0.0, 3.0, 4.0, 8.0, 12.0]
    path.write_text(
        "\n".join(json.dumps({**row, "arrival_time": time}) for row, time in zip(lines, times, strict=True))
    )
    from harness.config import JsonlTrace
    from harness.workload.readers import load_trace

    def waits(**options: Any) -> list[list[int]]:
        trace = load_trace(JsonlTrace(path=str(path), **options), seed=0)
        return [rows.tolist() for rows in trace.table["waits_for"]]

    assert waits() == [[], [0], [0], [0, 1, 2], [3]]
    assert waits(limit=3) == [[], [0], [0]]
    assert waits(window=(2.0, 10.0)) == [[], [], [0, 1]]
    assert load_trace(JsonlTrace(path=str(path)), seed=0).table["turn"].tolist() == [0, 1, 1, 2, 3]
