"""Whose tokens a plan samples, noted when its inputs are built: when its tokens come, some may have ended or forked."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.core.sequence import Sequence


class PlanSamples(NamedTuple):
    """The samples of a plan, in the order in which the runner draws them.

    Attributes:
        prompts: each sequence whose prompt the plan completes, with its samples: one, and one for each sequence that is
            forked from it then.
        decodes: the sequences by decode row.
        drafted: all decodes with their drafts, if any has drafts; there are no decode rows then.
        logprobs: the number and the sequence of each sample that gets log probabilities.
        prompt_logprobs: each sequence of which prompt tokens get log probabilities, with the number of these tokens.
    """

    prompts: list[tuple[Sequence, int]]
    decodes: list[Sequence]
    drafted: list[tuple[Sequence, list[int]]]
    logprobs: list[tuple[int, Sequence]]
    prompt_logprobs: list[tuple[Sequence, int]]

    @property
    def num_prompt_samples(self) -> int:
        return sum(count for _, count in self.prompts)

    def sequences(self) -> list[Sequence | None]:
        """The sequence of each sample; None for those that follow a draft."""
        samples: list[Sequence | None] = [sequence for sequence, count in self.prompts for _ in range(count)]
        for sequence, drafts in self.drafted:
            samples += [sequence, *(None for _ in drafts)]
        return samples if self.drafted else [*samples, *self.decodes]

    def first_samples(self, sequences: abc.Collection[Sequence]) -> dict[Sequence, int]:
        """The samples of `sequences`, whose prompts the plan completes; all forks exist."""
        found: dict[Sequence, int] = {}
        number = 0
        for sequence, count in self.prompts:
            group = [sequence, *sequence.request.sequences[1:]] if count > 1 else [sequence]
            found |= {each: number + i for i, each in enumerate(group)}
            number += count
        return {sequence: found[sequence] for sequence in sequences}
