"""OpenAI's own client against our server; where it is installed (pip install openai)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.engines.serving.builders import REAL, Server, serving

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("sdk"), *REAL) as running:
        yield running


def test_the_sdk(server: Server, tmp_path: Path) -> None:
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    (model,) = [each.id for each in client.models.list()]
    messages = [{"role": "user", "content": "say it"}]

    whole = client.chat.completions.create(
        model=model, messages=messages, n=2, max_tokens=5, temperature=0, logprobs=True, top_logprobs=2
    )
    assert len(whole.choices) == 2 and whole.usage.completion_tokens == 10
    assert len(whole.choices[0].logprobs.content) == 5
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2

    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=5, temperature=0, stream=True, stream_options=options
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert last.usage.completion_tokens == 5

    word = whole.choices[0].message.content.split()[1]
    stopped = client.chat.completions.create(
        model=model, messages=messages, max_tokens=5, temperature=0, stop=[f" {word}"]
    )
    assert stopped.choices[0].finish_reason == "stop" and word not in stopped.choices[0].message.content

    text = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=2, logprobs=1, temperature=0)
    assert len(text.choices[0].logprobs.token_logprobs) == 2
    with client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=400, stream=True) as running:
        next(iter(running))  # and go
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=model, prompt="x", max_tokens=0)
