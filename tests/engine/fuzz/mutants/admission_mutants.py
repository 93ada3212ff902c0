"""Faults of admission: what a sequence needs, what is left for it, and who asks the policy."""

from __future__ import annotations

from tests.engine.fuzz.fuzz_options import OWN_POLICY
from tests.engine.fuzz.mutants.mutant import Mutant

_OWN = ("--policy", OWN_POLICY)

ADMISSION_MUTANTS = [
    # -- what a sequence needs ----------------------------------------------------------------------------------------
    Mutant("seats of forks are not reserved", "admission/need.py", "self.seats = 1 + sequence.num_forks",
           "self.seats = 1"),
    Mutant("the first chunk is checked for the whole prompt", "admission/need.py",
           "sequence.num_tokens, limits.checks_full_prompt", "sequence.num_tokens, False"),
    Mutant("the whole prompt is checked for the first chunk", "admission/need.py",
           "sequence.num_tokens, limits.checks_full_prompt", "sequence.num_tokens, True"),
    Mutant("the first chunk is checked beyond the budget", "admission/need.py",
           "(tokens if tokens < budget else budget)", "tokens"),
    Mutant("a swapped-out sequence is checked for its first chunk", "admission/need.py",
           "NO_MATCH, True, True", "NO_MATCH, True, is_whole"),
    Mutant("who comes from a tier needs tokens", "admission/need.py", "0 if is_parked else tokens", "tokens"),
    Mutant("the first chunk has no limit", "admission/need.py",
           "limits.chunk_tokens(length - num_cached_tokens, length)", "length - num_cached_tokens"),
    # -- what is left -------------------------------------------------------------------------------------------------
    Mutant("an admission takes the watermark", "planning/asking.py",
           "            free_blocks -= watermark\n", "            pass\n"),
    Mutant("the watermark is left to nobody", "planning/asking.py", "if watermark and sequences:", "if watermark:"),
    Mutant("one seat too many", "planning/asking.py", "return self._max_num_seqs - len(",
           "return self._max_num_seqs + 1 - len("),
    Mutant("one seat stays empty", "planning/asking.py", "return self._max_num_seqs - len(",
           "return self._max_num_seqs - 1 - len("),
    Mutant("reserved seats are free", "planning/asking.py", " - running.num_reserved", ""),
    Mutant("a batch is open until one has ended", "planning/asking.py",
           "self.follows_decodes or len(decodes.fresh) < len(decodes.sequences) or ", "self.follows_decodes or ",
           ("--policy", "static")),
    Mutant("a batch is open to the end", "planning/asking.py", " or bool(running.ending)", "",
           ("--policy", "static")),
    Mutant("a batch that decodes is looked at once more", "planning/asking.py", "self.follows_decodes or len(",
           "len(", ("--policy", "static")),
    # -- the rule -----------------------------------------------------------------------------------------------------
    Mutant("a full budget admits nobody", "planning/asking.py", "if num_tokens > state.free_tokens:",
           "if num_tokens >= state.free_tokens:"),
    Mutant("the first chunk exceeds the budget", "planning/asking.py", "        num_tokens = state.free_tokens\n",
           "        pass\n"),
    Mutant("all prompts are cut", "planning/asking.py", "if not state.may_cut or need.padding:",
           "if need.padding:"),
    Mutant("nobody's prompt is cut", "planning/asking.py", "if not state.may_cut or need.padding:",
           "if True:"),
    Mutant("the last block is not handed out", "planning/asking.py", "if need.blocks <= state.free_blocks",
           "if need.blocks < state.free_blocks"),
    # -- who asks -----------------------------------------------------------------------------------------------------
    Mutant("the planner does not ask the policy", "planning/step_planner.py",
           "answer = admission.admit(need, state)",
           "answer = admission.admit(need, state.with_free(state.free_seats, state.free_blocks, ()))", _OWN),
    Mutant("who comes from a tier enters unasked", "planning/step_planner.py", "if isinstance(answer, Wait):",
           "if isinstance(answer, Wait) and not need.is_parked:"),
    Mutant("displacement does not ask the policy", "planning/displacement.py",
           "return isinstance(planner.admission.admit(need, state), Wait)",
           "return need.blocks > state.free_blocks", ("--policy", "priority")),
    Mutant("displacement forgets for whom there are seats", "planning/displacement.py",
           "need.seats += num_seats", "pass", ("--policy", "priority")),
    Mutant("displacement forgets for whom there are blocks", "planning/displacement.py",
           "num_blocks + _blocks_taken(planner, need)", "num_blocks", ("--policy", "priority")),
    Mutant("displacement ignores padding", "planning/displacement.py",
           "if sizes and limits.pads_too_much(sizes, num_tokens):", "if False:", ("--policy", "priority")),
    Mutant("the horizon ignores the queue", "planning/horizon.py",
           "_steps_until_admission(admission, now, limit)", "limit"),
    Mutant("the horizon ignores suppliers", "planning/horizon.py",
           "steps = min(steps, _steps_until_supply(admission))", "pass"),
    Mutant("static batching waits for each end", "policies/static.py", "if state.has_decoded:", "if False:",
           ("--policy", "static")),
    Mutant("urgent ones wait for something to happen", "policies/priority.py",
           "return WAIT_FOR_A_STEP  # then others make way for it", "return answer", ("--policy", "priority")),
    # -- the head of the queue ----------------------------------------------------------------------------------------
    # tests/engine/core/test_admission.py shows what workloads do not: who waits for a rule is held, but not blocked for
    # other lanes, and the horizon asks again where nobody has looked.
    Mutant("the head stays blocked", "admission/waiting_queue.py", "self.held, self.head_blocked = None, False",
           "self.held = None"),
    Mutant("the horizon goes by what the head needed before", "admission/waiting_queue.py",
           "self.held, self.head_blocked = None, False", "self.head_blocked = False"),
    Mutant("the head is never blocked", "planning/asking.py", "is_blocked=lacks_blocks)", "is_blocked=False)"),
    Mutant("the next head is held for what the last one needed", "admission/waiting_queue.py",
           "        self.held = None\n        return sequence", "        return sequence", _OWN),
    Mutant("who waits for a rule has no suppliers", "planning/asking.py", "if may_share else []",
           "if may_share and lacks_blocks else []", _OWN),
]  # fmt: skip
