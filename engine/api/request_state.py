"""What a request has generated so far: tokens, text and log probabilities of its sequences, and stop strings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from engine.api.detokenizer import Detokenizer, TokenTexts
from engine.api.outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs
from engine.api.prompts import Prompt
from engine.api.token_collector import NewTokens
from engine.core.sequence import Request, Sequence
from engine.sampling_params import SamplingParams


@dataclass
class _Generated:
    """One output sequence.

    Attributes:
        num_tokens: output tokens that were received.
        num_detokenized: output tokens that `detokenizer` has.
        text_end: characters of the text; None as long as no stop string has cut it.
    """

    sequence: Sequence
    detokenizer: Detokenizer | None
    num_tokens: int = 0
    num_detokenized: int = 0
    text_end: int | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestState:
    """A request of a call, and what the engine has given it.

    Args:
        index: place of the prompt among those of the call.
        tokenizer: makes text of tokens; None if the model has none.
        token_texts: texts of single tokens.
        bad_words: token ids of the bad words of `params`.
    """

    def __init__(
        self,
        index: int,
        request: Request,
        prompt: Prompt,
        params: SamplingParams,
        tokenizer: Any,
        token_texts: TokenTexts,
        bad_words: list[list[int]],
    ) -> None:
        self.request = request
        self.params = params
        self.bad_words = bad_words
        self._index = index
        self._prompt = prompt
        self._tokenizer = tokenizer if params.detokenize else None
        self._token_texts = token_texts
        self._stops = params.stop_strings
        self._generated: dict[Sequence, _Generated] = {}
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._failure: Exception | None = None

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._prompt.token_ids

    @property
    def has_stop_strings(self) -> bool:
        return bool(self._stops)

    def find_stop_string(self, sequence: Sequence, token: int) -> str | None:
        """The stop string that ends with the sequence's last token, if one does: the first one in the text.

        It runs in the middle of a step, which an error would fail for all requests; `receive` raises the error.
        """
        try:
            return self._find_stop_string(self._generated_by(sequence))
        except Exception as error:
            self._failure = error
            return None

    def receive(self, new: NewTokens) -> None:
        """Take the tokens that a plan gave to one of the request's sequences; raises what the tokenizer raises."""
        if self._failure is not None:
            raise self._failure
        generated = self._generated_by(new.sequence)
        generated.num_tokens += len(new.token_ids)
        generated.finish_reason, generated.stop_reason = new.finish_reason, new.stop_reason
        if new.logprobs is not None:
            chosen = zip(new.logprobs, new.token_ids, strict=True)
            generated.cumulative_logprob += sum(logprobs[token].logprob for logprobs, token in chosen)
            generated.logprobs += [self._with_texts(logprobs) for logprobs in new.logprobs]
        if new.prompt_logprobs is not None:
            self._prompt_logprobs = [each and self._with_texts(each) for each in new.prompt_logprobs]

    def output(self, *, finished: bool) -> RequestOutput:
        """All that was received so far; raises what the tokenizer raises."""
        order = {sequence: i for i, sequence in enumerate(self.request.sequences)}
        generated = sorted((order[sequence], each) for sequence, each in self._generated.items())
        return RequestOutput(
            request_id=str(self.request.request_id),
            index=self._index,
            prompt=self._prompt.text,
            prompt_token_ids=self._prompt.token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[self._completion(i, each) for i, each in generated],
            finished=finished,
            num_cached_tokens=self.request.num_cached_tokens,
        )

    def _generated_by(self, sequence: Sequence) -> _Generated:
        generated = self._generated.get(sequence)
        if generated is None:
            makes_text = self._tokenizer is not None
            detokenizer = Detokenizer(self._tokenizer, self.params, self._prompt.token_ids) if makes_text else None
            generated = self._generated[sequence] = _Generated(sequence, detokenizer)
        return generated

    def _find_stop_string(self, generated: _Generated) -> str | None:
        detokenizer, sequence = generated.detokenizer, generated.sequence
        assert detokenizer is not None and sequence.token_ids is not None
        tokens = sequence.token_ids[self.request.num_prompt_tokens + generated.num_detokenized :]
        generated.num_detokenized += len(tokens)
        detokenizer.add(tokens[:-1])  # tokens before `min_tokens`, in which no stop string is looked for
        before = len(detokenizer.text)
        detokenizer.add(tokens[-1:])
        found = [(detokenizer.text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stops]
        start, stop = min(((start, stop) for start, stop in found if start >= 0), default=(0, None))
        if stop is not None:
            generated.text_end = start + len(stop) * self.params.include_stop_str_in_output
        return stop

    def _completion(self, index: int, generated: _Generated) -> CompletionOutput:
        assert generated.sequence.token_ids is not None
        start = self.request.num_prompt_tokens
        token_ids = generated.sequence.token_ids[start : start + generated.num_tokens]
        has_logprobs = self.params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=self._text(generated, token_ids),
            token_ids=token_ids,
            cumulative_logprob=generated.cumulative_logprob if has_logprobs else None,
            logprobs=generated.logprobs.copy() if has_logprobs else None,
            finish_reason=generated.finish_reason,
            stop_reason=generated.stop_reason,
        )

    def _text(self, generated: _Generated, token_ids: list[int]) -> str:
        """The text of the tokens, without what may become a stop string or a character with the next tokens."""
        detokenizer = generated.detokenizer
        if detokenizer is None:
            return ""
        if generated.text_end is None:
            ended_by_token = generated.finish_reason == "stop" and not self.params.include_stop_str_in_output
            detokenizer.add(token_ids[generated.num_detokenized : len(token_ids) - ended_by_token])
            generated.num_detokenized = len(token_ids)
            if generated.finish_reason is not None:
                detokenizer.finish()
                generated.text_end = len(detokenizer.text)
        if generated.text_end is not None:
            return detokenizer.text[: generated.text_end]
        return detokenizer.text[: len(detokenizer.text) - self._num_held(detokenizer.text)]

    def _num_held(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        if self.params.include_stop_str_in_output:
            return 0
        longest = max(map(len, self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)

    def _with_texts(self, logprobs: TokenLogprobs) -> TokenLogprobs:
        if self._tokenizer is None:
            return logprobs
        return {token: replace(each, decoded_token=self._token_texts[token]) for token, each in logprobs.items()}
