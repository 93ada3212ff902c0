"""Admissions where KV may come from the host: vLLM's loop over its waiting requests."""

from __future__ import annotations

from collections import abc

from engine.core.admission.need import Need
from engine.core.admission.skipping_queue import SkippingQueue
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.kv.tiers.tier import HOST
from engine.core.offloading.connector import Connector
from engine.core.plan import StepDraft
from engine.core.planning.asking import Wait
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence


def admit_or_load(planner: StepPlanner, draft: StepDraft, budget: int) -> None:
    """Admit within `budget` tokens; who finds KV on the host gets blocks for it and waits, without a seat, until it is
    there. Who waits for something else is passed over."""
    waiting, connector = planner.waiting, planner.blocks.connector
    assert isinstance(waiting, SkippingQueue) and connector is not None
    whole: set[Sequence] = set()  # those that enter with all of their prompt, and have loaded nothing
    while budget > 0 and len(waiting) and (free_seats := planner.admission.free_seats) > 0:
        found = _find(planner, connector, waiting.head)
        if found is None:
            waiting.skip()
            continue
        match, num_loaded = found
        need = Need(waiting.head, budget, planner.admission.look)
        num_reserved = _num_reserved(planner, connector, whole) if num_loaded else 0
        planner.admission.needs.fill(need, match, num_loaded, num_reserved)
        state = planner.admission.state(draft.now, budget, planner.limits.cuts_prompts, free_seats)
        answer = planner.admission.admit(need, state)
        if isinstance(answer, Wait):
            break
        if num_loaded:
            _load(planner, connector, waiting.head, match, num_loaded, draft.now)
            waiting.skip()
            continue
        planner.start(draft, waiting.pop(), match, answer.num_tokens, need.padding)
        if draft.prefills[-1].is_last and draft.admitted[-1] not in connector.loads.waiting:
            whole.add(draft.admitted[-1])
        connector.loads.admit(draft.admitted[-1], draft.now)
        budget -= answer.num_tokens
    waiting.end_pass()


def _find(planner: StepPlanner, connector: Connector, sequence: Sequence) -> tuple[PrefixMatch, int] | None:
    """What a waiting sequence has or finds on the device, and how many tokens after that on the host; None if it has to
    wait for transfers."""
    blocks = planner.blocks
    if sequence in connector.loads.waiting:
        if not connector.loads.has_landed(sequence):
            return None
        _land(planner, sequence)
        return PrefixMatch([], sequence.num_computed_tokens, 0, False, len(sequence.block_table)), 0
    match = blocks.match(sequence)
    num_loaded = connector.loads.look(sequence, match.num_cached_tokens)
    return None if num_loaded is None else (match, num_loaded)


def _land(planner: StepPlanner, sequence: Sequence) -> None:
    """What a sequence has loaded can be found; of a prompt that is there as a whole, the last token is computed."""
    if sequence.has_content:
        planner.blocks.register_loaded(sequence, sequence.num_computed_tokens)
    if sequence.num_computed_tokens == sequence.num_tokens:
        sequence.set_computed(sequence.num_tokens - 1)


def _num_reserved(planner: StepPlanner, connector: Connector, whole: abc.Container[Sequence]) -> int:
    """Blocks that a load must leave for admitted prompts but those in `whole`, for other loads, and for first decode
    steps with drafts."""
    blocks, rule, num_decoded = planner.blocks, connector.rules.reserves, planner.running.decodes.tokens_per_decode
    if rule == "nothing":
        return 0
    if rule == "prompts" or num_decoded == 1:
        num_decoded = 0
    sequences = [*(s for s in planner.running.prefilling if s not in whole), *connector.loads.waiting]
    num_missing = sum(max(0, blocks.blocks_for(s.num_tokens + num_decoded) - len(s.block_table)) for s in sequences)
    return num_missing + blocks.blocks_for(num_decoded)


def _load(
    planner: StepPlanner, connector: Connector, sequence: Sequence, match: PrefixMatch, num_loaded: int, now: int
) -> None:
    blocks, num_local = planner.blocks, match.num_cached_tokens
    blocks.admit(sequence, match, num_local + num_loaded)
    sequence.set_computed(num_local + num_loaded)
    if not sequence.num_preemptions:
        sequence.cached_by_tier = {HOST: min(num_loaded, sequence.num_tokens - 1 - num_local)}
    connector.loads.begin(sequence, num_local, now)
