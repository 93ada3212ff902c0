"""Faults of SGLang's rules and of its radix tree."""

from __future__ import annotations

from tests.engine.fuzz.mutants.mutant import Mutant

_ONLY = ("--policy", "sglang")

SGLANG_MUTANTS = [
    Mutant("a held leaf is evicted", "kv/trees/radix_tree.py", "leaf.lock or", "", _ONLY),
    Mutant("a leaf goes by an old access", "kv/trees/radix_tree.py",
           "if accessed != leaf.accessed:", "if False:", _ONLY),
    Mutant("a cut node is held by nobody", "kv/trees/radix_tree.py", "        first.lock = node.lock\n", "", _ONLY),
    Mutant("equal blocks are lost", "kv/trees/radix.py",
           "        self.radix_pool.give_back(table[num_held:num_present])\n", "", _ONLY),
    Mutant("a sequence goes on with blocks that it gave back", "kv/trees/radix.py",
           "        table[num_held:num_full] = blocks[num_held:]\n", "", _ONLY),
    Mutant("the old end of a prefix stays held", "kv/trees/radix.py",
           "        self.tree.unlock(self._ends[sequence])\n        self._ends[sequence] = end",
           "        self._ends[sequence] = end", _ONLY),
    Mutant("what is generated is found before it is computed", "kv/trees/radix.py",
           "self.checkpoint(sequence, sequence.num_tokens - 1)", "self.checkpoint(sequence, sequence.num_tokens)",
           _ONLY),
    Mutant("no room is made between planned steps", "kv/trees/radix.py",
           "        self.radix_pool.evict_for(self.radix_pool.num_spare)\n", "        pass\n", _ONLY),
    Mutant("a prefix that is matched counts as free", "sglang/budget.py",
           "self._blocks.num_free_beside(sequence)", "self._blocks.num_free_blocks", _ONLY),
    Mutant("the ratio sinks with planned steps only", "sglang/budget.py",
           "            self.decay()\n        self._num_counted = num_decode_steps",
           "            pass\n        self._num_counted = num_decode_steps", _ONLY),
    Mutant("nobody is looked at though somebody may enter", "policies/sglang.py",
           "return WAIT if self._batch.is_full and not self._queue.unseen else WAIT_FOR_A_STEP", "return WAIT", _ONLY),
    Mutant("nobody is retracted", "sglang/decoding.py", "    while not fits and len(left) > 1:",
           "    while False:", _ONLY),
]  # fmt: skip
