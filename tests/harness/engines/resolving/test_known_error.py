"""A run's known error is that of the nearest class of public measurements."""

from __future__ import annotations

import pytest

from experiments import composed
from harness.engines.resolving import known_error
from harness.engines.resolving.known_error import APART, KnownError, RunClass, Spread, cost_model_text, load_of
from harness.engines.resolving.system import resolve

OF = RunClass("kernels", "H100", "dense", "llama", "fp8", "closed loop")
ELSEWHERE = OF._replace(device="H200")


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({OF: 3, OF.without("load"): 90}, (3, "kind of load")),
        ({OF: 2, OF.without("load"): 90}, (90, "weights and GPU")),
        ({OF: 1, OF.without("load", "model", "precision"): 2}, (1, "kind of load")),
        (
            {OF.without("load", "model"): 7, OF.without("load", "model", "precision"): 50},
            (7, "dense models with"),
        ),
        ({OF.without("load", "model", "precision"): 50, OF.without("load", "model", "device"): 9}, (50, "on this GPU")),
        ({OF.without("load", "model", "device"): 9}, (9, "on other GPUs")),
        ({ELSEWHERE: 50, OF._replace(cost="roofline"): 50, OF._replace(model="qwen"): 9}, None),
    ],
)
def test_the_nearest_class_with_enough_runs_is_taken(
    rows: dict[RunClass, int], found: tuple[int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {key: KnownError(runs, "", {"tpot": Spread(1, 2, -1, -2, 2)}) for key, runs in rows.items()}
    monkeypatch.setattr(known_error, "_known", lambda: known)
    nearest = known_error.known_error(OF)
    assert (nearest is None) == (found is None)
    if nearest is not None and found is not None:
        assert nearest.runs == found[0] and found[1] in nearest.words


@pytest.mark.parametrize(
    ("overrides", "load", "texts"),
    [
        (("cost=roofline",), "poisson", ("roofline: TTFT -", "TPOT -", "on this GPU")),
        (("cost=linear",), "poisson", ("linear, not validated",)),
        (
            ("model=llama-3.1-70b", "quantization=fp8", "tensor_parallel_size=4"), "closed_loop",
            ("profiled (aiconfigurator h100_sxm", "in 45 public runs of the same model, weights, GPU and kind of load"),
        ),
        (
            ("model=llama-3.3-70b", "quantization=fp8", "tensor_parallel_size=4"), "poisson",
            ("of dense models with such weights on this GPU",),
        ),
        (
            ("model=qwen3-14b",), "all_at_once",
            ("TTFT ", "TPOT ", "public runs of dense models with such weights on this GPU"),
        ),
        (("scheduler=sglang",), "poisson", ("how far off SGLang was",)),
        (("device=l40s",), "poisson", ("of dense models with such weights on other GPUs",)),
        (("model=qwen3-next-80b-a3b", "tensor_parallel_size=4"), "poisson", ("no public run is like this one",)),
    ],
)  # fmt: skip
@pytest.mark.sample(5)
def test_the_text_names_cost_model_and_error(overrides: tuple[str, ...], load: str, texts: tuple[str, ...]) -> None:
    text = cost_model_text(resolve(composed(*overrides)), load_of(load))
    assert all(each in text for each in texts), text


def test_prompts_and_decodes_apart_have_errors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, spread = OF._replace(load=APART), Spread(1, 2, -1, -2, 2)
    known = {
        OF: KnownError(50, "", {"tpot": spread}),
        OF.without("load", "model"): KnownError(99, "", {"tpot": spread}),
    }
    monkeypatch.setattr(known_error, "_known", lambda: known)
    assert known_error.known_error(apart) is None
    known[apart.without("model")] = KnownError(7, "", {"ttft": spread})
    nearest = known_error.known_error(apart)
    assert nearest is not None and nearest.runs == 7 and "prompts and decodes apart" in nearest.words
