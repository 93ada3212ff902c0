"""Prompts as texts of exactly as many tokens as the trace says, by a tokenizer here or by the server's own."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import aiohttp

from harness.config.schema.endpoint import OpenAIEngine
from harness.engines.endpoint.client import Client
from harness.errors import ConfigError
from harness.workload.text_tokens import load_tokenizer, tokenizer_file

_ATTEMPTS = 8


class Tokenizer(Protocol):
    """Texts and their tokens, without special tokens."""

    async def encode(self, text: str) -> list[int]: ...

    async def decode(self, token_ids: list[int]) -> str: ...


class OwnTokenizer:
    """The tokenizer in a file."""

    def __init__(self, location: str) -> None:
        self._encode = load_tokenizer(location)
        self._tokenizer = import_module("tokenizers").Tokenizer.from_file(str(tokenizer_file(location)))

    async def encode(self, text: str) -> list[int]:
        return self._encode([text])[0]

    async def decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids)
        return text


class ServerTokenizer:
    """The server's own, at /tokenize and /detokenize, as vLLM has them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def encode(self, text: str) -> list[int]:
        body = {"model": self._client.model, "prompt": text, "add_special_tokens": False}
        ids: list[int] = (await self._ask("/tokenize", body))["tokens"]
        return ids

    async def decode(self, token_ids: list[int]) -> str:
        text: str = (await self._ask("/detokenize", {"model": self._client.model, "tokens": token_ids}))["prompt"]
        return text

    async def _ask(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return await self._client.get_json(path, body)
        except aiohttp.ClientError as error:
            raise ConfigError(
                f"engine.prompts=text: the server makes no texts ({path}: {error}); give engine.tokenizer"
            ) from None


def make_tokenizer(settings: OpenAIEngine, client: Client) -> Tokenizer:
    """The tokenizer that `settings` names, or else the server's; raises ConfigError."""
    return OwnTokenizer(settings.tokenizer) if settings.tokenizer else ServerTokenizer(client)


async def text_of(token_ids: list[int], tokenizer: Tokenizer) -> tuple[str, int]:
    """A text that begins like `token_ids` and has as many tokens, or nearly, and how many it has.

    Tokens that are drawn at random merge or fall apart in a text: what the text lacks is added from its own beginning,
    what it has too much is cut off.
    """
    wanted, used = len(token_ids), list(token_ids)
    best, best_count = "", -wanted
    for _ in range(_ATTEMPTS):
        text = await tokenizer.decode(used)
        found = await tokenizer.encode(text)
        if abs(len(found) - wanted) < abs(best_count - wanted):
            best, best_count = text, len(found)
        if len(found) == wanted:
            break
        used = (found + found)[:wanted] if found else used
    return best, best_count
