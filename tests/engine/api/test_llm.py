"""The real engine on the CPU: equal tokens however the work is cut up, stops, streams, refusals and clean ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.core.kv.reserved.reservation import Contiguous  # noqa: E402
from engine.core.sequence import RequestRefusedError  # noqa: E402
from engine.models.model_config import ModelError  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, SHAPE, generate, make_prompts, one_by_one  # noqa: E402
from tests.harness.builders import ROOT  # noqa: E402


@pytest.mark.usefixtures("garbage_collection")
def test_what_is_loaded_is_exempt_from_garbage_collection_until_the_engine_closes() -> None:
    llm = LLM(MODEL, **SETTINGS)
    assert gc.get_freeze_count() > 1000
    llm.close()
    assert gc.get_freeze_count() == 0


@pytest.mark.long
def test_a_script_that_does_not_close_its_engine_ends_quietly() -> None:
    imports = "from engine.api.llm import LLM; from engine.models.model_config import ModelConfig"
    script = f"{imports}; llm = LLM(ModelConfig.from_shape({SHAPE}), **{SETTINGS})"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 9},
        pytest.param({"block_size": 1, "num_blocks": 1600}, marks=pytest.mark.slow),
        pytest.param({"block_size": 16, "num_blocks": 60}, marks=pytest.mark.long),
        {"num_blocks": 64, "policy": "prefill_first"},
        pytest.param({"max_lookahead_steps": 1}, marks=pytest.mark.long),
        pytest.param({"num_blocks": 64, "eviction": "lfu"}, marks=pytest.mark.slow),
        pytest.param(
            {"enable_prefix_caching": False, "contiguous": Contiguous(), "max_model_len": 260, "num_blocks": 140},
            marks=pytest.mark.slow,
        ),
        {
            "enable_prefix_caching": False,
            "contiguous": Contiguous("requested", "best", 80),
            "num_blocks": 1000,
            "block_size": 1,
        },
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_how_the_work_is_cut_up(settings: dict[str, Any]) -> None:
    assert len({token for tokens in one_by_one() for token in tokens}) > 60, "the text is too dull to prove anything"
    assert generate(**settings) == one_by_one()


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_tokens_do_not_depend_on_the_number_of_ranks(size: int) -> None:
    assert generate(tensor_parallel_size=size) == one_by_one()
    assert multiprocessing.active_children() == []


def test_sampled_tokens_hang_on_the_seed_and_on_nothing_else() -> None:
    params = SamplingParams(max_tokens=16, temperature=0.8, top_k=50, top_p=0.9, seed=5)
    sampled = generate(params)
    assert generate(params, num_blocks=64, max_num_batched_tokens=20) == sampled
    assert generate(replace(params, seed=6)) != sampled


@pytest.mark.parametrize("lookahead", [1, 8])
def test_nothing_comes_after_a_stop_token(lookahead: int) -> None:
    full = one_by_one()[0]
    stop = full[12]
    llm = LLM(MODEL, **SETTINGS, max_lookahead_steps=lookahead)
    params = replace(GREEDY, stop_token_ids=(stop,))
    (output,) = llm.generate(make_prompts()[:1], params)
    assert output["token_ids"] == full[: full.index(stop) + 1] and output.outputs[0].finish_reason == "stop"
    llm.engine.scheduler.check_integrity()
    assert llm.engine.scheduler.blocks.num_used_blocks() == 0
    (output,) = llm.generate(make_prompts()[:1], GREEDY)  # what the prefix cache kept of it is right
    assert output["token_ids"] == full and output.outputs[0].finish_reason == "length"


def test_the_models_own_end_token_ends_a_request_unless_ignored() -> None:
    full = one_by_one()[1]
    llm = LLM(replace(MODEL, eos_token_ids=(full[10],)), **SETTINGS)
    prompt = make_prompts()[1:2]
    assert llm.generate(prompt, GREEDY)[0]["token_ids"] == full[: full.index(full[10]) + 1]
    assert llm.generate(prompt, replace(GREEDY, ignore_eos=True))[0]["token_ids"] == full


def test_streams_grow_to_what_generate_returns() -> None:
    llm = LLM(MODEL, **SETTINGS)
    seen: dict[int, list[int]] = {}
    for output in llm.stream(make_prompts(), GREEDY):
        before = seen.get(output.index, [])
        assert len(output["token_ids"]) > len(before) and output["token_ids"][: len(before)] == before
        seen[output.index] = output["token_ids"]
    assert [seen[i] for i in range(len(seen))] == one_by_one()


def test_a_refused_prompt_and_an_abandoned_stream_leave_nothing_behind() -> None:
    llm = LLM(MODEL, **SETTINGS)
    with pytest.raises(RequestRefusedError):
        llm.generate([[1, 2], [], [3]], GREEDY)
    stream = llm.stream(make_prompts(), GREEDY)
    for _ in range(20):
        next(stream)
    stream.close()
    assert not llm.engine.scheduler.unfinished and llm.engine.scheduler.blocks.num_used_blocks() == 0
    assert [output["token_ids"] for output in llm.generate(make_prompts(), GREEDY)] == one_by_one()


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("/nowhere", {}, "no such model folder"),
        (MODEL, {"max_model_len": 513}, "512 positions"),
        (replace(MODEL, intermediate_size=127), {"tensor_parallel_size": 2}, "tensor_parallel_size=2 does not divide"),
        (MODEL, {"device": "cuda"}, "torch finds 0"),
    ],
)
def test_what_cannot_be_loaded_is_one_clear_error(model: Any, settings: dict[str, Any], message: str) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ModelError, match=message) as caught:
        LLM(model, **{**SETTINGS, **settings})
    assert "\n" not in str(caught.value)
    assert multiprocessing.active_children() == []


def test_prompts_and_parameters_that_do_not_fit_are_errors() -> None:
    llm = LLM(MODEL, **SETTINGS)
    with pytest.raises(ModelError, match="no tokenizer"):
        llm.generate(["text"])
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate([[1], [2]], [GREEDY])
    for wrong in ({"n": 0}, {"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -2}):
        with pytest.raises(ValueError, match="must be"):
            SamplingParams(**wrong)


@pytest.mark.slow
def test_memory_does_not_grow_over_ten_thousand_requests() -> None:
    llm = LLM(MODEL, **SETTINGS, max_lookahead_steps=8)
    rng = random.Random(0)
    params = replace(GREEDY, max_tokens=6)
    used = []
    for _ in range(20):
        prompts = [[rng.randrange(300) for _ in range(rng.randint(1, 40))] for _ in range(500)]
        llm.generate(prompts, params)
        gc.collect()
        used.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert used[-1] - used[4] < 4 << 20, [f"{bytes_ >> 20} MiB" for bytes_ in used]
