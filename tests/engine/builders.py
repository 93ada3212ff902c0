"""A small model and prompts to try the real engine with, and CUDA graphs without CUDA: needs torch.

Instead of being captured, the operators that a step launches are written down and launched again. What a graph would
freeze is frozen here too: the operators, their tensors and the numbers that the host passed. What cannot be captured, a
look at a tensor's values, is an error.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.api.llm import LLM
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.models.model_config import ModelConfig
from engine.runner.graphs.cuda_graphs import Step
from engine.runner.inputs.step_inputs import StepBuilder
from engine.sampling_params import SamplingParams
from kernels.attention.backends import AttentionMetadata, LayerKV
from kernels.sampling.sampler import keep_threshold, log_exponential
from tests.compiled import Overlaid
from tests.cuda_standin import DispatchMode

SHAPE: dict[str, Any] = {
    "name": "small", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 512,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
# Larger weights than usual give varied text, so that equal tokens prove something.
MODEL = replace(ModelConfig.from_shape(SHAPE), initializer_range=0.1)
GREEDY = SamplingParams(max_tokens=18, temperature=0.0)
SETTINGS: dict[str, Any] = {
    "device": "cpu", "block_size": 4, "num_blocks": 400, "max_num_seqs": 8, "max_num_batched_tokens": 64
}  # fmt: skip


def make_prompts() -> list[list[int]]:
    """Of odd lengths; the last ones continue or repeat earlier ones."""
    rng = random.Random(0)
    prompts = [[rng.randrange(300) for _ in range(rng.randint(1, 90))] for _ in range(10)]
    return [*prompts, prompts[0] + prompts[1], prompts[2], prompts[3][:40]]


def generate(params: SamplingParams = GREEDY, **settings: Any) -> list[list[int]]:
    llm = LLM(MODEL, **{**SETTINGS, **settings})
    try:
        return [output["token_ids"] for output in llm.generate(make_prompts(), params)]
    finally:
        llm.close()


@functools.cache
def one_by_one() -> list[list[int]]:
    """Each prompt alone, uncut and uncached."""
    return generate(max_num_seqs=1, max_num_batched_tokens=512, enable_prefix_caching=False)


_LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique")


class _Recorder(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in _LOOKS), f"{func} looks at values: it cannot be captured"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


def record(step: Step) -> Step:
    """Runs the step, as capturing does, and returns what launches its operators again."""
    with _Recorder() as recorder:
        step()

    def replay() -> None:
        for func, args, kwargs, out in recorder.calls:
            again = func(*args, **kwargs)
            outs, agains = ((x,) if isinstance(x, Tensor) else tuple(x) for x in (out, again))
            for old, new in zip(outs, agains, strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)

    return replay


class DenseBackend:
    """Attention of decodes that looks at no value: over all that a block table can hold, masked."""

    name = "dense"
    is_capturable = True

    def forward(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor | None = None,
        window: int = 0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See AttentionBackend.forward; prefills, windows and sinks are not for it."""
        assert not window and sinks is None
        kv_heads, head_dim = kv.keys.shape[2:]
        tables = metadata.decode_block_tables.long()
        keys, values = (
            cache.index_select(0, tables.flatten()).view(len(q), -1, kv_heads, head_dim).transpose(1, 2)
            for cache in (kv.keys, kv.values)
        )
        inside = torch.arange(keys.shape[2]) < metadata.decode_context_lens.clamp(min=1).unsqueeze(1)
        attended = functional.scaled_dot_product_attention(
            q.view(len(q), kv_heads, -1, head_dim), keys, values, attn_mask=inside[:, None, None, :], scale=scale
        )
        return attended.reshape(q.shape)


def store_unseen(k: Tensor, v: Tensor, kv: LayerKV, slots: Tensor) -> None:
    """As `store_kv_reference`, looking at no value: padding goes to the last slot, which is no sequence's."""
    for cache, rows in zip(kv, (k, v), strict=False):
        places = cache.flatten(0, 1)
        places.index_copy_(0, torch.where(slots < 0, len(places) - 1, slots), rows)


class DecodeDenseBackend(DenseBackend):
    """Dense for steps that are all decodes, another backend for the others."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """See AttentionBackend.forward."""
        if args[2].num_prefill_tokens:
            out: Tensor = self._other.forward(*args, **kwargs)
            return out
        return super().forward(*args, **kwargs)


def sample_unseen(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """`kernels.sampling.sampler.sample` by operators that look at no value."""
    scores = logits / torch.where(temperature > 0, temperature, 1.0).unsqueeze(1)
    noise = log_exponential(seeds, positions, logits.shape[1])
    threshold = keep_threshold(logits, temperature, top_k, top_p, logits.shape[1])
    if threshold is not None:
        scores = torch.where(logits < threshold.unsqueeze(1), -torch.inf, scores)
    return torch.where((temperature > 0).unsqueeze(1), scores - noise, logits).argmax(-1)


STARVED: dict[str, Any] = {**SETTINGS, "num_blocks": 40, "watermark": 0.0}
# A block of the model takes 2 KiB, and out and back as long as 3 of its 4 tokens: what is decided depends on the rest.
AUTO = {"preemption": "auto", "host_kv_gib": 2e-3, "recompute_token_us": 1.0, "host_gb_per_s": 2048 / 1e3 / 1.5}
KINDS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "partial": {"preemption": "partial"},
    "swap": {"preemption": "swap", "host_kv_gib": 2e-3},
    "auto": AUTO,
}


class Late:
    """A side stream whose copies are made when they are waited for, or when they are asked for the `patience`-th time.

    A mark is the number of copies launched before it.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.copies: list[Callable[[], None]] = []
        self.num_made = 0
        self.asked: Counter[int] = Counter()

    def launch(self, copy: Callable[[], None]) -> None:
        self.copies.append(copy)

    def mark(self) -> int:
        return len(self.copies)

    def has_passed(self, mark: int) -> bool:
        self.asked[mark] += 1
        if self.asked[mark] >= self.patience:
            self.hold_steps(mark)
        return mark <= self.num_made

    def hold_steps(self, mark: int) -> None:
        while self.num_made < mark:
            self.copies[self.num_made]()
            self.num_made += 1

    def ns_between(self, first: int, second: int) -> int:
        return 0


def watch_plans(monkeypatch: pytest.MonkeyPatch, see: Callable[[StepPlan], None]) -> None:
    """Tell `see` of the plans of all engines when their inputs are built."""
    build = StepBuilder.build

    def watched(builder: StepBuilder, plan: StepPlan, *args: Any) -> Any:
        see(plan)
        return build(builder, plan, *args)

    monkeypatch.setattr(StepBuilder, "build", watched)


def fail_once(
    monkeypatch: pytest.MonkeyPatch, llm: LLM, owner: type, name: str, error: BaseException, *, after: bool
) -> None:
    """Let the next call of a method raise `error`, before or after its work."""
    on_scheduler = owner is Scheduler  # of an engine, whose scheduler is replaced where it is compiled
    real, calls = getattr(llm.engine.scheduler if on_scheduler else owner, name), [0]

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] > 1:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        raise error

    if on_scheduler:
        llm.engine.scheduler = Overlaid(llm.engine.scheduler, **{name: failing})  # type: ignore[assignment]
    else:
        monkeypatch.setattr(owner, name, failing)


class Interrupter:
    """Raises KeyboardInterrupt when the `countdown`-th line of the engine's code is about to run."""

    def __init__(self, countdown: int) -> None:
        self.countdown = countdown

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        is_ours = "/engine/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename
        return self._line if is_ours and frame.f_code.co_name != "__del__" else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self.countdown -= 1
            if self.countdown == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def interrupted(llm: LLM, countdown: int) -> bool:
    """Run some calls with Ctrl-C at a line; False if they ended before."""
    prompts, params = make_prompts(), replace(GREEDY, max_tokens=6)
    sys.settrace(Interrupter(countdown))
    try:
        stream = llm.stream(prompts[:3], params)
        next(stream)
        llm.generate(prompts[3:6], params)
        stream.close()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
