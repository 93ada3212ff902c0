"""Mistral with a sliding window: tokens of the whole engine against transformers, and its place in the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from engine.api.llm import LLM  # noqa: E402
from harness import run  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from tests.engine.builders import GREEDY, SETTINGS  # noqa: E402
from tests.engine.models.builders import prompts, save  # noqa: E402

SERVED = ("engine=cpu", "model=hf", "arrival=trace", "engine.num_threads=1", "plots=false", "num_blocks=200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("mistral", tmp_path_factory.mktemp("mistral"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 8, "num_blocks": 25}, {"async_scheduling": True}, {"tensor_parallel_size": 2}],
    ids=str,
)
def test_tokens_are_those_of_transformers(folder: Path, settings: dict[str, Any]) -> None:
    """Also with prompts in pieces, shared prefixes, preemptions, and two ranks."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
        expected.append(made[0, len(prompt) :].tolist())
    llm = LLM(folder, **{**SETTINGS, "dtype": "float32", **settings})
    try:
        assert [output["token_ids"] for output in llm.generate(prompts(), GREEDY)] == expected
    finally:
        llm.close()
    assert len({token for tokens in expected for token in tokens}) > 20, "varied enough to tell"


def test_a_run_with_its_weights_has_its_window(folder: Path) -> None:
    table = pd.DataFrame({"arrival_time": [0.0, 0.0], "num_prompt_tokens": [20, 9], "num_output_tokens": [4, 3]})
    served = (*SERVED, f"model.config={folder}", f"engine.weights={folder}")
    found = run(*served, trace=table)
    assert found.summary["completed"] == 2 and found.config.model.sliding_window == 7
    with pytest.raises(ConfigError, match="of other sizes than .*: sliding_window is 7 and not 6"):
        run(*served, "+model.sliding_window=6", trace=table)


def test_random_weights_have_the_window_too(folder: Path) -> None:
    table = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [20], "num_output_tokens": [4]})
    found = run(*SERVED, f"model.config={folder}", "model.name=some-mistral", trace=table)
    assert found.summary["completed"] == 1
    with pytest.raises(ConfigError, match="sliding_window=7 is not supported by the real engine"):
        run(*SERVED, f"model.config={folder}", "model.name=another", trace=table)
