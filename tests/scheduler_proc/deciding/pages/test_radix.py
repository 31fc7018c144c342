"""The radix tree, compared with a dictionary from every cached prefix to its page."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messages.columns import pack_int32
from scheduler_proc.deciding.pages.radix import Node, RadixTree

PAGE_SIZE = 2
PAGES = st.lists(st.integers(0, 2), max_size=6)
"""A sequence of pages: page n stands for PAGE_SIZE tokens n, so few of them branch and share a lot."""
SALTS = st.sampled_from([b"", b"a", b"b\0c"])

Path = tuple[bytes, tuple[int, ...]]


def key_of(pages) -> bytes:
    return pack_int32([token for page in pages for token in [page] * PAGE_SIZE])


@dataclass
class Entry:
    page: int
    pins: int = 0
    used: int = 0


class RadixMachine(RuleBasedStateMachine):
    """`model` maps (salt, pages) to the cached page at its end; every operation is done on both."""

    def __init__(self):
        super().__init__()
        self.tree = RadixTree(PAGE_SIZE)
        self.model: dict[Path, Entry] = {}
        self.pinned: list[tuple[Node, Path]] = []
        self.clock = 0
        self.num_made = 0

    def prefixes(self, path: Path) -> list[Path]:
        return [(path[0], path[1][:length]) for length in range(1, len(path[1]) + 1)]

    def longest(self, salt: bytes, pages) -> list[int]:
        found = []
        for prefix in self.prefixes((salt, tuple(pages))):
            if prefix not in self.model:
                break
            found.append(self.model[prefix].page)
        return found

    def touch(self, path: Path) -> None:
        self.clock += 1
        for prefix in self.prefixes(path):
            self.model[prefix].used = self.clock

    def is_leaf(self, path: Path) -> bool:
        return not any(
            salt == path[0] and len(other) == len(path[1]) + 1 and other[:-1] == path[1] for salt, other in self.model
        )

    @rule(salt=SALTS, pages=PAGES)
    def find(self, salt, pages):
        node, found = self.tree.find(self.tree.root, salt, key_of(pages))
        assert found == self.longest(salt, pages)
        assert node.pages == found[len(found) - len(node.pages) :], "the match does not end at a node's end"

    @rule(salt=SALTS, pages=PAGES, is_pinned=st.booleans())
    def insert(self, salt, pages, is_pinned):
        own = list(range(self.num_made, self.num_made + len(pages)))
        self.num_made += len(pages)
        path = (salt, tuple(pages))
        known = self.longest(salt, pages)
        node, cached = self.tree.insert(self.tree.root, salt, key_of(pages), own)
        assert cached == known + own[len(known) :], "what was cached already must stay"
        for prefix, page in zip(self.prefixes(path), cached, strict=True):
            self.model.setdefault(prefix, Entry(page))
        self.touch(path)
        if is_pinned:
            self.pin(node, path)

    @rule(salt=SALTS, pages=PAGES)
    def find_and_pin(self, salt, pages):
        node, found = self.tree.find(self.tree.root, salt, key_of(pages))
        self.pin(node, (salt, tuple(pages[: len(found)])))

    def pin(self, node: Node, path: Path) -> None:
        self.tree.pin(node)
        self.pinned.append((node, path))
        for prefix in self.prefixes(path):
            self.model[prefix].pins += 1

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def insert_below_a_pinned_node(self, data):
        node, path = data.draw(st.sampled_from(self.pinned))
        pages = data.draw(PAGES)
        whole = (path[0], path[1] + tuple(pages))
        own = list(range(self.num_made, self.num_made + len(pages)))
        self.num_made += len(pages)
        known = self.longest(*whole)[len(path[1]) :]
        _, cached = self.tree.insert(node, path[0], key_of(pages), own)
        assert cached == known + own[len(known) :]
        for prefix, page in zip(self.prefixes(whole)[len(path[1]) :], cached, strict=True):
            self.model.setdefault(prefix, Entry(page))
        self.touch(whole)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        self.unpin_at(data.draw(st.integers(0, len(self.pinned) - 1)))

    @rule(num_pages=st.integers(1, 8))
    def evict(self, num_pages):
        expected = []
        for _ in range(num_pages):
            leaves = [path for path in self.model if not self.model[path].pins and self.is_leaf(path)]
            if not leaves:
                break
            oldest = min(leaves, key=lambda path: self.model[path].used)
            expected.append(self.model.pop(oldest).page)
        assert sorted(self.tree.evict(num_pages)) == sorted(expected)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def forget(self, data):
        index = data.draw(st.integers(0, len(self.pinned) - 1))
        node, path = self.pinned[index]
        self.unpin_at(index)
        gone = []
        while path[1] and path in self.model and not self.model[path].pins and self.is_leaf(path):
            gone.append(self.model.pop(path).page)
            path = (path[0], path[1][:-1])
        forgotten = self.tree.forget(node)
        # The tree forgets whole nodes: it stops where the model does, for a pin or a branch always ends a node.
        assert sorted(forgotten) == sorted(gone)

    def unpin_at(self, index: int) -> None:
        node, path = self.pinned.pop(index)
        self.tree.unpin(node)
        for prefix in self.prefixes(path):
            self.model[prefix].pins -= 1
        self.touch(path)

    @invariant()
    def is_well_formed(self):
        self.tree.check()
        assert self.tree.num_pages == len(self.model)
        assert self.tree.num_evictable == sum(not entry.pins for entry in self.model.values())
        pages = [page for node in self.tree.nodes() for page in node.pages]
        assert sorted(pages) == sorted(entry.page for entry in self.model.values())

    def teardown(self):
        while self.pinned:
            self.unpin_at(0)
        self.tree.evict(len(self.model) + 1)
        assert self.tree.num_pages == self.tree.num_nodes == 0
        assert not self.tree.root.children, "a salt's namespace outlived its pages"
        assert self.tree.root.pins == 0


TestRadix = RadixMachine.TestCase
TestRadix.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_node_is_split_where_two_sequences_part():
    tree = RadixTree(PAGE_SIZE)
    tree.insert(tree.root, b"", key_of([1, 2, 3, 4]), [10, 11, 12, 13])
    node, pages = tree.find(tree.root, b"", key_of([1, 2, 9]))
    assert pages == [10, 11]
    assert node.pages == [10, 11]
    assert tree.num_nodes == 2
    tree.check()


def test_a_pin_on_the_end_of_a_node_keeps_both_halves_after_a_split():
    tree = RadixTree(PAGE_SIZE)
    node, _ = tree.insert(tree.root, b"", key_of([1, 2, 3]), [10, 11, 12])
    tree.pin(node)
    tree.find(tree.root, b"", key_of([1, 9]))
    assert tree.num_nodes == 2
    assert tree.evict(3) == []
    tree.unpin(node)
    assert sorted(tree.evict(3)) == [10, 11, 12]


def test_eviction_takes_no_more_than_asked_from_the_end_of_the_oldest_leaf():
    tree = RadixTree(PAGE_SIZE)
    tree.insert(tree.root, b"", key_of([1, 2, 3]), [10, 11, 12])
    tree.insert(tree.root, b"", key_of([4, 5]), [20, 21])
    assert tree.evict(1) == [12]
    assert tree.find(tree.root, b"", key_of([1, 2, 3]))[1] == [10, 11]
    assert sorted(tree.evict(3)) == [10, 11, 21]
    assert tree.find(tree.root, b"", key_of([4, 5]))[1] == [20]


def test_salts_do_not_see_each_other():
    tree = RadixTree(PAGE_SIZE)
    tree.insert(tree.root, b"a", key_of([1, 2]), [10, 11])
    assert tree.find(tree.root, b"b", key_of([1, 2]))[1] == []
    assert tree.find(tree.root, b"", key_of([1, 2]))[1] == []
    assert tree.find(tree.root, b"a", key_of([1, 2]))[1] == [10, 11]


def test_the_list_of_leaves_does_not_grow_with_use():
    tree = RadixTree(PAGE_SIZE)
    node, _ = tree.insert(tree.root, b"", key_of([1]), [10])
    for _ in range(5_000):
        tree.pin(node)
        tree.unpin(node)
    assert len(tree._leaves) < 200
    assert tree.evict(1) == [10]
