"""Prompts and sampling parameters are checked before any of them is queued, and the error names the place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.core.sequence import RequestRefusedError  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS  # noqa: E402

BRIEF = replace(GREEDY, max_tokens=4)


@pytest.fixture(scope="module")
def llm() -> LLM:
    torch.set_num_threads(1)
    return LLM(MODEL, **SETTINGS)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (
            [[1, 2], [3, 300]],
            r"prompts\[1\]: token id 300 \(number 1 of the list\) is outside the vocabulary, 0 ",
        ),
        ([[1, 2], [-1]], r"prompts\[1\]: token id -1"),
        ([[10**30]], r"prompts\[0\]: token id 10{30}"),
        ([300], r"prompts\[0\]: token id 300"),
        ([[1], None], r"prompts\[1\]: None is not a prompt, which is a text, a list of token ids"),
        ([None], r"prompts\[0\]: None is not a prompt"),
        (None, "prompts: None is neither a prompt nor a list of prompts"),
        (5, "prompts: 5 is neither"),
        (b"text", "neither a prompt nor"),
        ([b"text"], r"prompts\[0\]: b'text' is not a prompt"),
        ([[1], 2], r"prompts\[1\]: 2 is not a prompt"),
        ([[1], [2.0]], r"prompts\[1\]: 2.0 \(number 0 of the list\) is not a token id"),
        ([1.5], r"prompts\[0\]: 1.5"),
        ([[1], [True]], r"prompts\[1\]: True"),
        ([True], r"prompts\[0\]: True"),
        ([[1, None]], r"prompts\[0\]: None \(number 1"),
        ([[1], ["a"]], r"prompts\[1\]: 'a' \(number 0"),
        ([[1], [[2]]], r"prompts\[1\]: \[2\] \(number 0"),
        ([[1], [[[]]]], r"prompts\[1\]: \[\[\]\]"),
        ([[1], []], r"prompts\[1\]: the prompt is empty"),
        ([[1], [2] * 600], r"prompts\[1\]: a prompt of 600 tokens"),
        ([[1], {}], r"prompts\[1\]: \{\} is not a prompt"),
        ([[1], {"prompt_tokens": [1]}], r"prompts\[1\]: .* is not a prompt"),
        ([{"prompt": 5}], r"prompts\[0\]: "),
        ([{"prompt_token_ids": 5}], r"prompts\[0\]: 5 is not a list of token ids"),
        ([{"prompt_token_ids": "text"}], r"prompts\[0\]: 'text' is not a list of token ids"),
        ([[1], np.array([1.0])], r"prompts\[1\]: (np.float64\()?1.0"),
        ([[1], np.array([[1]])], r"prompts\[1\]: array\(\[1\]\)"),
    ],
    ids=str,
)
def test_a_bad_prompt_is_named_and_no_prompt_is_queued(llm: LLM, prompts: Any, message: str) -> None:
    for call in (llm.generate, llm.stream):
        with pytest.raises(RequestRefusedError, match=message) as caught:
            call(prompts, BRIEF)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
        assert not llm.engine.scheduler.unfinished
    assert len(llm.generate([[1, 2]], BRIEF)[0]["token_ids"]) == 4


def test_integers_of_any_library_are_token_ids(llm: LLM) -> None:
    expected = [output["token_ids"] for output in llm.generate([[5, 6], [7]], BRIEF)]
    lists: tuple[Any, ...] = (
        [np.array([5, 6]), np.array([7], np.uint8)],
        [[np.int32(5), 6], (7,)],
        [torch.tensor([5, 6]), [torch.tensor(7)]],
        [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": (7,)}],
        ([5, 6], [7]),
    )
    for prompts in lists:
        assert [output["token_ids"] for output in llm.generate(prompts, BRIEF)] == expected
    one: tuple[Any, ...] = ([5, 6], np.array([5, 6]), torch.tensor([5, 6]), {"prompt_token_ids": [5, 6]})
    for bare in one:
        (output,) = llm.generate(bare, BRIEF)
        assert output["token_ids"] == expected[0] and output.prompt_token_ids == [5, 6] and output.prompt is None
    assert llm.generate([], BRIEF) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop_token_ids": (1, 300)}, r"stop_token_ids: token id 300 \(number 1"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids: token id -1"),
        ({"logit_bias": {300: 1.0}}, "logit_bias: token id 300"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias: 'a'"),
        ({"allowed_token_ids": [1.0]}, "allowed_token_ids: 1.0"),
        ({"logprobs": 301}, "logprobs=301 exceeds the vocabulary of 300"),
        ({"prompt_logprobs": 301}, "prompt_logprobs=301 exceeds"),
        ({"stop": "a"}, "no tokenizer"),
        ({"bad_words": ["a"]}, "no tokenizer"),
        ({"n": 9}, r"prompts\[0\]: 9 sequences: must be from 1 to 8"),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_the_model_are_named(llm: LLM, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate([[1], [2]], replace(BRIEF, **changes))
    assert not llm.engine.scheduler.unfinished


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1.5}, {"top_k": 2**40}, {"top_k": 2.5}, {"max_tokens": 2.5}, {"n": True},
        {"temperature": "hot"}, {"temperature": 1e300}, {"stop": [5]}, {"stop": 5}, {"bad_words": "word"},
        {"bad_words": [5]}, {"logit_bias": {1: "a"}}, {"logit_bias": [1]}, {"logprobs": True}, {"min_tokens": 1.5},
        {"presence_penalty": float("nan")}, {"stop_token_ids": 5}, {"allowed_token_ids": 5},
    ],
    ids=str,
)  # fmt: skip
def test_values_that_a_step_could_not_take_are_refused_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changes))}=.* must be") as caught:
        replace(BRIEF, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("params", [[BRIEF], [BRIEF, None], [BRIEF, BRIEF, BRIEF]], ids=len)
def test_parameters_are_given_for_each_prompt(llm: LLM, params: Any) -> None:
    with pytest.raises(ValueError, match="sampling_params"):
        llm.generate([[1], [2]], params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seq": 4}, "unknown setting max_num_seq=4: did you mean max_num_seqs?"),
        ({"swap_space": 4}, "unknown setting swap_space=4: choose among .*max_model_len"),
        ({"dtype": "int8"}, "dtype='int8': choose one of float32"),
        ({"device": "tpu"}, "device='tpu': choose one of cpu, cuda"),
        ({"block_size": 0}, "block_size=0: must be an integer >= 1"),
        ({"max_num_seqs": 2.5}, "max_num_seqs=2.5: must be an integer"),
        ({"max_model_len": "8k"}, "max_model_len='8k': must be an integer or None"),
        ({"num_blocks": 0}, "num_blocks=0: must be an integer >= 1, or None"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        LLM(MODEL, **{**SETTINGS, **settings})


def test_names_of_vllm_are_accepted() -> None:
    names: dict[str, Any] = {"dtype": "auto", "enforce_eager": True, "gpu_memory_utilization": 0.5, "max_model_len": 64}
    names |= {"tensor_parallel_size": 1, "seed": 3, "enable_prefix_caching": False, "enable_chunked_prefill": True}
    config = LLM(MODEL, **SETTINGS, **names).engine.config
    assert config.cuda_graphs is False and config.dtype is None
    assert LLM(MODEL, **SETTINGS, dtype=torch.float32, enforce_eager=False).engine.config.dtype == "float32"


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ([1], "^1 priorities for 2 prompts; give one for each$"),
        (3, "^priority=3: must be a list of integers"),
        ([0, 1.5], r"^priority=\[0, 1.5\]: must be a list of integers, one for each prompt$"),
        ([0, True], "must be a list of integers"),
        ("ab", "must be a list of integers"),
    ],
)
def test_priorities_that_do_not_fit_are_refused(llm: LLM, priority: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate([[1], [2]], BRIEF, priority=priority)
    assert not llm.engine.scheduler.unfinished


def test_the_most_urgent_prompts_are_served_first() -> None:
    llm = LLM(MODEL, **{**SETTINGS, "max_num_seqs": 1})
    first = [output.index for output in llm.stream([[i + 1] * 5 for i in range(4)], BRIEF, priority=[2, 0, 1, 0])]
    assert list(dict.fromkeys(first)) == [1, 3, 2, 0]
    outputs = llm.generate([[i + 1] * 5 for i in range(4)], BRIEF, priority=[2, 0, 1, 0])
    assert [output["token_ids"] for output in outputs] == [
        llm.generate([i + 1] * 5, BRIEF)[0]["token_ids"] for i in range(4)
    ]
