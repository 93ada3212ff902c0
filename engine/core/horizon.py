"""How many decode steps may run before there is something to decide."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
from engine.core.policy import Policy, make_view
from engine.core.running_set import RunningSet
from engine.core.waiting_queue import WaitingQueue


def decode_horizon(
    policy: Policy, running: RunningSet, waiting: WaitingQueue, blocks: BlockManager, num_running: int, num_seats: int
) -> int:
    """Decode steps of a lane, the planned one included, in which nobody ends, enters or lacks a block.

    The policy says whether the head of the queue could enter; a head that lacks blocks can also come to fit when a
    decode fills a block that the head could share. `num_running` and `num_seats` are those of all lanes.
    """
    decodes = running.decodes
    limit = decodes.next_event()
    if limit > 1 and waiting:
        has_seat, head_fits = num_running < num_seats, not waiting.head_blocked
        view = make_view((len(waiting), num_running, has_seat, head_fits, waiting.head, running.sequences))
        if running.ending or policy.admits(view):
            return 1
        if waiting.head_blocked and waiting.suppliers and policy.admits(view._replace(head_fits=True)):
            limit = min(limit, _steps_until_supply(running, waiting, blocks.block_size))
    if limit <= 1 or running.ending and policy.pads:  # padding joins when the step is known to have ended
        return 1
    if blocks.offload is not None:  # what a step drives out of the prefix cache is copied before, in a plan of its own
        return decodes.affordable_steps(limit, blocks.pool.num_uncached)
    return decodes.affordable_steps(limit, blocks.num_free_blocks)


def _steps_until_supply(running: RunningSet, waiting: WaitingQueue, block_size: int) -> int:
    """Decode steps until one of the suppliers of the queue's head fills the awaited block."""
    end = (waiting.awaited_block + 1) * block_size
    return min(running.decodes.steps_until(supplier, end) for supplier in waiting.suppliers)
