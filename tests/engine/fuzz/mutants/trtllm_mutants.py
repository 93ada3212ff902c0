"""Faults of TensorRT-LLM's rules and of its stored blocks."""

from __future__ import annotations

from tests.engine.fuzz.mutants.mutant import Mutant

_ONLY = ("--policy", "trtllm")

TRTLLM_MUTANTS = [
    Mutant("a stored block that is taken can still be found", "kv/trees/stored.py",
           "            self._forget(block)\n", "", _ONLY),
    Mutant("what follows a block that is taken can still be found", "kv/trees/stored.py",
           "            hashes += self._after.pop(each, ())\n", "            self._after.pop(each, ())\n", _ONLY),
    Mutant("a free block that is held stays in the queue", "kv/trees/stored.py",
           "                del self._queue[block]\n            self._references[block] += 1",
           "                pass\n            self._references[block] += 1", _ONLY),
    Mutant("a prompt is cached to its last token", "kv/trees/stored.py",
           "sequence, sequence.num_tokens - 1))", "sequence, sequence.num_tokens))", _ONLY),
    Mutant("free stored blocks cost a newcomer nothing", "kv/trees/stored.py",
           "return len(match.blocks) - match.num_revived", "return len(match.blocks)", _ONLY),
    Mutant("nobody is paused", "trtllm/capacity.py",
           "            if last is None:\n", "            if True:\n", _ONLY),
    Mutant("a prompt that is cut waits for ever", "trtllm/capacity.py",
           "            fitting.sequences = [*running.prefilling]\n", "            pass\n", _ONLY),
    Mutant("a chunk that shares its step is larger than what is left", "trtllm/chunking.py",
           "            size = budget\n", "            size = budget + unit\n", _ONLY),
    Mutant("who waits for more prompts is forgotten", "policies/trtllm.py",
           "fitting.may_change, draft.is_single = {}, True, bool", "_, draft.is_single = {}, True, bool", _ONLY),
    Mutant("who gave way is not looked at again", "policies/trtllm.py", " or bool(fitting.victims)", "", _ONLY),
]  # fmt: skip
