"""What a router sees of servers, and how it chooses among those of the same role."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.core.routing.router import Router
from engine.core.routing.views.loads import Counted, UncachedPrompts
from engine.core.routing.views.prefix_estimate import PrefixEstimate
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request


class Refusals(Protocol):
    """Is told of requests that can never run."""

    def on_refused(self, request: Request, reason: str) -> None: ...


class Server(Protocol):
    """What a desk needs of a server: a replica, or a real engine in this process."""

    scheduler: Scheduler
    compress: bool
    on_first_token: Callable[[Request], None] | None
    on_statistics: Callable[[], None] | None

    @property
    def observer(self) -> Refusals: ...

    @property
    def num_waiting(self) -> int: ...

    def num_free_blocks(self, now: int) -> int: ...

    def submit(self, request: Request, now: int) -> None: ...


class Metrics(NamedTuple):
    """What a server tells of itself when its metrics are read."""

    num_waiting: int
    num_running: int
    num_free_blocks: int


class View(Counted):
    """A server as the router sees it.

    The gateway's own accounts are exact: requests and tokens under way, and the prompts that it has sent. What the
    server tells is as it was when its metrics were last read, or as it is where nobody reads them; after `watch_steps`
    what is read is what the server last sent with the outputs of a step.
    """

    def __init__(
        self,
        number: int,
        replica: Server,
        clock: Callable[[], int],
        *,
        keeps_prefixes: bool,
        reads_caches: bool,
        least_block: int = 1,
        sent_counts_ns: int = 0,
    ) -> None:
        super().__init__()
        self.number = number
        self.num_tokens = 0
        self._uncached: UncachedPrompts | None = None  # for rules that ask
        self._replica = replica
        self._clock = clock
        self._metrics: Metrics | None = None
        self._sent: Metrics | None = None  # with the outputs of the last step
        blocks = replica.scheduler.blocks
        self.num_blocks = blocks.num_blocks
        self._block_size = blocks.block_size
        self._num_known = blocks.num_blocks * max(1, least_block // blocks.block_size)
        self._estimate = PrefixEstimate(self._num_known) if keeps_prefixes else None
        self._sent_counts_ns = sent_counts_ns
        self._expected: set[int] | None = set() if reads_caches else None  # blocks of prompts that were just sent
        self._expiries: deque[tuple[int, Sequence[int]]] = deque()  # of these, the first one first

    def reset(self) -> None:
        """The server has died, with all that it had cached."""
        self.num_requests = self.num_tokens = 0
        if self._uncached is not None:
            self.watch_prompts()
        if self._sent is not None:
            self.watch_steps()
        if self._estimate is not None:
            self._estimate = PrefixEstimate(self._num_known)
        if self._expected is not None:
            self._expected.clear()
            self._expiries.clear()

    def watch_prompts(self) -> None:
        """Keep account of `num_uncached_tokens` from now on."""
        self._uncached = UncachedPrompts()
        self._replica.on_first_token = self._uncached.settle

    def watch_steps(self) -> None:
        """Read from now on what the server sent with the outputs of its last step, as vLLM does.

        With planning ahead the step to come is planned by then, and what arrived while the last one ran is not seen yet
        (`step_with_batch_queue` of its engine core). Where there was nothing to plan, vLLM runs a step of nothing, with
        whose outputs it sends how things are when the step after has been planned.
        """
        self._sent = Metrics(0, 0, self.num_blocks)
        self._replica.compress = False  # within a run of steps nobody knows what is sent
        self._replica.on_statistics = self._note_statistics

    def _note_statistics(self) -> None:
        scheduler = self._replica.scheduler
        self._sent = Metrics(scheduler.num_waiting, scheduler.num_running, scheduler.blocks.num_free_blocks)

    def read(self) -> None:
        """Read the server's metrics, which hold until they are read again."""
        self._metrics = None
        self._metrics = self._sent or Metrics(self.num_waiting, self.num_running, self.num_free_blocks)

    @property
    def num_uncached_tokens(self) -> int:
        return self._uncached.num_tokens if self._uncached is not None else 0

    @property
    def num_waiting(self) -> int:
        return self._metrics.num_waiting if self._metrics else self._replica.num_waiting

    @property
    def num_running(self) -> int:
        return self._metrics.num_running if self._metrics else self._replica.scheduler.num_running

    @property
    def num_free_blocks(self) -> int:
        return self._metrics.num_free_blocks if self._metrics else self._replica.num_free_blocks(self._clock())

    def prefix_hits(self, request: Request) -> int:
        assert self._estimate is not None, "the rule says that it reads prefixes"
        hashes = request.sequences[0].block_hashes
        return self._estimate.num_hits(hashes, self._num_full(request)) * self._block_size if hashes else 0

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        expected = self._expected_now()
        hashes = list(self._prompt_hashes(request))
        on_device, behind = self._replica.scheduler.blocks.cached_prefix(hashes)
        num_expected = next((n for n, block in enumerate(hashes) if block not in expected), len(hashes))
        if num_expected > on_device:
            on_device, behind = num_expected, max(0, on_device + behind - num_expected)
        return on_device * self._block_size, behind * self._block_size

    def check(self, request: Request) -> None:
        """Raises RequestRefusedError: it can never run there."""
        self._replica.scheduler.check(request)

    def count(self, request: Request) -> None:
        """The request will be sent there, or has been."""
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens
        if self._uncached is not None:
            self._uncached.count(request, self.prefix_hits(request))
        if self._estimate is not None:
            self._estimate.add(request.sequences[0].block_hashes or [], self._num_full(request))
        if self._expected is not None and self._sent_counts_ns:
            hashes = self._prompt_hashes(request)
            self._expected_now().update(hashes)
            self._expiries.append((self._clock() + self._sent_counts_ns, hashes))

    def submit(self, request: Request, now_ns: int) -> None:
        """Hand a counted request over."""
        self._replica.submit(request, now_ns)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens
        if self._uncached is not None:
            self._uncached.settle(request)

    def _expected_now(self) -> set[int]:
        """What counts as there because it was sent. As in llm-d's index (`buildSpeculativeCache`), the first prompt
        whose time is over takes along what it shares with later ones."""
        assert self._expected is not None, "the rule says that it reads caches"
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            self._expected.difference_update(self._expiries.popleft()[1])
        return self._expected

    def _prompt_hashes(self, request: Request) -> Sequence[int]:
        """Identities of the full blocks of the prompt that the trace knows."""
        return (request.sequences[0].block_hashes or [])[: self._num_full(request)]

    def _num_full(self, request: Request) -> int:
        """Full blocks of the prompt."""
        return request.num_prompt_tokens // self._block_size


class Desk:
    """Chooses among servers of the same role.

    Args:
        rule: of the choice; None for one server.

    Attributes:
        views: the servers, as the rule sees them.
        open: the numbers of those that take requests.
    """

    def __init__(
        self,
        replicas: Sequence[Server],
        rule: Router | None,
        clock: Callable[[], int],
        *,
        keeps_prefixes: bool = False,
    ) -> None:
        assert rule is not None or len(replicas) == 1, "several servers need a rule"
        self.replicas = replicas
        self._rule = rule
        keeps = keeps_prefixes or (rule is not None and rule.reads_prefixes)
        reads_caches = rule is not None and rule.reads_caches
        self.views = [
            View(
                number, each, clock, keeps_prefixes=keeps, reads_caches=reads_caches,
                least_block=1 if rule is None else rule.least_block,
                sent_counts_ns=0 if rule is None else round(1e6 * rule.sent_counts_ms),
            )
            for number, each in enumerate(replicas)
        ]  # fmt: skip
        if rule is not None and rule.reads_prompts:
            for view in self.views:
                view.watch_prompts()
        self.open = [*range(len(replicas))]
        if reads_caches:
            for replica in replicas:
                replica.compress = False  # within a run of steps nobody knows what is cached

    def choose(self, request: Request) -> int:
        if self._rule is None:
            return self.open[0]
        if len(self.open) == len(self.views):
            return self._rule.choose(request, self.views)
        return self.open[self._rule.choose(request, [self.views[number] for number in self.open])]
