"""What vLLM v1 (0.19, first come first served, full attention) decides, restated in the plainest way.

One list of known tokens per request, plain lists for the queues and the pool, and every loop over everything: slow, and
short enough to be compared with the original by eye. `EngineLoop` is its engine core: with asynchronous scheduling a
queue of two steps, so that a step is planned when the one before it starts. Time counts steps: each takes one unit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    """A request and its state; `tokens` is the prompt and all that the model would generate after it."""

    request_id: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    arrival: int
    num_known: int = 0
    num_computed: int = 0
    num_placeholders: int = 0  # tokens that steps under way will give
    blocks: list[int] = field(default_factory=list)
    num_registered: int = 0
    num_cached: int | None = None  # at the first admission
    num_preemptions: int = 0
    scheduled: int | None = None  # when its first step was planned
    finish: int | None = None


@dataclass
class Step:
    """A planned step: who computes which tokens, and who left and joined the running requests for it."""

    chunks: list[tuple[Request, int, int]] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    start: int = 0
    state: tuple[int, int, int] = (0, 0, 0)  # used blocks, running, waiting: when it starts


class Pool:
    """Blocks in one queue of free ones, oldest first; a key is all tokens up to the end of a block.

    The first block is the null block, which is never free.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = list(range(1, num_blocks))
        self.references = [0] * num_blocks
        self.key_of: dict[int, tuple[int, ...]] = {}
        self.blocks_of: dict[tuple[int, ...], list[int]] = {}

    def take(self) -> int:
        block = self.free.pop(0)
        key = self.key_of.pop(block, None)
        if key is not None:
            self.blocks_of[key].remove(block)
        self.references[block] = 1
        return block

    def touch(self, block: int) -> None:
        if not self.references[block]:
            self.free.remove(block)
        self.references[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                self.free.append(block)

    def register(self, block: int, key: tuple[int, ...]) -> None:
        self.key_of[block] = key
        self.blocks_of.setdefault(key, []).append(block)


class VllmScheduler:
    """Schedules like vLLM v1; `update` takes the output of a step."""

    def __init__(
        self, *, num_blocks: int, block_size: int, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int,
        enable_prefix_caching: bool, async_scheduling: bool,
    ) -> None:  # fmt: skip
        self.pool = Pool(num_blocks)
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.caching = enable_prefix_caching
        self.is_async = async_scheduling
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        request.num_known = request.num_prompt_tokens
        self.waiting.append(request)

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def state(self) -> tuple[int, int, int]:
        return self.pool.num_blocks - 1 - len(self.pool.free), len(self.running), len(self.waiting)

    def schedule(self) -> Step:
        step = Step()
        budget, is_starved = self._schedule_running(step)
        if not is_starved:
            self._schedule_waiting(step, budget)
        for request, start, count in step.chunks:
            request.num_computed = start + count
            if request.num_computed == request.num_known + request.num_placeholders:
                step.sampled.append(request)
                request.num_placeholders += self.is_async
        return step

    def _schedule_running(self, step: Step) -> tuple[int, bool]:
        budget, is_starved, index = self.max_num_batched_tokens, False, 0
        while index < len(self.running) and budget:
            request = self.running[index]
            index += 1
            if self._has_all(request.num_known + request.num_placeholders, request):
                continue
            count = min(request.num_known + request.num_placeholders - request.num_computed, budget)
            while not self._allocate(request, request.num_computed + count, []):
                is_starved = True
                victim = self.running.pop()
                self._preempt(victim, step)
                if victim is request:
                    return budget, is_starved
            step.chunks.append((request, request.num_computed, count))
            budget -= count
        return budget, is_starved

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            hits = self._find_cached(request)
            cached = len(hits) * self.block_size
            count = min(request.num_known - cached, budget)
            if self._missing(request, request.num_known, hits) > len(self.pool.free):
                return
            assert self._allocate(request, cached + count, hits)
            self.running.append(self.waiting.popleft())
            step.chunks.append((request, cached, count))
            step.admitted.append(request.request_id)
            request.num_cached = cached if request.num_cached is None else request.num_cached
            budget -= count

    def update(self, step: Step, now: int) -> None:
        for request in step.sampled:
            request.num_known += 1
            request.num_placeholders -= self.is_async
            is_running = request in self.running
            if self.is_async and is_running:
                self._register(request, request.num_computed - request.num_placeholders)
            if self._has_all(request.num_known, request):
                request.finish = now
                (self.running if is_running else self.waiting).remove(request)
                self._free(request)

    def _has_all(self, num_tokens: int, request: Request) -> bool:
        return num_tokens >= min(request.num_prompt_tokens + request.max_tokens, self.max_model_len)

    def _preempt(self, request: Request, step: Step) -> None:
        if not self._has_all(request.num_known + request.num_placeholders, request):
            request.num_preemptions += 1  # the others have only to wait for their last token
            step.preempted.append(request.request_id)
        self._free(request)
        request.num_computed = 0
        self.waiting.appendleft(request)

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks, request.num_registered = [], 0

    def _find_cached(self, request: Request) -> list[int]:
        hits: list[int] = []
        for i in range((request.num_known - 1) // self.block_size if self.caching else 0):
            found = self.pool.blocks_of.get(tuple(request.tokens[: (i + 1) * self.block_size]))
            if not found:
                break
            hits.append(found[0])
        return hits

    def _missing(self, request: Request, num_tokens: int, hits: list[int]) -> int:
        """Free blocks that are used up when `request` is to hold `num_tokens` tokens, `hits` among them."""
        revived = sum(not self.pool.references[block] for block in hits)
        return -(-num_tokens // self.block_size) - len(request.blocks) - len(hits) + revived

    def _allocate(self, request: Request, num_tokens: int, hits: list[int]) -> bool:
        missing = self._missing(request, num_tokens, hits)
        if missing > len(self.pool.free):
            return False
        for block in hits:
            self.pool.touch(block)
        request.blocks += hits
        request.num_registered += len(hits)
        while len(request.blocks) * self.block_size < num_tokens:
            request.blocks.append(self.pool.take())
        self._register(request, min(num_tokens, request.num_known))
        return True

    def _register(self, request: Request, num_tokens: int) -> None:
        while self.caching and (request.num_registered + 1) * self.block_size <= num_tokens:
            end = (request.num_registered + 1) * self.block_size
            self.pool.register(request.blocks[request.num_registered], tuple(request.tokens[:end]))
            request.num_registered += 1


def run(scheduler: VllmScheduler, requests: list[Request]) -> list[Step]:
    """The engine core's loop over requests in order of arrival; returns the steps that computed something."""
    arrivals, queue, done, now = deque(requests), deque[Step](), [], 0
    unreported: list[int] = []
    while arrivals or queue or scheduler.has_requests:
        while arrivals and arrivals[0].arrival <= now:
            scheduler.add(arrivals.popleft())
        if scheduler.has_requests:
            step = scheduler.schedule()
            step.state = scheduler.state
            for request, *_ in step.chunks:
                request.scheduled = now if request.scheduled is None else request.scheduled
            queue.append(step)
            if step.chunks and scheduler.is_async and len(queue) < 2:
                continue
        elif not queue:
            now = arrivals[0].arrival
            continue
        step = queue.popleft()
        step.start = now
        if step.chunks:
            now += 1
            step.preempted = unreported + step.preempted
            unreported = []
            done.append(step)
        else:
            unreported += step.preempted
        scheduler.update(step, now)
        if queue:
            queue[0].state = scheduler.state
    return done
