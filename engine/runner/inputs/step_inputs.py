"""Turns a step plan into the arrays that a rank needs to execute it. Decode rows are sent as changes only.

Decoding sequences live in dense rows of device tensors (`engine.runner.inputs.decode_state`). `DecodeRows`, in the
engine's process, knows which sequence has which row. `StepBuilder` makes numpy arrays, so that every rank can be sent
the same inputs. `engine.runner.staging` copies them to the device: the same dataclasses, with tensors of equal shapes
and types.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

from engine.core.plan import PrefillChunk, StepPlan
from engine.core.sequence import Sequence
from engine.runner.inputs.chunk_inputs import Chunk, PrefillInputs, make_chunk_inputs
from engine.runner.inputs.decode_rows import DecodeRows, RowChanges
from engine.runner.inputs.plan_samples import PlanSamples
from engine.runner.inputs.sampling_inputs import (
    AdjustedSequence,
    Adjustments,
    TokenLists,
    make_adjustments,
    needs_adjusting,
)
from engine.runner.inputs.transfer_inputs import TransferInputs, transfer_inputs
from engine.sampling_params import SamplingParams

_SEED_BITS = 2**63 - 1

Drafts = abc.Mapping[Sequence, list[int]]
NO_DRAFTS: Drafts = {}


@dataclass(frozen=True)
class StepInputs:
    """Everything that a rank needs to execute a plan.

    Attributes:
        transfers: copies of blocks, made before the first step or beside the steps.
        rows: changes of the decode rows, applied before the first step.
        prefill: the prompt chunks, and all decodes if any of them has drafts; None in a plan without any.
        num_decodes: number of decode rows.
        num_steps: number of decode steps.
        max_decode_context: tokens of the longest decoding sequence in the plan's first step, the token to compute
            included.
        uses_top_k, uses_top_p: whether any waiting or running request uses top-k or top-p.
        adjustments: what the rows of adjusted sequences need; None in a plan without any.
    """

    transfers: TransferInputs
    rows: RowChanges
    prefill: PrefillInputs | None
    num_decodes: int
    num_steps: int
    max_decode_context: int
    uses_top_k: bool
    uses_top_p: bool
    adjustments: Adjustments | None


class StepBuilder:
    """Turns plans into inputs; `add` gives it the sampling parameters and the seed of each sequence first.

    A plan in which a decode has drafts has no decode rows: each decode is a chunk, behind those of the prompts.

    A plan may be built before the tokens of the plan before it are known. A sequence that joins the decode rows then
    gets its token on the device, from what that plan samples; `must_wait` says where that is not enough.

    Attributes:
        samples: of the last plan.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._requests: dict[Sequence, tuple[SamplingParams, int]] = {}
        self._adjusted: dict[Sequence, AdjustedSequence] = {}  # those that are adjusted now or may be later
        self._num_top_k = self._num_top_p = 0
        self._rows = DecodeRows()
        self.samples = PlanSamples([], [], [], [], [])

    def build(self, plan: StepPlan, number: int = 0, awaited: int = 0, drafts: Drafts = NO_DRAFTS) -> StepInputs:
        """Inputs of the next plan; `build` must be called in the order in which the plans are executed.

        `number` and `awaited` are those of `TransferInputs`.
        """
        drafted = [(sequence, drafts.get(sequence, [])) for sequence in plan.decodes] if drafts else []
        rows = self._rows.clear() if drafts else self._rows.change(plan, self._requests, self._unknown(plan))
        num_rows = 0 if drafts else plan.num_decodes
        chunks = [
            *self._chunks(plan.prefills),
            *_padding_chunks(plan, self._block_size),
            *self._verified_chunks(drafted),
        ]
        decoding = self._rows.lengths[:num_rows]
        longest = int(decoding.max(initial=0))
        decoding += plan.num_steps
        prompts = [(chunk.sequence, chunk.num_samples) for chunk in plan.prefills if chunk.is_last]
        self.samples = PlanSamples(prompts, self._rows.sequences[: plan.num_decodes], drafted, [], [])
        return StepInputs(
            transfers=transfer_inputs(plan, number, awaited),
            rows=rows,
            prefill=make_chunk_inputs(chunks, self._block_size) if chunks else None,
            num_decodes=num_rows,
            num_steps=plan.num_steps,
            max_decode_context=longest,
            uses_top_k=self._num_top_k > 0,
            uses_top_p=self._num_top_p > 0,
            adjustments=self._adjustments(plan) if self._adjusted else None,
        )

    def must_wait(self, plan: StepPlan) -> bool:
        """Whether the inputs of the next plan need tokens, on the host, that the last plan samples."""
        return any(each.reads_output and sequence in plan.decodes for sequence, each in self._adjusted.items())

    def _unknown(self, plan: StepPlan) -> dict[Sequence, int]:
        """Those that join the rows with a token that the last plan samples, and the number of its sample."""
        unknown = [sequence for sequence in self._rows.joining(plan) if _is_unknown(sequence)]
        return self.samples.first_samples(unknown) if unknown else {}

    def add(
        self,
        sequence: Sequence,
        params: SamplingParams,
        seed: int,
        end_tokens: abc.Iterable[int] = (),
        bad_words: TokenLists = (),
    ) -> None:
        """Register a sequence; must be called before a plan contains it.

        Its seed is `seed`; that of the i-th sequence forked from it, counted from 1, is `seed + i`. `end_tokens` and
        `bad_words` are those of `AdjustedSequence`.
        """
        self._requests[sequence] = params, seed & _SEED_BITS
        if params.min_tokens or params.prompt_logprobs is not None or needs_adjusting(params, bad_words):
            self._adjusted[sequence] = AdjustedSequence(sequence, params, end_tokens, bad_words)
        self._num_top_k += params.top_k > 0
        self._num_top_p += params.top_p < 1

    def add_forks(self, sequence: Sequence, forks: abc.Iterable[Sequence]) -> None:
        """Register all sequences that were forked from `sequence`, in their order."""
        params, seed = self._requests[sequence]
        adjusted = self._adjusted.get(sequence)
        end_tokens, bad_words = ((), ()) if adjusted is None else (adjusted.end_tokens, adjusted.bad_words)
        for i, fork in enumerate(forks, 1):
            self.add(fork, params, seed + i, end_tokens, bad_words)
            if adjusted is not None:
                self._adjusted[fork].num_prompt_logprobs = adjusted.num_prompt_logprobs

    def has(self, sequence: Sequence) -> bool:
        """Whether a sequence is registered: it has neither ended nor been aborted."""
        return sequence in self._requests

    def is_adjusted(self, plan: StepPlan) -> bool:
        """Whether the plan decodes an adjusted sequence, so that it must have one step."""
        return any(each.is_adjusted and sequence in plan.decodes for sequence, each in self._adjusted.items())

    def may_draft(self, plan: StepPlan) -> list[Sequence]:
        """The decodes of a plan that are not adjusted: edits of logits need all tokens before, which drafts are not."""
        adjusted = {sequence for sequence, each in self._adjusted.items() if each.is_adjusted}
        return [sequence for sequence in plan.decodes if sequence not in adjusted]

    def drop(self, sequences: abc.Iterable[Sequence]) -> None:
        """Remove sequences that ended or were aborted (or both); the next plan frees the decode rows that they have."""
        for sequence in filter(self._requests.__contains__, sequences):
            params, _ = self._requests.pop(sequence)
            self._adjusted.pop(sequence, None)
            self._num_top_k -= params.top_k > 0
            self._num_top_p -= params.top_p < 1
            self._rows.leave(sequence)

    def _adjustments(self, plan: StepPlan) -> Adjustments | None:
        """The adjustments of the last plan; notes in `samples` what gets log probabilities."""
        sampled = self.samples.sequences()
        adjusted = [None if sequence is None else self._adjusted.get(sequence) for sequence in sampled]
        rows = [each if each is not None and each.is_adjusted else None for each in adjusted]
        chunks = [(self._adjusted.get(chunk.sequence), chunk) for chunk in plan.prefills]
        before = [0 if each is None else each.num_prompt_logprobs for each, _ in chunks]
        made = make_adjustments(rows, chunks)
        if made is None:
            return None
        self.samples.logprobs.extend((row, sampled[row]) for row in made.logprob_rows.tolist())
        for (each, chunk), number in zip(chunks, before, strict=True):
            if each is not None and each.num_prompt_logprobs > number:
                self.samples.prompt_logprobs.append((chunk.sequence, each.num_prompt_logprobs - number))
        return made

    def _chunks(self, prefills: list[PrefillChunk]) -> abc.Iterator[Chunk]:
        """Prompt chunks, with the samples of each completed prompt."""
        for chunk in prefills:
            sequence, start, num_samples = chunk.sequence, chunk.start, chunk.num_samples
            params, seed = self._requests[sequence]
            samples = [(params, seed + i & _SEED_BITS) for i in range(num_samples)]
            tokens = sequence.token_ids[start : start + chunk.num_tokens]  # type: ignore[index]
            yield Chunk(sequence.block_table, start, tokens, [chunk.num_tokens - 1] * num_samples, samples)

    def _verified_chunks(self, drafted: list[tuple[Sequence, list[int]]]) -> abc.Iterator[Chunk]:
        """The last known token and the drafts of each decode; a token is sampled after each of them."""
        for sequence, drafts in drafted:
            tokens = [sequence.token_ids[-1], *drafts]  # type: ignore[index]
            sampled = list(range(len(tokens)))
            samples = [self._requests[sequence]] * len(tokens)
            yield Chunk(sequence.block_table, sequence.num_tokens - 1, tokens, sampled, samples)


def _is_unknown(sequence: Sequence) -> bool:
    """Whether the last token of a sequence is counted, but not sampled or not on the host yet."""
    return sequence.token_ids is not None and sequence.num_tokens > len(sequence.token_ids)


def _padding_chunks(plan: StepPlan, block_size: int) -> abc.Iterator[Chunk]:
    """What pads the prompts of a plan to its longest chunk: tokens that nobody needs, whose KV is not stored.

    They attend to a block of the prompt, repeated until it is as long as they are.
    """
    for chunk, padded in zip(plan.prefills, plan.work.chunks, strict=True):
        count = padded.num_tokens - chunk.num_tokens
        if count:
            table = chunk.sequence.block_table[:1] * -(-count // block_size)
            yield Chunk(table, 0, [0] * count, [], [], is_stored=False)
