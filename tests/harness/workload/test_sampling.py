"""Drawn traces: the ShareGPT fits against the real lengths, and synthetic lengths and prefixes."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import (
    ConstantLengths,
    LengthsConfig,
    LognormalLengths,
    SharedPrefixTrace,
    ShareGptTrace,
    SyntheticTrace,
    TraceConfig,
    UniformLengths,
)
from harness.errors import ConfigError
from harness.workload.readers import load_trace
from harness.workload.sampling import draw_lengths, sharegpt
from simulator.quantities import MAX_TOKENS
from tests.harness.builders import TRACES, config

REAL = TRACES / "sharegpt"


def real_lengths(name: str) -> pd.DataFrame:
    if not (REAL / name).exists():
        pytest.skip(f"real lengths {REAL / name} are not here")
    return pd.read_csv(REAL / name)


def ks_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of the two empirical distribution functions."""
    grid = np.union1d(a, b)
    below = [np.searchsorted(np.sort(sample), grid, side="right") / len(sample) for sample in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def sample(n: int, turns: str, seed: int = 0) -> pd.DataFrame:
    return sharegpt(n, turns=turns, rng=np.random.default_rng(seed)).table  # type: ignore[arg-type]


def new_tokens(table: pd.DataFrame, prompt: str, output: str, session: str) -> np.ndarray:
    """Tokens that each turn adds to what was said before."""
    said = (table[prompt] + table[output]).groupby(table[session]).shift(fill_value=0)
    return (table[prompt] - said).to_numpy()


# The limits are the distances of the fits themselves, and 0.01 for rounding to tokens and for chance.
def test_first_exchanges_are_distributed_like_the_real_ones() -> None:
    real = real_lengths("sharegpt_v3_first_exchange_lengths.csv")
    drawn = sample(100_000, "first")
    assert ks_distance(drawn["num_prompt_tokens"].to_numpy(), real["num_prefill_tokens"].to_numpy()) < 0.041
    assert ks_distance(drawn["num_output_tokens"].to_numpy(), real["num_decode_tokens"].to_numpy()) < 0.057


def test_conversations_are_distributed_like_the_real_ones() -> None:
    real = real_lengths("sharegpt_multiturn_derived.csv")
    drawn = sample(100_000, "multi")
    assert (
        ks_distance(drawn["session_id"].value_counts().to_numpy(), real["conversation_id"].value_counts().to_numpy())
        < 0.037
    )
    new = new_tokens(drawn, "num_prompt_tokens", "num_output_tokens", "session_id")
    opening, real_opening = drawn["turn"].to_numpy() == 0, real["turn"].to_numpy() == 0
    real_new = real["new_input_tokens"].to_numpy()
    assert ks_distance(new[opening], real_new[real_opening]) < 0.029
    assert ks_distance(new[~opening], real_new[~real_opening]) < 0.039
    assert ks_distance(drawn["num_output_tokens"].to_numpy(), real["output_tokens"].to_numpy()) < 0.060


def test_outputs_of_a_conversation_are_correlated() -> None:
    drawn = sample(200_000, "multi")
    logs = np.log(drawn["num_output_tokens"])
    before = logs.groupby(drawn["session_id"]).shift()
    assert logs.corr(before) == pytest.approx(0.55, abs=0.01)
    assert abs(logs.corr(logs.shift(30))) < 0.02  # of other sessions


@given(st.integers(1, 300), st.integers(0, 1000))
def test_conversations_are_cumulative_and_of_the_number_asked_for(n: int, seed: int) -> None:
    table = sample(n, "multi", seed)
    assert len(table) == n
    assert (new_tokens(table, "num_prompt_tokens", "num_output_tokens", "session_id") >= 1).all()
    assert table["turn"].tolist() == table.groupby("session_id").cumcount().tolist()
    assert table["num_output_tokens"].between(1, 1024).all()


def test_the_sampler_says_loudly_that_it_is_one(caplog: pytest.LogCaptureFixture) -> None:
    trace = load_trace(ShareGptTrace(num_requests=10), seed=0)
    assert trace.name == "sharegpt-sampled"
    assert "not read from the data set" in trace.notes[0]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert trace.notes[0] in caplog.text
    assert not trace.has_times
    assert "session_id" not in trace.table


def test_limit_shortens_the_sample() -> None:
    assert len(load_trace(ShareGptTrace(num_requests=10, limit=4), seed=0).table) == 4
    assert len(load_trace(ShareGptTrace(num_requests=4, limit=10), seed=0).table) == 4


LENGTHS = LognormalLengths(mean=512.0, std=256.0, max=1000)
DRAWN: list[TraceConfig] = [
    ShareGptTrace(num_requests=100),
    ShareGptTrace(num_requests=100, turns="multi"),
    SyntheticTrace(num_requests=100, prompt=LENGTHS, output=LENGTHS),
    SharedPrefixTrace(num_requests=100, num_prefixes=4, prefix_tokens=64, suffix=LENGTHS, output=LENGTHS),
]


@pytest.mark.parametrize("config", DRAWN)
def test_same_seed_same_trace(config: TraceConfig) -> None:
    first, again, other = (load_trace(config, seed=seed).table for seed in (1, 1, 2))
    lengths = ["num_prompt_tokens", "num_output_tokens"]
    assert first[lengths].equals(again[lengths])
    assert not first[lengths].equals(other[lengths])


def test_lengths_do_not_repeat_the_numbers_of_other_streams() -> None:
    config = SyntheticTrace(num_requests=50, prompt=UniformLengths(low=1, high=10**6), output=LENGTHS)
    of_the_plain_seed = np.random.default_rng(7).integers(1, 10**6, size=50, endpoint=True)
    assert load_trace(config, seed=7).table["num_prompt_tokens"].tolist() != of_the_plain_seed.tolist()


def test_lengths_follow_their_distributions() -> None:
    rng = np.random.default_rng(0)
    assert set(draw_lengths(ConstantLengths(value=7), 10, rng)) == {7}
    assert set(draw_lengths(UniformLengths(low=3, high=5), 1000, rng)) == {3, 4, 5}
    lognormal = draw_lengths(LognormalLengths(mean=500.0, std=250.0), 100_000, rng)
    assert lognormal.mean() == pytest.approx(500, rel=0.01)
    assert lognormal.std() == pytest.approx(250, rel=0.02)
    assert np.log(lognormal).std() == pytest.approx(np.log1p(0.25) ** 0.5, rel=0.02)


@given(
    st.one_of(
        st.builds(ConstantLengths, value=st.integers(1, 10)),
        st.builds(UniformLengths, low=st.integers(1, 10), high=st.integers(10, 20)),
        st.builds(LognormalLengths, mean=st.floats(1e-3, 1e6), std=st.floats(1e-3, 1e9)),
        st.builds(LognormalLengths, mean=st.just(9.0), std=st.just(90.0), min=st.just(3), max=st.just(12)),
    )
)
def test_lengths_are_positive_and_within_their_bounds(config: LengthsConfig) -> None:
    lengths = draw_lengths(config, 50, np.random.default_rng(0))
    assert lengths.dtype == np.int64
    low, high = (config.min, config.max or 2**31) if isinstance(config, LognormalLengths) else (1, 20)
    assert ((low <= lengths) & (lengths <= high)).all()


@given(st.integers(1, 5), st.integers(16, 70), st.integers(1, 40), st.sampled_from([0.0, 1.0]))
def test_prefixes_are_shared_in_whole_blocks_and_nothing_else_is(
    num_prefixes: int, prefix_tokens: int, longest: int, zipf_exponent: float
) -> None:
    config = SharedPrefixTrace(
        num_requests=30,
        num_prefixes=num_prefixes,
        prefix_tokens=prefix_tokens,
        zipf_exponent=zipf_exponent,
        suffix=UniformLengths(low=1, high=longest),
        output=ConstantLengths(value=1),
    )
    trace = load_trace(config, seed=0)
    shared = prefix_tokens // 16
    openings = {tuple(ids[:shared].tolist()) for ids in trace.table["hash_ids"]}
    own = [block for ids in trace.table["hash_ids"] for block in ids[shared:].tolist()]
    assert 1 <= len(openings) <= num_prefixes
    assert len({block for opening in openings for block in opening}) == shared * len(openings)
    assert len(set(own)) == len(own)
    assert not {block for opening in openings for block in opening} & set(own)
    assert [len(ids) for ids in trace.table["hash_ids"]] == (-(-trace.table["num_prompt_tokens"] // 16)).tolist()
    assert trace.table["num_prompt_tokens"].between(prefix_tokens + 1, prefix_tokens + longest).all()
    assert trace.hash_block_size == 16
    assert bool(trace.notes) == (prefix_tokens % 16 > 0)


@pytest.mark.parametrize(("zipf_exponent", "shares"), [(0.0, [1 / 3] * 3), (1.0, [6 / 11, 3 / 11, 2 / 11])])
def test_prefixes_are_as_popular_as_asked(zipf_exponent: float, shares: list[float]) -> None:
    config = SharedPrefixTrace(
        num_requests=20_000,
        num_prefixes=3,
        prefix_tokens=16,
        zipf_exponent=zipf_exponent,
        suffix=ConstantLengths(value=1),
        output=ConstantLengths(value=1),
    )
    prefixes = load_trace(config, seed=0).table["hash_ids"].map(lambda ids: ids[0])
    assert (prefixes.value_counts(normalize=True).sort_index().tolist()) == pytest.approx(shares, abs=0.015)


def test_priorities_and_tenants_are_drawn_as_asked_and_change_no_length() -> None:
    size, lengths = "trace.num_requests=20000", ["num_prompt_tokens", "num_output_tokens"]
    classes = ["trace.num_tenants=3", "trace.tenant_zipf_exponent=1", "trace.priority_shares=[1,0,3]"]
    for name in ("synthetic", "shared_prefix"):
        plain = load_trace(config(f"trace={name}", size).trace, seed=0).table
        table = load_trace(config(f"trace={name}", size, *classes).trace, seed=0).table
        assert not {"priority", "tenant"} & {*plain}
        pd.testing.assert_frame_equal(plain[lengths], table[lengths])
        shares = [table[column].value_counts(normalize=True).sort_index() for column in ("priority", "tenant")]
        assert shares[0].to_dict() == pytest.approx({0: 1 / 4, 2: 3 / 4}, abs=0.015)
        assert shares[1].to_dict() == pytest.approx({0: 6 / 11, 1: 3 / 11, 2: 2 / 11}, abs=0.015)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trace=synthetic", "trace.priority_shares=[0]"], "trace.priority_shares: one of them must be > 0"),
        (["trace=synthetic", "trace.priority_shares=[1,-1]"], "trace.priority_shares.1=-1: must be a number >= 0"),
        (["trace=synthetic", "trace.num_requests=1000000000000"], "trace.num_requests=1000000000000: must be"),
        (["trace=sharegpt", "trace.num_requests=100000001"], "trace.num_requests=100000001: must be"),
        (["trace=synthetic", "trace.prompt.mean=1e12"], "trace.prompt.mean=1000000000000.0: must be"),
        (["trace=synthetic", "trace.prompt.std=1e308"], "trace.prompt.std=1e+308: must be"),
        (["trace=synthetic", "trace.output.max=2147483648"], "trace.output.max=2147483648: must be"),
        (["trace=synthetic", f"trace/lengths@trace.prompt=constant trace.prompt.value={10**30}"], "must be"),
        (["trace=shared_prefix", f"trace.suffix.high={2**31}"], f"trace.suffix.high={2**31}: must be"),
        (["trace=shared_prefix", "trace.prefix_tokens=3000000000"], "trace.prefix_tokens=3000000000: must be"),
        (["trace=shared_prefix", "trace.num_prefixes=1000000000000"], "trace.num_prefixes=1000000000000: must be"),
    ],
)
def test_absurd_sizes_are_refused_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(*(part for override in overrides for part in override.split()))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "override", ["trace.prefix_tokens=1000000000", "trace.num_prefixes=100000000", f"trace.suffix.high={2**31 - 1}"]
)
def test_prompts_with_too_many_hash_ids_are_refused_before_they_are_made(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^trace.prefix_tokens=\d+: .* tokens, where 4294967296 are the limit"):
        load_trace(config("trace=shared_prefix", override).trace, seed=0)


@given(st.floats(1e-3, MAX_TOKENS), st.floats(5e-324, MAX_TOKENS), st.integers(0, 99))
def test_lognormal_lengths_are_whole_numbers_within_the_limit(mean: float, std: float, seed: int) -> None:
    lengths = draw_lengths(LognormalLengths(mean=mean, std=std), 100, np.random.default_rng(seed))
    assert lengths.min() >= 1 and lengths.max() <= MAX_TOKENS
