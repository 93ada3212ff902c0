"""How many decode steps may run before there is something to decide."""

from __future__ import annotations

from engine.core.admission.need import Need, look_away
from engine.core.planning.asking import Admission, Admit


def decode_horizon(admission: Admission, now: int, *, pads: bool) -> int:
    """Decode steps of a lane, the planned one included, in which nobody ends, enters or lacks a block.

    The policy says whether the head of the queue could enter the next step; a head that has to wait can also come to
    fit when a decode fills a block that the head could share.
    """
    running, blocks = admission.running, admission.blocks
    if blocks.offload is not None and blocks.offload.sight is not None:
        return 1  # other servers find what each step computes
    decodes = running.decodes
    limit = decodes.next_event()
    if limit > 1 and admission.waiting:
        limit = 1 if running.ending else min(limit, _steps_until_admission(admission, now, limit))
    if limit <= 1 or running.ending and pads:  # padding joins when the step is known to have ended
        return 1
    # What a step drives out of the prefix cache is copied before, in a plan of its own. And while others are ending,
    # the room for drafts that they free comes first.
    if blocks.offload is not None or running.ending and decodes.tokens_per_decode > 1:
        return decodes.affordable_steps(limit, blocks.pool.num_uncached)
    return decodes.affordable_steps(limit, blocks.num_free_blocks)


def _steps_until_admission(admission: Admission, now: int, limit: int) -> int:
    """Decode steps until the head of the queue may enter, `limit` if that depends on what ends them.

    What it needs is known if it was told to wait. If not, nobody may look now, since what it can share the next step
    may know better: then a policy that wants to know is asked again then.
    """
    waiting = admission.waiting
    need = waiting.held or Need(waiting.head, 0, look_away)
    num_tokens = admission.limits.max_num_batched_tokens
    state = admission.state(now, num_tokens, True, admission.free_seats, follows_decodes=True)
    answer = admission.admit(need, state)
    if isinstance(answer, Admit) or answer.until is not None or (need.is_seen and waiting.held is None):
        return 1
    steps = limit if answer.steps is None else answer.steps
    if waiting.held is not None and waiting.suppliers:
        supplied = state.with_free(state.free_seats, state.free_blocks + need.blocks, state.running)
        if isinstance(admission.admit(need, supplied), Admit):
            steps = min(steps, _steps_until_supply(admission))
    return steps


def _steps_until_supply(admission: Admission) -> int:
    """Decode steps until one of the suppliers of the queue's head fills the awaited block."""
    waiting = admission.waiting
    end = (waiting.awaited_block + 1) * admission.blocks.block_size
    return min(admission.running.decodes.steps_until(supplier, end) for supplier in waiting.suppliers)
