"""Copies of blocks between device and host: their content, their order, and what waits for what, without a GPU."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from engine.core.kv.tiers.tier import DEVICE, HOST, Transfer  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.work import StepWork  # noqa: E402
from engine.runner.cache.block_transfers import BlockTransfers, CudaStream, Inline, Waited  # noqa: E402
from engine.runner.cache.parked import Parked  # noqa: E402
from engine.runner.inputs.transfer_inputs import TransferInputs, transfer_inputs  # noqa: E402
from engine.runner.staging import Staging  # noqa: E402
from tests.cuda_standin import CUDA, standing_in  # noqa: E402
from tests.engine.core.builders import bare_sequence  # noqa: E402

CPU = torch.device("cpu")
NUM_BLOCKS = {DEVICE: 6, HOST: 9}


def plan(*moves: tuple[str, int, str, int], lands_in: tuple[int, ...] = ()) -> StepPlan:
    """A plan of these transfers; `lands_in` are the blocks of a sequence that it parks, if any."""
    parked = []
    transfers = [Transfer(*move) for move in moves]
    if lands_in:
        parked = [bare_sequence(0, 1)]
        parked[0].block_table = list(lands_in)
    work = StepWork((), 0, 0, 0)
    return StepPlan(0, [], (), 0, work, [], [], parked, [], [], transfers, [], 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def launch(transfers: BlockTransfers, plan: StepPlan, number: int = 0, awaited: int = 0) -> Waited:
    inputs = transfer_inputs(plan, number, awaited)
    return transfers.launch(inputs, Staging(CPU).send(inputs))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_every_block_arrives_whatever_the_order_of_the_transfers(dtype: str) -> None:
    rng = random.Random(0)
    cache = torch.randn(3, 2, NUM_BLOCKS[DEVICE], 4, 2, 8).to(getattr(torch, dtype))
    transfers = BlockTransfers(cache, NUM_BLOCKS[HOST], Inline())
    content = {(DEVICE, i): cache[:, :, i].clone() for i in range(NUM_BLOCKS[DEVICE])}
    for _ in range(30):
        moves: list[tuple[str, int, str, int]] = []
        used: set[tuple[str, int]] = set()
        for _ in range(rng.randint(0, 6)):
            source, target = (
                rng.choice(list(content)),
                (tier := rng.choice([DEVICE, HOST]), rng.randrange(NUM_BLOCKS[tier])),
            )
            if source[0] == target[0] == HOST or {source, target} & used:
                continue  # a plan moves no block twice
            used |= {source, target}
            moves.append((*source, *target))
            content[target] = content[source]
        waited = launch(transfers, plan(*moves))
        for (tier, block), expected in content.items():
            found = cache[:, :, block] if tier == DEVICE else transfers._host[block].view(expected.dtype)
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert transfers.poll(waited) >= 0


def test_on_a_gpu_steps_wait_for_what_leaves_and_run_beside_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch) as gpu:
        transfers = BlockTransfers(torch.zeros(1, 2, 6, 4, 1, 8, device=CUDA), 9, CudaStream(CUDA))
        gpu.take()
        out, back = (DEVICE, 1, HOST, 5), (HOST, 7, DEVICE, 2)
        waited = launch(transfers, plan(out, back, lands_in=(2, 3)), number=1)
        assert gpu.take() == [
            "event 1 on side 1", "side 1 waits for main", "copy to host [side 1]", "event 2 on side 1",
            "main waits for event 2", "side 1 waits for main", "copy to device [side 1]", "event 3 on side 1",
        ]  # fmt: skip
        assert transfers.poll(waited) == 250_000 and transfers.landed == 0
        assert gpu.take() == ["host waits for event 2"], "the steps waited for it, so it has passed"

        # Into a block of nobody who is parked: the steps of this plan read it.
        waited = launch(transfers, plan(back), number=1)
        assert gpu.take()[-1] == "main waits for event 5"
        gpu.passed.add("event 3")
        assert transfers.poll(waited) == 250_000 and transfers.landed == 1
        gpu.take()
        waited = launch(transfers, plan(), number=1, awaited=1)
        assert gpu.take() == [] and transfers.poll(waited) == 0

        launch(transfers, plan(back, lands_in=(2,)), number=2, awaited=1)
        gpu.take()
        launch(transfers, plan(out), number=2, awaited=2)  # the parked one was aborted: its blocks are others' now
        assert gpu.take()[0] == "main waits for event 6"


def test_what_is_parked_is_awaited_once_it_takes_part_or_is_aborted() -> None:
    parked = Parked()
    plans = [plan((HOST, 1, DEVICE, i), lands_in=(i,)) for i in range(4)]
    for each in plans:
        parked.add(each)
    parked.add(plan((DEVICE, 1, HOST, 1)))
    assert parked.marks == (4, 0)
    assert parked.take_landed(0) == [] and parked.take_landed(2) == plans[0].parked + plans[1].parked
    assert parked.marks == (4, 2)
    sharing = plan(lands_in=(3,))  # without copies of its own it waits for those of the plan before
    parked.add(sharing)
    assert parked.marks == (4, 2) and parked.take_landed(3) == plans[2].parked and parked.marks == (4, 3)
    parked.hurry(plans[3].parked)
    assert parked.marks == (4, 4) and parked.take_landed(3) == []
    assert parked.take_landed(4) == plans[3].parked + sharing.parked and parked.marks == (4, 4)
    assert not parked and parked.take_landed(4) == []
    parked.add(plans[0])
    parked.forget_all()
    assert not parked and parked.marks == (5, 5), "numbers go on: the device may still copy"


def test_a_plan_without_transfers_has_none() -> None:
    assert transfer_inputs(plan(), 3, 2) == TransferInputs((), 3, 2)
