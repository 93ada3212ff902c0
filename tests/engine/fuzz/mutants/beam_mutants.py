"""Faults of beams: what they share and copy, and how they give way and come back together."""

from __future__ import annotations

from tests.engine.fuzz.mutants.mutant import Mutant

_MUTANTS = [
    # -- beams --------------------------------------------------------------------------------------------------------
    Mutant("shared beams are not counted", "running/beams.py", "    blocks.pool.hold(shared[start:])\n", ""),
    Mutant("a replaced beam keeps its references", "running/beams.py",
           "    blocks.pool.release(table[start:], (beam.block_hashes or [])[start:num_registered], "
           "max(0, num_registered - start))\n", ""),
    Mutant("beams write what they share", "running/beams.py",
           "running.forked[source] = running.forked[beam] = None", "pass"),
    Mutant("a beam continues the wrong one", "running/beams.py", "_take_over(blocks, beam, source)",
           "_take_over(blocks, beam, beams[parent - 1])"),
    Mutant("a beam keeps its own tokens", "running/beams.py",
           "beam.token_ids[first:] = source.token_ids[first:]", "pass"),
    Mutant("shared generated blocks have two names", "running/beams.py",
           "            name_content(blocks, source, source.num_computed_tokens)\n", ""),
    Mutant("beams have more in common than they computed", "kv/kept_blocks.py",
           "(beams[0].num_tokens - 1) // blocks.block_size", "beams[0].num_tokens // blocks.block_size"),
    Mutant("readmitted beams do not count what they share", "running/beams.py",
           "        blocks.pool.hold(shared)\n", ""),
    Mutant("readmitted beams start before the common blocks are computed", "running/beams.py",
           "if beam.block_table or not common:", "if True:"),
    Mutant("beams with nothing in common wait for the first", "running/beams.py",
           "if beam.block_table or not common:", "if beam.block_table:"),
    Mutant("a beam decodes before the others are back", "running/beams.py",
           "if not all(each in running.gathering for each in beams):", "if beam is leader:"),
    Mutant("blocks of the other beams are not asked for", "admission/need.py",
           "            needed += missing_blocks(blocks, sequence)\n", "            pass\n"),
    Mutant("the pool is promised to one beam", "running/beams.py",
           "own = (num_blocks - shared) // request.num_sequences", "own = num_blocks - shared"),
    Mutant("a replaced beam unblocks nobody", "running/beams.py", "            running.note_release()\n", ""),
    Mutant("steps of beams are grouped", "planning/plan_making.py", " or running.beams", ""),
    # -- beams that give way ------------------------------------------------------------------------------------------
    Mutant("beams go to the host block by block", "kv/lower_tiers.py",
           "[source for source in sources if source not in copies] if copies else sources", "sources"),
    Mutant("beams share nothing when they are back", "kv/lower_tiers.py",
           "        blocks.pool.hold([placed[source] for source in sources if source in placed])\n", ""),
    Mutant("a beam frees what others have on the host", "kv/block_manager.py",
           "[block for block in held if block not in shared] if shared else held", "held"),
    Mutant("beams that are back write into what they share", "running/beams.py",
           "running.forked |= {beam: None for beam in beams if blocks.must_copy(beam)}", "pass"),
    Mutant("a beam that is back does not wait for the others", "running/beams.py",
           "if all(beam in running.gathering and beam.is_prefilled for beam in beams):",
           "if any(beam in running.gathering for beam in beams):"),
    Mutant("beams out of step go to the host", "kv/lower_tiers.py",
           "or len(victims) > 1 and not all(beam.is_prefilled for beam in victims):", "or False:"),
    Mutant("beams of those under way give way", "running/giving_way.py", " and s.request not in groups", ""),
    Mutant("beams give up what is common first", "kv/kept_blocks.py", "_release_last(blocks, beam, num_blocks, common)",
           "_release_last(blocks, beam, num_blocks, 0)"),
    Mutant("the other beams keep what the first gives up", "kv/kept_blocks.py",
           "            _release_to(blocks, beam, 0)\n", "            pass\n"),
    Mutant("kept beams wait for the first", "running/beams.py", "if beam.block_table or not common:", "if not common:"),
    Mutant("beams that are back are not all known", "running/beams.py",
           "            blocks.register(beam, beam.num_computed_tokens)", "            pass"),
    Mutant("a readmitted beam gives way alone", "planning/step_planner.py",
           "beams.without_readmitted(unplanned)", "unplanned"),
    Mutant("kept beams get the common blocks twice", "running/beams.py",
           "(each for each in others if each in running.gathering and not each.num_computed_tokens)", "others"),
    Mutant("what beams keep is not counted", "admission/waiting_queue.py",
           "s.request.sequences if s.request.num_common_blocks is", "[s] if s.request.num_common_blocks is"),
    Mutant("copies of shared blocks are not planned", "running/running_set.py",
           "min(count, self._blocks.pool.num_references(block) - 1)", "1"),
]  # fmt: skip

BEAM_MUTANTS = [mutant._replace(arguments=("--beams",)) for mutant in _MUTANTS]
