"""Speculative decoding of a configuration: what a simulation accepts, what the drafter costs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.work import StepWork
from harness.config import parse
from harness.engines.resolving.drafting import accepted_length
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from simulator.costs.drafting import DraftingCost
from simulator.system import System
from tests.harness.builders import composed

GOLDEN = """
_metadata: {draft-model: x}
some-model:
  thinking_on: {1: 1.78, 3: 2.83, 4: 9}
  thinking_off: {1: 1.84}
"""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.yaml"
    path.write_text(GOLDEN)
    return path


def system(*overrides: str) -> System:
    return resolve(parse(composed("cost=roofline", *overrides)))


def test_rates_come_from_a_number_a_list_or_a_file(golden: Path) -> None:
    plain = system()
    assert plain.speculation is None and not isinstance(plain.cost_model(), DraftingCost)
    assert not plain.notes
    assumed = system("speculation=ngram", "speculation.acceptance_rate=0.5")
    assert assumed.speculation is not None and assumed.speculation.rates == (0.5, 0.25, 0.125)
    assert "assumed probability of 0.5" in assumed.notes[-1]
    given = system("speculation=ngram", "speculation.acceptance_rates=[0.9,0.2,0.2]")
    assert given.speculation is not None and given.speculation.rates == (0.9, 0.2, 0.2)
    read = system("speculation=ngram", f"speculation.acceptance_lengths={golden}")
    assert read.speculation is not None and read.speculation.rates == pytest.approx((1, 0.83, 0))


@pytest.mark.parametrize(
    ("mode", "num_drafts", "message"),
    [
        ("thinking_on", 2, "speculation.num_speculative_tokens=2: .* has lengths for 1, 3, 4"),
        ("off", 1, "speculation.acceptance_mode='off': .* has thinking_on, thinking_off"),
        ("thinking_on", 4, "4 drafts bring from 1 to 5 tokens, not 9"),
    ],
)
def test_a_length_that_a_file_lacks_is_named(golden: Path, mode: str, num_drafts: int, message: str) -> None:
    assert accepted_length(golden, "thinking_off", 1) == 1.84
    with pytest.raises(ConfigError, match=message):
        accepted_length(golden, mode, num_drafts)


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "a: {}\nb: {}", "a: [1]", "a: {thinking_on: 3}", "{", "a: {thinking_on: {1: x}}"]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^speculation\.[^\n]*$"):
        accepted_length(tmp_path / "x.yaml", "thinking_on", 1)


def test_a_drafter_takes_time_and_memory() -> None:
    plain, free = system(), system("speculation=draft_model", "speculation.drafter=null")
    slow = system("speculation=draft_model", "speculation.drafter=null", "speculation.draft_token_s=0.001")
    small = system("speculation=draft_model")
    large = system("speculation=draft_model", "model@speculation.drafter=qwen3-4b")
    step = StepWork((), 8, 8000, 8_000_000, tokens_per_decode=4)
    times = [each.cost_model().step_ns(step) for each in (free, small, large)]
    assert times == sorted(times) and plain.cost_model().step_ns(step) == times[0] < times[1] < times[2]
    assert slow.cost_model().step_ns(step) == times[0] + 3_000_000
    pools = [each.pool.num_blocks for each in (plain, free, small, large)]
    assert pools[0] == pools[1] > pools[2] > pools[3]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("max_num_batched_tokens=300", "max_num_seqs=256"), r"max_num_batched_tokens=300: must be >= 4 \* .*=256, .*"),
        (
            ("engine=cpu", "scheduler.async_scheduling=true"),
            "scheduler.async_scheduling=true: must be false with speculation=ngram and engine=cpu, .*",
        ),
        (("engine.max_lookahead_steps=2",), "engine.max_lookahead_steps=2: must be 1 with speculation=ngram.*"),
        (("engine=cpu", "speculation.acceptance_rate=0.5"), "speculation.acceptance_rate: engine=cpu verifies .*"),
        (("engine=cpu", "speculation=draft_model"), "speculation=draft_model: engine=cpu drafts by prompt lookup .*"),
        (("speculation.acceptance_rates=[0.5]",), ".*must have num_speculative_tokens=3 numbers, one per draft"),
        (("speculation.acceptance_rates=[0.5,0.6,0.1]",), ".*must not increase: .*"),
        (
            ("speculation.acceptance_rates=[0.5,0.5,0.1]", "speculation.acceptance_rate=0.1"),
            "speculation.acceptance_rate=0.1: give this or acceptance_rates",
        ),
        (
            ("speculation.acceptance_rates=[0.5,0.5,0.1]", "speculation.acceptance_lengths=x"),
            "speculation.acceptance_lengths='x': give this or acceptance_rates",
        ),
        (("speculation.prompt_lookup_max=1",), "speculation.prompt_lookup_max=1: must be >= prompt_lookup_min=2"),
        (
            ("speculation=draft_model", "tensor_parallel_size=8", "speculation.drafter.num_attention_heads=12",
             "speculation.drafter.num_kv_heads=4"),
            "speculation.drafter: tensor_parallel_size=8 must divide model.num_attention_heads=12 of the drafter",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        parse(composed("speculation=ngram", *overrides))
