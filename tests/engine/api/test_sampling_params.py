"""Every sampling parameter on the real engine, against generation by the definitions, however the work is cut up."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.llm import LLM  # noqa: E402
from engine.api.outputs import TokenLogprobs  # noqa: E402
from engine.core.sequence import SequenceStatus  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.api.sampling_reference import Case, Output, Reference, add_case, finish, make_llm, run_engine  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, make_prompts  # noqa: E402
from tests.selection import few  # noqa: E402

EOS = 7
GREEDY_14 = replace(GREEDY, max_tokens=14)
DRAWN = SamplingParams(max_tokens=10, temperature=0.9, seed=3)
Outputs = dict[tuple[int, int], Output]


@functools.cache
def reference() -> Reference:
    return Reference({EOS})


@functools.cache
def plain() -> list[list[int]]:
    """The greedy output of the first prompts without any other parameter."""
    return [reference().generate(Case(prompt, GREEDY_14), 0).tokens for prompt in make_prompts()[:4]]


@functools.cache
def cases() -> list[Case]:
    prompts, first = make_prompts(), plain()
    some = tuple(range(0, 300, 7))
    return [
        Case(prompts[0], replace(GREEDY_14, frequency_penalty=1.5, presence_penalty=-0.5)),
        Case(prompts[1], replace(GREEDY_14, repetition_penalty=1.7, presence_penalty=0.8)),
        Case(prompts[2], replace(GREEDY_14, logit_bias={first[2][0]: -9.0, 5: 2.5, EOS: -1.0}, repetition_penalty=0.9)),
        Case(prompts[3], replace(GREEDY_14, allowed_token_ids=some, bad_words=("x",)), bad_words=[[14], [21, 28]]),
        Case(prompts[0], GREEDY_14, bad_words=[first[0][2:4], [first[0][7]], [1, 2, 3]]),
        Case(prompts[1], replace(GREEDY_14, min_tokens=6, stop_token_ids=(first[1][1], first[1][4]))),
        Case(prompts[2], replace(GREEDY_14, min_tokens=3), stop_after=first[2][3:5]),
        Case(prompts[4], replace(DRAWN, n=3, top_k=20, top_p=0.8, min_p=0.02, logprobs=3, presence_penalty=0.5)),
        Case(prompts[5], replace(DRAWN, n=2, top_k=-1, prompt_logprobs=2, logprobs=0)),
        Case(prompts[5][:30], replace(GREEDY_14, prompt_logprobs=0, ignore_eos=True)),
        Case([9], replace(DRAWN, max_tokens=1, prompt_logprobs=-1, logprobs=-1, min_p=0.1)),
        Case(prompts[6], replace(DRAWN, n=2, top_p=0.7, seed=2**63 - 1)),
        Case(prompts[7], GREEDY_14),
        Case(prompts[8], replace(DRAWN, logit_bias={EOS: 6.0}, min_tokens=4)),
        Case(prompts[9], replace(DRAWN, logit_bias={EOS: 6.0}, ignore_eos=True, min_tokens=4)),
    ]


@functools.cache
def expected() -> Outputs:
    return {
        (number, index): reference().generate(case, index)
        for number, case in enumerate(cases())
        for index in range(case.params.n)
    }


def assert_near(actual: TokenLogprobs | None, wanted: TokenLogprobs | None) -> None:
    """The same tokens in the same order; near ranks are those of tokens that are all but equally likely."""
    if actual is None or wanted is None:
        assert actual is wanted
        return
    assert list(actual)[0] == list(wanted)[0] and actual.keys() == wanted.keys()
    for token, entry in actual.items():
        assert entry.logprob == pytest.approx(wanted[token].logprob, abs=1e-4)
        assert abs(entry.rank - wanted[token].rank) <= (0 if entry.rank < 10 else 2)


def assert_equal(actual: Outputs, wanted: Outputs) -> None:
    assert actual.keys() == wanted.keys()
    for key, out in actual.items():
        want = wanted[key]
        assert out.tokens == want.tokens, key
        assert (out.finish_reason, out.stop_reason) == (want.finish_reason, want.stop_reason), key
        assert len(out.logprobs) == len(want.logprobs)
        assert (out.prompt_logprobs is None) == (want.prompt_logprobs is None)
        pairs = zip(out.logprobs, want.logprobs, strict=True)
        prompts = zip(out.prompt_logprobs or [], want.prompt_logprobs or [], strict=True)
        for pair in (*pairs, *prompts):
            assert_near(*pair)


def serve(**settings: Any) -> tuple[Outputs, int]:
    """The outputs of all cases served at once, and how often requests were preempted."""
    llm = LLM(replace(MODEL, eos_token_ids=(EOS,)), **{**SETTINGS, **settings})
    try:
        requests = [add_case(llm.engine, number, case) for number, case in enumerate(cases())]
        outputs = finish(llm.engine)
        return outputs, sum(request.num_preemptions for request in requests)
    finally:
        llm.close()


def test_the_cases_show_what_the_parameters_do() -> None:
    reasons = [(out.finish_reason, out.stop_reason) for out in expected().values()]
    assert {"length", "stop"} == {reason for reason, _ in reasons}
    assert {"text", None} < {stop for _, stop in reasons}, "a stop string, a stop token and an EOS end sequences"
    assert sum(reason == ("stop", None) for reason in reasons) >= 1, "an EOS ends a sequence"
    first = plain()
    for number, prompt in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1)):
        assert expected()[number, 0].tokens != first[prompt], f"the parameters of case {number} change nothing"
    for number, case in enumerate(cases()):
        outputs = {tuple(expected()[number, index].tokens) for index in range(case.params.n)}
        assert len(outputs) == case.params.n, "each sequence is a draw of its own"


@pytest.mark.parametrize(
    "settings",
    few(
        [
            {"max_num_batched_tokens": 9},
            {"cuda_graphs": True},
            {},
            {"max_lookahead_steps": 1},
            {"enable_prefix_caching": False, "block_size": 16, "num_blocks": 60},
        ],
        2,
    ),
    ids=str,
)
def test_outputs_are_those_of_the_definitions(settings: dict[str, Any]) -> None:
    assert_equal(serve(**settings)[0], expected())


@pytest.mark.parametrize("settings", few([{}, {"policy": "prefill_first"}, {"max_num_batched_tokens": 13}]), ids=str)
def test_preemptions_change_nothing(settings: dict[str, Any]) -> None:
    outputs, num_preemptions = serve(num_blocks=30, **settings)
    assert num_preemptions > 2
    assert_equal(outputs, expected())


@pytest.mark.parametrize("policy", [pytest.param("mixed", marks=pytest.mark.slow), "prefill_first"])
@pytest.mark.long
def test_each_prompt_token_is_scored_once_however_often_it_is_computed(policy: str) -> None:
    prompts = [make_prompts()[i][:length] for i, length in ((0, 40), (1, 5), (2, 30), (3, 9), (4, 33), (5, 6), (6, 20))]
    scored = [Case(prompt, replace(DRAWN, n=2, max_tokens=18, prompt_logprobs=1)) for prompt in prompts]
    wanted = {
        (number, index): reference().generate(case, index) for number, case in enumerate(scored) for index in (0, 1)
    }
    llm = make_llm(num_blocks=22, max_num_batched_tokens=26, policy=policy)
    requests = [add_case(llm.engine, number, case) for number, case in enumerate(scored)]
    outputs = finish(llm.engine)
    first, second = ([request.sequences[index] for request in requests] for index in (0, 1))
    assert any(sequence.num_recomputed_tokens for sequence in first), "prompts were computed again"
    assert any(sequence.num_recomputed_tokens for sequence in second), "and so were those of forks"
    assert_equal(outputs, wanted)
    llm.close()


@pytest.mark.slow
def test_two_ranks_sample_what_one_samples() -> None:
    assert_equal(serve(tensor_parallel_size=2)[0], expected())


def test_seeds_do_not_depend_on_the_batch_and_count_up_over_the_sequences() -> None:
    prompt = make_prompts()[0]
    llm = make_llm()
    alone = run_engine(llm, [Case(prompt, replace(DRAWN, seed=seed)) for seed in (20, 21, 22)])
    several = run_engine(llm, [Case(prompt, replace(DRAWN, n=3, seed=20)), Case(prompt[:9], replace(DRAWN, min_p=0.1))])
    assert [several[0, index].tokens for index in range(3)] == [alone[number, 0].tokens for number in range(3)]
    unseeded = [run_engine(llm, [Case(prompt, replace(DRAWN, n=3, seed=None))]) for _ in range(2)]
    assert unseeded[0] == unseeded[1] and len({tuple(out.tokens) for out in unseeded[0].values()}) == 3
    llm.close()


def test_an_adjusted_request_does_not_change_its_neighbours_nor_hold_them_up_for_long() -> None:
    prompts = make_prompts()
    ordinary = [Case(prompts[i], replace(GREEDY if i % 2 else DRAWN, max_tokens=40)) for i in range(4)]
    llm = make_llm()
    alone = run_engine(llm, ordinary)
    beside = run_engine(llm, [*ordinary, Case(prompts[5], replace(DRAWN, logprobs=1, min_p=0.1))])
    assert {key: beside[key] for key in alone} == alone
    add_case(llm.engine, 0, Case(prompts[0], replace(GREEDY, max_tokens=40, min_tokens=5)))
    steps = []
    while report := llm.engine.step(0):
        steps += [report.plan.num_steps] if report.plan.num_decodes else []
    assert steps[:4] == [1] * 4 and max(steps[4:]) > 1, "after `min_tokens` plans have several steps again"
    llm.close()


@pytest.mark.parametrize(
    ("stop", "num_blocks"),
    [
        ("token", 30),
        pytest.param("text", 400, marks=pytest.mark.long),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("token", 400), ("text", 30))),
    ],
)
def test_a_fork_can_end_with_its_first_token(stop: str, num_blocks: int) -> None:
    prompt = make_prompts()[4]
    params = replace(DRAWN, n=4, seed=50, max_tokens=12)
    free = [reference().generate(Case(prompt, params), index) for index in range(4)]
    first = free[2].tokens[0]
    case = Case(prompt, replace(params, stop_token_ids=(first,)) if stop == "token" else params)
    case = replace(case, stop_after=[first] if stop == "text" else [])
    wanted = {(0, index): reference().generate(case, index) for index in range(4)}
    assert wanted[0, 2].tokens == [first] and max(len(out.tokens) for out in wanted.values()) == 12
    llm = make_llm(num_blocks=num_blocks)
    assert_equal(run_engine(llm, [case]), wanted)
    assert llm.engine.scheduler.blocks.num_used_blocks() == 0
    one = Case(prompt, replace(params, max_tokens=1))
    assert [out.tokens for out in run_engine(llm, [one]).values()] == [out.tokens[:1] for out in free]
    llm.close()


@pytest.mark.parametrize("num_steps", few([1, 4, 0, 2], 2))
def test_an_abort_ends_all_sequences_of_a_request(num_steps: int) -> None:
    prompts = make_prompts()
    short = Case(prompts[0], replace(DRAWN, n=3, seed=4, logprobs=1), stop_after=[0])
    other = Case(prompts[1], replace(DRAWN, n=2, max_tokens=20))
    llm = make_llm(max_num_batched_tokens=70)
    wanted = run_engine(llm, [other])
    add_case(llm.engine, 0, other)
    aborted = add_case(llm.engine, 1, short)
    outputs = finish(llm.engine, num_steps=num_steps)
    assert llm.engine.abort(1) is aborted
    assert all(sequence.status is SequenceStatus.ABORTED for sequence in aborted.sequences)
    finish(llm.engine, outputs)
    assert {key: out for key, out in outputs.items() if key[0] == 0} == wanted
    assert llm.engine.scheduler.blocks.num_used_blocks() == 0
    assert run_engine(llm, [other]) == wanted
    llm.close()


def test_an_abort_between_execution_and_commit_drops_the_forks() -> None:
    llm = make_llm()
    case = Case(make_prompts()[0], replace(DRAWN, n=3, seed=4))
    first = reference().generate(case, 1).tokens[0]
    request = add_case(llm.engine, 0, replace(case, params=replace(case.params, stop_token_ids=(first,))))
    executed = llm.engine.execute(0)
    assert executed is not None and len(request.sequences) == 3 and executed.stopped
    llm.engine.abort(0)
    report = llm.engine.commit(executed, 1)
    assert all(new.finish_reason is None for new in report.outputs)
    llm.engine.scheduler.check_integrity()
    assert llm.engine.step(2) is None and llm.engine.scheduler.blocks.num_used_blocks() == 0
    llm.close()


def test_prompt_logprobs_read_no_prefix_cache_and_are_cached_for_others() -> None:
    llm = make_llm()
    prompt = make_prompts()[0]
    scored = replace(GREEDY_14, prompt_logprobs=1)
    for params in (GREEDY_14, scored, scored, GREEDY_14):
        request = add_case(llm.engine, 0, Case(prompt, params))
        out = finish(llm.engine)[0, 0]
        assert out.tokens == plain()[0]
        if params is scored:
            assert request.num_cached_tokens == 0
            assert out.prompt_logprobs is not None and len(out.prompt_logprobs) == len(prompt)
    assert request.num_cached_tokens > 0
    llm.close()


@pytest.mark.parametrize("more", few([{}, {"top_p": 0.9}, {"top_k": 7}, {"min_p": 0.2}], 2))
def test_tiny_temperatures_take_the_most_likely_token(more: dict[str, Any]) -> None:
    prompt, bias = make_prompts()[0], {100: 60.0}
    llm = LLM(MODEL, **SETTINGS)
    outputs = [
        llm.generate([prompt], SamplingParams(temperature=temperature, max_tokens=5, seed=1, logit_bias=bias, **more))
        for temperature in (0.0, 1e-7, 1e-37, 1e-39, 1e-45)
    ]
    tokens = [found[0].outputs[0].token_ids for found in outputs]
    assert all(each == tokens[0] for each in tokens), tokens
