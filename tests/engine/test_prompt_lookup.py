"""Speculative decoding by prompt lookup in the real engine: the tokens of plain decoding, in fewer steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.llm import LLM
from engine.core.sequence import Request
from engine.prompt_lookup import Drafter, NgramOptions
from engine.sampling_params import SamplingParams
from tests.engine.builders import MODEL, SETTINGS, generate, make_prompts, one_by_one

NGRAM = NgramOptions(num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=3)


def looked_up(tokens: list[int], options: NgramOptions, limit: int) -> list[int]:
    """By the definition: the longest of the last n-grams that stands earlier, where it stands first."""
    for length in range(options.prompt_lookup_max, options.prompt_lookup_min - 1, -1):
        for start in range(len(tokens) - length):
            if length < len(tokens) and tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length : start + length + limit]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(1, 10),
)
def test_the_longest_match_is_drafted_from_its_first_place(
    tokens: list[int], shortest: int, more: int, most: int, num_prompt: int
) -> None:
    options = NgramOptions(most, shortest, shortest + more)
    request = Request(0, min(num_prompt, len(tokens)), 100)
    (sequence,) = request.sequences
    drafter = Drafter(options)
    for length in range(request.num_prompt_tokens, len(tokens) + 1):
        sequence.token_ids = tokens[:length]
        drafts = drafter.propose([sequence])
        assert drafts.get(sequence, []) == looked_up(tokens[:length], options, most)
        sequence.add_tokens(1)


def test_drafts_end_before_the_last_token() -> None:
    """The last token of a sequence is sampled and never computed, so that no draft stands for it."""
    for left, expected in ((1, 0), (2, 1), (3, 2), (9, 3)):
        request = Request(0, 10, left, token_ids=[1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
        drafts = Drafter(NGRAM).propose(request.sequences)
        assert sum(map(len, drafts.values())) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 1, 1), "num_speculative_tokens=0: must be an integer >= 1 and <= 128"),
        ((1, 0, 1), "prompt_lookup_min=0: must be an integer >= 1"),
        ((1, 3, 2), "prompt_lookup_max=2: must be >= prompt_lookup_min=3"),
    ],
)
def test_a_wrong_option_is_named(values: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        NgramOptions(*values)


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 45, "policy": "prefill_first"},
        pytest.param({"cuda_graphs": True}, marks=pytest.mark.slow),
        pytest.param({"num_blocks": 45, "enable_prefix_caching": False}, marks=pytest.mark.slow),
        pytest.param(
            {"max_num_batched_tokens": 32, "allocation": "chunk", "policy": "admission_order"}, marks=pytest.mark.slow
        ),
    ],
    ids=["preemptions-cached", "graphs", "preemptions", "chunks"],
)
def test_greedy_tokens_are_those_of_plain_decoding(options: dict[str, Any]) -> None:
    assert generate(speculation=NGRAM, **options) == one_by_one()


def test_it_takes_fewer_steps() -> None:
    steps = []
    for speculation in (None, NGRAM):
        llm = LLM(MODEL, **SETTINGS, speculation=speculation)
        llm.engine.add(Request(0, 4, 120, token_ids=[1, 2, 3, 4]), SamplingParams(max_tokens=120, temperature=0.0))
        accepted = drafted = num_decodes = num_steps = 0
        while (report := llm.engine.step(0)) is not None:
            num_steps += report.plan.num_steps
            num_decodes += report.plan.num_decodes * report.plan.num_steps
            if report.outcome.drafts is not None:
                drafted += report.outcome.drafts.num_drafted.sum()
                accepted += report.outcome.drafts.num_accepted.sum()
        assert num_decodes + accepted == 119 and 0 <= accepted <= drafted
        steps.append(num_steps)
        llm.close()
    assert steps[1] < steps[0]


MIXED = [
    SamplingParams(max_tokens=26, temperature=0.4, seed=1),
    SamplingParams(max_tokens=26, temperature=0.3, top_k=5, seed=2),
    SamplingParams(max_tokens=26, temperature=0.5, top_p=0.6, seed=3),
    SamplingParams(max_tokens=26, temperature=0.0, presence_penalty=1.5),
    SamplingParams(max_tokens=26, temperature=0.0, min_tokens=20, stop_token_ids=list(range(0, 300, 7))),
    SamplingParams(max_tokens=26, temperature=0.0, logprobs=2),
    SamplingParams(max_tokens=26, temperature=0.3, n=3, seed=4),
    SamplingParams(max_tokens=26, temperature=0.0, stop_token_ids=list(range(0, 300, 9))),
    SamplingParams(max_tokens=12, temperature=0.0, prompt_logprobs=1),
]


def test_every_kind_of_request_gets_the_tokens_of_plain_decoding() -> None:
    """Sampled ones too: the noise of a token hangs on its seed and position, not on how it came about."""
    results = []
    for speculation in (None, NGRAM):
        llm = LLM(MODEL, **SETTINGS, speculation=speculation)
        outputs = llm.generate(make_prompts()[: len(MIXED)], MIXED, use_tqdm=False)
        results.append([[each.token_ids for each in output.outputs] for output in outputs])
        llm.close()
    assert results[0] == results[1]


@pytest.mark.long
def test_the_distribution_of_sampled_tokens_is_that_of_plain_decoding() -> None:
    """Chi-square of the second and third token of a model with six tokens, all of which are drafted again and again.

    The seeds differ, so that equal tokens do not come from equal noise.
    """
    counts, num_drafted, num_requests = [], 0, 400
    for speculation, first_seed in ((None, 0), (NgramOptions(2, 1, 1), num_requests)):
        settings = {**SETTINGS, "max_num_seqs": 50, "max_num_batched_tokens": 400}
        llm = LLM(replace(MODEL, vocab_size=6), **settings, speculation=speculation)
        for i in range(num_requests):
            params = SamplingParams(max_tokens=4, temperature=0.7, seed=first_seed + i, ignore_eos=True)
            llm.engine.add(Request(i, 8, 4, token_ids=[0, 1, 2, 3, 4, 5, 0, 2]), params)
        pairs: Counter[tuple[int, ...]] = Counter()
        while (report := llm.engine.step(0)) is not None:
            num_drafted += 0 if report.outcome.drafts is None else int(report.outcome.drafts.num_drafted.sum())
            pairs.update(tuple(r.sequences[0].token_ids[9:11]) for r in report.outcome.finished)  # type: ignore[index]
        counts.append(pairs)
        llm.close()
    assert num_drafted > num_requests
    cells = [pair for pair in counts[0] | counts[1] if counts[0][pair] + counts[1][pair] >= 10]
    plain, drafted = (np.array([count[pair] for pair in cells], float) for count in counts)
    statistic = ((plain - drafted) ** 2 / (plain + drafted)).sum()
    assert len(cells) > 15
    assert statistic < len(cells) + 3 * np.sqrt(2 * len(cells)), "three standard deviations"
