"""Configuration of a run against a server that speaks OpenAI's API."""

from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from engine.engine_config import KVDtype
from harness.config.schema.base import ConfigModel, NonNegativeFloat, PositiveFloat, Text, secret_in, within


class OpenAIEngine(ConfigModel):
    """Any server with OpenAI's API: vLLM, SGLang, ours. Scheduler, device and pool are the server's own and are not
    read; `model` says which token ids there are.

    Attributes:
        endpoint: address of the server, such as http://localhost:8000.
        model: name under which it serves the model; null takes the first at /v1/models.
        api: completions (/v1/completions) or chat (/v1/chat/completions).
        prompts: ids, token ids as they are; text, texts of as many tokens; null for ids with completions, text with
            chat.
        tokenizer: a tokenizer.json, or a folder with one, to make texts with; null asks the server (/tokenize and
            /detokenize, of vLLM and ours).
        stream: whether answers come in pieces; without, only their ends are known.
        usage: token counts that the server is asked for: chunks, with every chunk (vLLM, SGLang, ours); final, with
            the last one; none.
        ignore_eos: ask for as many tokens as the trace says, whatever the model says; of vLLM and SGLang.
        temperature: of sampling; 0 is greedy.
        body: more fields of every request, such as {top_k:20}.
        timeout_s: after which a request is given up.
        retries: further attempts of a request of which nothing has come: refused connections, 429, 502 to 504.
        key_variable: environment variable with the key of the server; only its name is stored with results.
        warm_up_requests: requests of the trace that are sent first, one after the other, and not counted.
        reset_cache: empty the server's prefix cache before the run (/reset_prefix_cache of vLLM, /flush_cache of
            SGLang).
        metrics: address of the server's metrics; null is /metrics of the endpoint.
        metrics_interval_s: s between two readings of it; 0 never reads it.
    """

    max_lookahead_steps: ClassVar[int] = 1
    kv_cache_dtype: ClassVar[KVDtype] = "auto"

    kind: Literal["openai"] = "openai"
    endpoint: Text
    model: Text | None = None
    api: Literal["completions", "chat"] = "completions"
    prompts: Literal["ids", "text"] | None = None
    tokenizer: Text | None = None
    stream: bool = True
    usage: Literal["chunks", "final", "none"] = "chunks"
    ignore_eos: bool = True
    temperature: Annotated[float, within("temperature")] = 0.0
    body: dict[str, object] = {}
    timeout_s: PositiveFloat = 600.0
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    key_variable: Text = "OPENAI_API_KEY"
    warm_up_requests: Annotated[int, Field(ge=0, le=10_000)] = 0
    reset_cache: bool = False
    metrics: Text | None = None
    metrics_interval_s: NonNegativeFloat = 0.5

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for key in ("endpoint", "metrics"):
            address = getattr(self, key)
            if address is None:
                continue
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{key}: must be an address such as http://localhost:8000")
            if parts.username or parts.password or parts.query:
                raise ValueError(f"{key}: must hold no key; put it into the variable of key_variable")
        if name := secret_in(self.body):
            raise ValueError(f"body.{name}: results hold no secrets; put a key into the variable of key_variable")
        if self.api == "chat" and self.prompts == "ids":
            raise ValueError("prompts=ids: api=chat takes texts; use prompts=text or api=completions")
        return self

    @property
    def sends_text(self) -> bool:
        return self.prompts == "text" or self.api == "chat"
