"""What goes to the device and what comes back, with the host standing in for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.core.sequence import Request  # noqa: E402
from engine.runner.inputs.decode_rows import RowChanges  # noqa: E402
from engine.runner.inputs.decode_state import DecodeState  # noqa: E402
from engine.runner.inputs.sampling_inputs import SamplingInputs  # noqa: E402
from engine.runner.inputs.step_inputs import StepBuilder  # noqa: E402
from engine.runner.staging import Staging, TokenBuffer  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import record  # noqa: E402
from tests.engine.core import builders  # noqa: E402

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Inner:
    weights: Any
    count: int


@dataclass(frozen=True)
class Outer:
    table: Any
    inner: Inner
    other: Inner | None
    ids: Any


def make(size: int, rng: np.random.Generator) -> Outer:
    table = rng.integers(0, 99, (size, 3)).astype(np.int32)
    inner = Inner(rng.random(size, dtype=np.float32), size)
    return Outer(table, inner, None if size % 2 else Inner(np.zeros(0, np.float32), 0), rng.integers(0, 99, (2, 7)).T)


def test_arrays_arrive_as_they_are_whatever_came_before() -> None:
    staging, rng = Staging(CPU), np.random.default_rng(0)
    for size in (3, 0, 40_000, 1, 5):
        inputs = make(size, rng)
        sent = staging.send(inputs)
        pairs = [(inputs.table, sent.table), (inputs.inner.weights, sent.inner.weights), (inputs.ids, sent.ids)]
        for array, tensor in pairs:
            assert str(tensor.dtype) == f"torch.{array.dtype}" and tensor.shape == array.shape
            assert np.array_equal(tensor.numpy(), array)
            assert array.size == 0 or tensor.data_ptr() % 16 == 0
        assert sent.inner.count == size and (sent.other is None) == (inputs.other is None)


def test_a_pinned_buffer_is_left_alone_while_the_next_step_is_sent() -> None:
    """The copy of one step may still run while the next one is written."""
    staging = Staging(CPU)
    staging.send(Inner(np.full(4, 1, np.float32), 0))
    first = staging._pinned[0]._bytes.clone()
    staging.send(Inner(np.full(4, 2, np.float32), 0))
    assert torch.equal(staging._pinned[1]._bytes[:16], first[:16])
    assert staging._pinned[0]._bytes.data_ptr() != staging._pinned[1]._bytes.data_ptr()


def test_tokens_of_steps_and_prompts_come_back_in_their_rows() -> None:
    buffer = TokenBuffer(3, 4, CPU)
    buffer.prompts[:2] = torch.tensor([7, 8])
    buffer.ring[:2] = torch.arange(8).view(2, 4)
    read = buffer.fetch(2)
    buffer.ring.zero_()
    read_next = buffer.fetch(2)
    fetched = read()
    assert not read_next()[1:].any()
    assert fetched[0, :2].tolist() == [7, 8] and fetched[1:].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_host_knows_the_longest_context_without_asking_the_device() -> None:
    rng = np.random.default_rng(1)
    scheduler = builders.make(num_blocks=24, block_size=4, max_num_seqs=6, max_num_batched_tokens=16, max_model_len=80)
    builder, staging, state = StepBuilder(4), Staging(CPU), DecodeState(6, 20, CPU)
    for i in range(40):
        length = int(rng.integers(1, 30))
        request = Request(i, length, int(rng.integers(1, 25)), token_ids=rng.integers(0, 50, length).tolist())
        scheduler.add(request)
        builder.add(request.sequences[0], SamplingParams(temperature=0.1 * i), i)
    preemptions = 0
    for now in range(10_000):
        plan = scheduler.schedule(now)
        if plan is None:
            break
        plan = scheduler.extend(plan, min(plan.horizon, 3))
        preemptions += len(plan.preempted)
        inputs = staging.send(builder.build(plan))
        state.apply(inputs.rows, torch.zeros(0))
        n = plan.num_decodes
        rows = builder.samples.decodes
        if n:
            assert n == len(rows)
            assert state.lengths.tolist() == [s.num_tokens for s in rows] + [0] * (6 - n)
            assert inputs.max_decode_context == max(s.num_tokens for s in rows)
            assert state.seeds[:n].tolist() == [s.request_id for s in rows]
            assert state.tokens[:n].tolist() == [s.token_ids[-1] for s in rows]  # type: ignore[index]
            for row, sequence in enumerate(rows):
                assert state.tables[row, : len(sequence.block_table)].tolist() == sequence.block_table
        for sequence in [*rows[:n], *(chunk.sequence for chunk in plan.prefills if chunk.is_last)]:
            sequence.token_ids.extend([int(rng.integers(0, 50))] * plan.num_steps)  # type: ignore[union-attr]
        for row in range(n):  # what the decode steps do on the device
            state.tokens[row] = rows[row].token_ids[-1]  # type: ignore[index]
        state.lengths[:n] += plan.num_steps
        builder.drop(request.sequences[0] for request in scheduler.commit(plan, now).finished)
    assert preemptions > 3 and not scheduler.unfinished


def test_a_row_that_joins_gets_its_token_where_the_last_plan_sampled_it() -> None:
    """Without a look at its value, for which the host would have to wait."""
    state, sampling = DecodeState(4, 2, CPU), SamplingInputs(*(torch.zeros(3) for _ in range(4)))
    lengths, tables, no_growth = torch.tensor([3, 5, 4]), torch.ones(3, 2), torch.zeros(3, 0, dtype=torch.int64)
    sampled = torch.tensor([[0, 2], [4, 1]])
    changes = RowChanges(no_growth[:2], 0, torch.tensor([7, 8, 9]), lengths, tables, sampling, sampled, no_growth)
    record(lambda: state.apply(changes, torch.tensor([10, 11, 12, 13, 14, 15])))
    assert state.tokens.tolist() == [14, 8, 11, 0] and state.lengths.tolist() == [3, 5, 4, 0]
