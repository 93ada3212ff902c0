"""How many tokens of each prompt a step computes, as TensorRT-LLM's micro-batch scheduler decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Context(NamedTuple):
    """A prompt that could take part in a step.

    Attributes:
        num_left: tokens that are not computed; of one that is not admitted yet, all.
        num_cached: how many of these are stored; 0 once it is admitted.
    """

    num_left: int
    num_cached: int

    def cost(self, size: int) -> int:
        """Tokens that a chunk of `size` tokens computes: it begins behind what is stored, and ends with the prompt."""
        if self.num_cached <= 0 or self.num_cached + size < self.num_left:
            return size
        return max(0, self.num_left - self.num_cached)


Share = Callable[[Sequence[Context], int, int, int], list[int]]
"""The size of the chunk of each prompt, given the tokens that the step has for prompts, the most that a chunk may
have, and the unit of chunks that do not end their prompt."""


def whole_or_shared(contexts: Sequence[Context], budget: int, longest: int, unit: int, share: Share) -> list[int]:
    """All prompts as a whole if the budget is enough for that, else what `share` gives each; 0: it waits."""
    costs = [each.cost(each.num_left) for each in contexts]
    if sum(costs) <= budget and max(costs, default=0) <= longest:
        return [each.num_left for each in contexts]
    return share(contexts, budget, longest, unit)


def first_come_first_served(contexts: Sequence[Context], budget: int, longest: int, unit: int) -> list[int]:
    """Each in turn gets all that is left of the budget."""
    sizes = []
    for context in contexts:
        size = context.num_left
        if budget < context.cost(size):
            size = budget
        if context.cost(size) > longest:
            size = min(longest, context.num_left)
        if size < context.num_left:
            size = size // unit * unit
        sizes.append(size)
        budget -= context.cost(size)
    return sizes


def equal_progress(contexts: Sequence[Context], budget: int, longest: int, unit: int) -> list[int]:
    """All get a unit in turn, until the budget is spent."""
    sizes = [0] * len(contexts)
    num_tokens, grows = 0, True
    while num_tokens < budget and grows:
        grows = False
        for i, context in enumerate(contexts):
            size = min(sizes[i] + unit, context.num_left)
            more = context.cost(size) - context.cost(sizes[i])
            if num_tokens + more > budget or size > longest:
                continue
            num_tokens += more
            grows |= size > sizes[i]
            sizes[i] = size
    return sizes


SHARES: dict[str, Share] = {
    "first_come_first_served": first_come_first_served,
    "equal_progress": equal_progress,
}
