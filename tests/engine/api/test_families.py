"""Families with windows, sinks, experts and latent attention: tokens of the whole engine against those of transformers;
Mistral's and gpt-oss' place in the harness."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

ONE: dict[str, Any] = {}
TWO = {"tensor_parallel_size": 2, "async_scheduling": True}
STARVED: dict[str, Any] = {"max_num_batched_tokens": 8, "num_blocks": 25}
Folders = Callable[[str], Path]
SERVED = ("engine=cpu", "model=hf", "arrival=trace", "engine.num_threads=1", "plots=false", "num_blocks=200")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The folder of a family, saved when it is first asked for."""
    return functools.cache(lambda family: save(family, tmp_path_factory.mktemp(family)))


@pytest.fixture(scope="module")
def folder(folders: Folders) -> Path:
    return folders("mistral")


@functools.cache
def generated(folder: Path) -> list[list[int]]:
    """The tokens that transformers generates greedily for each prompt."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        most = GREEDY.max_tokens
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)
        found.append(made[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt_oss", ONE),
        ("deepseek_v2", TWO),
        *(pytest.param(family, ONE, marks=pytest.mark.long) for family in ("mistral", "mixtral", "deepseek_v2")),
        pytest.param("gpt_oss", TWO, marks=pytest.mark.long),
        *(pytest.param(family, TWO, marks=pytest.mark.slow) for family in ("mistral", "mixtral")),
    ],
    ids=str,
)
def test_tokens_are_those_of_transformers(folders: Folders, family: str, settings: dict[str, Any]) -> None:
    """With prompts in pieces, preemptions, a shared prefix, and on two ranks."""
    expected = generated(folders(family))
    llm = LLM(folders(family), **{**SETTINGS, "dtype": "float32", **STARVED, **settings})
    try:
        first = llm.generate(prompts(), GREEDY)
        again = llm.generate(prompts()[:1], GREEDY)
    finally:
        llm.close()
    assert [output["token_ids"] for output in [*first, *again]] == [*expected, expected[0]]
    assert again[0].num_cached_tokens > 0
    assert len({token for tokens in expected for token in tokens}) > 8, "varied enough to tell"


def test_a_run_with_its_weights_has_its_window(folder: Path) -> None:
    table = pd.DataFrame({"arrival_time": [0.0, 0.0], "num_prompt_tokens": [20, 9], "num_output_tokens": [4, 3]})
    served = (*SERVED, f"model.config={folder}", f"engine.weights={folder}")
    found = run(*served, trace=table)
    assert found.summary["completed"] == 2 and found.config.model.sliding_window == 7
    with pytest.raises(ConfigError, match="of other sizes than .*: sliding_window is 7 and not 6"):
        run(*served, "+model.sliding_window=6", trace=table)


def test_a_folder_with_latent_attention_is_run_and_compared_by_its_blocks(folders: Folders) -> None:
    table = pd.DataFrame({"arrival_time": [0.0, 0.0], "num_prompt_tokens": [20, 9], "num_output_tokens": [4, 3]})
    folder = folders("deepseek_v2")
    served = (*SERVED, f"model.config={folder}")
    found = run(*served, f"engine.weights={folder}", trace=table)
    assert found.summary["completed"] == 2 and found.config.model.blocks[0].kind == "latent"
    with pytest.raises(ConfigError, match="of other sizes than .*: blocks is"):
        run(*served, f"engine.weights={folder}", "+model.hf_overrides.kv_lora_rank=28", trace=table)
    with pytest.raises(ConfigError, match="builds layers that are alike; give engine.weights"):
        run(*served, trace=table)


def test_random_weights_have_the_window_too(folder: Path) -> None:
    table = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [20], "num_output_tokens": [4]})
    found = run(*SERVED, f"model.config={folder}", "model.name=some-mistral", trace=table)
    assert found.summary["completed"] == 1
    with pytest.raises(ConfigError, match="sliding_window=7 is not supported by the real engine"):
        run(*SERVED, f"model.config={folder}", "model.name=another", trace=table)
