"""The engine as a Python library, in the shape of vLLM's offline API: prompts in, texts and tokens out."""

from __future__ import annotations

import sys
import time
from collections import abc
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from engine.api.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from engine.api.call_arguments import Params, check_params, params_of, priorities_of
from engine.api.calls import Calls, Stream
from engine.api.detokenizer import TokenTexts
from engine.api.llm_engine import LLMEngine
from engine.api.outputs import RequestOutput
from engine.api.prompts import Prompt, Prompts, read_prompts, render
from engine.api.request_state import RequestState
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.engine_config import EngineConfig, override
from engine.json_file import ModelError
from engine.model_folder import default_sampling_params, load_tokenizer
from engine.models.model_config import ModelConfig
from engine.runner.executors.executor import longest_sequence
from engine.runner.executors.tensor_parallel import make_executor
from engine.sampling_params import SamplingParams

Messages = abc.Sequence[abc.Mapping[str, Any]]


class LLM:
    """A model ready to generate.

    Several streams may be open at the same time, and `generate` may be called meanwhile: each has its own outputs. An
    error or Ctrl-C in a step of the engine is raised by the call that waited for the step. It aborts the requests of
    all open calls, whose streams raise RequestAbortedError; afterwards the engine goes on. Several threads may use it:
    their requests share the steps of the engine, each of which runs in a thread that waits for one.

    Args:
        model: a model folder in Hugging Face format; or the shape of a model (a `ModelConfig`, or the fields of a
            `conf/model/*.yaml` file), whose weights are then random.
        config: the engine's settings; by default those of `EngineConfig`, on a GPU if torch finds one, and there with
            `async_scheduling` where other settings allow it.
        tokenizer: in place of the one in the folder.
        settings: fields of `EngineConfig` that override those of `config`; also `enforce_eager` and `dtype="auto"`.

    Attributes:
        tokenizer: of the model folder; None if it has none.

    Raises:
        ModelError, OutOfMemoryError, BackendUnavailableError: the model cannot be loaded or run here.
        ValueError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        model: str | Path | ModelConfig | abc.Mapping[str, Any],
        config: EngineConfig | None = None,
        *,
        tokenizer: Any = None,
        **settings: Any,
    ) -> None:
        config = override(config or _default_config(settings), settings)
        folder = Path(model) if isinstance(model, str | Path) else None
        if folder is not None:
            model_config = ModelConfig.load(folder)
        else:
            config = override(config, {"load_format": "random"})
            model_config = model if isinstance(model, ModelConfig) else ModelConfig.from_shape(model)  # type: ignore[arg-type]
        self.model_config = model_config
        self.tokenizer: Any = tokenizer or (None if folder is None else load_tokenizer(folder))
        self._default_params = SamplingParams() if folder is None else default_sampling_params(folder)
        self._token_texts = TokenTexts(self.tokenizer)
        eos_token_id = getattr(self.tokenizer, "eos_token_id", None)
        self.engine = LLMEngine(
            config,
            make_executor(config, model_config, folder),
            max_model_len=longest_sequence(config, model_config),
            eos_token_ids={*model_config.eos_token_ids, *([] if eos_token_id is None else [eos_token_id])},
        )
        self._calls = Calls(self.engine)
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        use_tqdm: bool | None = None,
        *,
        priority: abc.Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts; the outputs are in the order of the prompts.

        Args:
            prompts: one prompt or a list. A prompt is a text, a list of token ids, `{"prompt": text}` or
                `{"prompt_token_ids": token ids}`.
            sampling_params: for all prompts, or one for each prompt; None takes `get_default_sampling_params()`.
            use_tqdm: whether to show progress; None shows it if stderr is a terminal.
            priority: an integer for each prompt, smaller ones first, for the queue and for who is preempted; None is 0
                for all. `EngineConfig.queue`, `victim` and `policy` say what it decides.

        Raises:
            RequestRefusedError: a prompt is malformed, has tokens outside the vocabulary or can never run; none of them
                runs then.
            ValueError: sampling parameters do not fit the model, or their number, or that of the priorities, is not
                that of the prompts.
            ModelError: a prompt is a text, or the parameters have texts, but the model has no tokenizer.
            RequestAbortedError, EngineClosedError: see `engine.api.calls`.
        """
        with closing(self.stream(prompts, sampling_params, priority=priority)) as stream:
            return _run(stream, use_tqdm)

    def chat(
        self,
        messages: Messages | abc.Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: bool | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: abc.Mapping[str, Any] | None = None,
        priority: abc.Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of a conversation, or of each of several.

        Args:
            messages: a list of `{"role": ..., "content": ...}`, or a list of such lists.
            chat_template: a Jinja template; None takes the tokenizer's.
            add_generation_prompt, continue_final_message, tools, chat_template_kwargs: what the template gets, as in
                transformers' `apply_chat_template`.
            priority: an integer for each conversation, as `generate` takes it.

        Raises:
            ModelError: the model has no tokenizer.
            ValueError: the tokenizer has no chat template, or the template refuses the messages.
            Exception: as `generate`.
        """
        if self.tokenizer is None:
            raise ModelError("the model has no tokenizer: chat() needs one")
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        is_one = not messages or isinstance(messages[0], abc.Mapping)
        texts = [render(self.tokenizer, each, i, options) for i, each in enumerate([messages] if is_one else messages)]
        # The template has written the special tokens already.
        with self._calls.turns:
            prompts = read_prompts(texts, self.tokenizer, self.model_config.vocab_size, adds_special_tokens=False)
            stream = self._open(prompts, sampling_params, priority)
        with closing(stream):
            return _run(stream, use_tqdm)

    def stream(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        priority: abc.Sequence[int] | None = None,
        arrival_ns: int | None = None,
    ) -> Stream:
        """Like `generate`, but returns an iterator over the growing outputs; raises what `generate` raises.

        The requests are aborted when the iterator is closed or nobody refers to it any more. They arrived at
        `arrival_ns` by `time.perf_counter_ns`; None is now.
        """
        with self._calls.turns:  # tokenizers are for one thread at a time
            read = read_prompts(prompts, self.tokenizer, self.model_config.vocab_size, adds_special_tokens=True)
            return self._open(read, sampling_params, priority, arrival_ns)

    def beam_search(
        self, prompts: Prompts, params: BeamSearchParams, use_tqdm: bool | None = None
    ) -> list[BeamSearchOutput]:
        """The most likely outputs for all prompts, by beam search; in the order of the prompts.

        In each step every live beam is a request of one token: without the prefix cache it computes all its tokens.

        Args:
            use_tqdm: whether to show progress, in steps; None shows it if stderr is a terminal.

        Raises:
            RequestRefusedError: a prompt is malformed or can never run.
            ValueError: `params` are none, or do not fit the model.
            ModelError: a prompt is a text, but the model has no tokenizer.
            RequestAbortedError, EngineClosedError: see `engine.api.calls`.
        """
        if not isinstance(params, BeamSearchParams):
            raise ValueError(f"params={params!r}: must be BeamSearchParams")
        size = self.model_config.vocab_size
        if 2 * params.beam_width > size:
            raise ValueError(f"beam_width={params.beam_width}: needs a vocabulary of twice as many tokens, not {size}")
        with self._calls.turns:
            read = read_prompts(prompts, self.tokenizer, size, adds_special_tokens=True)
        eos, longest = self.engine.eos_token_ids, self.engine.scheduler.max_model_len
        searches = [BeamSearch(prompt.token_ids, params, eos, longest) for prompt in read]
        with _progress("Beam search", params.max_tokens, " tokens", use_tqdm) as bar:
            while growing := [search for search in searches if search.goes_on]:
                beams = [Prompt(None, beam.tokens) for search in growing for beam in search.live]
                with self._calls.turns:
                    stream = self._open(beams, params.sampling_params, None)
                with closing(stream):
                    outputs = iter(_run(stream, use_tqdm=False))
                for search in growing:
                    search.step(outputs)
                bar.update()
        with self._calls.turns:
            return [search.output(self.tokenizer) for search in searches]

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's `generation_config.json` recommends: temperature, top_k, top_p, min_p, repetition_penalty
        and max_tokens; the defaults of `SamplingParams` for what it does not name."""
        return self._default_params

    def get_tokenizer(self) -> Any:
        """The tokenizer of the model folder; None if it has none."""
        return self.tokenizer

    def observe(self, on_report: abc.Callable[[StepReport], None]) -> None:
        """Tell a function of every step from now on, in the thread that ran it."""
        self._calls.on_report = on_report

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache.

        Raises:
            RuntimeError: requests are waiting or running.
        """
        with self._calls.turns:
            if self.engine.scheduler.unfinished:
                raise RuntimeError("the prefix cache is in use")
            self.engine.reset()

    def close(self) -> None:
        """Free the model's memory; open streams and later calls raise EngineClosedError."""
        with self._calls.turns:
            self._calls.close("its model was freed by close()")
            self.engine.close()

    def _open(
        self,
        prompts: list[Prompt],
        sampling_params: Params,
        priority: abc.Sequence[int] | None,
        arrival_ns: int | None = None,
    ) -> Stream:
        params = params_of(prompts, sampling_params, self._default_params)
        priorities = priorities_of(priority, len(prompts))
        bad_words = {id(each): check_params(each, self.model_config.vocab_size, self.tokenizer) for each in params}
        states = []
        for i, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            self._num_requests += 1
            request = Request(
                self._num_requests,
                len(prompt.token_ids),
                each.max_tokens or self.engine.max_model_len,
                time.perf_counter_ns() if arrival_ns is None else arrival_ns,
                token_ids=prompt.token_ids.copy(),
                priority=priorities[i],
                num_sequences=each.n,
            )
            state = RequestState(i, request, prompt, each, self.tokenizer, self._token_texts, bad_words[id(each)])
            states.append(state)
        return self._calls.open(states)


def _run(stream: Stream, use_tqdm: bool | None) -> list[RequestOutput]:
    """Run a stream to its end, with a bar of finished requests; returns the final outputs."""
    total = stream.num_unfinished
    with _progress("Generating", total, " requests", use_tqdm) as bar:
        while stream.num_unfinished:
            stream.run_step()
            bar.update(total - stream.num_unfinished - bar.n)
    return stream.finish()


def _progress(what: str, total: int, unit: str, use_tqdm: bool | None) -> tqdm[Any]:
    shows = sys.stderr.isatty() if use_tqdm is None else use_tqdm
    return tqdm(total=total, desc=what, unit=unit, dynamic_ncols=True, disable=not shows)


def _default_config(settings: abc.Mapping[str, Any]) -> EngineConfig:
    """For the settings that the user gives: on a GPU, steps are planned ahead unless one of them rules it out."""
    is_cuda = settings.get("device", "cuda") == "cuda" and torch.cuda.is_available()
    plans_ahead = is_cuda and settings.get("speculation") is None and settings.get("eviction") != "radix"
    return EngineConfig(device="cuda" if is_cuda else "cpu", async_scheduling=plans_ahead)
