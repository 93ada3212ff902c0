"""Faults of batches that keep their shape: rows that are computed for nobody, and prompts of one length."""

from __future__ import annotations

from tests.engine.fuzz.mutants.mutant import Mutant

_MUTANTS = [
    Mutant("padding is given no block", "running/padding.py",
           "row.block_table, sequence.block_table = sequence.block_table, []",
           "row.block_table, sequence.block_table = [], sequence.block_table"),
    Mutant("padding keeps what a stop has discarded", "running/padding.py", "if len(row.block_table) > num_needed:",
           "if False:"),
    Mutant("what padding adds is found", "running/padding.py",
           "BlockHashes(sequence.hashes.part(0, row.num_registered_blocks))", "sequence.hashes"),
    Mutant("padding writes into what a fork holds", "running/padding.py", "if blocks.must_copy(row):", "if False:"),
    Mutant("padding outlives its batch", "running/padding.py", "if len(running.padding)",
           "if 0 and len(running.padding)"),
    Mutant("padding outgrows its reservation", "running/padding.py",
           "end = min(longest, blocks.most_tokens(sequence)) if",
           "end = longest if"),
    Mutant("padding joins the step under way", "running/padding.py",
           "if running.flights and not running.flights[-1].is_advanced:", "if False:"),
    Mutant("padding that ends is somebody's", "running/progress.py", "if sequence in running.padding:", "if False:"),
    Mutant("padding never gives way", "running/giving_way.py",
           "        if self.running.padding:\n", "        if False:\n"),
    Mutant("a batch that decodes has no padding", "planning/plan_making.py",
           "num_rows = sum(row in running.decodes.sequences",
           "num_rows = sum(row in running.prefilling"),
    Mutant("prompts are not padded", "planning/plan_making.py", "ChunkWork(chunk.start, longest, chunk.is_last)",
           "chunk"),
    Mutant("padded prompts exceed the step", "admission/limits.py",
           "self.max_num_batched_tokens if pads and self.max_padding is None else self.max_padding",
           "self.max_padding"),
    Mutant("continued prompts pad without a limit", "planning/step_planner.py",
           "self.limits.max_padding is not None and self._pads_too_much(draft, num_tokens):\n                break\n",
           "False:\n                break\n"),
    Mutant("the horizon forgets who joins as padding", "planning/horizon.py", " or running.ending and pads:", ":"),
    Mutant("a step is all padding", "policies/static.py",
           " and not planner.running.decodes.sequences.keys() <= planner.running.padding.keys()", ""),
    Mutant("the KV of padding counts as tokens", "running/slots.py",
           "            num_tokens -= _num_padding_tokens(lane, draft.num_decodes if lane is planned else 0)\n",
           "            pass\n"),
]  # fmt: skip

PADDING_MUTANTS = [mutant._replace(arguments=("--policy", "static")) for mutant in _MUTANTS]
