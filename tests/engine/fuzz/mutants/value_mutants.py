"""Faults that leave plans sound: what is counted or timed wrongly, given up without need, or copied twice."""

from __future__ import annotations

from tests.engine.fuzz.mutants.mutant import Mutant

_FAIR, _STATIC, _PRIORITY = ("--policy", "fair"), ("--policy", "static"), ("--policy", "priority")
_PREFILL_FIRST = ("--policy", "prefill_first")

VALUE_MUTANTS = [
    Mutant("a preempted prompt counts again", "admission/tenant_queue.py", "if not sequence.num_preemptions:",
           "if True:", _FAIR),
    Mutant("who comes to wait is lifted to the most served", "admission/tenant_queue.py",
           "least = min(self.served.get(other, 0)", "least = max(self.served.get(other, 0)", _FAIR),
    Mutant("of tenants served alike the first is next", "admission/tenant_queue.py",
           "(self.served[item[0]], item[1][0])", "(self.served[item[0]], item[0])", _FAIR),
    Mutant("a tenant that comes waits for a seat to be compared", "policies/fair.py",
           "self._queue.has_newcomers or (has_seat and len(self._queue.heaps) > 1)",
           "has_seat and len(self._queue.heaps) > 1", _FAIR),
    Mutant("tokens of the last step are not counted", "admission/tenant_queue.py",
           "        self._count(sequence)\n        del self._counted", "        del self._counted", _FAIR),
    Mutant("of equals the one that came first gives way", "policies/priority.py",
           "return self._urgency(sequence), sequence.request.order",
           "return self._urgency(sequence), -sequence.request.order", _PRIORITY),
    Mutant("somebody enters beside prompts that lack blocks", "policies/prefill_first.py",
           "        if not draft.is_starved:\n", "        if True:\n", _PREFILL_FIRST),
    Mutant("somebody enters a batch beside prompts that lack blocks", "policies/static.py",
           "        if not draft.is_starved:\n", "        if True:\n", _STATIC),
    Mutant("a holder gives up all that it keeps", "running/giving_way.py",
           "give_up(self.blocks, holder, num_free - self.num_free_blocks)",
           "give_up(self.blocks, holder, len(holder.block_table))"),
    Mutant("a holder gives up one block too many", "running/giving_way.py",
           "num_free = self.num_free_blocks + num_blocks", "num_free = self.num_free_blocks + num_blocks + 1"),
    Mutant("the first holder gives up first", "admission/waiting_queue.py", "return max(others)[1]",
           "return min(others)[1]", _PRIORITY),
    Mutant("the last token of a victim has no time", "running/running_set.py",
           "            self.flights[-1].victims = [*self.flights[-1].victims, sequence]\n", "            pass\n",
           _PRIORITY),
    Mutant("blocks lag behind with nothing under way", "planning/step_planner.py",
           "ahead = 0 if running.flights else running.lag", "ahead = 0"),
    Mutant("the oldest row of padding goes first", "running/padding.py", "next(reversed(running.padding))",
           "next(iter(running.padding))", _STATIC),
    Mutant("a batch is held back from the head on", "policies/static.py",
           "min(sequence.request.arrival_time for sequence in state.waiting)",
           "state.waiting.head.request.arrival_time", _STATIC),
    Mutant("what the device still has goes to the host", "kv/offload.py", "if block_hash not in index:", "if True:",
           _STATIC),
    Mutant("somebody enters a step in which others gave way", "policies/admission_order.py",
           "        if not draft.is_starved:\n", "        if True:\n", ("--policy", "admission_order")),
]  # fmt: skip
