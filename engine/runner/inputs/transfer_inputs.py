"""A plan's transfers of KV blocks as a rank needs them: grouped by the tiers they go between, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from engine.core.kv.tiers.tier import DEVICE, Transfer
from engine.core.plan import StepPlan
from engine.runner.inputs.arrays import columns
from engine.runner.inputs.sampling_inputs import Array


@dataclass(frozen=True)
class TransferRun:
    """Consecutive transfers between the same two tiers; no block is the target of one and the source of another.

    Attributes:
        blocks: int64[2, n], the source and the target of each.
        is_beside: the steps of the plan need none of the targets, so they do not wait for these copies.
    """

    source_tier: str
    target_tier: str
    blocks: Array
    is_beside: bool


@dataclass(frozen=True)
class TransferInputs:
    """The copies that a rank makes before the steps of a plan, and beside them.

    Attributes:
        runs: in the order in which the copies must happen.
        number: of the copies beside the steps: it ascends from plan to plan, and stays the same in a plan without any.
        awaited: the steps wait for all copies beside earlier steps up to this number.
    """

    runs: tuple[TransferRun, ...]
    number: int
    awaited: int


def transfer_inputs(plan: StepPlan, number: int, awaited: int) -> TransferInputs:
    """The inputs of a plan's transfers: what is copied into blocks of parked sequences runs beside the steps."""
    if not plan.transfers:
        return TransferInputs((), number, awaited)
    landing = {block for sequence in plan.parked for block in sequence.block_table}

    def kind(transfer: Transfer) -> tuple[str, str, bool]:
        source, target = transfer.source_tier, transfer.target_tier
        is_beside = source != DEVICE and target == DEVICE and transfer.target in landing
        return source, target, is_beside

    runs = []
    for (source, target, is_beside), transfers in groupby(plan.transfers, kind):
        blocks = columns([(each.source, each.target) for each in transfers], 2)
        runs.append(TransferRun(source, target, blocks, is_beside))
    return TransferInputs(tuple(runs), number, awaited)
