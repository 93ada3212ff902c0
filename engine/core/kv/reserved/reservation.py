"""How much a contiguous reservation takes, and of which hole (`engine.core.kv.reserved.contiguous`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.sequence import Sequence

Reserve = Literal["max_model_len", "requested", "pow2", "exact"]
Fit = Literal["first", "best"]
FORESEEING: tuple[Reserve, ...] = ("pow2", "exact")


@dataclass(frozen=True)
class Contiguous:
    """How contiguous reservations are made.

    Attributes:
        reserve: tokens that a sequence is given slots for: the longest that it may have ("max_model_len"), its prompt
            and the `max_tokens` that its client asks for ("requested"), its prompt and its output rounded up to a power
            of two ("pow2"), or its prompt and its output ("exact"). The last two are for simulations.
        fit: the hole that a reservation is put into: the first that is large enough, or the smallest ("best").
        max_tokens: with "requested", the output that every client asks for, though most stop before; a request that
            generates more asks for that. None: each asks for exactly what it generates.

    Raises:
        ValueError: `max_tokens` is below 1, or is not read; the message starts with its name.
    """

    reserve: Reserve = "max_model_len"
    fit: Fit = "first"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens}: must be an integer >= 1, or None")
        if self.max_tokens is not None and self.reserve != "requested":
            raise ValueError(f"max_tokens={self.max_tokens}: read with reserve=requested only, not {self.reserve}")

    def num_tokens(self, sequence: Sequence, longest: int) -> int:
        """Tokens to reserve for a sequence, where none can have more than `longest`."""
        num_prompt, end = sequence.request.num_prompt_tokens, sequence.end_length
        match self.reserve:
            case "max_model_len":
                return longest
            case "requested":
                return min(longest, max(end, num_prompt + (self.max_tokens or 0)))
            case "pow2":
                return min(longest, num_prompt + (1 << (end - num_prompt - 1).bit_length()))
            case "exact":
                return end
