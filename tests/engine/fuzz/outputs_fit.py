"""A policy of one's own with a rule of admission, that of mini-sglang: docs/add_a_policy.md explains it."""

from engine.core.admission.need import Need
from engine.core.planning.asking import WAIT, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy


class OutputsFit(BasePolicy):
    """Admits a request beside others only if its output and those of all that run fit into the pool."""

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        blocks_for, newcomer = state.blocks.blocks_for, need.sequence
        held = {sequence: len(sequence.block_table) for sequence in state.running}
        held[newcomer] = blocks_for(newcomer.num_tokens)
        # The KV of a last token is never needed.
        outputs = sum(max(0, blocks_for(each.end_length - 1) - num_blocks) for each, num_blocks in held.items())
        if state.running and need.blocks + outputs > state.free_blocks:
            return WAIT
        return super().admit(need, state)
