"""The radix tree of cached pages, which maps prefixes of token sequences to pages with their K and V.

A node is labelled with the token bytes of one or more whole pages. Children are found by the bytes of their first page,
which at the root follow the request's salt, so each salt is a namespace that disappears with its last page.
"""

import heapq
import time
from collections.abc import Iterator
from itertools import islice

MAX_EVICTED = 4096
"""The number of evicted pages that are remembered, to explain cache misses."""

MAX_BRANCHES = 32
"""The number of children that are compared if only part of a page is known, the latest first."""


class Node:
    """A run of whole pages. `pins` counts the requests that use it or a node below; `used` is the time of last use.

    Request `uid` computed it. `start` is the number of pages before it. Its `number` is unique.
    """

    __slots__ = ("children", "edge", "key", "number", "pages", "parent", "pins", "start", "uid", "used")

    def __init__(self, parent: "Node | None", edge: bytes, key: bytes, pages: list[int], number: int = 0):
        self.parent = parent
        self.number = number
        self.uid = 0
        self.start = 0 if parent is None else parent.start + len(parent.pages)
        self.edge = edge
        self.key = key
        self.pages = pages
        self.children: dict[bytes, Node] = {}
        self.pins = 0
        self.used = 0

    def __lt__(self, other: "Node") -> bool:
        """Breaks ties between leaves used at the same time, arbitrarily."""
        return id(self) < id(other)


class RadixTree:
    """Owns the pages of its nodes. Nodes without a pin can be evicted, the least recently used leaf first.

    `num_pages` counts all its pages, `num_evictable` those without a pin. `stamps`, by page, receives the `clock` of a
    node's last use at its last page.
    """

    def __init__(self, page_size: int, stamps: "memoryview[int] | None" = None):
        self.page_bytes = 4 * page_size
        self.root = Node(None, b"", b"", [])
        self.num_pages = 0
        self.num_evictable = 0
        self.num_nodes = 0
        self.clock = 0
        self._stamps = stamps
        self._num_made = 0
        """The number of nodes made so far, from which each gets its number."""
        self._evicted: dict[tuple[int, int, bytes], tuple[int, int]] = {}
        """Evicted pages, by the number of the node before them, their place and edge: uid and time of the eviction."""
        self._leaves: list[tuple[int, Node]] = []
        """A heap of (used, leaf) with every unpinned leaf; entries whose leaf has changed since are skipped."""

    def has_child(self, node: Node, salt: bytes, page: bytes) -> bool:
        """True if `node` has a child that begins with this page of token bytes."""
        return self._edge(node, salt, page) in node.children

    def find(self, node: Node, salt: bytes, key: bytes) -> tuple[Node, list[int]]:
        """Returns the node where the longest cached prefix of `key` below `node` ends, and the pages of that prefix.

        Splits that node if it continues differently. `key` is token bytes of whole pages.
        """
        pages: list[int] = []
        for child, num_same in self.match(node, salt, key):
            node = child if num_same == len(child.pages) else self._split(child, num_same)
            pages += node.pages
        return node, pages

    def match(self, node: Node, salt: bytes, key: bytes) -> list[tuple[Node, int]]:
        """Returns the nodes below `node` with the longest cached prefix of `key`, and how many pages each has of it.

        Changes nothing.
        """
        position, path = 0, list[tuple[Node, int]]()
        while position < len(key):
            child = node.children.get(self._edge(node, salt, key[position : position + self.page_bytes]))
            if child is None:
                break
            num_same = self._num_same_pages(child.key, key, position)
            path.append((child, num_same))
            if num_same < len(child.pages):
                break
            node = child
            position += num_same * self.page_bytes
        return path

    def find_continuation(self, node: Node, salt: bytes, tail: bytes, num_bytes: int) -> bytes:
        """Returns at most `num_bytes` token bytes that follow `tail` below `node`; may be empty.

        `tail` need not be whole pages. At a branch the child that was added last is followed.
        """
        position, found = 0, b""
        while len(found) < num_bytes:
            child = self._find_branch(node, salt, tail[position:])
            rest = tail[position : position + len(child.key)] if child is not None else b""
            if child is None or not child.key.startswith(rest):
                break
            position += len(rest)
            found += child.key[len(rest) :]
            node = child
        return found[:num_bytes]

    def find_evicted(self, node: Node, place: int, edge: bytes) -> tuple[int, int] | None:
        """Returns which request computed the evicted page at `place` after `node`, and when it was evicted."""
        return self._evicted.get((node.number, place, edge))

    def insert(self, node: Node, salt: bytes, key: bytes, pages: list[int], uid: int = 0) -> tuple[Node, list[int]]:
        """Caches `key`, which request `uid` computed, below `node`; returns the node where it ends and its pages.

        Returned pages that differ from `pages` were already cached; the caller keeps its own page in their place.
        """
        assert len(key) == len(pages) * self.page_bytes
        node, found = self.find(node, salt, key)
        rest = key[len(found) * self.page_bytes :]
        if rest:
            own = pages[len(found) :]
            edge = self._edge(node, salt, rest[: self.page_bytes])
            leaf = Node(node, edge, rest, own, self._next_number())
            leaf.uid = uid
            node.children[edge] = leaf
            self.num_nodes += 1
            self.num_pages += len(own)
            self.num_evictable += len(own)
            node, found = leaf, found + own
        self.touch(node)
        return node, found

    def pin(self, node: Node) -> None:
        """Prevents the eviction of the pages from the root to `node`, until `unpin`."""
        step: Node | None = node
        while step is not None:
            if not step.pins:
                self.num_evictable -= len(step.pages)
            step.pins += 1
            step = step.parent

    def unpin(self, node: Node) -> None:
        """Removes one pin from the pages from the root to `node`; they count as used now."""
        step: Node | None = node
        while step is not None:
            assert step.pins > 0, "a node was unpinned twice"
            step.pins -= 1
            if not step.pins:
                self.num_evictable += len(step.pages)
            step = step.parent
        self.touch(node)

    def touch(self, node: Node) -> None:
        """Records that the pages from the root to `node` are used now."""
        self.clock += 1
        step: Node | None = node
        while step is not None:
            step.used = self.clock
            step = step.parent
        self._stamp(node)
        self._list_leaf(node)

    def evict(self, num_pages: int) -> list[int]:
        """Removes up to `num_pages` unpinned pages, the ends of the least recently used leaves, and returns them."""
        evicted: list[int] = []
        while len(evicted) < num_pages and self._leaves:
            used, leaf = self._leaves[0]
            if leaf.used != used or not self._is_evictable_leaf(leaf):
                heapq.heappop(self._leaves)
                continue
            count = min(num_pages - len(evicted), len(leaf.pages))
            self._remember(leaf, len(leaf.pages) - count)
            evicted += leaf.pages[-count:]
            del leaf.pages[-count:]
            leaf.key = leaf.key[: len(leaf.pages) * self.page_bytes]
            self.num_pages -= count
            self.num_evictable -= count
            self._stamp(leaf)
            if not leaf.pages:
                heapq.heappop(self._leaves)
                self._unlink(leaf)
        return evicted

    def forget(self, node: Node) -> list[int]:
        """Removes `node` and the nodes above it that nothing else uses; returns their pages."""
        forgotten: list[int] = []
        while self._is_evictable_leaf(node):
            parent = node.parent
            assert parent is not None
            forgotten += node.pages
            self.num_pages -= len(node.pages)
            self.num_evictable -= len(node.pages)
            node.pages = []
            self._unlink(node)
            node = parent
        return forgotten

    def nodes(self) -> Iterator[Node]:
        """Yields every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Asserts that the tree is well formed and its counts are right."""
        nodes = list(self.nodes())
        listed = {id(leaf) for used, leaf in self._leaves if leaf.used == used}
        for node in nodes:
            assert node.parent is not None, "a node lost its parent"
            assert node.parent.children[node.edge] is node, "a node is not where its parent looks for it"
            assert node.edge.endswith(node.key[: self.page_bytes]), "a node is filed under another page"
            assert node.pages, "an empty node was kept"
            assert node.start == node.parent.start + len(node.parent.pages), "a node begins at another page"
            assert len(node.key) == len(node.pages) * self.page_bytes, "a node's label does not match its pages"
            assert node.parent.pins >= node.pins, "a pinned node hangs below an unpinned one"
            assert node.parent.used >= node.used, "a node was used after its parent"
            assert id(node) in listed or not self._is_evictable_leaf(node), "a leaf cannot be found for eviction"
        assert self.num_nodes == len(nodes), "nodes were miscounted"
        assert self.num_pages == sum(len(node.pages) for node in nodes), "pages were miscounted"
        assert self.num_evictable == sum(len(node.pages) for node in nodes if not node.pins), "pins were miscounted"

    def _edge(self, node: Node, salt: bytes, page: bytes) -> bytes:
        return page if node is not self.root else salt + page

    def _find_branch(self, node: Node, salt: bytes, tail: bytes) -> Node | None:
        """Returns a child whose first page begins with `tail`, or with its first page."""
        prefix = self._edge(node, salt, tail[: self.page_bytes])
        if len(tail) >= self.page_bytes:
            return node.children.get(prefix)
        num_bytes = len(self._edge(node, salt, b"")) + self.page_bytes  # edges of another salt have another length
        latest = islice(reversed(node.children.values()), MAX_BRANCHES)
        return next((child for child in latest if len(child.edge) == num_bytes and child.edge.startswith(prefix)), None)

    def _num_same_pages(self, label: bytes, key: bytes, position: int) -> int:
        """Returns how many whole pages of `label` equal those of `key` from `position` on (bisection over memcmp)."""
        size = self.page_bytes
        low, high = 1, min(len(label), len(key) - position) // size
        if label[: high * size] == key[position : position + high * size]:
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if label[: middle * size] == key[position : position + middle * size]:
                low = middle
            else:
                high = middle - 1
        return low

    def _next_number(self) -> int:
        self._num_made += 1
        return self._num_made

    def _remember(self, leaf: Node, num_left: int) -> None:
        """Remembers the eviction of all but the first `num_left` pages of `leaf`."""
        assert leaf.parent is not None
        size = self.page_bytes
        behind = leaf if num_left else leaf.parent
        edge = leaf.key[num_left * size : (num_left + 1) * size] if num_left else leaf.edge
        while len(self._evicted) >= MAX_EVICTED:
            del self._evicted[next(iter(self._evicted))]
        self._evicted[behind.number, leaf.start + num_left, edge] = leaf.uid, time.monotonic_ns()

    def _split(self, node: Node, num_pages: int) -> Node:
        """Puts the first `num_pages` of `node` into a new node above it and returns that.

        `node` itself stays the lower one, since its pins are at its end.
        """
        parent = node.parent
        assert parent is not None
        cut = num_pages * self.page_bytes
        upper = Node(parent, node.edge, node.key[:cut], node.pages[:num_pages], self._next_number())
        upper.pins, upper.used, upper.uid = node.pins, node.used, node.uid
        node.start += num_pages
        parent.children[node.edge] = upper
        node.parent, node.key, node.pages = upper, node.key[cut:], node.pages[num_pages:]
        node.edge = node.key[: self.page_bytes]
        upper.children[node.edge] = node
        self.num_nodes += 1
        return upper

    def _stamp(self, node: Node) -> None:
        if self._stamps is not None and node.pages:
            self._stamps[node.pages[-1]] = node.used

    def _list_leaf(self, node: Node) -> None:
        if self._is_evictable_leaf(node):
            heapq.heappush(self._leaves, (node.used, node))
        if len(self._leaves) > 2 * self.num_nodes + 64:
            self._leaves = [(leaf.used, leaf) for leaf in self.nodes() if self._is_evictable_leaf(leaf)]
            heapq.heapify(self._leaves)

    def _is_evictable_leaf(self, node: Node) -> bool:
        return not node.pins and not node.children and bool(node.pages)

    def _unlink(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.edge]
        leaf.parent = None
        self.num_nodes -= 1
        self._list_leaf(parent)
