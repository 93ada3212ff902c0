"""LLM on a model folder with a tokenizer: texts, stop strings, chats and defaults, as vLLM and nano-vllm have them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from engine import LLM, ModelError, RequestOutput, RequestRefusedError, SamplingParams  # noqa: E402
from tests.engine.api.builders import save_folder  # noqa: E402

SETTINGS: dict[str, Any] = {"device": "cpu", "num_blocks": 300, "max_num_seqs": 8, "max_num_batched_tokens": 256}
PROMPTS = ["the quick", "größer 漢", "stop. Stop!"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=40, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 7, "do_sample": True}
    return save_folder(tmp_path_factory.mktemp("model"), generation)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), **SETTINGS)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def test_every_form_of_a_prompt_gives_the_same_output(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, GREEDY)
    encoded = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    forms: list[Any] = [
        encoded,
        [{"prompt": prompt} for prompt in PROMPTS],
        [{"prompt_token_ids": tokens} for tokens in encoded],
        [PROMPTS[0], encoded[1], {"prompt": PROMPTS[2]}],
    ]
    for form in forms:
        assert texts(llm.generate(form, GREEDY)) == texts(expected)
    for one in (PROMPTS[0], encoded[0], {"prompt": PROMPTS[0]}):
        assert texts(llm.generate(one, GREEDY)) == texts(expected)[:1]
    assert [output.prompt for output in expected] == PROMPTS
    assert [output.prompt_token_ids for output in expected] == encoded
    assert len({output.request_id for output in expected}) == 3 and [o.index for o in expected] == [0, 1, 2]


def test_text_and_tokens_are_those_of_transformers(llm: LLM, folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        ids = torch.tensor([llm.tokenizer.encode(prompt)])
        # As a model of transformers, not of its generation config.
        found = model.generate(ids, do_sample=False, max_new_tokens=24, eos_token_id=llm.tokenizer.eos_token_id)
        tokens = found[0, ids.shape[1] :].tolist()
        assert output["token_ids"] == tokens
        assert output["text"] == llm.tokenizer.decode(tokens, skip_special_tokens=True)


def test_streamed_text_grows_to_the_final_text_and_never_changes(llm: LLM) -> None:
    for stop in ((), ("er", "q!x")):
        params = replace(SAMPLED, n=2, stop=stop)
        seen: dict[tuple[int, int], str] = {}
        for output in llm.stream(PROMPTS, params):
            for each in output.outputs:
                before = seen.get((output.index, each.index), "")
                assert each.text.startswith(before)
                seen[output.index, each.index] = each.text
        final = llm.generate(PROMPTS, params)
        assert seen == {(output.index, each.index): each.text for output in final for each in output.outputs}


def test_a_stop_string_cuts_the_text_also_across_tokens(llm: LLM) -> None:
    (full,) = llm.generate(PROMPTS[:1], SAMPLED)
    text, tokens = full.outputs[0].text, full.outputs[0].token_ids
    for start in range(0, len(text) - 4, 5):
        stop = text[start : start + 4]
        if "\N{REPLACEMENT CHARACTER}" in stop:
            continue
        first = text.index(stop)
        (cut,) = llm.generate(PROMPTS[:1], replace(SAMPLED, stop=stop))
        output = cut.outputs[0]
        assert (output.text, output.finish_reason, output.stop_reason) == (text[:first], "stop", stop)
        assert output.token_ids == tokens[: len(output.token_ids)]
        decoded = llm.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        assert stop in decoded and stop not in llm.tokenizer.decode(output.token_ids[:-1], skip_special_tokens=True)
        (kept,) = llm.generate(PROMPTS[:1], replace(SAMPLED, stop=["\0", stop], include_stop_str_in_output=True))
        assert kept.outputs[0].text == text[:first] + stop and kept.outputs[0].token_ids == output.token_ids


def test_a_stream_holds_back_what_may_become_a_stop_string(llm: LLM) -> None:
    (full,) = llm.generate(PROMPTS[:1], SAMPLED)
    text = full.outputs[0].text
    stop = text[10:16] + "\0"  # never completed
    seen = [output.outputs[0].text for output in llm.stream(PROMPTS[:1], replace(SAMPLED, stop=stop))]
    assert seen[-1] == text and all(text.startswith(each) for each in seen)
    assert not any(each.endswith(stop[:n]) for each in seen[:-1] for n in range(1, len(stop)))


def test_stop_strings_wait_for_min_tokens_and_the_first_in_the_text_wins(llm: LLM) -> None:
    (full,) = llm.generate(PROMPTS[:1], SAMPLED)
    text = full.outputs[0].text
    early = text[2:4]
    (output,) = llm.generate(PROMPTS[:1], replace(SAMPLED, stop=early, min_tokens=30))
    assert len(output["token_ids"]) > 30 and early in output["text"]
    (output,) = llm.generate(PROMPTS[:1], replace(SAMPLED, stop=[text[20:23], early]))
    assert output["text"] == text[: text.index(early)]


def test_the_text_ends_before_a_stop_token_and_leaves_special_tokens_out(llm: LLM) -> None:
    (full,) = llm.generate(PROMPTS[:1], SAMPLED)
    tokens = full.outputs[0].token_ids
    stop = tokens[9]
    end = tokens.index(stop)
    (output,) = llm.generate(PROMPTS[:1], replace(SAMPLED, stop_token_ids=[stop]))
    assert output["token_ids"] == tokens[: end + 1] and output.outputs[0].stop_reason == stop
    assert output["text"] == llm.tokenizer.decode(tokens[:end], skip_special_tokens=True)
    special = llm.tokenizer.convert_tokens_to_ids("<|user|>")
    biased = replace(SAMPLED, logit_bias={special: 100.0}, max_tokens=3)
    assert llm.generate(PROMPTS[:1], biased)[0]["text"] == ""
    assert llm.generate(PROMPTS[:1], replace(biased, skip_special_tokens=False))[0]["text"] == "<|user|>" * 3
    assert llm.generate(PROMPTS[:1], replace(SAMPLED, detokenize=False))[0]["text"] == ""
    with pytest.raises(ValueError, match="detokenize=True"):
        llm.generate(PROMPTS[:1], replace(SAMPLED, detokenize=False, stop="a"))


def test_bad_words_are_not_generated(llm: LLM) -> None:
    (full,) = llm.generate(PROMPTS[:1], GREEDY)
    token = full["token_ids"][5]
    word = llm.tokenizer.decode([token])
    assert "\N{REPLACEMENT CHARACTER}" not in word
    (output,) = llm.generate(PROMPTS[:1], replace(GREEDY, bad_words=[word]))
    assert token in full["token_ids"] and token not in output["token_ids"]


def test_several_sequences_with_logprobs(llm: LLM) -> None:
    params = replace(SAMPLED, n=3, logprobs=2, prompt_logprobs=1, max_tokens=5)
    (output,) = llm.generate(PROMPTS[:1], params)
    assert [each.index for each in output.outputs] == [0, 1, 2] and output.finished
    assert len({tuple(each.token_ids) for each in output.outputs}) == 3
    for each in output.outputs:
        assert each.logprobs is not None and each.cumulative_logprob is not None
        assert [next(iter(at)) for at in each.logprobs] == each.token_ids
        total = sum(at[token].logprob for at, token in zip(each.logprobs, each.token_ids, strict=True))
        assert math.isclose(each.cumulative_logprob, total)
        for position in each.logprobs:
            assert all(found.decoded_token == llm.tokenizer.decode([token]) for token, found in position.items())
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    for token, at in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert at is not None and at[token].decoded_token == llm.tokenizer.decode([token])


def test_chat_writes_the_template_once(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the fox"}]
    (output,) = llm.chat(messages, GREEDY)
    assert output.prompt == "<|user|>the fox<|end|><|assistant|>"
    (same,) = llm.generate(output.prompt, GREEDY)
    assert same.prompt_token_ids == output.prompt_token_ids and same["text"] == output["text"]
    two = llm.chat([messages, messages * 2], GREEDY, add_generation_prompt=False, chat_template_kwargs={"shout": True})
    assert [output.prompt for output in two] == ["<|user|>the fox<|end|>!", "<|user|>the fox<|end|>" * 2 + "!"]
    assert llm.chat(messages, GREEDY, chat_template="{{ messages[0].content }}")[0].prompt == "the fox"
    for bad in ([], [5], "text", [["text"]]):
        with pytest.raises(ValueError, match=r"messages\[0\]"):
            llm.chat(bad, GREEDY)  # type: ignore[arg-type]


def test_defaults_are_those_of_the_model(llm: LLM, tmp_path: Path) -> None:
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.max_tokens) == (0.6, 20, 0.95, 7)
    assert len(llm.generate("the")[0]["token_ids"]) == 7
    save_folder(tmp_path)
    assert LLM(tmp_path, **SETTINGS).get_default_sampling_params() == SamplingParams()
    for wrong in ({"temperature": "hot"}, {"top_p": 2.0}):
        (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match="generation_config.json: .* must be"):
            LLM(tmp_path, **SETTINGS)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="the tokenizer cannot be loaded") as caught:
        LLM(tmp_path, **SETTINGS)
    assert "\n" not in str(caught.value)


def test_the_tokenizers_end_token_ends_a_request(llm: LLM) -> None:
    end = llm.tokenizer.eos_token_id
    params = replace(SAMPLED, logit_bias={end: 100.0}, max_tokens=5)
    (output,) = llm.generate("the", params)
    assert output["token_ids"] == [end] and output.outputs[0].finish_reason == "stop" and output["text"] == ""
    assert llm.generate("the", replace(params, ignore_eos=True))[0]["token_ids"] == [end] * 5


def test_a_tokenizer_that_fails_ends_only_the_call_that_needs_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = texts(llm.generate(PROMPTS, GREEDY))
    kept = llm.stream(PROMPTS, GREEDY)
    next(kept)
    decode = llm.tokenizer.decode
    for params in (GREEDY, replace(GREEDY, stop="\0"), replace(GREEDY, logprobs=1, detokenize=True)):
        broken = llm.stream(["fox", "dog"], params)
        with monkeypatch.context() as patched:
            patched.setattr(llm.tokenizer, "decode", _failing)
            with pytest.raises(OSError, match="disk"):
                next(broken)
            llm._token_texts.clear()
        assert len(llm.engine.scheduler.unfinished) <= 3
    assert llm.tokenizer.decode == decode
    final = {output.index: output["text"] for output in kept}
    assert [final[i] for i in range(3)] == expected
    with pytest.raises(RequestRefusedError, match=r"prompts\[1\]: the tokenizer cannot encode '\\ud800'"):
        llm.generate(["a", "\ud800"], GREEDY)


def _failing(*args: Any, **kwargs: Any) -> str:
    raise OSError("disk")


def test_calls_of_nano_vllms_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The calls of its example.py and bench.py."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    llm = LLM(str(folder), enforce_eager=True, tensor_parallel_size=1, max_model_len=512, **SETTINGS)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in ("introduce yourself", "list all")
    ]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.6, max_tokens=25))
    assert all(isinstance(output["text"], str) for output in outputs) and len(outputs) == 2
    llm.generate(["Benchmark: "], SamplingParams())
    ids = [[i] * (5 + i) for i in range(4)]
    params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=3 + i) for i in range(4)]
    assert capsys.readouterr().err == "", "no progress where stderr is not a terminal"
    outputs = llm.generate(ids, params, use_tqdm=False)
    assert [len(output["token_ids"]) for output in outputs] == [3, 4, 5, 6]
    llm.generate(ids, params, use_tqdm=True)
    assert "4/4" in capsys.readouterr().err
