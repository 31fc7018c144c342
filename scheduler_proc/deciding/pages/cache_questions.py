"""Explains the cache hit of a prompt and lists the largest nodes of the radix tree. Changes nothing."""

import heapq
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from messages.columns import unpack_int32
from messages.ring.cache import CacheExplained, CacheListed, CacheNode, CacheSource, ExplainCache, ListCache
from scheduler_proc.deciding.pages.attached_pool import AttachedPool
from scheduler_proc.deciding.pages.radix import Node, RadixTree
from scheduler_proc.deciding.requests import salt_of

MAX_CANDIDATES = 4096
"""The number of continuations at one place of the tree that are compared with a prompt."""

DISABLED = "disabled"


def explain(
    tree: RadixTree, question: ExplainCache, attached: Sequence[AttachedPool] = (), *, is_sharing: bool
) -> CacheExplained:
    """Returns the cache hit that a prompt would get now: its length, which requests computed it, and what ends it.

    At least one token is left to compute, so that a next one can be sampled, and only whole pages are cached.
    """
    page_bytes, salt = tree.page_bytes, salt_of(question.cache_salt)
    num_pages = (len(question.input_ids) - 4) // page_bytes
    if not is_sharing:
        return CacheExplained(question.uid, 0, (), DISABLED, 0)
    key = question.input_ids[: max(0, num_pages) * page_bytes]
    path = tree.match(tree.root, salt, key)
    pages = [page for node, num_same in path for page in node.pages[:num_same]]
    num_usable = find_end(attached, pages, 0)
    if num_usable < len(pages):
        part = attached[-1]
        sources = _sources(_cut(path, num_usable), page_bytes // 4)
        position = part.explain_end(num_usable, len(pages)) * page_bytes // 4
        return CacheExplained(question.uid, num_usable * page_bytes // 4, sources, part.ended_by, position)
    num_hit_bytes = sum(num_same for _, num_same in path) * page_bytes
    num_hit = num_hit_bytes // 4
    sources = _sources(path, page_bytes // 4)
    if num_hit_bytes == len(key):
        return CacheExplained(question.uid, num_hit, sources, "page_not_full", num_hit)
    end = _Place(tree, path, salt, key[num_hit_bytes : num_hit_bytes + page_bytes])
    ghost = end.find_evicted()
    if ghost is not None:
        uid, evicted_ns = ghost
        evicted_s = round((time.monotonic_ns() - evicted_ns) / 1e9, 3)
        return CacheExplained(question.uid, num_hit, sources, "evicted", num_hit, other_uid=uid, evicted_s=evicted_s)
    num_same, node, cached = end.find_closest()
    if node is not None and (num_hit or num_same):
        token = cached[num_same]
        return CacheExplained(question.uid, num_hit, sources, "different_token", num_hit + num_same, token, node.uid)
    stranger = None if num_hit else end.find_with_other_salt()
    if stranger is not None:
        return CacheExplained(question.uid, 0, (), "salt", 0, other_uid=stranger.uid)
    return CacheExplained(question.uid, num_hit, sources, "not_cached", num_hit)


def find_end(attached: Sequence[AttachedPool], pages: Sequence[int], least: int) -> int:
    """Returns after how many of the cached `pages` a request finds all that it needs besides them; at least `least`."""
    end = len(pages)
    while shorter := [found for part in attached if (found := part.find_end(pages[:end], least)) < end]:
        end = min(shorter)
    return end


def list_nodes(tree: RadixTree, question: ListCache) -> CacheListed:
    """Returns the largest nodes of the tree (walks all of them: milliseconds for a large cache)."""
    page_tokens = tree.page_bytes // 4
    largest = heapq.nlargest(question.limit, tree.nodes(), key=lambda node: (len(node.pages), -node.number))
    return CacheListed(
        question.uid,
        tuple([_view(node, tree.page_bytes) for node in largest]),
        tree.num_nodes,
        tree.num_pages * page_tokens,
        tree.num_evictable * page_tokens,
    )


class _Place:
    """The place where a match ends, and the token bytes of the prompt's next `page`."""

    def __init__(self, tree: RadixTree, path: list[tuple[Node, int]], salt: bytes, page: bytes):
        self._tree = tree
        self._node, self._num_same = path[-1] if path else (tree.root, 0)
        self._salt = salt if self._node is tree.root else b""
        self._page = page

    def find_evicted(self) -> tuple[int, int] | None:
        """Returns which request computed the page and when it was evicted; `None` if no eviction is remembered."""
        return self._tree.find_evicted(self._node, self._node.start + self._num_same, self._salt + self._page)

    def find_closest(self) -> tuple[int, Node | None, "array[int]"]:
        """Returns the cached page that shares the most leading tokens: their number, its node, and its tokens."""
        requested = unpack_int32(self._page)
        best: tuple[int, Node | None, array[int]] = 0, None, requested
        for node, page in islice(self._continuations(), MAX_CANDIDATES):
            tokens = unpack_int32(page)
            if tokens[0] < 0:
                continue  # the key of a page with tokens of a span
            num_same = next(place for place, token in enumerate(tokens) if token != requested[place])
            if best[1] is None or num_same > best[0]:
                best = num_same, node, tokens
        return best

    def find_with_other_salt(self) -> Node | None:
        """Returns a node with this first page under another salt."""
        children = self._tree.root.children.items()
        return next((node for edge, node in islice(children, MAX_CANDIDATES) if edge.endswith(self._page)), None)

    def _continuations(self) -> Iterator[tuple[Node, bytes]]:
        """Yields the cached pages after the match, under the prompt's salt."""
        node, size = self._node, self._tree.page_bytes
        if self._num_same < len(node.pages):
            yield node, node.key[self._num_same * size : (self._num_same + 1) * size]
            return
        for edge, child in node.children.items():
            if len(edge) == len(self._salt) + size and edge.startswith(self._salt):
                yield child, edge[len(self._salt) :]


def _cut(path: list[tuple[Node, int]], num_pages: int) -> list[tuple[Node, int]]:
    """Returns the part of a match that has the first `num_pages`."""
    return [(node, min(num_same, num_pages - node.start)) for node, num_same in path if node.start < num_pages]


def _sources(path: list[tuple[Node, int]], page_tokens: int) -> tuple[CacheSource, ...]:
    """Returns which request computed which tokens; neighbouring nodes of one request are merged."""
    sources: list[CacheSource] = []
    for node, num_same in path:
        start = node.start * page_tokens
        end = start + num_same * page_tokens
        if sources and sources[-1].uid == node.uid:
            start = sources.pop().start
        sources.append(CacheSource(node.uid, start, end))
    return tuple(sources)


def _view(node: Node, page_bytes: int) -> CacheNode:
    parent, top = node.parent, node
    assert parent is not None
    while top.parent is not None and top.parent.parent is not None:
        top = top.parent
    return CacheNode(
        number=node.number,
        parent=parent.number,
        uid=node.uid,
        start=node.start * page_bytes // 4,
        num_tokens=len(node.pages) * page_bytes // 4,
        num_children=len(node.children),
        num_using=node.pins,
        is_salted=len(top.edge) > page_bytes,
    )
