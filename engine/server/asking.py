"""What a body of OpenAI's API asks for, in the engine's types."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, fields, replace
from typing import Any
from zlib import crc32

from engine.sampling_params import SamplingParams
from engine.server.backend import Backend, PromptInput

# Names that bodies and SamplingParams share.
_SHARED = {field.name for field in fields(SamplingParams)} - {"max_tokens", "logprobs", "logit_bias", "detokenize"}
# What is asked for with these would not be done.
_UNSUPPORTED = {"suffix": None, "echo": False, "best_of": None, "tools": None, "use_beam_search": False}


class BadRequestError(ValueError):
    """The body cannot be served.

    Attributes:
        status: of HTTP.
        kind: the `type` of OpenAI's error.
    """

    def __init__(self, message: str, *, status: int = 400, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Asked:
    """One call.

    Attributes:
        prompts: texts or token ids, one for a chat.
        shows_usage: the last chunk of a stream has token counts, or each chunk has, too.
        shows_ids: chunks have the ids of their tokens.
    """

    is_chat: bool
    prompts: list[PromptInput]
    params: SamplingParams
    stream: bool
    shows_usage: bool
    shows_running_usage: bool
    shows_ids: bool
    priority: int


def session_of(header: str | None, body: abc.Mapping[str, Any]) -> int | None:
    """The conversation that a call belongs to: its header `x-session-id` or its `user`; None where it has neither."""
    name = header or body.get("user")
    return None if name is None else crc32(str(name).encode("utf-8", "surrogatepass"))


def read_completion(body: abc.Mapping[str, Any], backend: Backend) -> Asked:
    """The body of /v1/completions; raises BadRequestError."""
    _check(body, backend)
    logprobs = body.get("logprobs")
    return _asked(body, _prompts(body.get("prompt")), logprobs, backend, is_chat=False)


def read_chat(body: abc.Mapping[str, Any], backend: Backend) -> Asked:
    """The body of /v1/chat/completions; raises BadRequestError."""
    _check(body, backend)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise BadRequestError("messages: must be a list of {'role': ..., 'content': ...}")
    kind = (_object(body, "response_format") or {"type": "text"}).get("type")
    if kind != "text":
        raise BadRequestError(f"response_format: {kind!r} is not supported")
    options = {
        "add_generation_prompt": body.get("add_generation_prompt", True),
        "continue_final_message": body.get("continue_final_message", False),
        **_object(body, "chat_template_kwargs"),
    }
    logprobs = (body.get("top_logprobs") or 0) if body.get("logprobs") else None
    try:
        prompt = backend.render(messages, options)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    return _asked(body, [prompt], logprobs, backend, is_chat=True)


def _check(body: Any, backend: Backend) -> None:
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    model = body.get("model")
    if model is not None and model != backend.model_name:
        raise BadRequestError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError")
    for name, harmless in _UNSUPPORTED.items():
        if body.get(name, harmless) not in (harmless, None, [], False):
            raise BadRequestError(f"{name}: not supported")


def _object(body: abc.Mapping[str, Any], name: str) -> abc.Mapping[str, Any]:
    """A JSON object in the body, empty where there is none."""
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise BadRequestError(f"{name}: must be a JSON object")
    return value


def _prompts(prompt: Any) -> list[PromptInput]:
    """One prompt, or several: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(each) is int for each in prompt):
            return [prompt]
        if all(isinstance(each, str) for each in prompt) or all(isinstance(each, list) for each in prompt):
            return list(prompt)
    raise BadRequestError("prompt: must be a text, a list of token ids, or a list of either")


def _asked(
    body: abc.Mapping[str, Any], prompts: list[PromptInput], logprobs: Any, backend: Backend, *, is_chat: bool
) -> Asked:
    given = {name: body[name] for name in _SHARED if body.get(name) is not None}
    given |= {"logprobs": logprobs} if logprobs is not None else {}
    limit = body.get("max_completion_tokens") if body.get("max_tokens") is None else body.get("max_tokens")
    if limit is not None:
        given["max_tokens"] = limit
    elif is_chat:
        given["max_tokens"] = None
    try:
        if biases := _object(body, "logit_bias"):
            given["logit_bias"] = {int(token): bias for token, bias in biases.items()}
        params = replace(backend.default_params, **given)
        options = _object(body, "stream_options")
        return Asked(
            is_chat=is_chat,
            prompts=prompts,
            params=params,
            stream=bool(body.get("stream")),
            shows_usage=bool(options.get("include_usage")),
            shows_running_usage=bool(options.get("continuous_usage_stats")),
            shows_ids=bool(body.get("return_token_ids")),
            priority=int(body.get("priority") or 0),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(str(error)) from None
