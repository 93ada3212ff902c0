"""Traces that are drawn instead of read: the distributions fitted to ShareGPT, and synthetic lengths and prefixes."""

import logging
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.config import (
    AgenticTrace,
    ConstantLengths,
    LengthsConfig,
    LognormalLengths,
    SharedPrefixTrace,
    ShareGptTrace,
    SyntheticTrace,
    UniformLengths,
)
from harness.config.schema.traffic.workload import AUTO_REQUESTS, DrawnClasses
from harness.errors import ConfigError
from harness.workload.trace import Trace, conversation_columns, trace_table
from simulator.quantities import MAX_TOKENS

log = logging.getLogger(__name__)

SHARED_PREFIX_BLOCK_SIZE = 16
_MAX_HASH_IDS = 1 << 28  # 2 GiB

# Fits to the real ShareGPT lengths: (weight, mu, sigma) of lognormals, in natural logarithms of tokens, and
# (shape, scale) of Weibulls.
_FIRST_PROMPT = ((0.737, 3.173, 0.962), (0.263, 6.237, 1.051))
_FIRST_OUTPUT = (1.265, 348.0)
_OPENING_PROMPT = ((0.419, 3.386, 0.71), (0.581, 5.068, 1.331))
_LATER_MESSAGE = ((0.916, 3.157, 1.13), (0.084, 6.721, 0.79))
_TURN_OUTPUT = (1.556, 483.0)
_MAX_TURN_OUTPUT = 1024
_LAST_TURN_PROBABILITY = 0.185
# Correlation of the normal variables behind consecutive outputs, which makes that of the outputs' logarithms the
# measured 0.55.
_TURN_CORRELATION = 0.568

Mixture = tuple[tuple[float, float, float], ...]
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


def sharegpt(num_requests: int, *, turns: Literal["first", "multi"], rng: np.random.Generator) -> Trace:
    """Draws requests from the distributions fitted to ShareGPT: first exchanges, or every turn of conversations.

    Conversations stand one after another; the last is cut at `num_requests`.
    """
    note = "lengths drawn from distributions fitted to ShareGPT, not read from the data set"
    log.warning("trace: %s; set trace.path to replay a file", note)
    columns = draw_sharegpt(num_requests, turns=turns, rng=rng)
    return Trace("sharegpt-sampled", trace_table(columns), "built-in sampler of ShareGPT lengths", notes=(note,))


def draw_sharegpt(n: int, *, turns: Literal["first", "multi"], rng: np.random.Generator) -> dict[str, Tokens]:
    """The columns of n requests: lengths, and for conversations their sessions and turns."""
    return _conversations(n, rng) if turns == "multi" else _first_exchanges(n, rng)


def synthetic(config: SyntheticTrace, rng: np.random.Generator) -> Trace:
    """Requests with independent prompt and output lengths, and no tokens in common."""
    n = num_drawn(config)
    columns = {
        "num_prompt_tokens": draw_lengths(config.prompt, n, rng),
        "num_output_tokens": draw_lengths(config.output, n, rng),
    }
    columns |= draw_classes(config, n, rng)
    return Trace("synthetic", trace_table(columns), "drawn from trace.prompt and trace.output")


def shared_prefix(config: SharedPrefixTrace, rng: np.random.Generator) -> Trace:
    """Prompts that open with one of a few prefixes, such as system prompts, followed by text of their own.

    Equality is told by hash ids of 16-token blocks, so only a prefix's whole blocks are shared.
    """
    n = num_drawn(config)
    _check_num_ids(config, config.num_prefixes * config.prefix_tokens)
    prefixes = _draw_zipf(config.num_prefixes, config.zipf_exponent, n, rng)
    num_prompt_tokens = config.prefix_tokens + draw_lengths(config.suffix, n, rng)
    _check_num_ids(config, int(num_prompt_tokens.sum()))
    if num_prompt_tokens.max() > MAX_TOKENS:
        raise ConfigError(
            f"trace.prefix_tokens={config.prefix_tokens}: with the longest suffix a prompt of "
            f"{num_prompt_tokens.max()} tokens, where {MAX_TOKENS} are the limit"
        )
    columns = {
        "num_prompt_tokens": num_prompt_tokens,
        "num_output_tokens": draw_lengths(config.output, n, rng),
        "hash_ids": _prefix_hash_ids(prefixes, config.num_prefixes, config.prefix_tokens, num_prompt_tokens),
    }
    columns |= draw_classes(config, n, rng)
    shared_tokens = config.prefix_tokens - config.prefix_tokens % SHARED_PREFIX_BLOCK_SIZE
    notes = (
        f"of the {config.prefix_tokens} prefix tokens the first {shared_tokens} are shared: "
        f"whole blocks of {SHARED_PREFIX_BLOCK_SIZE}",
    )
    return Trace(
        name="shared-prefix",
        rows=trace_table(columns),
        source=f"drawn with {config.num_prefixes} prefixes",
        hash_block_size=SHARED_PREFIX_BLOCK_SIZE,
        notes=notes if shared_tokens < config.prefix_tokens else (),
    )


def num_drawn(config: SyntheticTrace | SharedPrefixTrace | ShareGptTrace | AgenticTrace) -> int:
    """Requests to draw.

    Raises:
        ConfigError: the number is left open, and the caller does not choose it.
    """
    if config.num_requests == AUTO_REQUESTS:
        raise ConfigError("trace.num_requests=auto: only task=run finds out how many are needed; give a number")
    assert config.num_requests is not None, "the configuration fills it in"
    return config.num_requests


def draw_lengths(config: LengthsConfig, n: int, rng: np.random.Generator) -> Tokens:
    """Draws n lengths in tokens: int64[n], >= 1."""
    match config:
        case ConstantLengths():
            return np.full(n, config.value, dtype=np.int64)
        case UniformLengths():
            return rng.integers(config.low, config.high, size=n, endpoint=True)
        case LognormalLengths():
            variance = math.log1p((config.std / config.mean) ** 2)
            draws = rng.lognormal(math.log(config.mean) - variance / 2, math.sqrt(variance), n)
            return _round(draws, low=config.min, high=config.max or MAX_TOKENS)


def draw_classes(config: DrawnClasses, n: int, rng: np.random.Generator) -> dict[str, Tokens]:
    """The columns `priority` and `tenant` of n requests, those of them that are not the same for all."""
    columns: dict[str, Tokens] = {}
    if config.priority_shares:
        shares = np.array(config.priority_shares)
        columns["priority"] = rng.choice(len(shares), size=n, p=shares / shares.sum())
    if config.num_tenants > 1:
        columns["tenant"] = _draw_zipf(config.num_tenants, config.tenant_zipf_exponent, n, rng)
    return columns


def _draw_zipf(num_kinds: int, exponent: float, n: int, rng: np.random.Generator) -> Tokens:
    """Draws n of the numbers 0 to num_kinds - 1, the k-th of them in proportion to k ** -exponent."""
    weights = np.arange(1, num_kinds + 1, dtype=np.float64) ** -exponent
    return rng.choice(num_kinds, size=n, p=weights / weights.sum())


def _first_exchanges(n: int, rng: np.random.Generator) -> dict[str, Tokens]:
    return {
        "num_prompt_tokens": _round(_draw_mixture(_FIRST_PROMPT, n, rng)),
        "num_output_tokens": _round(_weibull(rng.standard_exponential(n), _FIRST_OUTPUT)),
    }


def _conversations(n: int, rng: np.random.Generator) -> dict[str, Tokens]:
    num_turns = rng.geometric(_LAST_TURN_PROBABILITY, size=n)  # n sessions are enough, and most are cut off again
    num_sessions = int(np.searchsorted(np.cumsum(num_turns), n)) + 1
    num_turns = num_turns[:num_sessions]
    num_turns[-1] -= num_turns.sum() - n
    opening = np.cumsum(num_turns) - num_turns  # row of each session's first turn
    new_tokens = _round(_draw_mixture(_LATER_MESSAGE, n, rng))
    new_tokens[opening] = _round(_draw_mixture(_OPENING_PROMPT, num_sessions, rng))
    outputs = _weibull(_correlated_exponentials(num_turns, opening, rng), _TURN_OUTPUT)
    return conversation_columns(
        num_turns=num_turns, new_tokens=new_tokens, output_tokens=_round(outputs, high=_MAX_TURN_OUTPUT)
    )


def _correlated_exponentials(num_turns: Tokens, opening: Tokens, rng: np.random.Generator) -> Floats:
    """Standard exponentials for each turn of each session: an autoregressive normal, mapped quantile by quantile."""
    normals = rng.standard_normal(int(num_turns.sum()))
    innovation = math.sqrt(1 - _TURN_CORRELATION**2)
    for turn in range(1, int(num_turns.max())):  # all sessions that get this far at once
        rows = opening[num_turns > turn] + turn
        normals[rows] = _TURN_CORRELATION * normals[rows - 1] + innovation * normals[rows]
    survival = np.array([math.erfc(z) for z in (normals / math.sqrt(2)).tolist()]) / 2
    return -np.log(survival)


def _draw_mixture(mixture: Mixture, n: int, rng: np.random.Generator) -> Floats:
    weights, mu, sigma = np.array(mixture).T
    component = rng.choice(len(mixture), size=n, p=weights)
    return np.exp(mu[component] + sigma[component] * rng.standard_normal(n))


def _weibull(exponentials: Floats, fit: tuple[float, float]) -> Floats:
    shape, scale = fit
    return scale * exponentials ** (1 / shape)


def _round(lengths: Floats, *, low: int = 1, high: int = MAX_TOKENS) -> Tokens:
    return np.clip(np.rint(lengths), low, high).astype(np.int64)


def _check_num_ids(config: SharedPrefixTrace, num_tokens: int) -> None:
    if num_tokens > _MAX_HASH_IDS * SHARED_PREFIX_BLOCK_SIZE:
        raise ConfigError(
            f"trace.prefix_tokens={config.prefix_tokens}: {config.num_requests} prompts with {config.num_prefixes} "
            f"prefixes come to {num_tokens} tokens, where {_MAX_HASH_IDS * SHARED_PREFIX_BLOCK_SIZE} are the limit; "
            "choose fewer requests, or shorter prefixes and suffixes"
        )


def _prefix_hash_ids(
    prefixes: Tokens, num_prefixes: int, prefix_tokens: int, num_prompt_tokens: Tokens
) -> list[npt.NDArray[np.int64]]:
    """Ids of each prompt's blocks: those of its prefix first, then ids that occur nowhere else."""
    shared = prefix_tokens // SHARED_PREFIX_BLOCK_SIZE
    prefix_ids = np.arange(num_prefixes * shared, dtype=np.int64).reshape(num_prefixes, shared)
    num_own = -(-num_prompt_tokens // SHARED_PREFIX_BLOCK_SIZE) - shared
    ends = (np.cumsum(num_own) + prefix_ids.size).tolist()
    starts = [prefix_ids.size, *ends[:-1]]
    return [
        np.concatenate([prefix_ids[prefix], np.arange(start, end)])
        for prefix, start, end in zip(prefixes.tolist(), starts, ends, strict=True)
    ]
