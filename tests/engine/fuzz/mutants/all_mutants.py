"""Faults to put into the scheduling core, one at a time: a fuzz that passes one of them proves too little.

`python -m tests.engine.fuzz --mutants` runs a campaign on each.
"""

from __future__ import annotations

from tests.engine.fuzz.mutants.admission_mutants import ADMISSION_MUTANTS
from tests.engine.fuzz.mutants.kv_mutants import KV_MUTANTS
from tests.engine.fuzz.mutants.mutant import Mutant
from tests.engine.fuzz.mutants.padding_mutants import PADDING_MUTANTS
from tests.engine.fuzz.mutants.sglang_mutants import SGLANG_MUTANTS
from tests.engine.fuzz.mutants.trtllm_mutants import TRTLLM_MUTANTS
from tests.engine.fuzz.mutants.value_mutants import VALUE_MUTANTS

MUTANTS = [
    *ADMISSION_MUTANTS,
    *KV_MUTANTS,
    *PADDING_MUTANTS,
    *SGLANG_MUTANTS,
    *TRTLLM_MUTANTS,
    *VALUE_MUTANTS,
    # -- decodes ------------------------------------------------------------------------------------------------------
    Mutant("growth comes one step late", "decodes/uniform.py", "phase, end = (offset + 1) %",
           "phase, end = (offset + 2) %"),
    Mutant("S1 forgets who left", "decodes/uniform.py", "        self._num_context_tokens -= length\n", ""),
    Mutant("S2 forgets who left", "decodes/uniform.py", "        self._num_squared_context_tokens -= length * length\n",
           ""),
    Mutant("a run outgrows the pool", "decodes/uniform.py", "return ahead", "return limit"),
    Mutant("ragged growth comes one step late", "decodes/foreseen.py", "zip((now + steps).tolist()",
           "zip((now + steps + 1).tolist()"),
    Mutant("ragged growth forgets the drafts", "decodes/ragged.py",
           "growth_steps(now, self._block_size, len(sequence.block_table), most + drafted)",
           "growth_steps(now, self._block_size, len(sequence.block_table), most)"),
    Mutant("ragged sums forget who left", "decodes/ragged.py",
           "entry.parts[:, self.clock.step - entry.position.joined :], sign=-1)",
           "entry.parts[:, :0], sign=-1)"),
    Mutant("ragged sums lose a part when they grow", "decodes/step_sums.py", "        self._first = now\n", ""),
    Mutant("a drawn block is found before it is verified", "decodes/ragged.py",
           "position.count + int(position.gained[index])", "position.step + int(position.gained[-1])"),
    Mutant("drawn blocks are never found", "decodes/ragged.py", "self._fills.setdefault(step, {})[sequence] = None",
           "pass"),
    Mutant("an accepted draft is not counted", "decodes/ragged.py", "= np.diff(lengths) - 1",
           "= np.maximum(np.diff(lengths) - 2, 0)"),
    Mutant("drafts go beyond the end", "decodes/foreseen.py",
           "np.minimum(num_drafts, longest - 1 - lengths[:-1])", "np.full(num_steps, num_drafts)"),
    Mutant("drafts are found before they are verified", "decodes/unforeseen.py", "[(sequence, sequence.num_tokens) for",
           "[(sequence, sequence.num_tokens + self._num_drafts) for"),
    Mutant("unforeseen drafts have no room", "decodes/unforeseen.py",
           "room = min(length + self._num_drafts, self._longest - 1)", "room = length"),
    Mutant("unforeseen blocks are taken twice", "decodes/unforeseen.py", "        self._due = {}\n        taken",
           "        taken"),
    Mutant("ragged timers outlive their sequence", "decodes/ragged.py", "self._growth[step].pop(sequence, None)",
           "pass"),
    Mutant("drafts that are under way have no room", "decodes/ragged.py",
           "contexts[:-1] + 1 + drafted[:-1]) if self._plans_ahead else contexts", "contexts[1:])"),
    Mutant("a late one is not taken out", "running/progress.py", "{**dict.fromkeys(flight.late, 0), **stopped}",
           "stopped"),
    Mutant("padding has no blocks", "planning/step_planner.py", "num_held = sequence.num_tokens + padding",
           "pass", ("--policy", "admission_order")),
    Mutant("blocks set aside are lost", "planning/rationing.py",
           "planner.put_back([block for _, blocks in served.values() for block in blocks])", "pass"),
    # -- the running set ----------------------------------------------------------------------------------------------
    Mutant("a released block leaves the head blocked", "running/running_set.py",
           "self._blocks.drop(sequence)\n        self._waiting.on_release(sequence)", "self._blocks.drop(sequence)"),
    Mutant("what a stop discards is found", "running/registering.py", "if sequence not in stopped:", "if True:"),
    Mutant("a decode is found before it is computed", "running/registering.py",
           "decodes.filling(ahead - lag)", "decodes.filling(ahead + 1)"),
    Mutant("a block is found too early when planning ahead", "running/registering.py",
           "decodes.filling(ahead - lag)", "decodes.filling(ahead)"),
    Mutant("an ended one keeps its blocks", "running/progress.py",
           "                    running.release(sequence)\n                else:",
           "                    pass\n                else:"),
    Mutant("a late stop is not found", "running/progress.py", "self._stop_late(flight, sequence, num_discarded)",
           "pass"),
    Mutant("a late stop stays in the queue", "running/progress.py",
           "self._waiting.remove(sequence)\n            self._blocks", "self._blocks"),
    Mutant("who paused never resumes", "running/progress.py",
           "        if running.paused:\n            running.resume()\n", ""),
    Mutant("who paused takes part in the step", "running/running_set.py",
           "self.decodes.remove(sequence)\n        sequence.leave(SequenceStatus.DECODING)",
           "sequence.leave(SequenceStatus.DECODING)"),
    Mutant("copies of shared blocks are not planned", "running/forks.py",
           "min(count, blocks.pool.num_references(block) - 1)", "1"),
    Mutant("a chunk unblocks nobody", "running/progress.py",
           "self._waiting.unblock_head()  # what was computed may shorten the prompt of the first in the queue",
           "pass"),
    # -- the planner, the policies and the scheduler ------------------------------------------------------------------
    Mutant("a planned prompt gives way", "planning/step_planner.py", "del unplanned[sequence]",
           "unplanned = self.running.prefilling.copy()"),
    Mutant("recomputed tokens are counted from the start", "planning/step_planner.py",
           "min(num_tokens, sequence.num_lost_tokens - start)", "num_tokens"),
    Mutant("nobody looks for supply", "planning/step_planner.py", "        self.waiting.look_for_supply()\n", ""),
    Mutant("the watermark is rounded down", "scheduler_making.py",
           "watermark_blocks=ceil(watermark * blocks.num_blocks)",
           "watermark_blocks=int(options.watermark * blocks.num_blocks)"),
    Mutant("lanes share their seats", "admission/limits.py",
           "(self.max_num_seqs + lane) // num_lanes", "self.max_num_seqs"),
    Mutant("lanes lose a seat", "admission/limits.py", "(self.max_num_seqs + lane) // num_lanes",
           "self.max_num_seqs // num_lanes"),
    # -- the queue ----------------------------------------------------------------------------------------------------
    Mutant("a removal breaks the heap", "admission/waiting_queue.py", "        heapify(self._heap)\n", ""),
    Mutant("an urgent arrival finds the head blocked", "admission/waiting_queue.py",
           "if self._heap[0][-1] is sequence:",
           "if False:"),
    Mutant("the less urgent keep their places", "planning/displacement.py", "if not after or", "if after or"),
    Mutant("fair shares leave the head blocked", "admission/tenant_queue.py",
           "            self._heap = least\n            self.unblock_head()\n", "            self._heap = least\n",
           ("--policy", "fair")),
    Mutant("fair shares are looked at when something happens", "policies/fair.py",
           " and len(self._queue.heaps) > 1:", " and False:", ("--policy", "fair")),
    Mutant("the preempted go to the end", "admission/waiting_queue.py", "sequence.request.order, self._num_pushed",
           "self._num_pushed, self._num_pushed"),
]  # fmt: skip

FOR_A_COMMIT = (
    "a second holder is not counted",
    "growth comes one step late",
    "an ended one keeps its blocks",
    "one seat too many",
)
"""Mutants that a short campaign catches."""
