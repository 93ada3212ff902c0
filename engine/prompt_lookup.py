"""Speculative decoding by prompt lookup: drafts are the tokens that followed an earlier
occurrence of a sequence's last tokens.

Each step verifies a sequence's drafts: it computes its last known token and all drafts, and samples from the logits of
each with the noise of its position, as plain decoding does. Drafts are accepted as long as they equal the sampled
tokens, and the first sampled token that differs takes the place of its draft. For drafts that are not drawn at random
this is rejection sampling (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023): a
draft x is accepted with probability p(x), and otherwise the token is distributed as p without x. A seeded request
even gets the very tokens of plain decoding, greedy or not.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.core.sequence import Sequence

MOST_DRAFTS = 128


@dataclass(frozen=True)
class NgramOptions:
    """Drafts by prompt lookup, as of vLLM's method `ngram`.

    Attributes:
        num_speculative_tokens: most drafts that a step verifies per sequence.
        prompt_lookup_min: fewest last tokens of a sequence that must stand earlier in it.
        prompt_lookup_max: the most that are looked for; the longest match counts, and of equals the earliest.

    Raises:
        ValueError: a value is out of range; the message starts with the name of the field.
    """

    num_speculative_tokens: int = 3
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.num_speculative_tokens <= MOST_DRAFTS:
            raise ValueError(
                f"num_speculative_tokens={self.num_speculative_tokens}: must be an integer >= 1 and <= {MOST_DRAFTS}"
            )
        if self.prompt_lookup_min < 1:
            raise ValueError(f"prompt_lookup_min={self.prompt_lookup_min}: must be an integer >= 1")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_max={self.prompt_lookup_max}: must be >= prompt_lookup_min={self.prompt_lookup_min}"
            )


class _Lookup:
    """The n-grams of one sequence, which only grows, and where each first ended with a token after it."""

    __slots__ = ("_ends", "_lengths", "_num_indexed")

    def __init__(self, options: NgramOptions) -> None:
        self._lengths = range(options.prompt_lookup_max, options.prompt_lookup_min - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def propose(self, tokens: list[int], limit: int) -> list[int]:
        """At most `limit` tokens that followed the longest match of the last tokens."""
        ends = self._ends
        for end in range(self._num_indexed + 1, len(tokens)):
            for length in self._lengths:
                if length <= end:
                    ends.setdefault(tuple(tokens[end - length : end]), end)
        self._num_indexed = max(self._num_indexed, len(tokens) - 1)
        for length in self._lengths:
            if length < len(tokens) and (start := ends.get(tuple(tokens[-length:]))) is not None:
                return tokens[start : start + limit]
        return []


class Drafter:
    """Drafts tokens of decoding sequences."""

    def __init__(self, options: NgramOptions) -> None:
        self._options = options
        self._lookups: dict[Sequence, _Lookup] = {}

    def propose(self, sequences: abc.Iterable[Sequence]) -> dict[Sequence, list[int]]:
        """Drafts by sequence, for those that have any: at most as many as a step verifies before the sequence ends."""
        drafts = {}
        for sequence in sequences:
            limit = min(self._options.num_speculative_tokens, sequence.end_length - 1 - sequence.num_tokens)
            if limit <= 0:
                continue
            lookup = self._lookups.get(sequence)
            if lookup is None:
                lookup = self._lookups[sequence] = _Lookup(self._options)
            assert sequence.token_ids is not None
            if found := lookup.propose(sequence.token_ids, limit):
                drafts[sequence] = found
        return drafts

    def drop(self, sequences: abc.Iterable[Sequence]) -> None:
        """Forget sequences that ended or were aborted."""
        for sequence in sequences:
            self._lookups.pop(sequence, None)
