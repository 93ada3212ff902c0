"""A radix tree of cached prefixes, as SGLang keeps them: what is evicted is a leaf as a whole, the least recently
accessed first.

    root ── node: a run of blocks ── node
                                  └─ leaf, in use by sequences that hold its lock

Blocks are known by their hashes, each of which stands for the whole prefix up to its end. A node is split where a
match or an insertion ends within it. Every access to a path has a later number than all before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from itertools import count


class Node:
    """A run of cached blocks that follows the run of `parent`.

    Attributes:
        lock: sequences that hold the node, and so all nodes before it.
        accessed: number of the last access.
    """

    __slots__ = ("accessed", "blocks", "children", "hashes", "lock", "number", "parent")

    def __init__(self, parent: Node | None, hashes: list[int], blocks: list[int], accessed: int, number: int) -> None:
        self.parent = parent
        self.hashes = hashes
        self.blocks = blocks
        self.accessed = accessed
        self.number = number
        self.children: dict[int, Node] = {}  # by the hash of their first block
        self.lock = 0


class RadixTree:
    """All cached prefixes.

    Attributes:
        num_evictable: blocks of nodes that nobody holds.
        num_extra_references: blocks of nodes, counted once for each holder beyond the first.
        num_shared: blocks of nodes that have several holders.
    """

    def __init__(self) -> None:
        self._clock = count()
        self._numbers = count()
        self.root = self._node(None, [], [])
        self.root.lock = 1
        self.num_evictable = 0
        self.num_extra_references = 0
        self.num_shared = 0
        self._leaves: list[tuple[int, int, Node]] = []  # a heap; entries may be out of date, none is missing

    def match(self, hashes: list[int], limit: int) -> tuple[Node, list[int]]:
        """The node at the end of the longest cached prefix of the first `limit` of `hashes`, and the blocks up to it.

        This is an access to all nodes on the way.
        """
        node, _, blocks = self._walk(hashes, limit)
        return node, blocks

    def peek(self, hashes: list[int]) -> int:
        """How many leading blocks are cached; no access."""
        node, start = self.root, 0
        while start < len(hashes) and (child := node.children.get(hashes[start])) is not None:
            common = _num_common(child.hashes, hashes, start, len(hashes))
            start += common
            if common < len(child.hashes):
                break
            node = child
        return start

    def insert(self, hashes: list[int], blocks: list[int]) -> int:
        """Cache `blocks`, which nobody holds for the tree yet; returns how many of them were there in other blocks."""
        node, num_present, _ = self._walk(hashes, len(hashes))
        if num_present < len(hashes):
            leaf = self._node(node, hashes[num_present:], blocks[num_present:])
            node.children[hashes[num_present]] = leaf
            self.num_evictable += len(leaf.blocks)
            self._offer(leaf)
        return num_present

    def lock(self, node: Node) -> None:
        """Keep the path to `node`, once more."""
        while node.parent is not None:
            if node.lock:
                self.num_extra_references += len(node.blocks)
                if node.lock == 1:
                    self.num_shared += len(node.blocks)
            else:
                self.num_evictable -= len(node.blocks)
            node.lock += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.lock -= 1
            if node.lock:
                self.num_extra_references -= len(node.blocks)
                if node.lock == 1:
                    self.num_shared -= len(node.blocks)
            else:
                self.num_evictable += len(node.blocks)
                self._offer(node)
            node = node.parent

    def evict(self) -> list[int]:
        """Forget the least recently accessed leaf that nobody holds; returns its blocks."""
        while True:
            accessed, _, leaf = heapq.heappop(self._leaves)
            parent = leaf.parent
            if parent is None or leaf.lock or parent.children.get(leaf.hashes[0]) is not leaf:
                continue
            if accessed != leaf.accessed:  # it has children, or is offered again
                self._offer(leaf)
                continue
            del parent.children[leaf.hashes[0]]
            self.num_evictable -= len(leaf.blocks)
            self._offer(parent)
            return leaf.blocks

    def num_given_up_by(self, nodes: Iterable[Node]) -> tuple[int, int]:
        """Blocks that nobody holds any more when each of `nodes` is unlocked once, and blocks that no longer have
        several holders then."""
        counts: Counter[Node] = Counter()
        for node in nodes:
            while node.parent is not None:
                counts[node] += 1
                node = node.parent
        num_freed = num_unshared = 0
        for node, number in counts.items():
            if number == node.lock:
                num_freed += len(node.blocks)
            if node.lock - number <= 1 < node.lock:
                num_unshared += len(node.blocks)
        return num_freed, num_unshared

    def depth_first(self, ends: list[Node]) -> list[int]:
        """The indices of `ends` in SGLang's order `dfs-weight`: of subtrees the one with the most of them first, and a
        node after those below it."""
        at: dict[Node, list[int]] = {}
        for index, node in enumerate(ends):
            at.setdefault(node, []).append(index)
        nodes = [self.root]
        for node in nodes:
            nodes += node.children.values()
        weights: dict[Node, int] = {}
        for node in reversed(nodes):
            weights[node] = len(at.get(node, ())) + sum(weights[child] for child in node.children.values())
        order: list[int] = []
        stack = [(self.root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                order += at.get(node, ())
                continue
            stack.append((node, True))
            children = sorted(node.children.values(), key=lambda child: -weights[child])
            stack += [(child, False) for child in reversed(children)]
        return order

    def _node(self, parent: Node | None, hashes: list[int], blocks: list[int]) -> Node:
        return Node(parent, hashes, blocks, next(self._clock), next(self._numbers))

    def _walk(self, hashes: list[int], limit: int) -> tuple[Node, int, list[int]]:
        """The end of the longest cached prefix, how many blocks it has, and the blocks."""
        accessed = next(self._clock)
        node, start = self.root, 0
        blocks: list[int] = []
        while start < limit and (child := node.children.get(hashes[start])) is not None:
            child.accessed = accessed
            common = _num_common(child.hashes, hashes, start, limit)
            is_whole = common == len(child.hashes)
            node = child if is_whole else self._split(child, common)
            blocks += node.blocks
            start += common
            if not is_whole:
                break
        return node, start, blocks

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node in two; returns the first one."""
        parent = node.parent
        assert parent is not None
        first = self._node(parent, node.hashes[:length], node.blocks[:length])
        first.lock = node.lock
        parent.children[first.hashes[0]] = first
        node.parent, node.hashes, node.blocks = first, node.hashes[length:], node.blocks[length:]
        first.children[node.hashes[0]] = node
        return first

    def _offer(self, node: Node) -> None:
        """Let a node be evicted when its turn comes, if it is a leaf that nobody holds."""
        if not node.lock and not node.children:
            heapq.heappush(self._leaves, (node.accessed, node.number, node))

    def nodes(self) -> list[Node]:
        """All nodes but the root."""
        nodes = [self.root]
        for node in nodes:
            nodes += node.children.values()
        return nodes[1:]

    def check_integrity(self, ends: Iterable[Node]) -> None:
        """Prove that locks and counts are those of the sequences that hold the paths to `ends`; raises
        AssertionError."""
        locks: Counter[Node] = Counter()
        for node in ends:
            while node.parent is not None:
                locks[node] += 1
                node = node.parent
        nodes = self.nodes()
        assert locks.keys() <= {*nodes}, "a cached prefix was evicted while it was held"
        assert all(node.lock == locks[node] for node in nodes), "locks are miscounted"
        assert all(len(node.hashes) == len(node.blocks) > 0 for node in nodes)
        assert all(child.parent is node for node in [self.root, *nodes] for child in node.children.values())
        assert self.num_evictable == sum(len(node.blocks) for node in nodes if not node.lock)
        extra = sum((node.lock - 1) * len(node.blocks) for node in nodes if node.lock)
        assert self.num_extra_references == extra, "extra references are miscounted"
        assert self.num_shared == sum(len(node.blocks) for node in nodes if node.lock > 1), "shared are miscounted"
        offered = {node for _, _, node in self._leaves}
        assert offered >= {node for node in nodes if not node.lock and not node.children}, "a leaf can never go"


def _num_common(run: list[int], hashes: list[int], start: int, limit: int) -> int:
    """How many leading hashes of `run` are those of `hashes` from `start` to `limit`; each stands for all before it."""
    most = min(len(run), limit - start)
    if run[most - 1] == hashes[start + most - 1]:
        return most
    low, high = 0, most - 1
    while low < high:
        middle = (low + high) // 2
        if run[middle] == hashes[start + middle]:
            low = middle + 1
        else:
            high = middle
    return low
