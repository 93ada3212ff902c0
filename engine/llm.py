"""The engine as a Python library: prompts in, texts or tokens out."""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.core.sequence import Request, RequestRefusedError, Sequence
from engine.engine_config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.models.model_config import ModelConfig, ModelError
from engine.outputs import FinishReason
from engine.runner.executor import longest_sequence
from engine.runner.tensor_parallel import make_executor
from engine.sampling_params import SamplingParams

Prompt = str | abc.Sequence[int]


@dataclass(frozen=True)
class RequestOutput:
    """What one request has generated so far.

    Attributes:
        index: place of the request's prompt in the list of prompts.
        token_ids: all output tokens so far.
        text: the output tokens as text; None if the model has no tokenizer.
        finish_reason: why the request ended; None while it runs.
    """

    index: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason | None


class LLM:
    """A model ready to generate.

    Args:
        model: a model folder in Hugging Face format; or the shape of a model (a `ModelConfig`, or the fields of a
            `conf/model/*.yaml` file), whose weights are then random.
        config: the engine's settings; keyword arguments override its fields.

    Raises:
        ModelError, OutOfMemoryError, BackendUnavailableError: the model cannot be loaded or run here.
    """

    def __init__(
        self,
        model: str | Path | ModelConfig | abc.Mapping[str, Any],
        config: EngineConfig | None = None,
        **settings: Any,
    ) -> None:
        config = replace(config or EngineConfig(), **settings)
        if isinstance(model, str | Path):
            folder: Path | None = Path(model)
            model_config = ModelConfig.load(model)
        else:
            config = replace(config, load_format="random")
            folder, model_config = None, model if isinstance(model, ModelConfig) else ModelConfig.from_shape(model)
        self.model_config = model_config
        self.tokenizer = _load_tokenizer(folder) if folder is not None else None
        executor = make_executor(config, model_config, folder)
        self.engine = LLMEngine(
            config,
            executor,
            max_model_len=longest_sequence(config, model_config),
            eos_token_ids=model_config.eos_token_ids,
        )
        self._num_requests = 0

    def generate(
        self,
        prompts: abc.Sequence[Prompt],
        sampling_params: SamplingParams | abc.Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts (texts or token ids); the outputs are in the order of the prompts.

        Args:
            sampling_params: for all prompts, or one for each prompt; None takes the defaults.

        Raises:
            RequestRefusedError: a prompt can never run.
            ModelError: a prompt is a text but the model has no tokenizer, or the numbers of prompts and parameters
                differ.
        """
        outputs = {output.index: output for output in self.stream(prompts, sampling_params) if output.finish_reason}
        return [outputs[i] for i in range(len(prompts))]

    def stream(
        self,
        prompts: abc.Sequence[Prompt],
        sampling_params: SamplingParams | abc.Sequence[SamplingParams] | None = None,
    ) -> abc.Generator[RequestOutput, None, None]:
        """Like `generate`, but yields the output of a request after every plan that gave it tokens."""
        params = self._params_of(prompts, sampling_params)
        requests = [self._request(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        indices = {request: i for i, request in enumerate(requests)}
        added: list[Request] = []
        try:
            for request, each in zip(requests, params, strict=True):
                self.engine.add(request, each)
                added.append(request)
            while report := self.engine.step(time.perf_counter_ns()):
                for output in report.outputs:
                    yield self._output(indices[output.sequence.request], output.sequence, output.finish_reason)
        except (
            GeneratorExit,
            RequestRefusedError,
        ):  # the caller stopped early, or a prompt was refused: the engine must keep none of these requests
            for request in added:
                if request.finish_time is None:
                    self.engine.abort(request.request_id)
            raise

    def close(self) -> None:
        """Free the model's memory."""
        self.engine.close()

    def _params_of(
        self, prompts: abc.Sequence[Prompt], params: SamplingParams | abc.Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise ModelError(f"{len(params)} sampling_params for {len(prompts)} prompts; give one, or one for each")
        return list(params)

    def _request(self, prompt: Prompt, params: SamplingParams) -> Request:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ModelError("the model has no tokenizer: give prompts as token ids")
            prompt = self.tokenizer.encode(prompt)
        token_ids = [int(token) for token in prompt]
        self._num_requests += 1
        max_tokens = params.max_tokens or self.engine.max_model_len
        return Request(self._num_requests, len(token_ids), max_tokens, token_ids=token_ids)

    def _output(self, index: int, sequence: Sequence, reason: FinishReason | None) -> RequestOutput:
        assert sequence.token_ids is not None
        new = sequence.token_ids[sequence.request.num_prompt_tokens :]
        text = self.tokenizer.decode(new) if self.tokenizer is not None else None
        return RequestOutput(index, new, text, reason)


def _load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; None if the folder has none."""
    if not (folder / "tokenizer_config.json").exists() and not (folder / "tokenizer.json").exists():
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
