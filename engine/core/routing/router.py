"""What a router decides: which server gets a request, at the time when it arrives.

A rule has no clock and does no I/O: a simulated fleet and a front end of real servers run the same code. What it sees
of a server is a view; how exact that is, and how old, is the view's affair and not the rule's.
"""

from __future__ import annotations

from collections import abc
from typing import Any, ClassVar, Protocol

from engine.core.planning.policy_options import NoOptions
from engine.core.sequence import Request


class ServerView(Protocol):
    """What a router knows of a server when a request arrives.

    Attributes:
        number: of the server in its fleet; servers that are down are not among those that a rule sees.
        num_requests: requests that it was sent and that have not ended.
        num_tokens: prompt tokens of these.
        num_uncached_tokens: of the prompts of those that have no token yet, what it was not sent before.
        num_waiting, num_running: sequences in its queue and in its batch.
        num_free_blocks, num_blocks: KV blocks that nobody holds, and those of its pool.
    """

    @property
    def number(self) -> int: ...

    @property
    def num_requests(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_uncached_tokens(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    def prefix_hits(self, request: Request) -> int:
        """Prompt tokens of the request that its prefix cache holds, as far as is known from what it was sent."""

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        """The same as its server tells with every block that it caches or evicts: on the device, where what was just
        sent counts as there, and after these in the memories behind it."""


class Router(Protocol):
    """A rule.

    Attributes:
        options_type: a frozen dataclass with the settings of its own, explained under `Attributes:`.
        reads_servers: what it chooses depends on what the servers do, and not on their number alone.
        reads_prefixes: it asks for `prefix_hits`, so that somebody must keep account of what servers have cached.
        reads_caches: it asks for `cached_tokens`.
        reads_prompts: it asks for `num_uncached_tokens`, and for `prefix_hits`.
        least_block: tokens of the blocks in which what was sent to a server is counted, where those of the server are
            smaller.
        sent_counts_ms: for so long what a server was sent counts as cached there, if `reads_caches`.
    """

    options_type: ClassVar[type[Any]]

    @property
    def reads_servers(self) -> bool: ...

    @property
    def reads_prefixes(self) -> bool: ...

    @property
    def reads_caches(self) -> bool: ...

    @property
    def reads_prompts(self) -> bool: ...

    @property
    def least_block(self) -> int: ...

    @property
    def sent_counts_ms(self) -> float: ...

    def __init__(self, options: Any) -> None: ...

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        """The number of the server that gets the request, from 0 to len(servers) - 1."""


class BaseRouter:
    """A rule that keeps its `options`; by default it has none, and does not ask for prefixes."""

    options_type: ClassVar[type[Any]] = NoOptions
    reads_servers: bool = True
    reads_prefixes: bool = False
    reads_caches: bool = False
    reads_prompts: bool = False
    least_block: int = 1
    sent_counts_ms: float = 0.0

    def __init__(self, options: Any) -> None:
        self.options = options
