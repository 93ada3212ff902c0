"""Random workloads that bring schedulers into trouble: small pools, few seats, shared prefixes, stops and aborts."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

STOP_TOKEN = 0  # prompts never contain it
VOCABULARY = 50  # small, so that blocks of few tokens are equal by chance now and then


@dataclass(frozen=True)
class Options:
    """The options of a scheduler, by the names that vLLM gives them; `num_blocks` are those that can be handed out.

    Attributes:
        num_host_blocks: chunks of `chunk_blocks` blocks that the host holds of the prefix cache; 0 without offloading.
        most_transfer_steps: a transfer between device and host ends after up to so many steps.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    async_scheduling: bool = False
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    num_speculative_tokens: int = 0
    num_host_blocks: int = 0
    chunk_blocks: int = 1
    most_transfer_steps: int = 0


@dataclass(frozen=True)
class Request:
    """What a client asks for, and what the model answers.

    Attributes:
        request_id: counts from 0 in order of arrival.
        arrival: number of the step before whose planning it is added.
        prompt: tokens.
        outputs: as many tokens as it asks for; it ends early at a `STOP_TOKEN`.
        priority: smaller is more urgent.
        abort: number of the step before whose planning it is aborted, if it is still there.
    """

    request_id: int
    arrival: int
    prompt: list[int]
    outputs: list[int]
    priority: int = 0
    abort: int | None = None


@dataclass(frozen=True)
class Case:
    options: Options
    requests: list[Request]

    def num_gained(self, request: Request, length: int, num_drafts: int) -> int:
        """Tokens that a request which knows `length` gains with a step that verifies so many drafts, beyond its end
        too: a matter of the request and of how far it is."""
        if not num_drafts:
            return 1
        wanted = Random(f"{request.request_id} {length}").randint(0, self.options.num_speculative_tokens)
        return 1 + min(num_drafts, wanted)

    def events(self) -> dict[int, tuple[list[Request], list[int]]]:
        """For each step before which something happens, the requests that arrive and the ids that are aborted."""
        events: dict[int, tuple[list[Request], list[int]]] = {}
        for request in self.requests:
            events.setdefault(request.arrival, ([], []))[0].append(request)
            if request.abort is not None:
                events.setdefault(request.abort, ([], []))[1].append(request.request_id)
        return dict(sorted(events.items()))


@dataclass(frozen=True)
class Group:
    """A kind of cases: options that are fixed, and what happens besides."""

    options: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    aborts: bool = False
    priorities: bool = False
    threshold: bool = False
    drafts: bool = False
    offloads: bool = False


_ASYNC = {"async_scheduling": True}
_PRIORITY = {"scheduling_policy": "priority"}
_WHOLE = {"enable_chunked_prefill": False}
_FIRST_CHUNK = {"scheduler_reserve_full_isl": False}

GROUPS = {
    "sync": Group(),
    "sync, no prefix cache": Group({"enable_prefix_caching": False}),
    "sync, stops and aborts": Group(stops=True, aborts=True),
    "sync, priorities ignored": Group(priorities=True, stops=True),
    "async": Group(_ASYNC),
    "async, no prefix cache": Group(_ASYNC | {"enable_prefix_caching": False}),
    "async, aborts": Group(_ASYNC, aborts=True),
    "async, stops": Group(_ASYNC, stops=True),
    "async, stops and aborts": Group(_ASYNC, stops=True, aborts=True),
    "priority, sync": Group(_PRIORITY, priorities=True, stops=True, aborts=True),
    "priority, async": Group(_PRIORITY | _ASYNC, priorities=True),
    "priority, async, stops and aborts": Group(_PRIORITY | _ASYNC, priorities=True, stops=True, aborts=True),
    "threshold, sync": Group(threshold=True, stops=True, aborts=True),
    "threshold, async": Group(_ASYNC, threshold=True, stops=True, aborts=True),
    "no chunks, sync": Group(_WHOLE, stops=True, aborts=True),
    "no chunks, async": Group(_WHOLE | _ASYNC, stops=True, aborts=True),
    "first chunk, sync": Group(_FIRST_CHUNK, stops=True, aborts=True),
    "first chunk, async": Group(_FIRST_CHUNK | _ASYNC, stops=True, aborts=True),
    "threshold, no chunks": Group(_WHOLE, threshold=True, stops=True, aborts=True),
    "threshold, first chunk": Group(_FIRST_CHUNK, threshold=True, stops=True, aborts=True),
    "all new options, sync": Group(_PRIORITY | _FIRST_CHUNK, True, True, True, True),
    "all new options, async": Group(_PRIORITY | _FIRST_CHUNK | _ASYNC, True, True, True, True),
    "offloading": Group(offloads=True),
    "offloading, stops and aborts": Group(offloads=True, stops=True, aborts=True),
    "offloading, first chunk": Group(_FIRST_CHUNK, offloads=True, stops=True, aborts=True),
    "offloading, no chunks": Group(_WHOLE, offloads=True, stops=True),
    "offloading, async": Group(_ASYNC, offloads=True),
    "offloading, async, stops and aborts": Group(_ASYNC, offloads=True, stops=True, aborts=True),
    "offloading, threshold": Group(offloads=True, threshold=True, stops=True),
    "offloading, priority": Group(_PRIORITY, offloads=True, stops=True, aborts=True, priorities=True),
    "offloading, priority, async": Group(_PRIORITY | _ASYNC, offloads=True, stops=True, aborts=True, priorities=True),
    "offloading, all new options, async": Group(
        _PRIORITY | _FIRST_CHUNK | _ASYNC, True, True, True, True, offloads=True
    ),
    "offloading, drafts": Group(offloads=True, drafts=True, stops=True, aborts=True),
    "offloading, async drafts": Group(_ASYNC, offloads=True, drafts=True, stops=True, aborts=True),
    "offloading, async drafts, all new options": Group(
        _PRIORITY | _FIRST_CHUNK | _ASYNC, True, True, True, True, drafts=True, offloads=True
    ),
    "drafts": Group(drafts=True),
    "drafts, no prefix cache": Group({"enable_prefix_caching": False}, drafts=True, stops=True, aborts=True),
    "drafts, stops and aborts": Group(drafts=True, stops=True, aborts=True),
    "drafts, no chunks": Group(_WHOLE, drafts=True, stops=True, aborts=True),
    "drafts, first chunk": Group(_FIRST_CHUNK, drafts=True, stops=True, aborts=True),
    "drafts, threshold": Group(drafts=True, threshold=True, stops=True, aborts=True),
    "drafts, priority": Group(_PRIORITY, drafts=True, stops=True, aborts=True, priorities=True),
    "async drafts": Group(_ASYNC, drafts=True),
    "async drafts, no prefix cache": Group(_ASYNC | {"enable_prefix_caching": False}, drafts=True, stops=True),
    "async drafts, stops and aborts": Group(_ASYNC, drafts=True, stops=True, aborts=True),
    "async drafts, first chunk": Group(_ASYNC | _FIRST_CHUNK, drafts=True, stops=True, aborts=True),
    "async drafts, priority": Group(_ASYNC | _PRIORITY, drafts=True, stops=True, aborts=True, priorities=True),
    "async drafts, no chunks": Group(_ASYNC | _WHOLE, drafts=True, stops=True, aborts=True),
    "async drafts, threshold": Group(_ASYNC, drafts=True, threshold=True, stops=True, aborts=True),
    "async drafts, all new options": Group(_PRIORITY | _FIRST_CHUNK | _ASYNC, True, True, True, True, drafts=True),
}


def make_case(name: str, seed: int) -> Case:
    """The case number `seed` of a group; half of them are starved: many short prompts grow in a small pool."""
    group, random = GROUPS[name], Random(f"{name} {seed}")
    is_starved = random.random() < 0.5
    block_size = random.choice([2, 2, 4, 4, 8, 16] if group.offloads else [1, 2, 4, 4, 8, 16])
    max_model_len = random.randint(8, random.choice([40, 120]))
    blocks_of_longest = -(-max_model_len // block_size)
    num_blocks = blocks_of_longest + random.randint(0, random.choice([1, 1 if is_starved else 8]) * blocks_of_longest)
    max_num_seqs = random.randint(4, 16) if is_starved else random.randint(1, 8)
    num_drafts = random.choice([1, 2, 3, 3, 5]) if group.drafts else 0
    budget = max_num_seqs * (1 + num_drafts) + random.randint(0, random.choice([4, 16, 64]))
    if not group.options.get("enable_chunked_prefill", True):
        budget = max(max_num_seqs * (1 + num_drafts), max_model_len + random.randint(0, 8))
    threshold = random.randint(1, max(2, budget // random.choice([2, 8])))
    if group.drafts and group.threshold:  # vLLM cuts drafts to what the prompts before them leave of a step
        budget = max(budget, max_num_seqs * (threshold + num_drafts))
    options = Options(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        long_prefill_token_threshold=threshold + num_drafts if group.threshold else 0,  # a decode is not cut
        num_speculative_tokens=num_drafts,
        **(_offloading(random, num_blocks) if group.offloads else {}),
        **group.options,
    )
    return Case(options, make_requests(group, random, max_model_len, is_starved))


def _offloading(random: Random, num_blocks: int) -> dict[str, Any]:
    """A host that holds less than the device, or more."""
    chunk_blocks = random.choice([1, 1, 1, 2, 3])
    num_chunks = max(1, num_blocks * random.choice([1, 2, 4, 12]) // (2 * chunk_blocks))
    most = random.choice([0, 1, 3, 10])
    return {"num_host_blocks": num_chunks, "chunk_blocks": chunk_blocks, "most_transfer_steps": most}


def make_requests(group: Group, random: Random, max_model_len: int, is_starved: bool) -> list[Request]:
    """Requests that share prefixes and go on after each other, some of them longer than `max_model_len`."""
    prefixes = [_tokens(random, random.randint(1, max_model_len)) for _ in range(random.randint(1, 4))]
    longest_prompt = max_model_len // random.choice([4, 8]) if is_starved else max_model_len - 1
    longest_output = random.choice([max_model_len // 2, max_model_len] if is_starved else [3, 12, max_model_len])
    most_steps_between = random.choice([0, 0, 1, 3, 8])
    requests: list[Request] = []
    arrival = 0
    for request_id in range(random.randint(4, 30)):
        arrival += random.randint(0, most_steps_between)
        prompt = _prompt(random, prefixes, requests, random.choice([longest_prompt, max(1, longest_prompt // 3)]))
        outputs = _tokens(random, random.randint(1, longest_output))
        if group.stops and random.random() < 0.5:
            outputs[random.randrange(len(outputs))] = STOP_TOKEN
        abort = arrival + random.randint(1, 30) if group.aborts and random.random() < 0.25 else None
        priority = random.randint(-2, 2) if group.priorities else 0
        requests.append(Request(request_id, arrival, prompt, outputs, priority, abort))
    return requests


def _prompt(random: Random, prefixes: list[list[int]], earlier: list[Request], longest: int) -> list[int]:
    """A new prompt, one with a shared prefix, or one that goes on after an earlier answer."""
    kind = random.random()
    if kind < 0.3:
        start: list[int] = []
    elif kind < 0.8 or not earlier:
        prefix = random.choice(prefixes)
        start = prefix[: random.randint(1, len(prefix))]
    else:
        before = random.choice(earlier)
        start = [token for token in before.prompt + before.outputs if token != STOP_TOKEN]
    return (start + _tokens(random, random.randint(0 if start else 1, longest)))[:longest]


def _tokens(random: Random, count: int) -> list[int]:
    return [random.randint(1, VOCABULARY) for _ in range(count)]
