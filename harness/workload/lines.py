"""Which earlier request each prompt of a session begins with, and so which KV blocks they share.

A line is a conversation that grows request by request. A session without `waits_for` is one line. Where several
requests go on from the same one, the first of them stays on its line, and the others branch off:

    session 0   A ── B ── C          line 0: A B C
                     └─── D          line 1: D, which begins with the blocks of A and B
                E                    line 2: E, a sub-agent's new prompt
"""

from __future__ import annotations

from harness.workload.trace import Trace


def continued_rows(trace: Trace) -> list[int]:
    """Of each row of a trace with `waits_for`, the row whose prompt and output its prompt begins with; -1 for none."""
    table, span = trace.rows, trace.hash_block_size
    prompts = table["num_prompt_tokens"].tolist()
    totals = (table["num_prompt_tokens"] + table["num_output_tokens"]).tolist()
    hash_ids = table["hash_ids"].tolist() if span else None

    def continues(row: int, first: int) -> bool:
        if not -1 < first < row or prompts[row] < totals[first]:
            return False
        if hash_ids is None or span is None:
            return True
        full = prompts[first] // span
        return bool((hash_ids[row][:full] == hash_ids[first][:full]).all())

    firsts = [int(rows[0]) if len(rows) else -1 for rows in table["waits_for"]]
    return [first if continues(row, first) else -1 for row, first in enumerate(firsts)]


def continuing_rows(trace: Trace) -> dict[int, int]:
    """Of each row that prompts begin with, the first row that continues it; nothing of a trace without `waits_for`."""
    if "waits_for" not in trace.rows:
        return {}
    pairs = [(earlier, row) for row, earlier in enumerate(continued_rows(trace)) if earlier >= 0]
    return dict(reversed(pairs))


class Lines:
    """The lines of a trace's sessions, and the identities of their blocks of `block_size` tokens."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        sessions = trace.rows["session_id"].tolist()
        self._branches: dict[int, tuple[int, int]] = {}  # line -> the line it branches off, and after how many blocks
        self._line_of: list[int] = sessions
        if "waits_for" not in trace.rows:
            return
        totals = (trace.rows["num_prompt_tokens"] + trace.rows["num_output_tokens"]).tolist()
        first_new, last = max(sessions) + 1, dict[int, int]()  # line -> its last row
        self._line_of = []
        for row, earlier in enumerate(continued_rows(trace)):
            line = self._line_of[earlier] if earlier >= 0 else sessions[row]
            if last.get(line, -1) != earlier:
                number = first_new + len(last)
                if earlier >= 0:
                    self._branches[number] = line, totals[earlier] // block_size
                line = number
            last[line] = row
            self._line_of.append(line)

    def identities(self, row: int, num_blocks: int) -> list[int]:
        """Identities of the first blocks of a row's prompt and output."""
        return self._identities(self._line_of[row], num_blocks)

    def _identities(self, line: int, num_blocks: int) -> list[int]:
        before: list[int] = []
        if line in self._branches:
            other, shared = self._branches[line]
            before = self._identities(other, min(shared, num_blocks))
        start = line << 32
        return [*before, *range(start + len(before), start + num_blocks)]
