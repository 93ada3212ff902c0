"""Copies of blocks between device and host: their content, their order, and what waits for what, without a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.core.kv.tier import DEVICE, HOST, Transfer  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.work import StepWork  # noqa: E402
from engine.parked import Parked  # noqa: E402
from engine.runner.block_transfers import BlockTransfers, CudaStream, Inline, Waited  # noqa: E402
from engine.runner.staging import Staging  # noqa: E402
from engine.runner.transfer_inputs import TransferInputs, transfer_inputs  # noqa: E402
from tests.engine.builders import bare_sequence  # noqa: E402

CPU = torch.device("cpu")
NUM_BLOCKS = {DEVICE: 6, HOST: 9}
NOTHING = StepPlan(0, [], (), 0, StepWork((), 0, 0, 0), [], [], [], [], [], [], [], 1, 1, 0, 0, 0, 0, 0, 0)


def plan(*moves: tuple[str, int, str, int], lands_in: tuple[int, ...] = ()) -> StepPlan:
    """A plan of these transfers; `lands_in` are the blocks of a sequence that it parks, if any."""
    parked = []
    if lands_in:
        parked = [bare_sequence(0, 1)]
        parked[0].block_table = list(lands_in)
    return NOTHING._replace(transfers=[Transfer(*move) for move in moves], parked=parked)


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


class Gpu:
    """Stands in for `torch.cuda`: writes down what is asked of streams and events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.done: set[str] = set()
        self.num_events = 0
        main, side = _Stream(self, "main"), _Stream(self, "side")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
        monkeypatch.setattr(torch.cuda, "stream", self._stream)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: _Event(self))

    @contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"copies on {stream.name}")
        yield

    def take_log(self) -> list[str]:
        log, self.log = self.log, []
        return log


class _Stream:
    def __init__(self, gpu: Gpu, name: str) -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, other: Any) -> None:
        self.gpu.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Any) -> None:
        self.gpu.log.append(f"{self.name} waits for {event.name}")


class _Event:
    def __init__(self, gpu: Gpu) -> None:
        gpu.num_events += 1
        self.gpu, self.name = gpu, f"event {gpu.num_events}"

    def record(self, stream: Any) -> None:
        self.gpu.log.append(f"{self.name} on {stream.name}")

    def query(self) -> bool:
        return self.name in self.gpu.done

    def synchronize(self) -> None:
        self.gpu.log.append(f"host waits for {self.name}")

    def elapsed_time(self, other: Any) -> float:
        return 0.25


def test_on_a_gpu_steps_wait_for_what_leaves_and_run_beside_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    transfers = BlockTransfers(torch.zeros(1, 2, 6, 4, 1, 8), 9, CudaStream(torch.device("cuda", 0)))
    out, back = (DEVICE, 1, HOST, 5), (HOST, 7, DEVICE, 2)
    waited = launch(transfers, plan(out, back, lands_in=(2, 3)), number=1)
    assert gpu.take_log() == [
        "event 1 on side", "side waits for main", "copies on side", "event 2 on side", "main waits for event 2",
        "side waits for main", "copies on side", "event 3 on side",
    ]  # fmt: skip
    assert transfers.poll(waited) == 250_000 and transfers.landed == 0
    assert gpu.take_log() == ["host waits for event 2"], "the steps waited for it, so it has passed"

    waited = launch(
        transfers, plan(back), number=1
    )  # into a block of nobody who is parked: the steps of this plan read it
    assert gpu.take_log()[-1] == "main waits for event 5"
    gpu.done.add("event 3")
    assert transfers.poll(waited) == 250_000 and transfers.landed == 1
    gpu.take_log()
    waited = launch(transfers, plan(), number=1, awaited=1)
    assert gpu.take_log() == [] and transfers.poll(waited) == 0

    launch(transfers, plan(back, lands_in=(2,)), number=2, awaited=1)
    gpu.take_log()
    launch(transfers, plan(out), number=2, awaited=2)  # the parked one was aborted: its blocks are others' now
    assert gpu.take_log()[0] == "main waits for event 6"


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
