"""Plans and profiles small enough to check by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pandas as pd

from engine.core.plan import PrefillChunk, StepPlan
from engine.core.sequence import Sequence
from simulator.hardware import ModelShape
from simulator.profile.profile import Profile, ProfileMeta

MODEL = ModelShape("test", 3, 64, 4, 2, 16, 128, 1000, False, 4096, "bf16", 2)
OPERATORS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
META = ProfileMeta("device", "test", 1, 3, {**dict.fromkeys(OPERATORS, 3), "lm_head": 1})


def plan(chunks: list[tuple[int, int, bool]], contexts: list[int], num_scattered_tokens: int = 0) -> StepPlan:
    """A step of these chunks (start, number of tokens, last) and decodes of these contexts."""
    sequence = Sequence(0, 1, 1)
    return StepPlan(
        [PrefillChunk(sequence, *chunk) for chunk in chunks], (), len(contexts), sum(contexts),
        sum(context * context for context in contexts), num_scattered_tokens, [], [], [], [], [],
        horizon=1, num_steps=1, num_running=1, num_waiting=0, num_used_blocks=1,
    )  # fmt: skip


def by_tokens(token_us: float, sizes: tuple[int, ...] = (1, 8, 64, 512)) -> pd.DataFrame:
    """The operators of a layer take 10 us and `token_us` per token each."""
    rows = [(name, n, 10 + token_us * n) for name in OPERATORS for n in sizes]
    return pd.DataFrame(rows, columns=["operator", "num_tokens", "time_us"])


def attention_us(chunk: int, start: int, num_decodes: int, context: float) -> float:
    """A kernel that is linear in pairs and contexts, and slower for decodes beside a chunk."""
    pairs = chunk * start + chunk * (chunk + 1) / 2
    mixing = 2e-3 * num_decodes * context if chunk and num_decodes else 0.0
    return 5.0 + 1e-4 * pairs + 1e-2 * num_decodes * context + mixing


def attention() -> pd.DataFrame:
    batches, contexts = (1, 4, 16, 64), (16, 256, 4096)
    chunks, starts = (16, 128, 512), (0, 256, 2048)
    rows: list[tuple[Any, ...]] = [(0, 0, n, c) for n, c in itertools.product(batches, contexts)]
    rows += [(s, p, 0, 0) for s, p in itertools.product(chunks, starts)]
    rows += [(s, p, n, c) for s, p, n, c in itertools.product(chunks, starts, batches, contexts)]
    columns = ["prefill_tokens", "prefill_context", "num_decodes", "decode_context"]
    return pd.DataFrame(rows, columns=columns).assign(time_us=[attention_us(*row) for row in rows])


def profile(**changes: Any) -> Profile:
    """A profile of `MODEL`; keys of the metadata are changed as given."""
    heads = pd.DataFrame({"operator": "lm_head", "num_sequences": [1, 64, 256], "time_us": [20.0, 30.0, 70.0]})
    tables = {"tokens": by_tokens(0.5), "sequences": heads, "attention": attention()}
    return Profile(replace(META, **changes), tables)
