"""Runs a case through the scheduler of nano-vllm, in the loop of its engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from experiments.oracles.cases import STOP_TOKEN, Options, Request
from experiments.oracles.steps import Step


class NanoEngine:
    """The scheduler of nano-vllm with a model that answers what the case says.

    Args:
        nano: what `nano_modules.load` returns.
    """

    def __init__(self, nano: SimpleNamespace, options: Options) -> None:
        self.steps: list[Step] = []
        self._nano = nano
        nano.Sequence.block_size = options.block_size
        self._scheduler = nano.Scheduler(
            SimpleNamespace(
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=options.max_num_batched_tokens,
                eos=STOP_TOKEN,
                kvcache_block_size=options.block_size,
                num_kvcache_blocks=options.num_blocks,
            )
        )
        self._requests: dict[int, Request] = {}  # by the number that nano-vllm gives a sequence
        self._preempted: set[int] = set()
        self._scheduler.preempt = self._preempt

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_finished()

    def add(self, request: Request) -> None:
        params = SimpleNamespace(temperature=1.0, max_tokens=len(request.outputs), ignore_eos=False)
        sequence = self._nano.Sequence(list(request.prompt), params)
        self._requests[sequence.seq_id] = request
        self._scheduler.add(sequence)

    def abort(self, request_id: int) -> None:
        raise NotImplementedError("nano-vllm cannot abort")

    def step(self, most: int = 1) -> None:
        scheduler = self._scheduler
        if scheduler.is_finished():
            self.steps.append(Step({}, [], set()))
            return
        queued = {sequence for sequence in scheduler.waiting if not sequence.block_table}
        self._preempted.clear()
        sequences, is_prefill = scheduler.schedule()
        starts = [s.num_cached_tokens if is_prefill else len(s) - 1 for s in sequences]
        is_cut = bool(scheduler.waiting and scheduler.waiting[0].block_table)  # it waits, but holds blocks
        step = Step(
            computed={
                self._id(sequence): (start, sequence.num_scheduled_tokens)
                for sequence, start in zip(sequences, starts, strict=True)
            },
            admitted=[self._id(sequence) for sequence in sequences if sequence in queued],
            preempted=set(self._preempted),
            num_running=len(scheduler.running) + is_cut,
            num_waiting=len(scheduler.waiting) - is_cut,
            num_used_blocks=len(scheduler.block_manager.used_block_ids),
        )
        tokens = [self._next_token(sequence) for sequence in sequences]
        scheduler.postprocess(sequences, tokens, is_prefill)
        step.finished = {self._id(sequence) for sequence in sequences if sequence.is_finished}
        self.steps.append(step)

    def _id(self, sequence: Any) -> int:
        return self._requests[sequence.seq_id].request_id

    def _next_token(self, sequence: Any) -> int:
        return self._requests[sequence.seq_id].outputs[sequence.num_completion_tokens]

    def _preempt(self, sequence: Any) -> None:
        type(self._scheduler).preempt(self._scheduler, sequence)
        self._preempted.add(self._id(sequence))
