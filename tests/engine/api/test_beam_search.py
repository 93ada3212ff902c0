"""Beam search of the library, against a naive search that computes every prefix anew, and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.beam_search import BeamSearchOutput, BeamSearchParams  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.core.sequence import RequestRefusedError  # noqa: E402
from engine.prompt_lookup import NgramOptions  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import MODEL, SETTINGS, make_prompts  # noqa: E402

PROMPTS = make_prompts()[:5]
PARAMS = BeamSearchParams(beam_width=3, max_tokens=10)
Hypotheses = list[list[tuple[list[int], float]]]


def found(outputs: list[BeamSearchOutput]) -> Hypotheses:
    return [[(each.tokens, each.cum_logprob) for each in output.sequences] for output in outputs]


def search(params: BeamSearchParams = PARAMS, eos: set[int] | None = None, **settings: Any) -> tuple[Hypotheses, LLM]:
    llm = LLM(MODEL, **{**SETTINGS, **settings})
    try:
        llm.engine.eos_token_ids = frozenset(eos or ())
        outputs = found(llm.beam_search(PROMPTS, params))
        llm.engine.scheduler.check_integrity()
        assert llm.engine.scheduler.blocks.num_used_blocks() == 0
        return outputs, llm
    finally:
        llm.close()


def naive(params: BeamSearchParams, eos: set[int]) -> Hypotheses:
    """Each step computes the whole of every beam as a prompt of its own, without blocks that are shared or kept."""
    llm = LLM(MODEL, **{**SETTINGS, "enable_prefix_caching": False, "max_num_batched_tokens": 512})
    ask = SamplingParams(max_tokens=1, temperature=0.0, logprobs=2 * params.beam_width)
    results: Hypotheses = []
    for prompt in PROMPTS:
        live: list[tuple[list[int], float]] = [(prompt, 0.0)]
        done: list[tuple[list[int], float]] = []
        for _ in range(params.max_tokens):
            children: list[tuple[list[int], float]] = []
            for output, (tokens, score) in zip(llm.generate([tokens for tokens, _ in live], ask), live, strict=True):
                (logprobs,) = output.outputs[0].logprobs or []
                for token, each in logprobs.items():
                    ends = token in eos and not params.ignore_eos
                    (done if ends else children).append(([*tokens, token], score + each.logprob))
            live = sorted(children, key=lambda child: -child[1])[: params.beam_width]

        def score_of(hypothesis: tuple[list[int], float]) -> float:
            tokens, total = hypothesis
            return total / (len(tokens) - (tokens[-1] in eos)) ** params.length_penalty

        results.append(sorted(done + live, key=score_of, reverse=True)[: params.beam_width])
    llm.close()
    return results


def assert_equal(outputs: Hypotheses, expected: Hypotheses) -> None:
    for one, other in zip(outputs, expected, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
        assert [total for _, total in one] == pytest.approx([total for _, total in other], abs=1e-4)


@pytest.fixture(scope="module")
def expected() -> Hypotheses:
    return naive(PARAMS, set())


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 11},
    "fewer seats than beams": {"max_num_seqs": 2},
    "a small pool": {"num_blocks": 30, "policy": "prefill_first"},
    "in order of admission": {"policy": "admission_order"},
    "async": {"async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
    "speculating": {"speculation": NgramOptions()},
    "uncached": {"enable_prefix_caching": False},
    "one block of all": {"block_size": 128, "num_blocks": 20},
}


SLOW = ("one block of all", "in order of admission", "speculating", "fewer seats than beams", "uncached")


@pytest.mark.parametrize("way", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in WAYS])
def test_beams_are_those_of_a_naive_search(way: str, expected: Hypotheses) -> None:
    assert_equal(search(**WAYS[way])[0], expected)


@pytest.mark.parametrize("caching", [True, False])
def test_a_step_computes_what_no_full_block_holds(caching: bool) -> None:
    llm = LLM(MODEL, **{**SETTINGS, "enable_prefix_caching": caching, "max_num_batched_tokens": 512})
    steps, run_step = [], llm.engine.step

    def step(now_ns: int) -> Any:
        report = run_step(now_ns)
        steps.append([(chunk.start, chunk.num_tokens) for chunk in report.plan.prefills] if report else [])
        return report

    llm.engine.step = step  # type: ignore[method-assign]
    llm.beam_search(PROMPTS[:2], BeamSearchParams(beam_width=2, max_tokens=9))
    llm.close()
    lengths = [len(prompt) for prompt in PROMPTS[:2]]
    assert steps[0] == [(0, length) for length in lengths] and len(steps) == 9
    for number, chunks in enumerate(steps[1:], 1):
        starts = [(length + number - 1) // 4 * 4 * caching for length in lengths for _ in range(2)]
        ends = [length + number for length in lengths for _ in range(2)]
        assert chunks == [(start, end - start) for start, end in zip(starts, ends, strict=True)]


def test_hypotheses_end_where_the_model_does() -> None:
    longest = len(PROMPTS[4]) + 3
    outputs, _ = search(BeamSearchParams(beam_width=2, max_tokens=50), max_model_len=longest)
    lengths = [min(len(prompt) + 50, longest) for prompt in PROMPTS]
    assert [[len(tokens) for tokens, _ in hypotheses] for hypotheses in outputs] == [[n, n] for n in lengths]


@pytest.mark.parametrize(
    ("width", "penalty", "ignore_eos"),
    [(1, 1.0, False), (4, 0.0, False), pytest.param(2, 2.0, True, marks=pytest.mark.slow)],
)
def test_hypotheses_end_at_end_of_sequence_tokens(width: int, penalty: float, ignore_eos: bool) -> None:
    eos = set(range(0, 300, 9))
    params = BeamSearchParams(beam_width=width, max_tokens=9, length_penalty=penalty, ignore_eos=ignore_eos)
    outputs, _ = search(params, eos)
    assert_equal(outputs, naive(params, eos))
    ends = [tokens[-1] in eos for hypotheses in outputs for tokens, _ in hypotheses]
    assert any(ends) or ignore_eos


def test_outputs_say_why_they_ended_and_how_likely_each_token_was() -> None:
    llm = LLM(MODEL, **SETTINGS)
    (output,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=2, max_tokens=5))
    for each in output.sequences:
        new = each.tokens[len(PROMPTS[0]) :]
        assert each.tokens[: len(PROMPTS[0])] == PROMPTS[0] and len(new) == len(each.logprobs) == 5
        total = sum(logprobs[token].logprob for logprobs, token in zip(each.logprobs, new, strict=True))
        assert total == pytest.approx(each.cum_logprob) and each.finish_reason == "length" and each.text is None
    with pytest.raises(RequestRefusedError, match=r"prompts\[1\]: a prompt of 512 tokens and its output exceed the"):
        llm.beam_search([PROMPTS[0], [1] * 512], BeamSearchParams(beam_width=2, max_tokens=5))
    with pytest.raises(ValueError, match="^params=None: must be BeamSearchParams"):
        llm.beam_search([[1]], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beam_width=200: needs a vocabulary"):
        llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=200, max_tokens=5))
    with pytest.raises(ValueError, match="beam_width=0 must be an integer of at least 1"):
        BeamSearchParams(beam_width=0, max_tokens=5)
    llm.close()


@pytest.mark.slow
def test_beams_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tests.engine.api.builders import save_folder

    folder = save_folder(tmp_path / "model")
    llm = LLM(folder, device="cpu", dtype="float32", block_size=4, num_blocks=200, max_num_seqs=8, max_model_len=200,
              max_num_batched_tokens=64)  # fmt: skip
    prompts = [[token % 300 for token in prompt] for prompt in PROMPTS[:3]]
    outputs = llm.beam_search(prompts, BeamSearchParams(beam_width=4, max_tokens=16, ignore_eos=True))
    llm.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            tokens = torch.tensor([prompt])
            theirs = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), num_beams=4, num_return_sequences=4,
                do_sample=False, max_new_tokens=16,
                eos_token_id=None, pad_token_id=0, length_penalty=1.0,
            )  # fmt: skip
        assert [each.tokens for each in output.sequences] == theirs.tolist()
