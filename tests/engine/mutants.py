"""Faults to put into the scheduling core, one at a time: a fuzz that passes one of them proves too little.

`python -m tests.engine.fuzz --mutants` runs a campaign on each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NUM_SEEDS = 800  # most workloads that a campaign tries on a mutant


class Mutant(NamedTuple):
    """`old`, which occurs once in `file` of `engine/core`, is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    # -- the pool and the prefix index --------------------------------------------------------------------------------
    Mutant("an evicted hash stays", "kv/prefix_index.py", "del index[block_hash]", "pass"),
    Mutant("an evicted hash stays beside a run", "kv/prefix_index.py",
           "            del self._blocks[block_hash]\n            return", "            return"),
    Mutant("an evicted content stays", "kv/prefix_index.py", "self._content.pop(block, None)", "pass"),
    Mutant("eviction forgets the index", "kv/block_pool.py", "self._evict(blocks, hashes)", "pass"),
    Mutant("a second holder is not counted", "kv/block_pool.py", "shared[block] = shared.get(block, 0) + 1", "pass"),
    Mutant("a shared block is freed", "kv/block_pool.py",
           "                table = [block for block in table if block not in shared]\n", ""),
    Mutant("a hit leaves its block free", "kv/block_pool.py",
           "segment_of[block] = None\n            self.num_free -= 1", "self.num_free -= 1"),
    Mutant("a hit is not counted as stale", "kv/block_pool.py", "            segment.num_stale += 1\n", ""),
    Mutant("stale blocks are taken", "kv/block_pool.py", "if segment.num_stale:", "if False:"),
    Mutant("stale blocks are not uncounted", "kv/block_pool.py", "segment.num_stale -= is_here.count(False)", "pass"),
    Mutant("an empty segment stays", "kv/block_pool.py",
           "hashes = [*compress(hashes, is_here)]\n            blocks = [*compress(blocks, is_here)]\n"
           "        if not segment.num_blocks:",
           "hashes = [*compress(hashes, is_here)]\n            blocks = [*compress(blocks, is_here)]\n"
           "        if False:"),
    Mutant("a private block is lost", "kv/block_pool.py", "self._free.extend(reversed(private))",
           "self._free.extend(private[1:])"),
    Mutant("the third holder counts as one", "kv/block_pool.py", "if self._shared[block] == 1:",
           "if self._shared[block] >= 1:"),
    Mutant("a duplicate is lost", "kv/prefix_index.py", "self._blocks[block_hash] = duplicates.pop(0)",
           "del self._blocks[block_hash]"),
    Mutant("the wrong duplicate goes", "kv/prefix_index.py", "duplicates.remove(block)", "duplicates.pop(0)"),
    Mutant("duplicates are not kept", "kv/prefix_index.py", "if first != block:", "if False:"),
    Mutant("a run outlives its blocks", "kv/prefix_index.py", "            run.length = length\n", ""),
    Mutant("an evicted run stays", "kv/prefix_index.py", "            del self._runs[run.hashes[0]]\n", ""),
    Mutant("a lookup ends with the first block of a run", "kv/prefix_index.py",
           "while blocks and (last := hashes[len(blocks) - 1]) in self._runs:", "while False:"),
    Mutant("a run hides what another adds", "kv/prefix_index.py", "            self.enter(hashes)\n", ""),
    Mutant("a match goes on within a run", "kv/block_manager.py",
           "self.index.enter(hashes[:num_kept])", "pass"),
    Mutant("a hash ignores the prefix", "hashing.py", "hashes[-1] if hashes else 0,", "0,"),
    # -- what a sequence gets from them -------------------------------------------------------------------------------
    Mutant("a full hit writes a shared block", "kv/block_manager.py",
           "copy_last = not self.pool.is_queued(blocks[-1])", "copy_last = False"),
    Mutant("a block is copied before it is there", "kv/block_manager.py", "if self.index.is_pending(blocks[-1]):",
           "if False:"),
    Mutant("a chunk has no blocks", "kv/block_manager.py", "if missing > 0:", "if False:"),
    Mutant("a chunk makes its whole prompt findable", "step_planner.py",
           "self._blocks.register(sequence, end)", "self._blocks.register(sequence, sequence.num_tokens)"),
    Mutant("a revived block counts as free", "kv/block_manager.py",
           "num_held + match.num_revived + match.copy_last", "num_held + match.copy_last"),
    # -- other pools ---------------------------------------------------------------------------------------------------
    Mutant("a prefix goes before what follows it", "kv/eviction.py",
           "return block_hash is not None and not self._num_followers[block_hash]", "return block_hash is not None"),
    Mutant("what followed an evicted block is forgotten", "kv/eviction.py",
           "                self._offer(before)", "                pass"),
    Mutant("a hit block stays in the ranks", "kv/eviction.py",
           "                self._remove(block)\n                self.num_free",
           "                self.num_free"),
    Mutant("a reservation takes too much of its hole", "kv/contiguous.py", "            sizes[hole] -= count",
           "            sizes[hole] -= count + 1"),
    Mutant("holes that touch stay apart", "kv/contiguous.py",
           "if hole and starts[hole - 1] + sizes[hole - 1] == start:", "if False:"),
    Mutant("the largest hole is out of date", "kv/contiguous.py",
           "        if sizes[hole] > self.largest:\n            self.largest = sizes[hole]", "        pass"),
    Mutant("an oracle reserves too little", "kv/contiguous.py", "                return end\n",
           "                return end - 2\n"),
    Mutant("a reservation is promised for ever", "kv/contiguous.py",
           "        self._num_promised_tokens -= sequence.end_length - 1\n", ""),
    Mutant("decodes take blocks beside their reservation", "scheduler.py",
           "NEVER if isinstance(blocks, ContiguousManager) else ", ""),
    Mutant("holes count as useless though the head fits", "kv/contiguous.py",
           "if self.blocks_needed(head, NO_MATCH, 0) <= self._ranges.largest:", "if False:"),
    Mutant("shared slots count for each holder", "plan_making.py",
           " - num_saved * self._block_size", ""),
    Mutant("forks count what they share twice", "slots.py",
           "            num_unfilled += blocks.block_size - num_filled\n", "            pass\n"),
    # -- forks and the host tier --------------------------------------------------------------------------------------
    Mutant("forks are not counted", "progress.py", "            self._blocks.share(fork)\n", ""),
    Mutant("forks write what they share", "progress.py", "running.forked |= dict.fromkeys([sequence, *forks])", "pass"),
    Mutant("a copy keeps its old reference", "kv/block_manager.py", "        self.pool.drop_shared(source)\n", ""),
    Mutant("a copy is not made", "kv/block_manager.py", "return Transfer(DEVICE, source, DEVICE, target)",
           "return Transfer(DEVICE, target, DEVICE, target)"),
    Mutant("forks have no blocks of their own due", "step_planner.py",
           "return num_due + running.num_shared_blocks() if running.forked else num_due", "return num_due"),
    Mutant("seats of forks are not reserved", "step_planner.py",
           "running.num_seats + sequence.num_forks >=", "running.num_seats >="),
    Mutant("a swap keeps the wrong blocks", "kv/lower_tiers.py", "sources = sequence.block_table[: blocks",
           "sources = sequence.block_table[::-1][: blocks"),
    Mutant("a swap loses its last block", "kv/lower_tiers.py",
           "return [Transfer(blocks.host.name, source, DEVICE, target) for source, target in moves]",
           "return [Transfer(blocks.host.name, source, DEVICE, target) for source, target in moves][:-1]"),
    Mutant("host blocks are not freed", "running_set.py",
           "land(self._blocks, sequence)\n        if sequence.is_prefilled:", "if sequence.is_prefilled:"),
    Mutant("an aborted one keeps its host blocks", "scheduler.py",
           "                self.blocks.drop(sequence)\n", ""),
    Mutant("a parked one may be preempted", "giving_way.py", "if not running.parked:", "if True:"),
    Mutant("ready leaves the head blocked", "running_set.py",
           "        self._waiting.head_blocked = False  # it may fill a block that the first in the queue can share\n",
           ""),
    # -- beams --------------------------------------------------------------------------------------------------------
    Mutant("shared beams are not counted", "beams.py", "    blocks.pool.hold(shared[start:])\n", ""),
    Mutant("a replaced beam keeps its references", "beams.py",
           "    blocks.pool.release(table[start:], (beam.block_hashes or [])[start:num_registered], "
           "max(0, num_registered - start))\n", ""),
    Mutant("beams write what they share", "beams.py",
           "running.forked[source] = running.forked[beam] = None", "pass"),
    Mutant("a beam continues the wrong one", "beams.py", "_take_over(blocks, beam, source)",
           "_take_over(blocks, beam, beams[parent - 1])"),
    Mutant("a beam keeps its own tokens", "beams.py", "beam.token_ids[first:] = source.token_ids[first:]", "pass"),
    Mutant("shared generated blocks have two names", "beams.py",
           "            name_content(blocks, source, source.num_computed_tokens)\n", ""),
    Mutant("beams have more in common than they computed", "beams.py",
           "(beams[0].num_tokens - 1) // blocks.block_size", "beams[0].num_tokens // blocks.block_size"),
    Mutant("readmitted beams do not count what they share", "beams.py",
           "            blocks.pool.hold(shared)\n", ""),
    Mutant("readmitted beams start before the common blocks are computed", "beams.py",
           "    if beam is leader:\n", "    if beam is leader or True:\n"),
    Mutant("a beam decodes before the others are back", "beams.py",
           "if not all(each in running.gathering for each in beams):", "if beam is leader:"),
    Mutant("blocks of the other beams are not asked for", "step_planner.py",
           "        needed += beams.missing_blocks(blocks, sequence) if is_beam else 0\n", ""),
    Mutant("the pool is promised to one beam", "beams.py",
           "own = (num_blocks - shared) // request.num_sequences", "own = num_blocks - shared"),
    Mutant("a replaced beam unblocks nobody", "beams.py", "            running.note_release()\n", ""),
    Mutant("steps of beams are grouped", "plan_making.py", " or running.beams", ""),
    # -- blocks that are kept in a preemption -------------------------------------------------------------------------
    Mutant("what was given up counts as computed", "kv/kept_blocks.py",
           "        num_blocks -= not blocks.pool.is_shared(table[num_kept])\n"
           "    blocks.release_tail(sequence, num_kept)\n"
           "    sequence.set_computed(num_kept * blocks.block_size)",
           "        num_blocks -= not blocks.pool.is_shared(table[num_kept])\n"
           "    blocks.release_tail(sequence, num_kept)"),
    Mutant("a cut block is kept", "kv/kept_blocks.py", "blocks.release_tail(sequence, num_tokens // blocks.block_size)",
           "blocks.release_tail(sequence, -(-num_tokens // blocks.block_size))"),
    Mutant("a match ignores what is kept", "kv/block_manager.py", "hashes[num_kept:] if num_kept else hashes",
           "hashes"),
    Mutant("who is admitted stays a holder", "waiting_queue.py", "            self.holders.pop(sequence, None)\n",
           "            pass\n"),
    # -- the prefix cache behind the device ---------------------------------------------------------------------------
    Mutant("a hit is evicted while it is read", "kv/tier.py", "self._readers[block_hash] += 1", "pass"),
    Mutant("what a plan stores is evicted by it", "kv/tier.py",
           "        self._settling.add(block_hash)\n        self._moves", "        self._moves"),
    Mutant("a step does not wait for its hits", "kv/tier.py",
           "        else:\n            self._settling.add(block_hash)\n", ""),
    Mutant("the disk gets what is not there any more", "kv/tier.py",
           "        cached = self._cached.pop(block_hash)\n", "        cached = self._cached.popitem()[1]\n"),
    Mutant("what is coming is taken for there", "kv/offload.py",
           " or not self._coming.isdisjoint(match.blocks)", ""),
    Mutant("a hole in a prefix is skipped", "kv/offload.py", "                break\n", "                continue\n"),
    Mutant("hits replace what the device has", "kv/offload.py",
           "num_cached_tokens=match.num_cached_tokens + len(hits)", "num_cached_tokens=len(hits)"),
    Mutant("a prompt is loaded to its last token", "kv/lower_tiers.py",
           "start, end = match.num_kept + len(match.blocks), (sequence.num_tokens - 1) //",
           "start, end = match.num_kept + len(match.blocks), sequence.num_tokens //"),
    Mutant("tiers make room after what comes", "scheduler.py", "draft.transfers[:0] = self.blocks.pop_moves()",
           "draft.transfers += self.blocks.pop_moves()"),
    Mutant("decode steps drive out cached blocks", "horizon.py", "if blocks.offload is not None:", "if False:"),
    # -- decodes ------------------------------------------------------------------------------------------------------
    Mutant("growth comes one step late", "decodes/uniform.py", "return (offset + 1) %", "return (offset + 2) %"),
    Mutant("S1 forgets who left", "decodes/uniform.py", "        self._num_context_tokens -= length\n", ""),
    Mutant("S2 forgets who left", "decodes/uniform.py", "        self._num_squared_context_tokens -= length * length\n",
           ""),
    Mutant("a run outgrows the pool", "decodes/uniform.py", "return ahead", "return limit"),
    Mutant("ragged growth comes one step late", "decodes/ragged.py", "zip((self.clock.step + steps).tolist()",
           "zip((self.clock.step + steps + 1).tolist()"),
    Mutant("ragged growth forgets the drafts", "decodes/ragged.py",
           "self._plan_growth(sequence, parts[_CONTEXTS] + parts[_DRAFTED])",
           "self._plan_growth(sequence, parts[_CONTEXTS])"),
    Mutant("ragged sums forget who left", "decodes/ragged.py",
           "entry.parts[:, self.clock.step - entry.position.joined :], sign=-1)",
           "entry.parts[:, :0], sign=-1)"),
    Mutant("ragged sums lose a part when they grow", "decodes/step_sums.py", "        self._first = now\n", ""),
    Mutant("a drawn block is found before it is verified", "decodes/ragged.py",
           "position.step + int(position.gained[index])", "position.step + int(position.gained[-1])"),
    Mutant("drawn blocks are never found", "decodes/ragged.py", "self._fills.setdefault(step, {})[sequence] = None",
           "pass"),
    Mutant("an accepted draft is not counted", "decodes/ragged.py", "np.diff(gained[: num_steps + 1]) - 1",
           "np.maximum(np.diff(gained[: num_steps + 1]) - 2, 0)"),
    Mutant("drafts go beyond the end", "decodes/ragged.py",
           "np.minimum(self._num_drafts, sequence.end_length - 1 - parts[_CONTEXTS])", "self._num_drafts"),
    Mutant("drafts are found before they are verified", "decodes/unforeseen.py", "[(sequence, sequence.num_tokens) for",
           "[(sequence, sequence.num_tokens + self._num_drafts) for"),
    Mutant("unforeseen drafts have no room", "decodes/unforeseen.py",
           "room = min(length + self._num_drafts, sequence.end_length - 1)", "room = length"),
    Mutant("unforeseen blocks are taken twice", "decodes/unforeseen.py", "        self._due = {}\n        taken",
           "        taken"),
    Mutant("ragged timers outlive their sequence", "decodes/ragged.py", "self._growth[step].pop(sequence, None)",
           "pass"),
    # -- the running set ----------------------------------------------------------------------------------------------
    Mutant("a released block leaves the head blocked", "running_set.py",
           "self._blocks.drop(sequence)\n        self._waiting.on_release(sequence)", "self._blocks.drop(sequence)"),
    Mutant("what a stop discards is found", "running_set.py", "if sequence not in stopped:", "if True:"),
    Mutant("a decode is found before it is computed", "running_set.py", "self.decodes.filling(ahead - self.lag)",
           "self.decodes.filling(ahead + 1)"),
    Mutant("a block is found too early when planning ahead", "running_set.py", "self.decodes.filling(ahead - self.lag)",
           "self.decodes.filling(ahead)"),
    Mutant("an ended one keeps its blocks", "progress.py",
           "                running.release(sequence)\n", ""),
    Mutant("a late stop is not found", "progress.py", "self._stop_late(flight, sequence, stopped[sequence])",
           "pass"),
    Mutant("a late stop stays in the queue", "progress.py",
           "self._waiting.remove(sequence)\n            self._blocks", "self._blocks"),
    Mutant("who paused never resumes", "progress.py", "        if running.paused:\n            running.resume()\n", ""),
    Mutant("who paused takes part in the step", "running_set.py",
           "self.decodes.remove(sequence)\n        sequence.leave(SequenceStatus.DECODING)",
           "sequence.leave(SequenceStatus.DECODING)"),
    Mutant("a chunk unblocks nobody", "progress.py",
           "self._waiting.head_blocked = False  # what was computed may shorten the prompt of the first in the queue",
           "pass"),
    # -- the planner, the policies and the scheduler ------------------------------------------------------------------
    Mutant("one seat too many", "step_planner.py", "sequence.num_forks >= limits.max_num_seqs",
           "sequence.num_forks > limits.max_num_seqs"),
    Mutant("a planned prompt gives way", "step_planner.py", "del unplanned[sequence]",
           "unplanned = self.running.prefilling.copy()"),
    Mutant("a full budget admits nobody", "step_planner.py", "if wanted > budget and (cut",
           "if wanted >= budget and (cut"),
    Mutant("recomputed tokens are counted from the start", "step_planner.py",
           "min(num_tokens, sequence.num_lost_tokens - start)", "num_tokens"),
    Mutant("nobody looks for supply", "step_planner.py", "            self.waiting.look_for_supply()\n", ""),
    Mutant("the horizon ignores suppliers", "horizon.py",
           "limit = min(limit, _steps_until_supply(running, waiting, blocks.block_size))",
           "pass"),
    Mutant("the horizon ignores the queue", "horizon.py", "if running.ending or policy.admits(view):",
           "if False:"),
    Mutant("static batching waits for each end", "policies/static.py", "return not view.num_running and view.head_fits",
           "return view.head_fits"),
    Mutant("the watermark is rounded down", "scheduler_options.py",
           "watermark_blocks=ceil(watermark * blocks.num_blocks)",
           "watermark_blocks=int(options.watermark * blocks.num_blocks)"),
    Mutant("lanes share their seats", "scheduler.py", "max_num_seqs=(limits.max_num_seqs + lane) // num_lanes",
           "max_num_seqs=limits.max_num_seqs"),
    Mutant("lanes lose a seat", "scheduler.py", "max_num_seqs=(limits.max_num_seqs + lane) // num_lanes",
           "max_num_seqs=limits.max_num_seqs // num_lanes"),
    # -- the queue ----------------------------------------------------------------------------------------------------
    Mutant("a removal breaks the heap", "waiting_queue.py", "        heapq.heapify(self._heap)\n", ""),
    Mutant("an urgent arrival finds the head blocked", "waiting_queue.py", "if self._heap[0][-1] is sequence:",
           "if False:"),
    Mutant("the less urgent keep their places", "displacement.py", "if not after or", "if after or"),
    Mutant("fair shares leave the head blocked", "tenant_queue.py", "self._heap, self.head_blocked = least, False",
           "self._heap = least"),
    Mutant("fair shares are looked at when something happens", "policies/fair.py",
           "view.head_fits or len(self._queue.heaps) > 1", "view.head_fits"),
    Mutant("the preempted go to the end", "waiting_queue.py", "sequence.request.order, self._num_pushed",
           "self._num_pushed, self._num_pushed"),
]  # fmt: skip

FOR_A_COMMIT = (
    "a second holder is not counted",
    "growth comes one step late",
    "an ended one keeps its blocks",
    "recomputed tokens are counted from the start",
)
"""Mutants that a short campaign catches."""


def copy_tree(folder: Path) -> None:
    """Copy what the fuzz needs to `folder`."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "engine", folder / "engine", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "engine", folder / "tests" / "engine", ignore=ignored)
    (folder / "tests" / "__init__.py").touch()


def mutate(folder: Path, mutant: Mutant) -> None:
    """Put the fault into a copied tree.

    Raises:
        ValueError, SyntaxError: the code has changed, so that the mutant is out of date.
    """
    file = folder / "engine" / "core" / mutant.file
    source = file.read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"mutant out of date: {mutant.old!r} occurs {source.count(mutant.old)} times in {mutant.file}")
    changed = source.replace(mutant.old, mutant.new)
    compile(changed, mutant.file, "exec")
    file.write_text(changed)


def campaign(folder: Path, num_seeds: int) -> subprocess.CompletedProcess[str]:
    """Run the fuzz in a copied tree: it fails with the first workload that is not sound, and prints its seed first."""
    command = [sys.executable, "-m", "tests.engine.fuzz", "--seeds", str(num_seeds)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
