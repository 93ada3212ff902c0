"""Text of streamed tokens: equal to that of all tokens at once, and never changed after it was returned."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

from engine.api.detokenizer import Detokenizer, bad_word_tokens  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.api.builders import SPECIAL, byte_level_tokenizer, sentence_piece_tokenizer  # noqa: E402

CHARACTERS = "abc the.!  ß漢字🙂é\n"
KINDS = [byte_level_tokenizer, sentence_piece_tokenizer]


def streamed(tokenizer: Any, tokens: list[int], sizes: list[int], prompt: list[int], params: SamplingParams) -> str:
    """The text of `tokens` given in chunks of these sizes."""
    detokenizer = Detokenizer(tokenizer, params, prompt)
    start, seen = 0, ""
    while start < len(tokens):
        size = sizes[start % len(sizes)]
        detokenizer.add(tokens[start : start + size])
        start += size
        assert detokenizer.text.startswith(seen)
        seen = detokenizer.text
    detokenizer.finish()
    assert detokenizer.text.startswith(seen)
    return detokenizer.text


@pytest.mark.parametrize("make", KINDS)
def test_streamed_text_is_the_text_and_has_no_halves_of_characters(make: Callable[[], Any]) -> None:
    tokenizer, rng = make(), random.Random(0)
    for _ in range(100):
        text = "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(1, 60)))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        cut = rng.randrange(len(tokens))
        prompt, output = tokens[:cut], tokens[cut:]
        before = tokenizer.decode(prompt)
        if before.endswith("\N{REPLACEMENT CHARACTER}"):
            continue
        sizes = [rng.choice([1, 1, 2, 3, 8, 100]) for _ in range(7)]
        found = streamed(tokenizer, output, sizes, prompt, SamplingParams())
        assert before + found == tokenizer.decode(tokens)
        for start in range(len(output)):  # what is there before the end has whole characters only
            detokenizer = Detokenizer(tokenizer, SamplingParams(), prompt)
            detokenizer.add(output[:start])
            assert found.startswith(detokenizer.text) and "\N{REPLACEMENT CHARACTER}" not in detokenizer.text


@pytest.mark.parametrize("make", KINDS)
def test_any_tokens_at_all_never_change_what_was_returned_and_take_constant_time(make: Callable[[], Any]) -> None:
    tokenizer, rng = make(), random.Random(1)
    for spread in (len(tokenizer), 8):  # the second: long runs of invalid bytes
        for _ in range(15):
            tokens = [(rng.randrange(spread) + 130) % len(tokenizer) for _ in range(120)]
            for params in (SamplingParams(), SamplingParams(skip_special_tokens=False)):
                detokenizer = Detokenizer(tokenizer, params, [])
                for token in tokens:
                    detokenizer.add([token])
                    assert len(detokenizer._window) < 100
                streamed(tokenizer, tokens, [1, 5, 70], [], params)


def test_byte_level_text_of_random_tokens_is_that_of_all_at_once() -> None:
    tokenizer, rng = byte_level_tokenizer(), random.Random(2)
    for _ in range(100):
        tokens = [rng.randrange(len(tokenizer)) for _ in range(50)]
        for skips in (True, False):
            found = streamed(tokenizer, tokens, [1000], [], SamplingParams(skip_special_tokens=skips))
            assert found == tokenizer.decode(tokens, skip_special_tokens=skips)


def test_a_space_at_the_beginning_of_the_output_is_kept() -> None:
    tokenizer = sentence_piece_tokenizer()
    prompt, full = (tokenizer.encode(text, add_special_tokens=False) for text in ("ab", "ab cd"))
    assert tokenizer.decode(full[len(prompt) :]) == "cd"
    assert streamed(tokenizer, full[len(prompt) :], [1], prompt, SamplingParams()) == " cd"


def test_special_tokens_are_left_out_or_kept_with_or_without_spaces_between() -> None:
    tokenizer = sentence_piece_tokenizer()
    word, special = tokenizer.encode("ab", add_special_tokens=False), tokenizer.convert_tokens_to_ids(SPECIAL[:2])
    tokens = [*word, *special, *word]
    assert streamed(tokenizer, tokens, [1], [], SamplingParams()) == "ab ab"
    kept = SamplingParams(skip_special_tokens=False)
    assert streamed(tokenizer, tokens, [1], [], kept) == tokenizer.decode(tokens)
    tight = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=False)
    assert "<|begin|><|end|>" in streamed(tokenizer, tokens, [1], [], tight)


def test_bad_words_are_tokenized_with_and_without_a_space_before() -> None:
    tokenizer = byte_level_tokenizer()
    plain, spaced = (tokenizer.encode(text, add_special_tokens=False) for text in ("z", " z"))
    assert [tokens for _, tokens in bad_word_tokens(tokenizer, [" z"])] == [plain] + [spaced] * (len(spaced) == 1)
    with pytest.raises(ValueError, match="'  ' has no tokens"):
        bad_word_tokens(tokenizer, ["  "])
